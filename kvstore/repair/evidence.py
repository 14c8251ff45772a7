"""What a repair knows of a log from elsewhere, and what the log lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.bucket.snapshots.snapshot import Snapshot
from logformat.ids import Offset


@dataclass
class LogEvidence:
    """What index, snapshots, sparse indexes and replicas say about a log.

    Attributes:
        durable_end: Every change before this offset was durable.
        bases: Offsets at which a segment begins, unless the log begins after them.
        snapshots: The valid snapshots, oldest first.
        has_valid_index: Verifies that the index has all the rows it should have; this reads all of it.
        has_index_state: Whether the index, or what is left of it, says up to where the log was durable. Without it, a
            damaged batch at the end of the log can't be told from a batch that was never finished.
        accepts_unknown_end: Whether the log may end there nevertheless.
    """

    durable_end: Offset = Offset(0)
    bases: set[Offset] = field(default_factory=set)
    snapshots: list[Snapshot] = field(default_factory=list)
    has_valid_index: Callable[[], bool] = lambda: False
    has_index_state: bool = False
    accepts_unknown_end: bool = False

    def has_snapshot_for(self, start: Offset) -> bool:
        """Whether an index can be rebuilt if the log begins at an offset."""
        return not start or any(each.log_end.base >= start for each in self.snapshots)

    def can_begin_at(self, start: Offset) -> bool:
        """Whether no change before an offset of the log is needed."""
        return self.has_snapshot_for(start) or self.has_valid_index()


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that neither the log nor the replica has: from ``start`` up to ``end`` (exclusive).

    Attributes:
        base: Base offset of the segment that lacks them.
        is_end: Whether the log ends here. As far as is known it ended at ``end``; if ``end`` is ``start``, it is
            unknown whether anything is lost.
    """

    start: Offset
    end: Offset
    base: Offset
    is_end: bool

    @property
    def is_unknown_end(self) -> bool:
        """Whether nothing says that the log continued here, nor that it did not."""
        return self.is_end and self.start == self.end

    def __str__(self) -> str:
        """The offsets, in words."""
        if self.start == self.end:
            return f"what was after offset {self.start}, if there was anything"
        return f"offsets {self.start} to {self.end - 1}" + " at least" * self.is_end


@dataclass
class RepairedLog:
    """A log after its repair.

    Attributes:
        bases: Base offsets of its segments.
        end: Its end, if its last segment has no hole.
        holes: What it lacks, in order of offsets.
        repaired: What was repaired, one sentence each.
    """

    bases: list[Offset] = field(default_factory=list)
    end: Offset = Offset(0)
    holes: list[Hole] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[Hole]:
        """Holes that lack at least one offset; the others are damaged heads and unknown ends."""
        return [hole for hole in self.holes if hole.start < hole.end]
