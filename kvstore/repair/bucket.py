"""Repairs a bucket whose lock is held: first its log, then the files derived from it, such as index and snapshots.

* Derived files are repaired only once nothing is wrong with the log.
* What is replaced goes to the quarantine.
* A repair that was killed or refused is run again; what it had repaired stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.recovery import load_snapshot, open_merged, put_in_place, usable_index
from kvstore.bucket.snapshots import snapshot
from kvstore.clock import Clock
from kvstore.disk import pages
from kvstore.disk.files import Files
from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import CorruptData, OffsetOutOfRange, UnknownSchema, UnsupportedVersion
from kvstore.index.index import Index
from kvstore.log.segments import LogFiles, read_sparse_index
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.repair.evidence import LogEvidence, RepairedLog
from kvstore.repair.log import LogRepair
from kvstore.repair.loss import AcceptedLoss
from kvstore.repair.quarantine import Quarantine
from kvstore.repair.source import Source
from kvstore.store.check import BucketReport, check_bucket, compare_rows
from logformat import paths
from logformat.catalog.replicas import ReplicaStatus, Stream
from logformat.ids import OFFSET_MAX, BucketId, Offset, Sequence, WriterId
from logformat.log import index_state
from logformat.log.index_state import IndexState
from logformat.log.segment import HEAD_BYTES

DAMAGE = (CorruptData, OffsetOutOfRange, UnknownSchema)


@dataclass
class RepairedBucket:
    """A bucket after its repair.

    Attributes:
        repaired: What was repaired, one sentence each.
        gone: Acknowledged changes that are lost, one sentence each.
        left: What is still wrong, and what to do about it.
        end: The log end; None if something is still wrong.
        last_sequences: The last sequence of each writer that the bucket remembers.
        report: Of the check after the repair.
    """

    repaired: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    end: Offset | None = None
    last_sequences: dict[WriterId, Sequence] = field(default_factory=dict)
    report: BucketReport | None = None


class BucketRepair:
    """Repairs one bucket.

    Args:
        handle: The bucket; it is only read.
        replicas: The replicas in the catalog.
        source: A replica to take batches from, if there is one.
    """

    def __init__(
        self,
        handle: BucketHandle,
        definition: TableDefinition,
        bucket: BucketId,
        replicas: Iterable[ReplicaStatus],
        *,
        options: StoreOptions,
        files: Files,
        clock: Clock,
        quarantine: Quarantine,
        source: Source | None,
    ) -> None:
        self._handle = handle
        self._paths = handle.paths
        self._definition = definition
        self._bucket = bucket
        self._options = options
        self._files = files
        self._clock = clock
        self._quarantine = quarantine
        self._source = source
        self._stream = Stream(definition.id, bucket)
        shipped = [each for replica in replicas for each in replica.shipped if each.stream == self._stream]
        self._shipped_end = max((each.end for each in shipped), default=0)
        self._damaged_snapshots: list[Offset] = []
        self._done = RepairedBucket()

    def repair(self, *, accepts_loss: bool) -> RepairedBucket:
        """Repair the bucket as far as possible.

        Args:
            accepts_loss: Whether to continue without acknowledged changes that are lost.

        Raises:
            UnsupportedVersion: A newer version wrote something.
            Unavailable: The replica can't be reached.
            StoreFull, OSError: The disk refuses. What was repaired before stays repaired; run the repair again.
        """
        done = self._done
        try:
            self._complete_merge()
            self._repair_log(accepts_loss=accepts_loss)
            if not done.left:
                self._repair_index()
                self._repair_snapshots()
        except UnsupportedVersion:
            raise
        except DAMAGE as error:
            done.left.append(str(error))
        done.report = self._check()
        # The log is complete now, so what disagrees with it is derived from it: rebuild the index from a snapshot, and
        # if it disagrees again, from the log alone.
        for with_snapshots in (False, True):
            if done.left or not done.report.findings:
                break
            self._rebuild(with_snapshots=with_snapshots)
            done.report = self._check()
        done.left = done.left or list(done.report.findings)
        if not done.left:
            self._report_end()
        return done

    def _report_end(self) -> None:
        with self._index() as index:
            assert index is not None
            with index.view() as view:
                self._done.end = view.state().applied_offset
                self._done.last_sequences = {id: each.batches[-1].sequence for id, each in view.writers().items()}

    def _repair_log(self, *, accepts_loss: bool) -> None:
        evidence = self._gather_evidence()
        log_repair = LogRepair(self._paths, evidence, self._files, self._quarantine, self._source)
        log = log_repair.repair()
        if accepts_loss and log.holes and log.holes[-1].is_unknown_end:
            self._done.gone.append(str(log.holes[-1]))
            evidence.accepts_unknown_end = True
            log_repair = LogRepair(self._paths, evidence, self._files, self._quarantine, self._source)
            log = log_repair.repair()
        self._done.repaired += log.repaired
        if log.holes and not accepts_loss:
            self._done.left += list(self._describe_holes(log))
        elif log.holes:
            self._accept_loss(log_repair, log, evidence)

    def _describe_holes(self, log: RepairedLog) -> Iterator[str]:
        advice = (
            "--accept-loss continues without them"
            if self._source is not None
            else "give a replica by --from, restore the log from a copy, or continue without them by --accept-loss"
        )
        for hole in log.holes:
            what = "the end of the log" if hole.is_end else "the log"
            if hole.start < hole.end or hole.is_end:
                yield f"{what} lacks {hole}: {advice}"

    def _accept_loss(self, log_repair: LogRepair, log: RepairedLog, evidence: LogEvidence) -> None:
        """Continue without what is in the holes of the log, so that as little as possible is lost."""
        self._rebuild_from_newest_snapshot(log, evidence)
        with self._index() as index:
            loss = AcceptedLoss(self._paths, log_repair, log, evidence, self._files, self._quarantine)
            state = self._valid_state(index)
            hole = log.holes[0].start
            truncates = state is None or state.applied_offset <= hole or self._keeps_more_before(log, evidence, state)
            keeps_index = state is not None and state.synced_offset <= hole
            if truncates:
                self._refuse_shipped(hole)
            before = (each for each in evidence.snapshots if log.bases[0] <= each.log_end.base and each.offset <= hole)
            if truncates and log.bases[0] and not keeps_index and not any(before):
                raise CorruptData(
                    "No valid snapshot has the changes before the log: give a replica by --from, or restore the store"
                    " from a copy.",
                    path=self._paths.directory,
                )
            if state is not None and not truncates:
                applied = state.applied_offset
                ends = [max(each.start, applied) for each in log.missing if each.end > applied]
                self._refuse_shipped(min(ends, default=OFFSET_MAX))
            if index is not None and state is not None and not truncates:
                self._done.gone += loss.begin_after_hole(index, state)
        if truncates:
            self._done.gone += loss.truncate_at_hole(keeps_index=keeps_index)
        elif state is not None:
            # Until this snapshot exists, only the index has the rows of before; an older snapshot of the same offset
            # may have a place in the log that is no longer right.
            self._remove_damaged_snapshots()
            same_offset = paths.snapshot_directory(self._paths.directory, state.applied_offset)
            if same_offset.exists():
                self._quarantine.move(same_offset)
            self._take_snapshot()
            if loss.begins_new_segment:  # older snapshots continue in segments that are removed
                for offset in snapshot.offsets(self._paths.directory):
                    if offset != state.applied_offset:
                        self._quarantine.move(paths.snapshot_directory(self._paths.directory, offset))
            loss.remove_history()
        self._source, self._shipped_end = None, 0
        again = LogRepair(self._paths, self._gather_evidence(), self._files, self._quarantine).repair()
        if again.holes:
            self._done.left += list(self._describe_holes(again))

    def _rebuild_from_newest_snapshot(self, log: RepairedLog, evidence: LogEvidence) -> None:
        """Rebuild the index from the newest valid snapshot, if that has more than the index and the log can give."""
        if self._definition.primary_key is None:
            return  # rows are in the log alone
        with self._index() as index:
            state = self._valid_state(index)
        applied = Offset(0) if state is None else state.applied_offset
        reached = min((max(hole.start, applied) for hole in log.missing if hole.end > applied), default=OFFSET_MAX)
        for taken in sorted(evidence.snapshots, key=lambda each: each.offset, reverse=True):
            if taken.offset <= reached:
                return
            try:
                load_snapshot(self._paths, taken, self._definition, self._options, self._files)
            except DAMAGE:
                self._damaged_snapshots.append(taken.offset)
                continue
            if self._paths.index.exists():
                self._quarantine.move(self._paths.index)
            put_in_place(self._paths, self._files)
            self._done.repaired.append(f"the index was rebuilt from the snapshot at offset {taken.offset}")
            return

    def _refuse_shipped(self, end: int) -> None:
        """Refuse to truncate below what was shipped: the replica would get other changes at the same offsets."""
        if self._shipped_end > end:
            raise CorruptData(
                "Lost changes were shipped to a replica: give the URL of a replica that has them by --from, or drop the"
                " replica.",
                offset=end,
                shipped=self._shipped_end,
            )

    def _keeps_more_before(self, log: RepairedLog, evidence: LogEvidence, state: IndexState) -> bool:
        """Whether truncating at the first hole keeps more of a log table, whose rows are only in its log."""
        if self._definition.primary_key is not None:
            return False
        applied, end = state.applied_offset, max(evidence.durable_end, log.end)
        following = min((base for base in log.bases if base > log.missing[-1].base), default=end)
        reached = min((max(hole.start, applied) for hole in log.missing if hole.end > applied), default=end)
        kept_after = end - following if following <= applied else reached - applied
        return log.holes[0].start - log.bases[0] >= kept_after

    def _gather_evidence(self) -> LogEvidence:
        """What index, snapshots, sparse indexes and replicas say about the log."""
        evidence = LogEvidence(has_valid_index=self._has_valid_index)
        self._damaged_snapshots = []
        for offset in reversed(snapshot.offsets(self._paths.directory)):
            try:
                taken = snapshot.read(self._paths.directory, self._paths.identity, offset)
                evidence.bases.add(taken.log_end.base)
                evidence.durable_end = max(evidence.durable_end, taken.offset)
                taken.verify()
            except UnsupportedVersion:
                raise
            except CorruptData:
                self._damaged_snapshots.append(offset)
            else:
                evidence.snapshots.append(taken)
        for state in self._index_states():
            evidence.has_index_state = True
            if state.synced_offset >= evidence.durable_end:
                evidence.bases.add(state.synced_base)
                evidence.durable_end = state.synced_offset
        replica_end = 0 if self._source is None else self._source.end(self._stream)
        ends = evidence.durable_end, self._end_in_sparse_indexes(), replica_end, self._shipped_end
        evidence.durable_end = Offset(max(ends))
        return evidence

    def _end_in_sparse_indexes(self) -> Offset:
        """The offset after the last batch that a sparse index lists: a batch is listed only once it is durable."""
        end = Offset(0)
        for path in self._paths.log.glob("*.index"):
            entries = read_sparse_index(path, self._files)
            # The first batch of a segment is always listed.
            if entries and entries[0][::2] == (paths.sparse_index_base(path.name), HEAD_BYTES):
                end = max(end, Offset(entries[-1].offset + 1))
        return end

    def _index_states(self) -> Iterator[IndexState]:
        """The state of the index; if the index can't be opened, every state record that is left in its file."""
        with self._index() as index:
            if index is not None:
                with index.view() as view:
                    yield view.state()
                return
        data = self._paths.index / LMDB_FILES[0]
        if not data.is_file():
            return
        # What a state record with a valid checksum says of the log was true, even in a damaged file.
        for value in pages.values(data, bytes_max=index_state.STATE_BYTES_MAX):
            with suppress(CorruptData):
                state = index_state.decode(value)
                if (state.table_id, state.bucket_id) == (self._stream.table_id, self._stream.bucket):
                    yield state

    @contextmanager
    def _index(self) -> Iterator[Index | None]:
        index = usable_index(self._paths, self._options, self._files)
        try:
            yield index
        finally:
            if index is not None:
                index.close()

    def _complete_merge(self) -> None:
        """Complete a merge that its process left halfway, if the log has its changes; else the index is not valid."""
        with suppress(*DAMAGE):
            if self._is_merging():
                open_merged(self._paths, self._definition, self._options, self._files, self._clock).close()

    def _is_merging(self) -> bool:
        with self._index() as index:
            if index is None:
                return False
            with index.view() as view:
                return view.state().merging is not None

    def _valid_state(self, index: Index | None) -> IndexState | None:
        """The state of the index if all its rows are valid, else None."""
        if index is None:
            return None
        report = BucketReport(self._definition.name, self._bucket)
        try:
            index.environment.verify()
            with index.view() as view:
                state = view.state()
                if self._definition.primary_key is not None:
                    compare_rows(view, state, self._definition, report)
        except DAMAGE:
            return None
        return None if report.findings else state

    def _has_valid_index(self) -> bool:
        with self._index() as index:
            return self._valid_state(index) is not None

    def _log_start(self) -> Offset:
        return LogFiles(self._paths.log, self._paths.identity).start()

    def _can_rebuild_index(self) -> bool:
        start = self._log_start()
        return not start or self._gather_evidence().has_snapshot_for(start)

    def _repair_index(self) -> None:
        with self._index() as index:
            is_usable = index is not None
        if not is_usable:
            if not self._can_rebuild_index():
                raise CorruptData(
                    "The index of a bucket is lost, and so is every snapshot from which its log continues: give a"
                    " replica by --from, or restore index/ or snapshots/ from a copy.",
                    path=self._paths.directory,
                    log_start=self._log_start(),
                )
            if self._paths.index.exists():
                self._quarantine.move(self._paths.index)
        self._recover()
        if not is_usable:
            self._done.repaired.append("the index was damaged or missing: rebuilt")

    def _recover(self) -> None:
        """Recover the bucket as its next writer would."""
        open_merged(self._paths, self._definition, self._options, self._files, self._clock).close()

    def _repair_snapshots(self) -> None:
        is_covered = self._gather_evidence().has_snapshot_for(self._log_start())
        if not is_covered and not self._has_valid_index():
            raise CorruptData(
                "A bucket has neither a valid snapshot nor a valid index: give a replica by --from, or restore"
                " snapshots/ from a copy.",
                path=self._paths.directory,
            )
        self._remove_damaged_snapshots()
        if not is_covered:
            self._done.repaired.append(f"a snapshot was taken at offset {self._take_snapshot()}")

    def _remove_damaged_snapshots(self) -> None:
        for offset in self._damaged_snapshots:
            self._quarantine.move(paths.snapshot_directory(self._paths.directory, offset))
            self._done.repaired.append(f"the snapshot at offset {offset} was damaged: moved to the quarantine")
        self._damaged_snapshots = []

    def _take_snapshot(self) -> Offset:
        with self._index() as index:
            if index is None:
                raise CorruptData("The index of a bucket can't be read.", path=self._paths.index)
            taken = snapshot.take(
                *(self._paths.directory, self._paths.identity, index.view, lambda: self._definition, self._files),
                now_ms=self._clock.now_ms(),
            )
            return taken.offset

    def _rebuild(self, *, with_snapshots: bool) -> None:
        """Rebuild an index that disagrees with the log.

        Args:
            with_snapshots: Whether to remove the snapshots first, so that it is rebuilt from the log alone.
        """
        try:
            if with_snapshots and self._log_start():
                return
            if not self._can_rebuild_index():
                return
            if with_snapshots:
                for offset in snapshot.offsets(self._paths.directory):
                    self._quarantine.move(paths.snapshot_directory(self._paths.directory, offset))
            if self._paths.index.exists():
                self._quarantine.move(self._paths.index)
            self._recover()
        except DAMAGE as error:
            self._done.left.append(str(error))
        else:
            what = "index and snapshots" if with_snapshots else "the index"
            self._done.repaired.append(f"{what} did not agree with the log: rebuilt")

    def _check(self) -> BucketReport:
        return check_bucket(self._handle, self._definition, self._bucket)
