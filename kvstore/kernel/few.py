"""Makes the change records of a few rows as a record batch, in one call: ``few.c``.

It knows tables of columns of fixed width, flags, strings and bytes. What it does not know, and what it finds wrong, is
left to Python, whose bytes are the same.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from kvstore.kernel.writes import Table
from logformat.log.batch import ALIGNMENT
from logformat.log.few_records import HEADER_BYTES, Template

_DONE = 0
OPERATIONS_MAX = 256
_RESULT_BYTES = 64
_RESULTS = struct.Struct("<QQQq")
_EMPTY = ctypes.c_char * 0
"""Passed for the address of what it is made of."""

MakeRecords = Callable[
    ["ctypes.Array[ctypes.c_uint64]", bytes, int, bytes, int, "ctypes.Array[ctypes.c_char]", int], int
]


class Found(NamedTuple):
    """Change records as a batch.

    Attributes:
        batch: All of it but for its header and its checksum.
        records: Number of records.
        digest, added_rows: What the operations add to the digest (modulo 2^64) and to the number of rows.
    """

    batch: memoryview
    records: int
    digest: int
    added_rows: int


class FewRecords:
    """Makes batches of a table.

    Args:
        make: The function of the library; see :func:`kvstore.kernel.library.record_maker`.
        table: How its rows lie in memory.
        template: Of the table's messages.
        preimages, inserts: See :func:`kvstore.bucket.merge.cdc.records_of`.
    """

    def __init__(self, make: MakeRecords, table: Table, template: Template, *, preimages: bool, inserts: bool) -> None:
        self._make = make
        self._kept = table, (head := ctypes.create_string_buffer(template.head, len(template.head)))
        numbers = (
            *(table.address, table.key_address, table.key_columns, ctypes.addressof(head), len(template.head)),
            *(template.body_bytes_at, template.count_at, template.nodes_at, template.buffers_at, preimages, inserts),
        )
        self._table = (ctypes.c_uint64 * len(numbers))(*numbers)
        columns = len(table.schema)
        # Header, alignments, and what buffers are padded with; for each record its type, offsets and bits.
        self._room = _RESULT_BYTES + HEADER_BYTES + 2 * ALIGNMENT + len(template.head) + 32 * columns
        self._room_of_operation = 2 * (1 + 5 * columns)

    def make(self, keys: Sequence[bytes], values: Sequence[bytes | None], old: Sequence[bytes | None]) -> Found | None:
        """The records of operations; None if Python has to make them.

        Args:
            keys: Different ones.
            values: Their new values; None for deletes.
            old: Their old values; None for those that have none.
        """
        count = len(keys)
        if count > OPERATIONS_MAX:
            return None
        pieces = [each or b"" for each in chain.from_iterable(zip(keys, values, old, strict=True))]
        data = b"".join(pieces)
        size = len(data)
        # At most two records have the bytes of a key.
        room = self._room + count * self._room_of_operation + 2 * size
        target = bytearray(room)
        sizes = _sizes(3 * count).pack(*map(len, pieces))
        if self._make(self._table, data, size, sizes, count, _EMPTY.from_buffer(target), room) != _DONE:
            return None
        batch_bytes, records, digest, added = _RESULTS.unpack_from(target)
        return Found(memoryview(target)[_RESULT_BYTES : _RESULT_BYTES + batch_bytes], records, digest, added)


@lru_cache(maxsize=512)
def _sizes(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")
