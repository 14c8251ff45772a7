"""Head of a log segment file (docs/format.md, Segment): identifies its log, and the end of the segment before it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from uuid import UUID

from logformat.checksum import crc32c
from logformat.errors import CorruptBatch, UnsupportedVersion
from logformat.ids import BucketId, Offset, Position, TableId

MAGIC = b"KVLG"
NO_OFFSET = Offset(-1)
START = Position(0)
VERSION = 1
HEAD = "<4sHHq16siIqqII"
"""Layout of the head of a segment, for ``struct``."""
HEAD_BYTES = struct.calcsize(HEAD)
assert HEAD_BYTES == 64  # so that the first batch is aligned
SEGMENT_BYTES_MAX = (1 << 32) - 1
"""Positions are unsigned integers of 32 bits; a larger file is no segment."""
_CRC_POSITION = 60


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """First 64 bytes of a segment.

    Attributes:
        base_offset: Offset of the segment's first batch.
        previous_base: Base offset of the segment before it, -1 for the first of a log.
        previous_end: Position at which that segment's batches end. Bytes after it were abandoned: their fsync failed.
    """

    store_id: UUID
    table_id: TableId
    bucket_id: BucketId
    base_offset: Offset
    previous_base: Offset = NO_OFFSET
    previous_end: Position = START


def encode_head(head: SegmentHead) -> bytes:
    """Encode the 64 bytes."""
    body = struct.pack(
        HEAD[:-1],
        *(MAGIC, VERSION, 0, head.table_id, head.store_id.bytes, head.bucket_id, 0),
        *(head.base_offset, head.previous_base, head.previous_end),
    )
    return body + struct.pack("<I", crc32c(body))


def decode_head(data: bytes | memoryview) -> SegmentHead:
    """Decode the head at the start of a segment.

    Raises:
        CorruptBatch: The head is cut short or fails its checksum.
        UnsupportedVersion: A newer version wrote it.
    """
    if len(data) < HEAD_BYTES or data[:4] != MAGIC:
        raise CorruptBatch("A log segment has no head; run `kvstore check`.", bytes=len(data))
    _, version, _, table, store, bucket, _, base, previous, end, crc = struct.unpack_from(HEAD, data)
    if crc32c(memoryview(data)[:_CRC_POSITION]) != crc:
        raise CorruptBatch("The head of a log segment fails its checksum; run `kvstore check`.")
    if version != VERSION:
        raise UnsupportedVersion("This log was written by a newer version; upgrade kvstore.", version=version)
    return SegmentHead(
        UUID(bytes=store), TableId(table), BucketId(bucket), Offset(base), Offset(previous), Position(end)
    )
