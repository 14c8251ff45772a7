"""Published end of a log: how far other processes read it, in a file of the bucket (docs/format.md, PUBLISHED)."""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from logformat.checksum import crc32c
from logformat.ids import BucketId, Offset, TableId

VERSION = 1
LAYOUT = "<IH2xqI4x16s16sq"
"""Layout of the record, for ``struct``."""
RECORD_BYTES = struct.calcsize(LAYOUT)
VOID = bytes(RECORD_BYTES)
"""The record of a bucket that no process writes."""


class PublishedEnd(NamedTuple):
    """The record.

    Attributes:
        owner: One opening of the bucket for writing.
        offset: Every change before this offset is durable.
    """

    table_id: TableId
    bucket_id: BucketId
    store_id: UUID
    owner: UUID
    offset: Offset


def encode(record: PublishedEnd) -> bytes:
    """The record as bytes."""
    ids = record.table_id, record.bucket_id, record.store_id.bytes, record.owner.bytes
    body = struct.pack(LAYOUT[0] + LAYOUT[2:], VERSION, *ids, record.offset)
    return struct.pack("<I", crc32c(body)) + body


def decode(data: bytes) -> PublishedEnd | None:
    """Decode the record; None if there is none: it is void, damaged, or of another version."""
    if len(data) != RECORD_BYTES or struct.unpack_from("<I", data)[0] != crc32c(memoryview(data)[4:]):
        return None
    _, version, table, bucket, store, owner, offset = struct.unpack(LAYOUT, data)
    if version != VERSION:
        return None
    return PublishedEnd(TableId(table), BucketId(bucket), UUID(bytes=store), UUID(bytes=owner), Offset(offset))
