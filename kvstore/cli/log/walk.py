"""Batch headers of a log, without reading whole batches: a page of each, so a large log takes seconds.

The offsets in a header are compared with those around it. Checksums are not verified: ``kvstore check`` does that.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.errors import CorruptBatch
from kvstore.log.segments import LogFiles, Segment
from logformat.ids import Offset, Position
from logformat.log.batch import BatchHeader, decode_header
from logformat.log.segment import HEAD_BYTES


def segments(log: LogFiles, end: Offset) -> Iterator[tuple[Segment, Offset]]:
    """Segments with offsets before ``end``, each with its exclusive end; the last one may continue after ``end``."""
    bases = [base for base in log.bases() if base < end] or log.bases()[:1]
    for base, stop in zip(bases, [*bases[1:], end], strict=True):
        yield log.segment(base), stop  # one at a time: each has a descriptor


def headers(segment: Segment, end: Offset) -> Iterator[tuple[Position, BatchHeader]]:
    """Headers of a segment's batches before ``end``, with their positions.

    Raises:
        CorruptBatch: The offsets of the batches are not consecutive.
    """
    data = segment.bytes_from(Position(0))
    position, expected = Position(HEAD_BYTES), segment.base
    while expected < end:
        try:
            header = decode_header(data[position:])
        except CorruptBatch as error:
            raise CorruptBatch(error.message, path=segment.path, position=position, offset=expected) from error
        if header.base_offset != expected:
            raise CorruptBatch(
                f"A batch has base offset {header.base_offset}; run `kvstore check`.",
                path=segment.path,
                position=position,
                offset=expected,
            )
        yield position, header
        position, expected = Position(position + header.size), header.next_offset
