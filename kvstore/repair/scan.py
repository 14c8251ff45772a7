"""Everything in the segments of a log that is right, whatever lies between. Nothing is written.

* A batch counts where its segment says it belongs: from the segment's base offset on, before that of the next one.
  What stands behind was given up when an fsync failed, and was written anew since.
* What is behind damage is found again at the next place where a whole batch of this log begins.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.errors import CorruptBatch
from kvstore.files import open_regular
from kvstore.log.segments import LogIdentity, places_of_batches
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log.batch import ALIGNMENT, BatchHeader, decode_header, verify
from logformat.log.segment import HEAD_BYTES, SEGMENT_BYTES_MAX, SegmentHead, decode_head


@dataclass(frozen=True, slots=True)
class Place:
    """A batch that is right, and where it stands."""

    header: BatchHeader
    path: Path
    position: Position

    @property
    def end(self) -> Position:
        """Where the next one stands."""
        return Position(self.position + self.header.size)


@dataclass
class ScannedSegment:
    """One segment's file.

    Attributes:
        base: The offset in its name.
        identity: Whose log it is to be of.
        of: The base offset of the segment it is: the same, unless its head says otherwise.
        head: None if it is damaged, or of another log.
        size: Bytes of the file.
        wrong: What is wrong with the head or the size; empty if nothing is.
        offsets, sums, positions: Of all batches that are right: base offset, checksum and place, in the order they
            stand there.
        data: The file as it is now; None if all of it is right, and nobody puts another in its place.
    """

    path: Path
    base: Offset
    of: Offset
    identity: LogIdentity
    head: SegmentHead | None = None
    size: int = 0
    wrong: str = ""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    sums: array[int] = field(default_factory=lambda: array("I"))
    positions: array[int] = field(default_factory=lambda: array("I"))
    data: memoryview | None = None

    def batches(self) -> Iterator[Place]:
        """Batches that are right, in the order they stand there; a log may have more than fit into memory."""
        data = mapped(self.path) if self.data is None else self.data
        for position in self.positions:
            yield Place(decode_header(data[position:]), self.path, Position(position))

    def chain(self) -> Iterator[Place]:
        """Batches from the beginning on, each right behind the one before in file and offsets."""
        position, offset = HEAD_BYTES, self.base
        for place in self.batches() if self.offsets else ():
            if (place.position, place.header.base_offset) != (position, offset):
                return
            yield place
            position, offset = place.end, place.header.next_offset


def scan_segment(log: Path, base: Offset, identity: LogIdentity) -> ScannedSegment:
    """Read one segment.

    Raises:
        UnsupportedVersion: A newer version wrote it.
        OSError: It can't be read.
    """
    path = paths.segment_file(log, base)
    found = ScannedSegment(path, base, base, identity)
    descriptor = open_regular(path)
    try:
        found.size = os.fstat(descriptor).st_size
        _scan(found, _mapped(descriptor), descriptor)
    finally:
        os.close(descriptor)
    return found


def _scan(found: ScannedSegment, data: memoryview, descriptor: int) -> None:
    base, identity = found.base, found.identity
    try:
        head = decode_head(data[:HEAD_BYTES])
        if LogIdentity(head.store_id, head.table_id, head.bucket_id) != identity:
            found.wrong = "it is of another log"
            return
        if head.base_offset == base:
            found.head = head
        else:
            found.of = head.base_offset
            found.wrong = f"it is the segment at offset {head.base_offset}"
    except CorruptBatch:
        found.wrong = "its head is damaged"
    if found.size > SEGMENT_BYTES_MAX:
        found.wrong = f"it has {found.size} bytes, and a segment has {SEGMENT_BYTES_MAX} at most"
    position, expected, follows = HEAD_BYTES, base, True
    for place, header in _right_batches(data, descriptor, identity):
        found.positions.append(place)
        found.offsets.append(header.base_offset)
        found.sums.append(header.crc)
        follows = follows and header.base_offset == expected
        position, expected = position + header.size, header.next_offset
    if found.wrong or position != found.size or not follows:
        found.data = data


def mapped(path: Path) -> memoryview:
    """The bytes of a segment, no more than one can have.

    Raises:
        OSError: It can't be read.
    """
    descriptor = open_regular(path)
    try:
        return _mapped(descriptor)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int) -> memoryview:
    size = min(os.fstat(descriptor).st_size, SEGMENT_BYTES_MAX)
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")


def _right_batches(data: memoryview, descriptor: int, identity: LogIdentity) -> Iterator[tuple[Position, BatchHeader]]:
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
    """The first batch after a place at which there is none; they begin at multiples of their alignment."""
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
