"""Repairs a store that no process writes: the catalog, then each bucket, then consumers and open commits.

* Every bucket is locked, as by a writer, before anything is written.
* Derived files are rebuilt from the store itself; batches of logs and edits of the catalog may come from a replica.
* What is replaced goes to the quarantine. Acknowledged changes are given up only if the caller accepts it; the report
  names them exactly.
* A repair that was interrupted at any step is run again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from kvstore.arguments import path_of, url_without_credentials
from kvstore.bucket.bucket_lock import BucketLock
from kvstore.clock import Clock, SystemClock
from kvstore.disk.files import Files, no_file, read_file, refusals, resolved
from kvstore.disk.held_directory import HeldDirectory
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    NotAStore,
    UnsupportedOperation,
    UnsupportedVersion,
    WriterFenced,
)
from kvstore.index.open_readers import OpenReaders
from kvstore.memtable.budget import Budget
from kvstore.meta.consumers import moved_back
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import Leadership
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_files import TableFiles
from kvstore.options import StoreOptions
from kvstore.process.calls import uninterrupted
from kvstore.process.meter import TableMeter
from kvstore.repair.bucket import BucketRepair, RepairedBucket
from kvstore.repair.catalog import CatalogRepair
from kvstore.repair.quarantine import Quarantine
from kvstore.repair.source import Source
from kvstore.replica.client import ObjectStore, normalised
from kvstore.replica.leadership import ReplicaLeadership
from kvstore.store.check import BucketReport
from kvstore.store.runtime import opened
from kvstore.table.open_table import open_table
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import EndCommit
from logformat.ids import NO_SEQUENCE, BucketId, TableId, next_sequence
from logformat.log.segment import HEAD_BYTES, decode_head
from logformat.replica import manifest as replica_manifest

_OPTIONS = StoreOptions()


@dataclass
class RepairReport:
    """What a repair did; true if nothing is wrong any more.

    Attributes:
        repaired: What was wrong and is right now, one sentence each.
        gone: Acknowledged changes that are lost, one sentence each; only if their loss was accepted.
        left: What is still wrong, and what to do about it.
        buckets: Of each bucket, what the check after the repair finds.
        quarantine: The directory with the files that were replaced; None if none were.
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
    """Repair a damaged store as far as possible.

    Derived files (an index, a snapshot, a sparse index, an image of the catalog) are rebuilt. A segment of a log is
    rewritten with batches from a replica; without one only if all its batches are valid. What is replaced is kept in
    the quarantine, ``lost/`` of the store.

    Args:
        path: Directory of the store. No process may write the store meanwhile, nor this one.
        replica: URL of a replica of this store; see :meth:`kvstore.Store.add_replica`.
        accept_loss: Continue without acknowledged changes that neither the store nor the replica has. Otherwise
            ``left`` names them, and the damaged files stay as they are.
        progress: Is called with the name of each part, before that is repaired: `catalog`, then `<table>/<bucket>`.

    Raises:
        StoreLocked: Another process writes the store. Nothing was written.
        NotAStore: There is no store, or no replica.
        InvalidRequest: The replica is of another store, or its URL has credentials. Nothing was written.
        UnsupportedOperation: The store is a copy that follows a replica. Nothing was written.
        WriterFenced: Another leader has taken this store's place, and ships to the replica. Nothing was written.
        Unavailable: The replica can't be reached. What was repaired before stays repaired.
        UnsupportedVersion: A newer version wrote something.
        StoreFull, LogFailed: The disk refuses. What was repaired before stays repaired; run the repair again.
    """
    if replica is not None:
        url_without_credentials("replica", replica)
    source = None if replica is None else Source(ObjectStore(replica), normalised(replica))
    clock = SystemClock()
    return StoreRepair(path_of(path), Files(), clock, ReplicaLeadership(clock), source, progress).run(
        accepts_loss=accept_loss
    )


