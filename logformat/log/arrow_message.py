"""One Arrow record batch as an encapsulated IPC message, without its schema: the payload of a log batch.

The catalog has the schema, by schema id. The sizes that a message states are checked against limits before Arrow
allocates memory for them: a few kilobytes of zstd may claim gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.ipc

from logformat.errors import CorruptBatch

Compression = Literal["lz4", "zstd"] | None

RAW_BYTES_MAX = 1 << 30
"""Limit of the uncompressed bytes of one batch's columns."""

_HEAD = struct.Struct("<Ii")
_I32, _U32, _U16 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<H")
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_OPTIONS = {compression: pa.ipc.IpcWriteOptions(compression=compression) for compression in (None, "lz4", "zstd")}


def encode(rows: pa.RecordBatch, compression: Compression = None) -> pa.Buffer:
    """The message for one record batch."""
    if compression is None:
        return rows.serialize()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS[compression]) as stream:
        stream.write_batch(rows)
        end = sink.tell()
    return sink.getvalue()[rows.schema.serialize().size : end]


def decode(
    message: memoryview,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    *,
    validate: bool = False,
    others: bool = False,
) -> pa.RecordBatch:
    """The record batch of a message whose checksum was verified.

    Args:
        message: Exactly the message; uncompressed columns are views of it.
        schema: Schema that the message was written with.
        columns: Columns to return, in this order; None for all. Others are not decompressed.
        validate: Also check every offset and every string; needed for bytes that another program may have written.
        others: Return all columns of the schema, in its order, if they need not be decompressed: they are free then.

    Raises:
        CorruptBatch: The bytes are not such a message, or it is too large.
    """
    try:
        if _is_compressed(message) and columns is not None:
            wanted = sorted(schema.get_field_index(name) for name in columns)
            stream = b"".join((schema.serialize(), message))
            with pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=wanted)) as reader:
                rows = reader.read_next_batch()
        else:
            rows = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
            columns = None if others else columns
        if columns is not None:
            rows = rows.select(columns)
        if validate:
            rows.validate(full=True)
    except (struct.error, IndexError) as error:
        raise CorruptBatch("The Arrow message of a batch can't be read; run `kvstore check`.") from error
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise CorruptBatch("The rows of a batch can't be read; run `kvstore check`.", reason=str(error)) from error
    return rows


def _is_compressed(message: memoryview) -> bool:
    """Whether a message's buffers are compressed; raises if they would be too large."""
    # Reads the flatbuffers by hand, as far as the buffer list: message.header.buffers.
    continuation, metadata_bytes = _HEAD.unpack_from(message)
    metadata = message[_HEAD.size : _HEAD.size + metadata_bytes]
    if continuation != _CONTINUATION or metadata_bytes < 8 or metadata_bytes % 8:
        raise CorruptBatch("The Arrow message of a batch has no head; run `kvstore check`.")
    table = FlatTable(metadata, follow(metadata, 0))
    if metadata[table.field(1)] != _RECORD_BATCH:
        raise CorruptBatch("The Arrow message of a batch is not a record batch; run `kvstore check`.")
    if table.field(4):
        # Arrow 0.17 stored the codec there. Arrow still reads it, and then the sizes would go unchecked.
        raise CorruptBatch("The Arrow message of a batch has metadata of its own; run `kvstore check`.")
    batch = FlatTable(metadata, follow(metadata, table.field(2)))
    if not batch.field(3):
        return False
    body = message[_HEAD.size + metadata_bytes :]
    buffers = follow(metadata, batch.field(2))
    (count,) = struct.unpack_from("<I", metadata, buffers)
    raw = 0
    for position, length in struct.iter_unpack("<qq", metadata[buffers + 4 : buffers + 4 + 16 * count]):
        if length:  # a compressed buffer begins with its size; -1 means that it is stored uncompressed
            (promised,) = struct.unpack_from("<q", body, position)
            if length < 0 or promised < -1:
                raise CorruptBatch("A buffer of a batch has a negative size; run `kvstore check`.")
            raw += length if promised < 0 else promised
    if raw > RAW_BYTES_MAX:
        raise CorruptBatch("A batch claims more bytes than the limit; run `kvstore check`.", raw_bytes=raw)
    return True


class FlatTable:
    """A flatbuffers table: fields by number, found through its vtable.

    Attributes:
        vtable: Position of the vtable.
    """

    def __init__(self, data: memoryview, position: int) -> None:
        self._data, self._position = data, position
        self.vtable = position - _I32.unpack_from(data, position)[0]
        (self._size,) = _U16.unpack_from(data, self.vtable)

    def field(self, number: int) -> int:
        """Position of the field; 0 if it is absent."""
        slot = 4 + 2 * number
        if slot >= self._size:
            return 0
        (position,) = _U16.unpack_from(self._data, self.vtable + slot)
        return self._position + position if position else 0


def follow(data: memoryview, position: int) -> int:
    """The position that a flatbuffers offset leads to."""
    return position + int(_U32.unpack_from(data, position)[0])
