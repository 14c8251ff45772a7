"""Continues a log without the changes in its holes, because the operator accepted their loss.

* If the index has what the log lost, no row is lost: the log begins after the hole, as if everything before had
  expired, and only history is lost. The index may be rebuilt from a snapshot for that.
* Otherwise the log is truncated at the first hole, and everything after it is lost.
* What is removed goes to the quarantine. If the repair is interrupted at any step, the next one ends in the same state,
  or finds a log with a hole.
"""

from __future__ import annotations

from kvstore.bucket.context import BucketPaths
from kvstore.bucket.snapshots import snapshot
from kvstore.disk.files import Files
from kvstore.index.index import Index
from kvstore.log.segments import LogEnd, LogFiles
from kvstore.repair.evidence import Hole, LogEvidence, RepairedLog
from kvstore.repair.log import LogRepair
from kvstore.repair.quarantine import Quarantine
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log.index_state import IndexState
from logformat.log.segment import HEAD_BYTES


class AcceptedLoss:
    """Continues one log that has holes.

    Args:
        log: The log after its repair.
        evidence: What is known of it from elsewhere.

    Attributes:
        begins_new_segment: Whether the log begins with a segment that this object wrote.
    """

    def __init__(
        self,
        bucket: BucketPaths,
        log_repair: LogRepair,
        log: RepairedLog,
        evidence: LogEvidence,
        files: Files,
        quarantine: Quarantine,
    ) -> None:
        self._paths = bucket
        self._log_repair = log_repair
        self._log = log
        self._evidence = evidence
        self._files = files
        self._quarantine = quarantine
        self._start = log.bases[0]
        self.begins_new_segment = False

    def begin_after_hole(self, index: Index, state: IndexState) -> list[str]:
        """Make the log begin after its last hole; then take a snapshot, and call :meth:`remove_history`.

        Args:
            index: The index; it is valid.
            state: Its state; it has changes after the start of the first hole.

        Returns:
            What is lost, one sentence each.
        """
        applied = state.applied_offset
        last = self._log.missing[-1]
        following = min((base for base in self._log.bases if base > last.base), default=None)
        headless = [
            hole.base for hole in self._log.holes if hole.start == hole.end and last.base < hole.base <= applied
        ]
        end = durable_end = self._durable_end()
        if following is not None and following <= applied and not headless:
            self._start = following
        else:
            self.begins_new_segment = True
            self._start = max(headless, default=applied)
            later = next((hole for hole in self._log.missing if hole.end > self._start), None)
            if later is not None:
                end = max(later.start, self._start)
                self._truncate_at(later)
            self._remove_sparse_index(self._start)
            stop = min((base for base in self._log.bases if base > self._start), default=None)
            self._log_repair.begin_at(self._start, stop)
        synced = self._end_at(self._start, applied)
        index.commit(
            state._replace(synced_base=synced.base, synced_position=synced.position, synced_offset=synced.offset)
        )
        gone = [*map(str, self._log.missing), f"the changelog before offset {self._start}, where it begins now"]
        if end < durable_end:
            gone.append(f"offsets {end} to {durable_end - 1}, with their effect on rows; new changes get these offsets")
        elif last.is_end and not self._evidence.has_index_state:
            gone.append(f"what was after offset {end}, if there was anything")
        return gone

    def remove_history(self) -> None:
        """Move the segments before the log's new start to the quarantine."""
        for base in self._log.bases:
            if base < self._start:
                self._log_repair.move_to_quarantine(base)

    def truncate_at_hole(self, *, keeps_index: bool) -> list[str]:
        """Truncate the log at its first hole; everything that knows later changes goes to the quarantine.

        Args:
            keeps_index: Whether the index has no change after the start of the hole.

        Returns:
            What is lost, one sentence each.
        """
        hole = self._log.holes[0]
        if not keeps_index and self._paths.index.exists():
            self._quarantine.move(self._paths.index)
        for offset in snapshot.offsets(self._paths.directory):
            if offset > hole.start:
                self._quarantine.move(paths.snapshot_directory(self._paths.directory, offset))
        for base in reversed(self._log.bases):
            if base > hole.base:
                self._log_repair.move_to_quarantine(base)
        self._remove_sparse_index(hole.base)
        self._log_repair.truncate_at(hole.base, hole.start)
        durable_end = self._durable_end()
        gone = (
            f"everything from offset {hole.start} on, to {durable_end - 1} at least, with its effect on rows; new"
            " changes get these offsets"
        )
        return [*map(str, self._log.missing), gone] if durable_end > hole.start else []

    def _durable_end(self) -> Offset:
        """Up to which offset the log was durable, by all that is known."""
        return max([self._evidence.durable_end, self._log.end, *(hole.end for hole in self._log.holes)])

    def _truncate_at(self, hole: Hole) -> None:
        """Truncate the log at a hole after its new start, in the same segment or in a later one."""
        for base in reversed(self._log.bases):
            if base > hole.base or hole.start == base > self._start:
                self._log_repair.move_to_quarantine(base)
                self._log.bases.remove(base)
        if self._start < hole.base in self._log.bases:
            self._remove_sparse_index(hole.base)
            self._log_repair.truncate_at(hole.base, hole.start)

    def _remove_sparse_index(self, base: Offset) -> None:
        """Move a sparse index to the quarantine: it would be evidence of the lost changes."""
        sparse = paths.sparse_index_file(self._paths.log, base)
        if sparse.exists():
            self._quarantine.move(sparse)

    def _end_at(self, base: Offset, offset: Offset) -> LogEnd:
        """Place of an offset at which a batch ends, in a segment or those after it."""
        end = LogEnd(base, Position(HEAD_BYTES), base)
        for batch in LogFiles(self._paths.log, self._paths.identity).batches(base, offset):
            end = LogEnd(Offset(int(batch.path.stem)), batch.end, batch.header.next_offset)
        return end