class StoreRepair:
    """Repairs one store.

    Args:
        source: A replica to take from, if there is one.
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
        self._path = resolved(path.expanduser())
        self._files = files
        self._clock = clock
        self._leadership = leadership
        self._source = source
        self._progress = progress
        self._quarantine = Quarantine(self._path, files)
        self._report = RepairReport()

    def run(self, *, accepts_loss: bool) -> RepairReport:
        """Run the repair; see :func:`repair`."""
        report = self._report
        if not self._path.is_dir() or (self._path / replica_manifest.NAME).exists():
            raise NotAStore("There is no store here; see whether the path is right.", path=self._path)
        if (self._path / paths.FOLLOWING).exists():
            raise UnsupportedOperation(
                "This copy follows a replica, which has everything that it has: remove it, and follow with a new copy.",
                path=self._path,
            )
        source = self._source
        with refusals(self._path), self._hold_directory():
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
                    self._repair_tables(store_id, state, source, accepts_loss=accepts_loss)
        if source is not None:
            report.left += [f"the replica: {each} Run `kvstore replica repair`." for each in source.bad_objects]
        report.quarantine = self._quarantine.directory if self._quarantine.names else None
        return report

    @contextmanager
    def _hold_directory(self) -> Iterator[None]:
        """Hold the store's directory: the repair works in it, even if its path leads elsewhere by now."""
        held = self._files.held = HeldDirectory(self._path, self._clock)
        try:
            yield
        finally:
            self._files.held = None
            held.close()

    def _refuse_locked(self) -> None:
        """Refuse a store that another process writes, before anything is written."""
        directories = (each for each in (self._path / paths.TABLES).glob("*/*") if each.is_dir())
        with self._locked([each for each in directories if each.name.isdecimal() and each.parent.name.isdecimal()]):
            pass

    def _identity(self, source: Source | None) -> UUID | None:
        path = self._path / paths.STORE_FILE
        try:
            store_id = store_file.decode(read_file(path, bytes_max=store_file.STORE_BYTES_MAX)).store_id
        except UnsupportedVersion:
            raise
        except (FileNotFoundError, CorruptData) as error:
            if isinstance(error, FileNotFoundError) and not (self._path / paths.TABLES).is_dir():
                raise NotAStore("There is no store here; see whether the path is right.", path=self._path) from error
            return self._identity_from(source, path)
        if source is not None:
            _check_same(store_id, source)
        return store_id

    def _identity_from(self, source: Source | None, path: Path) -> UUID | None:
        """Id of a store whose file STORE is damaged: the replica's, if the heads of the segments agree."""
        in_segments = {
            store_id
            for each in self._path.glob(f"{paths.TABLES}/*/*/{paths.LOG}/*.log")
            for store_id in _store_id_in(each)
        }
        if source is None or not in_segments:
            self._report.left.append(
                "STORE is damaged or missing: give a replica by --from, or restore it from a copy of this store."
            )
            return None
        for store_id in in_segments:
            _check_same(store_id, source)
        if path.exists():
            self._quarantine.copy(path)
        self._files.publish(path, source.store_file)
        self._report.repaired.append("STORE was damaged or missing: written again, with the replica's id")
        return source.store_id

    def _repair_tables(self, store_id: UUID, state: CatalogState, source: Source | None, *, accepts_loss: bool) -> None:
        tables = sorted(state.tables.values(), key=lambda table: table.name)
        if source is not None:
            for table in tables:
                for bucket in range(table.buckets):
                    self._make_directories(paths.bucket_directory(self._path, table.id, BucketId(bucket)))
        directories = [
            directory
            for table in tables
            for bucket in range(table.buckets)
            if (directory := paths.bucket_directory(self._path, table.id, BucketId(bucket))).is_dir()
        ]
        repaired: dict[TableId, dict[int, RepairedBucket]] = {}
        with (
            self._locked(directories),
            closing(Journal(self._path, self._files, self._clock, store_id, leadership=self._leadership)) as journal,
        ):
            self._replace_table_files(TableFiles(self._path, store_id, self._files), state, journal)
            for table in tables:
                repaired[table.id] = self._repair_table(
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

    def _replace_table_files(self, files: TableFiles, state: CatalogState, journal: Journal) -> None:
        damaged = files.damaged(state)
        for id, error in damaged.items():
            if isinstance(error, OSError) and no_file(error, paths.table_file(self._path, id)) is None:
                raise error  # what can't be read may be whole, or of a newer version
        for id, error in damaged.items():
            self._quarantine.move(paths.table_file(self._path, id))
            self._report.repaired.append(f"{state.tables[id].name}: TABLE was written again: {error}")
        if damaged:
            files.complete(journal)

    def _make_directories(self, bucket: Path) -> None:
        for directory in (bucket.parents[1], bucket.parent, bucket):
            self._files.make_directory(directory)

    @contextmanager
    def _locked(self, buckets: list[Path]) -> Iterator[None]:
        with ExitStack() as held:
            for directory in buckets:
                lock = BucketLock(directory, self._files, self._clock)
                lock.acquire()
                held.callback(lock.release)
            yield

    def _repair_table(
        self,
        store_id: UUID,
        state: CatalogState,
        table: TableDefinition,
        journal: Journal,
        source: Source | None,
        *,
        accepts_loss: bool,
    ) -> dict[int, RepairedBucket]:
        """Repair a table; returns its buckets by number."""
        repaired = {}
        parts = open_table(
            *(self._path, store_id, table, journal, _OPTIONS, self._files, self._clock, TableMeter(self._clock)),
            budget=Budget(_OPTIONS.memtable_bytes),
            read_only=lambda: True,
            readers=OpenReaders(),
        )
        try:
            for number, handle in enumerate(parts.handles):
                name = f"{table.name}/{number}"
                self._progress(name)
                if not handle.paths.directory.is_dir():
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
        """Move consumers back to the log end, also if an earlier repair truncated it: else they miss new changes."""
        ends = {bucket: done.end for bucket, done in repaired.items() if done.end is not None}
        for edit in moved_back(id, state.consumers_of(id), ends):
            journal.append(lambda _, edit=edit: edit)  # type: ignore[misc]

    def _give_up_commits(
        self, journal: Journal, state: CatalogState, id: TableId, repaired: Mapping[int, RepairedBucket]
    ) -> None:
        """End open commits over several buckets that can't complete, for a log has lost the batch before theirs."""
        lasts = {bucket: dict(done.last_sequences) for bucket, done in repaired.items() if done.end is not None}
        for commit in state.writers_of(id).commits:
            writer, sequence = commit.writer_id, commit.sequence
            lacking = [
                bucket for bucket, last in lasts.items() if sequence > next_sequence(last.get(writer, NO_SEQUENCE))
            ]
            if not lacking:
                # It can complete in every bucket, so the next commit of its writer can, too.
                for last in lasts.values():
                    last[writer] = max(last.get(writer, NO_SEQUENCE), sequence)
                continue
            self._report.gone.append(
                f"{state.tables[id].name}: the part of buckets {lacking} in the commit {commit.commit_id}, for batches"
                " before it are gone; other buckets may have their parts"
            )
            edit = EndCommit(table_id=id, commit_id=commit.commit_id)
            journal.append(lambda _, edit=edit: edit)  # type: ignore[misc]

    def _end_commits(self, state: CatalogState) -> None:
        """Complete open commits over several buckets, as the next writer would."""
        if self._report.left or not any(writers.commits for writers in state.writers.values()):
            return
        with opened(self._path, _OPTIONS, self._files, self._clock, self._leadership) as runtime:
            self._report.left += runtime.check(settles=True).findings


def _check_same(store_id: UUID, source: Source) -> None:
    if store_id != source.store_id:
        raise InvalidRequest(
            "This is a replica of another store; give the URL of a replica of this one.", of=source.store_id
        )


def _store_id_in(segment: Path) -> Iterator[UUID]:
    """The store's id in the head of a segment, if that is valid."""
    try:
        with open(segment, "rb") as file:
            yield decode_head(file.read(HEAD_BYTES)).store_id
    except (CorruptData, OSError):
        return
