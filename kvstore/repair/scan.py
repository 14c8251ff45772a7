"""Finds all valid batches in the segments of a log, also after damage. Nothing is written.

* A batch counts only in its own segment: from the segment's base offset on, before the base offset of the next one.
  Batches after that were abandoned when an fsync failed, and have been rewritten since.
* After damage, the scan continues at the next position where a complete batch of this log begins.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.disk.files import open_regular
from kvstore.errors import CorruptBatch
from kvstore.log.segments import LogIdentity, places_of_batches
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log.batch import ALIGNMENT, BatchHeader, decode_header, verify
from logformat.log.segment import HEAD_BYTES, SEGMENT_BYTES_MAX, SegmentHead, decode_head


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A valid batch and its position."""

    header: BatchHeader
    path: Path
    position: Position

    @property
    def end(self) -> Position:
        """Position of the next batch."""
        return Position(self.position + self.header.size)


@dataclass
class ScannedSegment:
    """One segment's file.

    Attributes:
        base: The base offset in its name.
        head_base: The base offset in its head; the same, unless the file has the name of another segment.
        identity: The log that it should belong to.
        head: None if it is damaged, or of another log.
        size: Bytes of the file.
        problem: What is wrong with the head or the size; empty if nothing is.
        offsets, checksums, positions: Base offset, checksum and position of each valid batch, in the order of the file.
        data: The file as it was scanned; None if all of it is valid, so that nothing replaces it.
    """

    path: Path
    base: Offset
    head_base: Offset
    identity: LogIdentity
    head: SegmentHead | None = None
    size: int = 0
    problem: str = ""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    checksums: array[int] = field(default_factory=lambda: array("I"))
    positions: array[int] = field(default_factory=lambda: array("I"))
    data: memoryview | None = None

    def batches(self) -> Iterator[PlacedBatch]:
        """Valid batches in the order of the file, read one by one: a log may have more than fit into memory."""
        data = mapped(self.path) if self.data is None else self.data
        for position in self.positions:
            yield PlacedBatch(decode_header(data[position:]), self.path, Position(position))

    def chain(self) -> Iterator[PlacedBatch]:
        """Batches from the start of the segment on, each directly after the one before, in positions and offsets."""
        position, offset = HEAD_BYTES, self.base
        for batch in self.batches() if self.offsets else ():
            if (batch.position, batch.header.base_offset) != (position, offset):
                return
            yield batch
            position, offset = batch.end, batch.header.next_offset


def scan_segment(log: Path, base: Offset, identity: LogIdentity) -> ScannedSegment:
    """Scan one segment.

    Raises:
        UnsupportedVersion: A newer version wrote it.
        OSError: The file can't be read.
    """
    path = paths.segment_file(log, base)
    segment = ScannedSegment(path, base, base, identity)
    descriptor = open_regular(path)
    try:
        segment.size = os.fstat(descriptor).st_size
        _scan(segment, _mapped(descriptor), descriptor)
    finally:
        os.close(descriptor)
    return segment


def _scan(segment: ScannedSegment, data: memoryview, descriptor: int) -> None:
    base, identity = segment.base, segment.identity
    try:
        head = decode_head(data[:HEAD_BYTES])
        if LogIdentity(head.store_id, head.table_id, head.bucket_id) != identity:
            segment.problem = "it was of another log"
            return
        if head.base_offset == base:
            segment.head = head
        else:
            segment.head_base = head.base_offset
            segment.problem = f"it was the segment at offset {head.base_offset}"
    except CorruptBatch:
        segment.problem = "its head was damaged"
    if segment.size > SEGMENT_BYTES_MAX:
        segment.problem = f"it had {segment.size} bytes, and a segment has {SEGMENT_BYTES_MAX} at most"
    position, expected, follows = HEAD_BYTES, base, True
    for start, header in _valid_batches(data, descriptor, identity):
        segment.positions.append(start)
        segment.offsets.append(header.base_offset)
        segment.checksums.append(header.crc)
        follows = follows and header.base_offset == expected
        position, expected = position + header.size, header.next_offset
    if segment.problem or position != segment.size or not follows:
        segment.data = data


def mapped(path: Path) -> memoryview:
    """The bytes of a segment's file, up to the maximum size of a segment.

    Raises:
        OSError: The file can't be read.
    """
    descriptor = open_regular(path)
    try:
        return _mapped(descriptor)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int) -> memoryview:
    size = min(os.fstat(descriptor).st_size, SEGMENT_BYTES_MAX)
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")


def _valid_batches(data: memoryview, descriptor: int, identity: LogIdentity) -> Iterator[tuple[Position, BatchHeader]]:
    position = HEAD_BYTES
    while position < len(data):
        header = _batch_at(data, position, identity)
        if header is None:
            following = _next_batch(data, descriptor, position, identity)
            if following is None:
                return
            position, header = following
        yield Position(position), header
        position += header.size


def _next_batch(
    data: memoryview, descriptor: int, position: int, identity: LogIdentity
) -> tuple[int, BatchHeader] | None:
    """The first valid batch after a position that has none; batches begin at multiples of their alignment."""
    for at in places_of_batches(descriptor, (position // ALIGNMENT + 1) * ALIGNMENT, len(data)):
        header = _batch_at(data, at, identity)
        if header is not None:
            return at, header
    return None


def _batch_at(data: memoryview, position: int, identity: LogIdentity) -> BatchHeader | None:
    rest = data[position:]
    try:
        header = decode_header(rest)
        if (header.table_id, header.bucket_id) != (identity.table_id, identity.bucket_id):
            return None
        verify(header, rest)
    except CorruptBatch:
        return None
    return header
