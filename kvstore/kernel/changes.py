"""Makes the change records of a batch as a record batch, in one call: ``changes.c``.

It knows tables of columns of fixed width, flags, strings and bytes. What it does not know, and what it finds wrong, is
left to Python, whose bytes are the same.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

import numpy as np

from kvstore.kernel.library import RecordMaker
from kvstore.kernel.writes import FEW_MAX, Encoded, Few, Table, address_of, numbers_of
from logformat.binary_column import WORD, BinaryColumn
from logformat.log.arrow_message import RAW_BYTES_MAX
from logformat.log.batch import ALIGNMENT
from logformat.log.few_records import HEADER_BYTES, Template

_DONE = 0
_RESULT_BYTES = 64
_RESULTS = struct.Struct("<QQQq")
_BATCH = struct.Struct("<18Q")
_SCRATCH_OF_OPERATION, _SCRATCH_OF_COLUMN = 96, 64
"""What the call needs, in bytes; ``changes.c`` has the layouts."""
_FEW_WORDS = 5
"""Numbers for each operation that ``kv_few_changes`` lists; and two more."""
_ROOM_MAX = RAW_BYTES_MAX
"""A batch that is larger is refused, and Python says so."""


class Stored(NamedTuple):
    """What is stored under keys.

    Attributes:
        lengths: int64, of each key the bytes of its value; 0 if it has none.
        values: Those that are there, in order, one after the other.
    """

    lengths: np.ndarray
    values: BinaryColumn


class Made(NamedTuple):
    """Change records as a batch.

    Attributes:
        batch: All of it; but not its header and its checksum if :meth:`ChangeMaker.make` has made it.
        records: Number of records.
        digest, added_rows: What the operations add to the digest (modulo 2^64) and to the number of rows.
        final: For each key the operation that leaves its row, or -1 if it stays as it is.
    """

    batch: memoryview
    records: int
    digest: int
    added_rows: int
    final: np.ndarray | tuple[int, ...]


class ChangeMaker:
    """Makes batches of a table.

    Args:
        maker: The functions of the library; see :func:`kvstore.kernel.library.record_maker`.
        table: How its rows lie in memory.
        template: Template of the table's messages.
        preimages, inserts: See :func:`kvstore.bucket.merge.cdc.records_of`.
        keeps_first: Whether an upsert of a key that is there does nothing.
    """

    def __init__(
        self,
        maker: RecordMaker,
        table: Table,
        template: Template,
        *,
        preimages: bool,
        inserts: bool,
        keeps_first: bool = False,
    ) -> None:
        self._make, self._make_few = maker
        self._kept = table, (head := ctypes.create_string_buffer(template.head, len(template.head)))
        numbers = (
            *(table.address, table.key_address, table.key_columns, ctypes.addressof(head), len(template.head)),
            *(template.body_bytes_at, template.count_at, template.nodes_at, template.buffers_at),
            *(preimages, inserts, keeps_first),
        )
        self._plan_numbers = (ctypes.c_uint64 * len(numbers))(*numbers)
        self._plan = ctypes.addressof(self._plan_numbers)
        self._plan_at = ctypes.c_void_p(self._plan)  # ctypes passes it in half the time
        columns = len(table.schema)
        # Header, alignments, and what buffers are padded with; for each record its type, offsets and bits.
        self._room = _RESULT_BYTES + HEADER_BYTES + 2 * ALIGNMENT + len(template.head) + 32 * columns
        self._room_of_operation = 2 * (1 + 5 * columns)
        self._scratch = _SCRATCH_OF_COLUMN * columns

    def make_few(self, rows: Few, old: list[bytes], header: bytes, *, skips: bool = False) -> Made | None:
        """Like :meth:`make`, where numpy's calls would take longer than the rows.

        Args:
            old: What is stored under each key; empty for nothing.
            header: Of the batch; see :func:`logformat.log.few_records.packed`.
        """
        names, values, _ = rows
        count, strings = len(names), [*names, *values, *old]
        sizes = list(map(len, strings))
        memory = b"".join([header, numbers_of(3 * count).pack(*sizes), *strings])
        room = self._room + count * self._room_of_operation + 2 * sum(sizes)
        room += -room % WORD
        if room > _ROOM_MAX:
            return None
        # These bytes are new and known here only, so the kernel may fill them.
        target = bytes(room + self._scratch + (_FEW_WORDS * count + 2) * WORD + count * _SCRATCH_OF_OPERATION)
        if self._make_few(self._plan_at, memory, count, skips, target, room) != _DONE:
            return None
        batch_bytes, records, digest, added = _RESULTS.unpack_from(target)
        batch = memoryview(target[_RESULT_BYTES : _RESULT_BYTES + batch_bytes])
        return Made(batch, records, digest, added, numbers_of(count).unpack_from(target, room))

    def make(self, rows: Encoded, stored: Stored | list[bytes], *, skips: bool = False) -> Made | None:
        """The records of operations; None if Python has to make them.

        Args:
            stored: What is stored under their keys; of a few, a list takes less time, empty where there is nothing.
            skips: Whether updates that change nothing are left out.
        """
        keys, values = rows.keys, rows.values
        count, ends = len(values), (int(keys.offsets[-1]), int(values.offsets[-1]))
        # At most two records have the bytes of a key, and of what is stored.
        key_bytes = 2 * (int((keys.lengths * (rows.lasts - rows.starts + 1)).sum()) if len(keys) < count else ends[0])
        numbers = rows.order, rows.starts, rows.lasts
        addresses = tuple(map(address_of, (keys.flat, keys.offsets, values.flat, values.offsets, *numbers)))
        if isinstance(stored, list):
            sizes = numbers_of(len(stored)).pack(*map(len, stored))
            memory = b"".join([sizes, *stored])
            lengths = address_of(memory)
            old, old_bytes = lengths + len(sizes), len(memory) - len(sizes)
        else:
            flat, offsets = stored.values.flat, stored.values.offsets
            start, end = int(offsets[0]), int(offsets[-1])
            lengths, old, old_bytes = address_of(stored.lengths), address_of(flat) + start, end - start
        return self._called(
            (count, len(keys), skips, *ends, old_bytes),
            (*addresses[:4], old, lengths, *addresses[4:]),
            key_bytes + 2 * (ends[1] + old_bytes),
        )

    def _called(self, numbers: tuple[int, ...], addresses: tuple[int, ...], bytes_max: int) -> Made | None:
        count, keys, *_ = numbers
        room = min(self._room + count * self._room_of_operation + bytes_max, _ROOM_MAX)
        scratch_bytes = count * _SCRATCH_OF_OPERATION + self._scratch
        target, final = np.zeros(room, np.uint8), np.empty(keys + scratch_bytes // WORD, np.int64)
        at = address_of(final)
        batch = _BATCH.pack(*numbers, *addresses, at, at + WORD * keys, scratch_bytes)
        if self._make(count <= FEW_MAX, self._plan, batch, address_of(target), room) != _DONE:
            return None
        made: memoryview = target.data
        batch_bytes, records, digest, added = _RESULTS.unpack_from(made)
        return Made(made[_RESULT_BYTES : _RESULT_BYTES + batch_bytes], records, digest, added, final[:keys])
