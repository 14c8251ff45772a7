"""Mends a store that nobody writes: the catalog first, then each bucket, then what they have in common.

* Every bucket is locked, as by a writer, before anything is written.
* What can be made of the store itself is; segments of logs, and edits of the catalog, also come from a replica.
* Whatever is replaced is put aside. What is gone is said exactly, and goes only if whoever asks accepts it.
* It may end at any step, and is then done again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from kvstore.arguments import path_of, url_without_credentials
from kvstore.calls import uninterrupted
from kvstore.check import BucketReport
from kvstore.clock import Clock, SystemClock
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    NotAStore,
    UnsupportedOperation,
    UnsupportedVersion,
    WriterFenced,
)
from kvstore.files import Files, read_file, refusals
from kvstore.lock import ProcessLock
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import Leadership
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.options import StoreOptions
from kvstore.place import StoreDirectory
from kvstore.repair.bucket import BucketRepair, RepairedBucket
from kvstore.repair.catalog import CatalogRepair
from kvstore.repair.quarantine import Quarantine
from kvstore.repair.source import Source
from kvstore.replica.client import ObjectStore, normalised
from kvstore.replica.leadership import ReplicaLeadership
from kvstore.runtime import opened
from kvstore.table.open_table import open_table
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import EndCommit, SetConsumer
from logformat.ids import NO_SEQUENCE, BucketId, TableId, next_sequence
from logformat.log.segment import HEAD_BYTES, decode_head
from logformat.replica import manifest as replica_told

_OPTIONS = StoreOptions()


@dataclass
class RepairReport:
    """What a repair did; true if nothing is wrong any more.

    Attributes:
        mended: What was wrong and is right now, a sentence each.
        gone: What was acknowledged and is lost; only if that was accepted.
        left: What is wrong still, and what to do about it.
        buckets: What a check finds now in each bucket.
        aside: The directory that has what was replaced; None if nothing was.
    """

    repaired: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    buckets: list[BucketReport] = field(default_factory=list)
    quarantine: Path | None = None

    def __bool__(self) -> bool:
        return not self.left


@uninterrupted
def repair(
    path: str | os.PathLike[str],
    replica: str | None = None,
    *,
    accept_loss: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> RepairReport:
    """Mend a store that is damaged, as far as it can be.

    An index, a snapshot, a sparse index or an image of the catalog is made anew of what it was made of. A segment of a
    log is written anew from a replica; without one only if all its batches are right. What is replaced is put aside,
    in ``lost/`` of the store.

    Args:
        path: Directory of the store. No process writes it meanwhile; this one neither.
        replica: URL of a replica of this store; see :meth:`kvstore.Store.add_replica`.
        accept_loss: Go on without acknowledged changes that are in neither. Otherwise they are only named, in ``left``,
            and what they were in stays as it is.
        progress: Called with the name of what is looked at next.

    Raises:
        StoreLocked: Another process writes the store. Nothing was written.
        NotAStore: There is no store, or no replica.
        InvalidRequest: The replica is of another store, or its URL has credentials. Nothing was written.
        UnsupportedOperation: It is a copy that follows a replica. Nothing was written.
        WriterFenced: Another leader has taken this store's place, and ships to the replica. Nothing was written.
        Unavailable: The replica can't be reached. What was mended stays so.
        UnsupportedVersion: A newer version wrote something.
        StoreFull, LogFailed: The disk refuses. What was mended stays so; do it again.
    """
    if replica is not None:
        url_without_credentials("replica", replica)
    source = None if replica is None else Source(ObjectStore(replica), normalised(replica))
    clock = SystemClock()
    return Repair(path_of(path), Files(), clock, ReplicaLeadership(clock), source, progress).run(
        accepts_loss=accept_loss
    )


class Repair:
    """One repair.

    Args:
        source: A replica.
        progress: See :func:`repair`.
    """

    def __init__(
        self,
        path: Path,
        files: Files,
        clock: Clock,
        leadership: Leadership,
        source: Source | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = path.expanduser().resolve()
        self._files = files
        self._clock = clock
        self._leadership = leadership
        self._source = source
        self._progress = progress
        self._quarantine = Quarantine(self._path, files)
        self._report = RepairReport()

    def run(self, *, accepts_loss: bool) -> RepairReport:
        """Do it; see :func:`repair`."""
        report = self._report
        if not self._path.is_dir() or (self._path / replica_told.NAME).exists():
            raise NotAStore("There is no store here; see whether the path is right.", path=self._path)
        if (self._path / paths.FOLLOWING).exists():
            raise UnsupportedOperation(
                "This copy follows a replica, and has nothing that the replica has not: remove it, and follow anew.",
                path=self._path,
            )
        source = self._source
        with refusals(self._path), self._held():
            self._refuse_locked()
            store_id = self._identity(source)
            if store_id is not None:
                self._progress("catalog")
                catalog = CatalogRepair(self._path, store_id, self._files, self._clock, source)
                state = catalog.repair(self._quarantine, accepts_loss=accepts_loss)
                report.repaired += catalog.repaired
                report.gone += catalog.gone
                report.left += catalog.left
                if state is not None:
                    self._mend_tables(store_id, state, source, accepts_loss=accepts_loss)
        if source is not None:
            report.left += [f"the replica: {each} Run `kvstore replica repair`." for each in source.bad]
        report.quarantine = self._quarantine.directory if self._quarantine.names else None
        return report

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the store's directory: what is mended is in it, whatever its path leads to by now."""
        place = self._files.place = StoreDirectory(self._path, self._clock)
        try:
            yield
        finally:
            self._files.place = None
            place.close()

    def _refuse_locked(self) -> None:
        """Refuse a store that somebody writes, before anything is written."""
        found = (each for each in (self._path / paths.TABLES).glob("*/*") if each.is_dir())
        with self._locked([each for each in found if each.name.isdecimal() and each.parent.name.isdecimal()]):
            pass

    def _identity(self, source: Source | None) -> UUID | None:
        path = self._path / paths.STORE_FILE
        try:
            found = store_file.decode(read_file(path, bytes_max=store_file.STORE_BYTES_MAX)).store_id
        except UnsupportedVersion:
            raise
        except (FileNotFoundError, CorruptData) as error:
            if isinstance(error, FileNotFoundError) and not (self._path / paths.TABLES).is_dir():
                raise NotAStore("There is no store here; see whether the path is right.", path=self._path) from error
            return self._identity_from(source, path)
        if source is not None:
            _check_same(found, source)
        return found

    def _identity_from(self, source: Source | None, path: Path) -> UUID | None:
        """Whose store it is if its own file does not say so: the replica's, if the segments say that too."""
        told = {store_id for each in self._path.glob(f"{paths.TABLES}/*/*/{paths.LOG}/*.log") for store_id in _of(each)}
        if source is None or not told:
            self._report.left.append(
                "STORE is damaged or missing: give a replica by --from, or put it back from a copy of this store."
            )
            return None
        for store_id in told:
            _check_same(store_id, source)
        if path.exists():
            self._quarantine.copy(path)
        self._files.publish(path, source.store_file)
        self._report.repaired.append("STORE was damaged or missing: it is the replica's")
        return source.store_id

    def _mend_tables(self, store_id: UUID, state: CatalogState, source: Source | None, *, accepts_loss: bool) -> None:
        tables = sorted(state.tables.values(), key=lambda table: table.name)
        if source is not None:
            for table in tables:
                for bucket in range(table.buckets):
                    self._make_directories(paths.bucket_directory(self._path, table.id, BucketId(bucket)))
        places = [
            place
            for table in tables
            for bucket in range(table.buckets)
            if (place := paths.bucket_directory(self._path, table.id, BucketId(bucket))).is_dir()
        ]
        repaired: dict[TableId, dict[int, RepairedBucket]] = {}
        with self._locked(places), self._journal(store_id) as journal:
            for table in tables:
                repaired[table.id] = self._mend_table(
                    store_id, state, table, journal, source, accepts_loss=accepts_loss
                )
            try:
                journal.check_leads()
            except WriterFenced:  # another leader has taken this store's place: its catalog takes no more edits
                repaired = {}
            for id, buckets in repaired.items():
                self._move_consumers(journal, state, id, buckets)
                self._give_up_commits(journal, state, id, buckets)
        self._end_commits(state)

    def _make_directories(self, bucket: Path) -> None:
        for directory in (bucket.parents[1], bucket.parent, bucket):
            self._files.make_directory(directory)

    @contextmanager
    def _locked(self, buckets: list[Path]) -> Iterator[None]:
        with ExitStack() as held:
            for place in buckets:
                lock = ProcessLock(place / paths.LOCK_FILE, self._files)
                if not lock.try_acquire():
                    lock.refuse()
                held.callback(lock.release)
            yield

    @contextmanager
    def _journal(self, store_id: UUID) -> Iterator[Journal]:
        journal = Journal(self._path, self._files, self._clock, store_id, leadership=self._leadership)
        try:
            yield journal
        finally:
            journal.close()

    def _mend_table(
        self,
        store_id: UUID,
        state: CatalogState,
        table: TableDefinition,
        journal: Journal,
        source: Source | None,
        *,
        accepts_loss: bool,
    ) -> dict[int, RepairedBucket]:
        """Mend a table; what became of its buckets."""
        repaired = {}
        parts = open_table(
            *(self._path, store_id, table, journal, _OPTIONS, self._files, self._clock), read_only=lambda: True
        )
        try:
            for number, handle in enumerate(parts.handles):
                name = f"{table.name}/{number}"
                self._progress(name)
                if not handle.place.directory.is_dir():
                    self._report.left.append(
                        f"{name}: its directory is missing: give a replica by --from, or restore it from a copy"
                    )
                    continue
                done = BucketRepair(
                    handle,
                    table,
                    BucketId(number),
                    state.replicas.values(),
                    options=_OPTIONS,
                    files=self._files,
                    clock=self._clock,
                    quarantine=self._quarantine,
                    source=source,
                ).repair(accepts_loss=accepts_loss)
                self._report.repaired += [f"{name}: {each}" for each in done.repaired]
                self._report.gone += [f"{name}: {each}" for each in done.gone]
                self._report.left += [f"{name}: {each}" for each in done.left]
                if done.report is not None:
                    self._report.buckets.append(done.report)
                repaired[number] = done
        finally:
            parts.close()
        return repaired

    def _move_consumers(
        self, journal: Journal, state: CatalogState, id: TableId, repaired: Mapping[int, RepairedBucket]
    ) -> None:
        """Whoever stands behind the end of a log, also one that an earlier repair cut, would miss what comes next."""
        ends = {bucket: done.end for bucket, done in repaired.items() if done.end is not None}
        for name, consumer in state.consumers_of(id).named.items():
            places = [min(at, ends.get(bucket, at)) for bucket, at in enumerate(consumer.offsets)]
            if places != list(consumer.offsets):
                edit = SetConsumer(table_id=id, name=name, offsets=places, until_ms=consumer.until_ms)
                journal.append(lambda _, edit=edit: edit)  # type: ignore[misc]

    def _give_up_commits(
        self, journal: Journal, state: CatalogState, id: TableId, repaired: Mapping[int, RepairedBucket]
    ) -> None:
        """An open commit over several buckets can't come to its end where a log was cut before the one before it."""
        for commit in state.writers_of(id).commits:
            behind = [
                bucket
                for bucket, done in repaired.items()
                if done.end is not None
                and commit.sequence > next_sequence(done.last_sequences.get(commit.writer_id, NO_SEQUENCE))
            ]
            if behind:
                self._report.gone.append(
                    f"{state.tables[id].name}: what buckets {behind} did not have yet of the commit {commit.commit_id},"
                    " for batches before it are gone; other buckets may have theirs"
                )
                edit = EndCommit(table_id=id, commit_id=commit.commit_id)
                journal.append(lambda _, edit=edit: edit)  # type: ignore[misc]

    def _end_commits(self, state: CatalogState) -> None:
        """Bring commits over several buckets to their end, as whoever writes next would."""
        if self._report.left or not any(writers.commits for writers in state.writers.values()):
            return
        with opened(self._path, _OPTIONS, self._files, self._clock, self._leadership) as runtime:
            self._report.left += runtime.check(settles=True).findings


def _check_same(store_id: UUID, source: Source) -> None:
    if store_id != source.store_id:
        raise InvalidRequest("This is a replica of another store; give the URL of one of this.", of=source.store_id)


def _of(segment: Path) -> Iterator[UUID]:
    """The store that a segment is of, if its head is right."""
    try:
        with open(segment, "rb") as file:
            yield decode_head(file.read(HEAD_BYTES)).store_id
    except (CorruptData, OSError):
        return
