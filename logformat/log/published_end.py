"""Published end of a log: how far other processes read it, in a file of the bucket (docs/format.md, PUBLISHED)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from logformat.checksum import crc32c
from logformat.ids import BucketId, Offset, TableId

VERSION = 1
LAYOUT = "<IH2xqI4x16s16sq"
"""Layout of the record, for ``struct``."""
RECORD_BYTES = struct.calcsize(LAYOUT)
_SUM, _OFFSET = struct.Struct("<I"), struct.Struct("<q")
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
    return encoder(record)(record.offset)


def encoder(record: PublishedEnd) -> Callable[[Offset], bytes]:
    """What encodes the record with other offsets."""
    ids = record.table_id, record.bucket_id, record.store_id.bytes, record.owner.bytes
    head = struct.pack(LAYOUT[0] + LAYOUT[2:-1], VERSION, *ids)
    sum_of_head = crc32c(head)

    def encoded(offset: Offset) -> bytes:
        end = _OFFSET.pack(offset)
        return _SUM.pack(crc32c(end, sum_of_head)) + head + end

    return encoded


def decode(data: bytes) -> PublishedEnd | None:
    """Decode the record; None if there is none: it is void, damaged, or of another version."""
    if len(data) != RECORD_BYTES or struct.unpack_from("<I", data)[0] != crc32c(memoryview(data)[4:]):
        return None
    _, version, table, bucket, store, owner, offset = struct.unpack(LAYOUT, data)
    if version != VERSION:
        return None
    return PublishedEnd(TableId(table), BucketId(bucket), UUID(bytes=store), UUID(bytes=owner), Offset(offset))
