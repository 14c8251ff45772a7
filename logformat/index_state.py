"""How far an index is: one record, written in the same transaction as the rows it speaks of (docs/format.md, Index)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion
from logformat.ids import BucketId, Offset, Position, TableId

VERSION = 1
_FORMAT = "<IHHqIIqqqqqQqQ"


@dataclass(frozen=True, slots=True)
class IndexState:
    """What the index holds.

    Attributes:
        applied_offset: Every change before this offset is in the index, and none from it on.
        synced_base: Base offset of the segment in which the log was known to be durable,
        synced_position: up to this byte,
        synced_offset: and up to this offset, exclusive.
        row_count: Rows; for a log table, records appended.
        digest: Sum modulo 2^64 of the hashes of all rows.
        last_timestamp: Commit timestamp (ms) of the last batch applied.
        next_count: Which new row the next one is that gets an id in an auto-increment column, from 1.
    """

    table_id: TableId
    bucket_id: BucketId
    applied_offset: Offset = Offset(0)
    synced_base: Offset = Offset(0)
    synced_position: Position = Position(0)
    synced_offset: Offset = Offset(0)
    row_count: int = 0
    digest: int = 0
    last_timestamp: int = 0
    next_count: int = 1


def encode(state: IndexState) -> bytes:
    """The record, 88 bytes."""
    body = struct.pack(
        _FORMAT[0] + _FORMAT[2:],
        *(VERSION, 0, state.table_id, state.bucket_id, 0, state.applied_offset, state.synced_base),
        *(state.synced_position, state.synced_offset, state.row_count, state.digest, state.last_timestamp),
        state.next_count,
    )
    return struct.pack("<I", crc32c(body)) + body


def decode(data: bytes) -> IndexState:
    """What :func:`encode` wrote.

    Raises:
        CorruptData: It is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    if len(data) != struct.calcsize(_FORMAT) or struct.unpack_from("<I", data)[0] != crc32c(memoryview(data)[4:]):
        raise CorruptData("The state of an index fails its checksum; run `kvstore check`.")
    _, version, _, table, bucket, _, applied, base, position, synced, rows, digest, timestamp, next_count = (
        struct.unpack(_FORMAT, data)
    )
    if version != VERSION:
        raise UnsupportedVersion("This index was written by a newer kvstore; upgrade.", version=version)
    return IndexState(
        TableId(table),
        BucketId(bucket),
        applied_offset=Offset(applied),
        synced_base=Offset(base),
        synced_position=Position(position),
        synced_offset=Offset(synced),
        row_count=rows,
        digest=digest,
        last_timestamp=timestamp,
        next_count=next_count,
    )
