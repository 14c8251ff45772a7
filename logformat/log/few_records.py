"""Encodes batches of a few records without Arrow or numpy, from a template of the message that Arrow makes.

The metadata of an Arrow message has the same bytes for all batches of a schema but for the number of rows, the nulls of
each column and the places of the buffers: so Arrow makes them once, and these are filled in. The bytes are those of
:func:`logformat.log.batch.encode_batch`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from logformat.checksum import crc32c
from logformat.log.arrow_message import FlatTable, follow
from logformat.log.batch import ALIGNMENT, LAYOUTS, LOG_OVERHEAD, MAGIC, BatchHeader
from logformat.rows.few.few_rows import Columns

_PREFIX_BYTES = 8
"""Continuation mark and length before the metadata."""
_BUFFER_ALIGNMENT = 8
_HEADER = struct.Struct(LAYOUTS[MAGIC].format)
HEADER_BYTES = _HEADER.size
_CRC = slice(16, 20)
_NUMBER = struct.Struct("<q")
_ZEROS = bytes(_BUFFER_ALIGNMENT)


class Template(NamedTuple):
    """An Arrow message without its body.

    Attributes:
        head: Its bytes.
        body_bytes_at, count_at: Where in them the size of the body and the number of rows are, int64.
        nodes_at: Where for each column rows and nulls are, int64.
        buffers_at: Where for each buffer position in the body and size are, int64.
    """

    head: bytes
    body_bytes_at: int
    count_at: int
    nodes_at: int
    buffers_at: int


class FewRecordsEncoder:
    """Encoder of batches in one schema.

    Args:
        schema: Of flat columns.

    Attributes:
        template: Of the schema's messages.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        sample = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        message = sample.serialize().to_pybytes()
        (metadata_bytes,) = struct.unpack_from("<i", message, 4)
        metadata = memoryview(message)[_PREFIX_BYTES : _PREFIX_BYTES + metadata_bytes]
        top = FlatTable(metadata, follow(metadata, 0))
        batch = FlatTable(metadata, follow(metadata, top.field(2)))
        self.template = Template(
            message[: _PREFIX_BYTES + metadata_bytes],
            _PREFIX_BYTES + top.field(3),
            _PREFIX_BYTES + batch.field(0),
            _PREFIX_BYTES + follow(metadata, batch.field(1)) + 4,
            _PREFIX_BYTES + follow(metadata, batch.field(2)) + 4,
        )
        kinds = [field.type for field in schema]
        self._flags = [nth for nth, kind in enumerate(kinds) if pa.types.is_boolean(kind)]
        self._texts = [nth for nth, kind in enumerate(kinds) if pa.types.is_string(kind) or pa.types.is_binary(kind)]
        # Buffers of a column: which rows are there, where each text ends, the data.
        *self._validity_at, buffers = accumulate(
            [3 if nth in self._texts else 2 for nth in range(len(kinds))], initial=0
        )
        self._data_at = [number - 1 for number in (*self._validity_at[1:], buffers)]
        self._no_parts = [b""] * buffers
        self._nodes = struct.Struct(f"<{2 * len(schema)}q")
        self._buffers = struct.Struct(f"<{2 * buffers}q")
        self._head = lru_cache(maxsize=512)(self._filled)  # most batches have buffers of sizes that were there before

    def rows(self, count: int, columns: Columns) -> pa.RecordBatch:
        """The rows as Arrow data; there is at least one."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.message(count, columns)), self._schema)

    def message(self, count: int, columns: Columns) -> bytes:
        """The Arrow message of ``count`` rows, at least one."""
        cells, nulls = columns
        parts = self._no_parts.copy()
        for number, these in zip(self._data_at, cells, strict=True):
            parts[number] = b"".join(these)
        for nth in self._texts:
            parts[self._data_at[nth] - 1] = _ends(count + 1).pack(0, *accumulate(map(len, cells[nth])))
        bitmap_bytes = (count + 7) // 8
        for nth in self._flags:
            bits = sum([1 << row for row, cell in enumerate(cells[nth]) if cell != b"\0"])
            parts[self._data_at[nth]] = bits.to_bytes(bitmap_bytes, "little")
        if any(nulls):
            for number, bits in zip(self._validity_at, nulls, strict=True):
                parts[number] = ((1 << count) - 1 ^ bits).to_bytes(bitmap_bytes, "little") if bits else b""
        head, paddings = self._head(count, nulls, tuple(map(len, parts)))
        return b"".join([head, *chain.from_iterable(zip(parts, paddings, strict=True))])

    def _filled(self, count: int, nulls: Sequence[int], sizes: Sequence[int]) -> tuple[bytes, list[bytes]]:
        """The metadata of a message, and the bytes after each of its buffers.

        Args:
            nulls: For each column its nulls as bits.
            sizes: Of the buffers.
        """
        nodes = [number for bits in nulls for number in (count, bits.bit_count())]
        buffers: list[int] = []
        end = 0
        for size in sizes:
            buffers += end, size
            end += size + (-size & _BUFFER_ALIGNMENT - 1)
        template = self.template
        head = bytearray(template.head)
        _NUMBER.pack_into(head, template.body_bytes_at, end)
        _NUMBER.pack_into(head, template.count_at, count)
        self._nodes.pack_into(head, template.nodes_at, *nodes)
        self._buffers.pack_into(head, template.buffers_at, *buffers)
        return bytes(head), [_ZEROS[: -size & _BUFFER_ALIGNMENT - 1] for size in sizes]

    def batch(self, header: BatchHeader, change_types: bytes, columns: Columns) -> memoryview:
        """One whole batch, uncompressed; its count of records is that of the change types.

        Args:
            header: Size, checksum and positions are computed.
        """
        count = len(change_types)
        message = self.message(count, columns) if count else b""
        batch, start = _begun(header, change_types, len(message))
        batch[start : start + len(message)] = message
        return sealed(memoryview(batch))

    def decoded(self, batch: memoryview, count: int) -> tuple[np.ndarray, pa.RecordBatch]:
        """Change types (uint8) and rows of an uncompressed batch of so many records, at least one; not copied."""
        change_types = np.frombuffer(batch, np.uint8, count, _HEADER.size)
        message = pa.py_buffer(batch[_start_of_message(count) :])
        return change_types, pa.ipc.read_record_batch(message, self._schema)


def finished(batch: memoryview, header: BatchHeader, count: int) -> memoryview:
    """A whole batch of so many records that lacks only its header."""
    _put_header(batch, header, len(batch), count)
    return sealed(batch)


def packed(header: BatchHeader) -> bytes:
    """A header whose size, checksum and positions are to be filled in."""
    return _HEADER.pack(
        *(header.base_offset, 0, MAGIC, header.attributes, header.schema_id, 0, 0, header.commit_timestamp),
        *(header.writer_id, header.batch_sequence, header.writer_epoch, 0, header.leader_epoch, header.durable_end),
        *(header.table_id, header.bucket_id, 0, 0, header.uncounted_ms),
    )


def sealed(batch: memoryview) -> memoryview:
    """A whole batch with its checksum."""
    batch[_CRC] = crc32c(batch[_CRC.stop :], crc32c(batch[: _CRC.start])).to_bytes(4, "little")
    return batch


def _begun(header: BatchHeader, change_types: bytes, message_bytes: int) -> tuple[bytearray, int]:
    """A batch without message and checksum, and where the message begins."""
    count = len(change_types)
    start = _start_of_message(count)
    size = start + message_bytes
    batch = bytearray(size + -size % ALIGNMENT)
    _put_header(batch, header, len(batch), count)
    batch[_HEADER.size : _HEADER.size + count] = change_types
    return batch, start


def _start_of_message(count: int) -> int:
    """Where in a batch of so many records, at least one, their message begins."""
    position = _HEADER.size + count
    return position + -position % ALIGNMENT


def _put_header(batch: bytearray | memoryview, header: BatchHeader, size: int, count: int) -> None:
    _HEADER.pack_into(
        *(batch, 0, header.base_offset, size - LOG_OVERHEAD, MAGIC, header.attributes, header.schema_id, 0),
        *(max(count - 1, 0), header.commit_timestamp, header.writer_id, header.batch_sequence),
        *(header.writer_epoch, count, header.leader_epoch, header.durable_end, header.table_id),
        *(header.bucket_id, 0, _start_of_message(count) if count else 0, header.uncounted_ms),
    )


@lru_cache(maxsize=256)
def _ends(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}i")
