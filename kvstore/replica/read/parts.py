"""Parts of a replica that are read in place, as plain data: one process plans the read, others perform it."""

from __future__ import annotations

from dataclasses import dataclass

from logformat.ids import BucketId, Offset
from logformat.replica.object_file import ObjectName


@dataclass(frozen=True, slots=True)
class RangePart:
    """The part of a range object that is read.

    Attributes:
        bytes: Size of the object.
        start, until: Changes from ``start``, inclusive, to ``until``, exclusive; commits end at both.
    """

    name: ObjectName
    bytes: int
    start: int
    until: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one bucket from ``start``, inclusive, to ``end``, exclusive, and the objects that have them."""

    bucket: BucketId
    start: Offset
    end: Offset
    ranges: tuple[RangePart, ...]

    @property
    def bytes(self) -> int:
        """Size of the objects."""
        return sum(each.bytes for each in self.ranges)

    def pieces(self, parts: int) -> list[Changes]:
        """The same changes in at most ``parts`` pieces of about equal size; each object is in one piece."""
        cuts: list[int] = []
        done, total = 0, self.bytes
        for number, each in enumerate(self.ranges[:-1], 1):
            done += each.bytes
            if done * parts >= total * (len(cuts) + 1):
                cuts.append(number)
        pairs = zip([0, *cuts], [*cuts, len(self.ranges)], strict=True)
        return [self.within(self.ranges[first:last]) for first, last in pairs if first < last]

    def within(self, ranges: tuple[RangePart, ...]) -> Changes:
        """The changes in some consecutive ranges."""
        start, end = max(self.start, ranges[0].start), min(self.end, ranges[-1].until)
        return Changes(self.bucket, Offset(start), Offset(end), ranges)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one bucket as of ``end``: a snapshot with its size in bytes, and the changes after it."""

    bucket: BucketId
    end: Offset
    snapshot: tuple[ObjectName, int] | None
    ranges: tuple[RangePart, ...]

    @property
    def bytes(self) -> int:
        """Size of the objects."""
        return sum(each.bytes for each in self.ranges) + (self.snapshot[1] if self.snapshot is not None else 0)
