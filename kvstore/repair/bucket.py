"""Mends a bucket whose lock is held: first its log, then what is made of the log: index, snapshots, and so on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kvstore import pages
from kvstore.bucket import snapshot
from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.recovery import load_snapshot, open_for_writing, put_in_place, usable_index
from kvstore.check import BucketReport, check_bucket, compare_rows
from kvstore.clock import Clock
from kvstore.environment import LMDB_FILES
from kvstore.errors import CorruptData, OffsetOutOfRange, UnknownSchema, UnsupportedVersion
from kvstore.files import Files
from kvstore.index.index import Index
from kvstore.log.segments import LogFiles, read_sparse_index
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.repair.log import LogEvidence, LogRepair, RepairedLog
from kvstore.repair.loss import Loss
from kvstore.repair.quarantine import Quarantine
from kvstore.repair.source import Source
from logformat import paths
from logformat.catalog.replicas import ReplicaStatus, Stream
from logformat.ids import OFFSET_MAX, BucketId, Offset, Sequence, WriterId
from logformat.log import index_state
from logformat.log.index_state import IndexState
from logformat.log.segment import HEAD_BYTES

DAMAGE = (CorruptData, OffsetOutOfRange, UnknownSchema)


@dataclass
class RepairedBucket:
    """What became of a bucket.

    Attributes:
        mended: What is right by now, a sentence each.
        gone: What was acknowledged, and is lost.
        left: What is wrong still, and what to do about it.
        end: Where the log ends, if all is right.
        last_sequences: Of each writer it remembers.
        report: Of a check behind all of it; None if the log can't be read at all.
    """

    repaired: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    end: Offset | None = None
    last_sequences: dict[WriterId, Sequence] = field(default_factory=dict)
    report: BucketReport | None = None


class BucketRepair:
    """Mends one bucket.

    Args:
        tablet: The bucket, to be read only.
        replicas: What the catalog knows of the store's replicas.
        source: A replica that may be read.
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
        self._place = handle.place
        self._definition = definition
        self._bucket = bucket
        self._options = options
        self._files = files
        self._clock = clock
        self._quarantine = quarantine
        self._source = source
        self._track = Stream(definition.id, bucket)
        told = [each for replica in replicas for each in replica.shipped if each.stream == self._track]
        self._shipped = max((each.end for each in told), default=0)
        self._damaged: list[Offset] = []
        self._done = RepairedBucket()

    def repair(self, *, accepts_loss: bool) -> RepairedBucket:
        """Mend what can be.

        Raises:
            UnsupportedVersion: A newer version wrote something.
            Unavailable: The replica can't be reached.
            StoreFull, OSError: The disk refuses. What was mended stays so; do it again.
        """
        done = self._done
        try:
            self._mend_log(accepts_loss=accepts_loss)
            if not done.left:
                self._mend_index()
                self._mend_snapshots()
        except UnsupportedVersion:
            raise
        except DAMAGE as error:
            done.left.append(str(error))
        done.report = self._check()
        # The log is whole by now: what disagrees with it is what was made of it. If that is made anew of a snapshot and
        # disagrees again, then of nothing but the log.
        for with_snapshots in (False, True):
            if done.left or not done.report.findings:
                break
            self._make_anew(with_snapshots=with_snapshots)
            done.report = self._check()
        done.left = done.left or list(done.report.findings)
        if not done.left:
            self._note_end()
        return done

    def _note_end(self) -> None:
        with self._index() as index:
            assert index is not None
            with index.view() as view:
                self._done.end = view.state().applied_offset
                self._done.last_sequences = {id: each.batches[-1].sequence for id, each in view.writers().items()}

    def _mend_log(self, *, accepts_loss: bool) -> None:
        known = self._known()
        log_repair = LogRepair(self._place, known, self._files, self._quarantine, self._source)
        log = log_repair.repair()
        if accepts_loss and log.holes and log.holes[-1].is_unknown_end:
            self._done.gone.append(str(log.holes[-1]))
            known.accepts_unknown = True
            log_repair = LogRepair(self._place, known, self._files, self._quarantine, self._source)
            log = log_repair.repair()
        self._done.repaired += log.repaired
        if log.holes and not accepts_loss:
            self._done.left += list(self._lost(log))
        elif log.holes:
            self._go_on_without(log_repair, log, known)

    def _lost(self, log: RepairedLog) -> Iterator[str]:
        advice = (
            "--accept-loss goes on without them"
            if self._source is not None
            else "give a replica by --from, restore the log from a copy, or go on without them by --accept-loss"
        )
        for hole in log.holes:
            what = "the end of the log" if hole.is_end else "the log"
            if hole.start < hole.end or hole.is_end:
                yield f"{what} lacks {hole}: {advice}"

    def _go_on_without(self, log_repair: LogRepair, log: RepairedLog, known: LogEvidence) -> None:
        self._load_snapshot(log, known)
        with self._index() as index:
            loss = Loss(self._place, log_repair, log, known, self._files, self._quarantine)
            state = self._state_if_right(index)
            hole = log.holes[0].start
            cuts = state is None or state.applied_offset <= hole or self._loses_less_behind(log, known, state)
            keeps_index = state is not None and state.synced_offset <= hole
            if cuts:
                self._refuse_shipped(hole)
            before = (each for each in known.snapshots if log.bases[0] <= each.log_end.base and each.offset <= hole)
            if cuts and log.bases[0] and not keeps_index and not any(before):
                raise CorruptData(
                    "What was before the log is in no snapshot that is right: give a replica by --from, or restore the"
                    " store from a copy.",
                    path=self._place.directory,
                )
            if state is not None and not cuts:
                applied, holes = state.applied_offset, [each for each in log.holes if each.start < each.end]
                ends = [max(each.start, applied) for each in holes if each.end > applied]
                self._refuse_shipped(min(ends, default=OFFSET_MAX))
            if index is not None and state is not None and not cuts:
                self._done.gone += loss.begin_behind(index, state)
        if cuts:
            self._done.gone += loss.cut(keeps_index=keeps_index)
        elif state is not None:
            # Until there is one, the index alone says what was before; one of before may say where the log was then.
            self._move_damaged_snapshots()
            taken = paths.snapshot_directory(self._place.directory, state.applied_offset)
            if taken.exists():
                self._quarantine.move(taken)
            self._take_snapshot()
            if loss.is_new:  # older ones go on from segments that are no more
                for offset in snapshot.offsets(self._place.directory):
                    if offset != state.applied_offset:
                        self._quarantine.move(paths.snapshot_directory(self._place.directory, offset))
            loss.move_history()
        self._source, self._shipped = None, 0
        again = LogRepair(self._place, self._known(), self._files, self._quarantine).repair()
        if again.holes:
            self._done.left += list(self._lost(again))

    def _load_snapshot(self, log: RepairedLog, known: LogEvidence) -> None:
        """Have an index of the newest snapshot if that is behind all that can be had without it."""
        if self._definition.primary_key is None:
            return  # rows are in the log alone
        with self._index() as index:
            state = self._state_if_right(index)
        applied = Offset(0) if state is None else state.applied_offset
        holes = [hole for hole in log.holes if hole.start < hole.end]
        reached = min((max(hole.start, applied) for hole in holes if hole.end > applied), default=OFFSET_MAX)
        for taken in sorted(known.snapshots, key=lambda each: each.offset, reverse=True):
            if taken.offset <= reached:
                return
            try:
                load_snapshot(self._place, taken, self._definition, self._options, self._files)
            except DAMAGE:
                self._damaged.append(taken.offset)
                continue
            if self._place.index.exists():
                self._quarantine.move(self._place.index)
            put_in_place(self._place, self._files)
            self._done.repaired.append(f"the index was made anew of the snapshot at offset {taken.offset}")
            return

    def _refuse_shipped(self, end: int) -> None:
        """Refuse to end a log before what a replica was told: it would get other changes at the same offsets."""
        if self._shipped > end:
            raise CorruptData(
                "Changes that are gone were shipped to a replica: give the URL of one that has them by --from, or drop"
                " the replica.",
                offset=end,
                shipped=self._shipped,
            )

    def _loses_less_behind(self, log: RepairedLog, known: LogEvidence, state: IndexState) -> bool:
        """Whether of a log table, whose rows are nowhere else, more is before the first hole than would be kept."""
        if self._definition.primary_key is not None:
            return False
        applied, end = state.applied_offset, max(known.end, log.end)
        holes = [hole for hole in log.holes if hole.start < hole.end]
        following = min((base for base in log.bases if base > holes[-1].base), default=end)
        reached = min((max(hole.start, applied) for hole in holes if hole.end > applied), default=end)
        behind = end - following if following <= applied else reached - applied
        return log.holes[0].start - log.bases[0] >= behind

    def _known(self) -> LogEvidence:
        """What index, snapshots and replicas know of the log."""
        found = LogEvidence(has_rows=self._has_rows)
        self._damaged = []
        for offset in reversed(snapshot.offsets(self._place.directory)):
            try:
                taken = snapshot.read(self._place.directory, self._place.identity, offset)
                found.bases.add(taken.log_end.base)
                found.end = max(found.end, taken.offset)
                taken.verify()
            except UnsupportedVersion:
                raise
            except CorruptData:
                self._damaged.append(offset)
            else:
                found.snapshots.append(taken)
        for state in self._index_states():
            found.has_state = True
            if state.synced_offset >= found.end:
                found.bases.add(state.synced_base)
                found.end = state.synced_offset
        found.end = max(found.end, self._noted())
        told = 0 if self._source is None else self._source.end(self._track)
        found.end = Offset(max(found.end, told, self._shipped))
        return found

    def _noted(self) -> Offset:
        """Up to where sparse indexes know the log: what stands in one was durable before."""
        end = Offset(0)
        for path in self._place.log.glob("*.index"):
            entries = read_sparse_index(path, self._files)
            # The first batch of a segment is always noted.
            if entries and entries[0][::2] == (paths.sparse_index_base(path.name), HEAD_BYTES):
                end = max(end, Offset(entries[-1].offset + 1))
        return end

    def _index_states(self) -> Iterator[IndexState]:
        with self._index() as index:
            if index is not None:
                with index.view() as view:
                    yield view.state()
                return
        data = self._place.index / LMDB_FILES[0]
        if not data.is_file():
            return
        # It is no index any more, but what it says of the log with a checksum was true.
        for value in pages.values(data, bytes_max=index_state.STATE_BYTES_MAX):
            with suppress(CorruptData):
                state = index_state.decode(value)
                if (state.table_id, state.bucket_id) == (self._track.table_id, self._track.bucket):
                    yield state

    @contextmanager
    def _index(self) -> Iterator[Index | None]:
        index = usable_index(self._place, self._options, self._files)
        try:
            yield index
        finally:
            if index is not None:
                index.close()

    def _state_if_right(self, index: Index | None) -> IndexState | None:
        """How far the index is, if all its rows are what they were."""
        if index is None:
            return None
        report = BucketReport(self._definition.name, self._bucket)
        try:
            index.verify()
            with index.view() as view:
                state = view.state()
                if self._definition.primary_key is not None:
                    compare_rows(view, state, self._definition, report)
        except DAMAGE:
            return None
        return None if report.findings else state

    def _has_rows(self) -> bool:
        with self._index() as index:
            return self._state_if_right(index) is not None

    def _start(self) -> Offset:
        return LogFiles(self._place.log, self._place.identity).start()

    def _can_build(self) -> bool:
        start = self._start()
        return not start or any(each.log_end.base >= start for each in self._known().snapshots)

    def _mend_index(self) -> None:
        with self._index() as index:
            is_there = index is not None
        if not is_there:
            if not self._can_build():
                raise CorruptData(
                    "The index of a bucket is lost, and so is every snapshot from which its log goes on: give a replica"
                    " by --from, or put index/ or snapshots/ back from a copy.",
                    path=self._place.directory,
                    log_start=self._start(),
                )
            if self._place.index.exists():
                self._quarantine.move(self._place.index)
        self._open()
        if not is_there:
            self._done.repaired.append("the index was damaged or missing: it was made anew")

    def _open(self) -> None:
        """Recover the bucket as its next writer would."""
        open_for_writing(self._place, self._definition, self._options, self._files, self._clock).close()

    def _mend_snapshots(self) -> None:
        known = self._known()
        start = self._start()
        covers = not start or any(each.log_end.base >= start for each in known.snapshots)
        if not covers and not self._has_rows():
            raise CorruptData(
                "No snapshot of a bucket is right, nor is its index: give a replica by --from, or put snapshots/ back"
                " from a copy.",
                path=self._place.directory,
            )
        self._move_damaged_snapshots()
        if not covers:
            self._done.repaired.append(f"a snapshot was taken, at offset {self._take_snapshot()}")

    def _move_damaged_snapshots(self) -> None:
        for offset in self._damaged:
            self._quarantine.move(paths.snapshot_directory(self._place.directory, offset))
            self._done.repaired.append(f"the snapshot at offset {offset} was damaged, and is put aside")
        self._damaged = []

    def _take_snapshot(self) -> Offset:
        with self._index() as index:
            if index is None:
                raise CorruptData("The index of a bucket can't be read.", path=self._place.index)
            taken = snapshot.take(
                *(self._place.directory, self._place.identity, index.view, lambda: self._definition, self._files),
                now_ms=self._clock.now_ms(),
            )
            return taken.offset

    def _make_anew(self, *, with_snapshots: bool) -> None:
        try:
            if with_snapshots and self._start():
                return
            if not self._can_build():
                return
            if with_snapshots:
                for offset in snapshot.offsets(self._place.directory):
                    self._quarantine.move(paths.snapshot_directory(self._place.directory, offset))
            if self._place.index.exists():
                self._quarantine.move(self._place.index)
            self._open()
        except DAMAGE as error:
            self._done.left.append(str(error))
        else:
            what = "index and snapshots" if with_snapshots else "the index"
            self._done.repaired.append(f"{what} did not agree with the log: it was made anew")

    def _check(self) -> BucketReport:
        return check_bucket(self._handle, self._definition, self._bucket)
