"""Creating the files of a new table, and removing those of tables that the catalog does not have.

* What the catalog names is always there: the files are made first, then one short edit puts the table in the catalog.
* A table may come with rows, and may take the name of another: then the same commit of the catalog drops that one.
* Files with rows say that they are of a dropped table until the catalog has it, so they are not taken for lost edits.
* The files are made in ``tables/<id>.tmp``, which only the holder of the lock ``meta/LOCK`` touches. The edit renames
  them, so no other process takes them for those of a dropped table.
* A creation that fails or dies leaves at most an orphan: a ``.tmp``, or a directory that the catalog does not have.
  Orphans are removed before the next table is created, and after a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from msgspec.structs import replace

from kvstore.bucket.commit_lock import pause
from kvstore.bucket.context import BucketPaths
from kvstore.bucket.engine import create_bucket
from kvstore.clock import Clock
from kvstore.commit.staging import Staging
from kvstore.disk.files import Files, refusals
from kvstore.disk.lock import ProcessLock
from kvstore.errors import Conflict, CorruptImage, StoreError, TableExists, UnsupportedOperation
from kvstore.log.segments import LogIdentity
from kvstore.meta.jobs import NO_JOBS
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_files import TableFiles, has_changes
from kvstore.options import StoreOptions
from kvstore.table.filled import Rows, fill
from logformat import paths
from logformat.catalog.edits import CreateTable, DropTable, Payload
from logformat.ids import BucketId, TableId


@dataclass(frozen=True)
class Replaced:
    """A table whose name another one is to have.

    Attributes:
        turn: Keeps every process from writing it; raises if it is not to go.
    """

    id: TableId
    turn: Callable[[], AbstractContextManager[object]]


PROGRESS_SECONDS = 15
"""Time in which a process that creates tables makes files or edits; one that does not is taken for stopped."""


class TableDirectories:
    """The directories of a store's tables.

    Args:
        store: Directory of the store.
    """

    def __init__(
        self,
        store: Path,
        store_id: UUID,
        journal: Journal,
        definitions: TableFiles,
        options: StoreOptions,
        files: Files,
        clock: Clock,
    ) -> None:
        self._store = store
        self._tables = store / paths.TABLES
        self._store_id = store_id
        self._journal = journal
        self._definitions = definitions
        self._options = options
        self._files = files
        self._clock = clock

    def create(self, table: CreateTable, rows: Rows | None = None, replaced: Replaced | None = None) -> None:
        """Create a table and its files.

        Args:
            table: The edit; the table gets an id here.
            rows: Rows that it has from the first moment on.
            replaced: The table of this name, which goes in the same commit of the catalog.

        Raises:
            TableExists: There is a table of that name. Nothing is left of this one.
            Conflict: There is another one than is replaced. Nothing is left of this one.
            InvalidRequest: A row does not fit. Nothing is left of this table.
            CorruptImage: The catalog is older than the tables. Nothing was written.
            StoreLocked: Another process is creating a table, and makes no progress. Nothing was written.
            StoreFull, LogFailed: The disk is full or failed. Nothing is left, or it goes with the next creation.
            WriterFenced, UnsupportedOperation: The store must not be written. Nothing was written.
        """
        self._journal.check_leads()
        _check_name(self._journal.state(), table.name, replaced)
        with self._alone():
            try:
                while not self._created(table, rows, replaced):
                    pass  # another process that does not know the lock took the id
            except BaseException:
                with suppress(StoreError):  # it goes with the next creation
                    self._remove_orphans()
                raise

    def remove(self, table: TableId) -> None:
        """Remove all files of a table that the catalog no longer has.

        Raises:
            StoreFull, LogFailed: The disk is full or failed. What is left goes with the next creation.
        """
        Staging(self._store, table, self._files).sweep(())
        directory = self._tables / str(table)
        with refusals(directory), suppress(FileNotFoundError):  # a process that creates a table removes it, too
            for bucket in directory.glob("[0-9]*"):
                self._files.remove_tree(bucket)
            self._files.remove_tree(directory)  # with what says that the table was dropped

    def unknown(self, state: CatalogState) -> list[TableId]:
        """Tables with changes that the catalog neither has nor has dropped: it has lost edits."""
        return sorted(
            id
            for id in self._ids()
            if id >= state.next_table_id and has_changes(self._tables / str(id)) and not self._definitions.is_gone(id)
        )

    def _created(self, table: CreateTable, rows: Rows | None, replaced: Replaced | None) -> bool:
        """Create a table; returns False if its id was taken meanwhile."""
        state = self._journal.state()
        _check_name(state, table.name, replaced)
        self._refuse_unknown(state)
        self._remove_orphans()
        edit = replace(table, table_id=state.next_table_id)
        staged = made = self._tables / f"{edit.table_id}{paths.TEMPORARY}"
        if rows is None:
            self.make(made, state, edit)
        else:
            staged = self._filled(made, state, edit, rows)
        directory, placed = self._tables / str(edit.table_id), list[Path]()

        def decide(now: CatalogState) -> list[Payload]:
            _check_name(now, table.name, replaced)
            self._refuse_unknown(now)
            if now.next_table_id != edit.table_id:
                raise _IdTaken
            # Here, so that other processes see the directory together with its table. The journal may decide again.
            if staged not in placed:
                with refusals(self._tables):
                    self._files.rename(staged, directory)
                    self._files.sync_directory(self._tables)
                placed.append(staged)
            elif not self._files.exists(directory):
                raise _IdTaken
            if rows is None and now.txid != state.txid:
                self._definitions.before(now, edit)
            if replaced is None:
                return [edit]
            return [self._definitions.before(now, DropTable(table_id=replaced.id)), edit]

        try:
            with nullcontext() if replaced is None else replaced.turn():
                self._journal.append(decide)
        except _IdTaken:
            return False
        if rows is not None:
            self._definitions.complete(self._journal, edit.table_id)
            with suppress(StoreError):  # what is left goes with the next creation
                self._remove_orphans()
        return True

    def _filled(self, made: Path, state: CatalogState, edit: CreateTable, rows: Rows) -> Path:
        """Make the files of a table with rows below a directory; returns the table's own."""
        staged = made / paths.TABLES / str(edit.table_id)
        with refusals(self._tables):
            for directory in (self._tables, made, made / paths.TABLES):
                self._files.make_directory(directory)
        self.make(staged, state, edit, is_listed=False)
        with refusals(made):
            fill(made, edit, rows, self._store_id, self._options, self._files, self._clock)
        return staged

    def make(self, directory: Path, state: CatalogState, edit: CreateTable, *, is_listed: bool = True) -> None:
        """Make the files of a table in a directory.

        Args:
            is_listed: Whether its definition counts although the catalog may lack the table.

        Raises:
            StoreFull, LogFailed: The disk refuses.
        """
        definition = TableDefinition.of(edit)
        with refusals(self._tables):
            self._files.make_directory(self._tables)
            self._files.make_directory(directory)
        for bucket in map(BucketId, range(definition.buckets)):
            bucket_paths = BucketPaths(directory / str(bucket), LogIdentity(self._store_id, definition.id, bucket))
            with refusals(self._tables):
                self._files.make_directory(bucket_paths.directory)
            create_bucket(bucket_paths, definition, self._options, self._files, self._clock)
        with refusals(self._tables):
            self._definitions.stage(directory, state, edit, is_listed=is_listed)

    def _remove_orphans(self) -> None:
        """Remove the files of tables whose drop or creation did not complete; this process holds the lock."""
        if self._ids() - self._journal.state().tables.keys():
            # Under a still catalog: a process that does not know the lock makes a table's files in its edit.
            with self._journal.still() as state, refusals(self._tables):
                self._refuse_unknown(state)
                orphans = self._ids() - state.tables.keys()
                for id in orphans:
                    with suppress(FileNotFoundError):  # the process that dropped it has just removed it
                        self._files.rename(self._tables / str(id), self._tables / f"{id}.{state.txid}{paths.TEMPORARY}")
            for id in orphans:
                if id < state.next_table_id:  # it was in the catalog once, and is never again
                    Staging(self._store, id, self._files).sweep(())
        for directory in self._tables.glob(f"*{paths.TEMPORARY}"):
            with refusals(directory):
                self._files.remove_tree(directory)

    def _refuse_unknown(self, state: CatalogState) -> None:
        if unknown := self.unknown(state):
            raise CorruptImage(
                "The catalog is older than the tables: restore a newer one, or move away the directories it lacks.",
                path=self._tables,
                lacks=unknown,
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other thread or process create a table; waits as long as one that does makes progress."""
        lock = ProcessLock(self._store / paths.CREATION_LOCK, self._files)
        while not self._acquired(lock):
            pass  # the other one made progress
        try:
            yield
        finally:
            lock.release()

    def _acquired(self, lock: ProcessLock) -> bool:
        seen, deadline = self.progress(), self._clock.monotonic() + PROGRESS_SECONDS
        while not lock.try_acquire():
            if self._clock.monotonic() >= deadline:
                if self.progress() == seen:
                    lock.refuse("Another process is creating a table, and makes no progress; continue or end it.")
                return False
            pause()
        return True

    def progress(self) -> object:
        """What changes while a process creates tables."""
        made = (each for directory in self._tables.glob(f"*{paths.TEMPORARY}") for each in os.walk(directory))
        files = sorted(Path(directory, name) for directory, below, names in made for name in [*below, *names])
        return self._journal.state().next_table_id, [(each, _bytes_of(each)) for each in files]

    def _ids(self) -> set[TableId]:
        with suppress(FileNotFoundError), os.scandir(self._tables) as entries:
            return {TableId(int(each.name)) for each in entries if each.name.isdecimal() and each.is_dir()}
        return set()


def check_replaceable(state: CatalogState, table: TableId) -> None:
    """Verify that nothing goes on with the changes of a table that another one is to replace.

    Raises:
        UnsupportedOperation: A consumer or a job does.
    """
    if consumers := sorted(state.consumers_of(table).lasting()):
        raise UnsupportedOperation(
            "The table is not replaced, because a consumer has yet to read its changes, which would go with it; drop "
            "the consumer first, or replace the rows only: INSERT OVERWRITE.",
            table=state.tables[table].name,
            consumers=consumers,
        )
    if jobs := sorted(state.jobs.get(table, NO_JOBS)):
        raise UnsupportedOperation(
            "The table is not replaced, because a job loads files into it; drop the job first, or replace the rows "
            "only: INSERT OVERWRITE.",
            table=state.tables[table].name,
            jobs=jobs,
        )


def _check_name(state: CatalogState, name: str, replaced: Replaced | None) -> None:
    there = state.table(name)
    if replaced is None:
        if there is not None:
            raise TableExists("There is a table of that name; choose another, or drop it.", table=name)
        return
    if there is None or there.id != replaced.id:
        raise Conflict(
            "The table that is to be replaced was dropped, renamed or replaced meanwhile, and nothing was changed; run "
            "it again.",
            table=name,
        )
    check_replaceable(state, replaced.id)


def _bytes_of(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_blocks
    return 0


class _IdTaken(Exception):
    """Another process created a table under the id that the files were made for."""
