"""Goes on without changes that are gone, because whoever asks for it said so.

* If the index has what the log lost, no row goes: the log begins anew behind the hole, as if what is before had
  expired, and all that is lost is history. An index may be made of a snapshot for that.
* Otherwise the log is cut at the hole, and what it had behind it is lost.
* What is taken away is put aside. It may end at any step: done again, it comes to the same, or to a log with a hole.
"""

from __future__ import annotations

from dataclasses import replace

from kvstore.bucket import snapshot
from kvstore.bucket.context import BucketPlace
from kvstore.files import Files
from kvstore.index.index import Index
from kvstore.log.segments import LogEnd, LogFiles
from kvstore.repair.log import Hole, LogEvidence, LogRepair, RepairedLog
from kvstore.repair.quarantine import Quarantine
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log.index_state import IndexState
from logformat.log.segment import HEAD_BYTES


class Loss:
    """One log with a hole.

    Args:
        log: What came of mending it.
        known: What else knows of it.

    Attributes:
        is_new: Whether it begins with a segment that was not there.
    """

    def __init__(
        self,
        place: BucketPlace,
        log_repair: LogRepair,
        log: RepairedLog,
        known: LogEvidence,
        files: Files,
        quarantine: Quarantine,
    ) -> None:
        self._place = place
        self._log_repair = log_repair
        self._log = log
        self._known = known
        self._files = files
        self._quarantine = quarantine
        self._start = log.bases[0]
        self.is_new = False

    def begin_behind(self, index: Index, state: IndexState) -> list[str]:
        """Have the log begin behind the hole; afterwards a snapshot is due, and then :meth:`move_history`.

        Args:
            index: It is right,
            state: and has more than the log before the hole.

        Returns:
            What is gone, a sentence each.
        """
        applied = state.applied_offset
        holes = [hole for hole in self._log.holes if hole.start < hole.end]
        last = holes[-1]
        following = min((base for base in self._log.bases if base > last.base), default=None)
        headless = [
            hole.base for hole in self._log.holes if hole.start == hole.end and last.base < hole.base <= applied
        ]
        known = max([self._known.end, self._log.end, *(hole.end for hole in self._log.holes)])
        end = known
        if following is not None and following <= applied and not headless:
            self._start = following
        else:
            self.is_new = True
            self._start = max(headless, default=applied)
            behind = next((hole for hole in holes if hole.end > self._start), None)
            if behind is not None:
                end = max(behind.start, self._start)
                self._cut_behind(behind)
            self._move_sparse_index(self._start)
            stop = min((base for base in self._log.bases if base > self._start), default=None)
            self._log_repair.begin_at(self._start, stop)
        synced = self._end_at(self._start, applied)
        moved = replace(state, synced_base=synced.base, synced_position=synced.position, synced_offset=synced.offset)
        index.commit(moved)
        gone = [*self._in_no_place(), f"what is before offset {self._start} of the changelog, which begins there now"]
        if end < known:
            gone.append(f"offsets {end} to {known - 1}, with what they did to rows; they are given out again")
        elif last.is_end and not self._known.has_state:
            gone.append(f"what was behind offset {end}, if there was anything")
        return gone

    def _cut_behind(self, hole: Hole) -> None:
        """End the log where a hole begins that is behind where it is to begin, in the same segment or in another."""
        for base in reversed(self._log.bases):
            if base > hole.base or hole.start == base > self._start:
                self._log_repair.move_to_quarantine(base)
                self._log.bases.remove(base)
        if self._start < hole.base in self._log.bases:
            self._move_sparse_index(hole.base)
            self._log_repair.cut_at(hole.base, hole.start)

    def _in_no_place(self) -> list[str]:
        return [str(hole) for hole in self._log.holes if hole.start < hole.end]

    def move_history(self) -> None:
        """Put aside what is before the beginning of the log."""
        for base in self._log.bases:
            if base < self._start:
                self._log_repair.move_to_quarantine(base)

    def cut(self, *, keeps_index: bool) -> list[str]:
        """Cut the log where the first hole begins; what says that there was more is put aside.

        Args:
            keeps_index: It has nothing from there on.

        Returns:
            What is gone, a sentence each.
        """
        hole = self._log.holes[0]
        if not keeps_index and self._place.index.exists():
            self._quarantine.move(self._place.index)
        for offset in snapshot.offsets(self._place.directory):
            if offset > hole.start:
                self._quarantine.move(paths.snapshot_directory(self._place.directory, offset))
        for base in reversed(self._log.bases):
            if base > hole.base:
                self._log_repair.move_to_quarantine(base)
        self._move_sparse_index(hole.base)
        self._log_repair.cut_at(hole.base, hole.start)
        known = max([self._known.end, self._log.end, *(each.end for each in self._log.holes)])
        gone = [
            f"all from offset {hole.start} on, to {known - 1} at least, with what that did to rows; these offsets are"
            " given out again"
        ]
        return [*self._in_no_place(), *gone] if known > hole.start else []

    def _move_sparse_index(self, base: Offset) -> None:
        """It says too that there was more."""
        sparse = paths.sparse_index_file(self._place.log, base)
        if sparse.exists():
            self._quarantine.move(sparse)

    def _end_at(self, base: Offset, offset: Offset) -> LogEnd:
        """Where the log has an offset at which a batch ends, behind the beginning of a segment."""
        place = LogEnd(base, Position(HEAD_BYTES), base)
        for found in LogFiles(self._place.log, self._place.identity).batches(base, offset):
            place = LogEnd(Offset(int(found.path.stem)), found.end, found.header.next_offset)
        return place
