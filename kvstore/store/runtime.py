"""State that one process shares for one directory: catalog, open tables, checkpoints; every open store uses it.

* A runtime is opened by the first store of its directory in the process, and closed by the last.
* Everything is closed whatever else fails, and can be closed again after an interrupt.
* Nothing here survives ``fork()``: a child forgets the runtimes of its parent.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeAlias
from uuid import UUID, uuid4

from kvstore.arguments import shown
from kvstore.bucket.commit_lock import COMMIT_WAIT_SECONDS, pause
from kvstore.bucket.handle import BucketHandle
from kvstore.checkpoint.controller import Controller
from kvstore.checkpoint.health import Health, health
from kvstore.clock import Clock, SteadyClock
from kvstore.commit.ends import OpenEnds
from kvstore.commit.named_writers import new_writer_id
from kvstore.disk.files import Files, no_file, read_file, refusal, refusals, refuse_network, resolved
from kvstore.disk.held_directory import HeldDirectory
from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.disk.watch import wake_all
from kvstore.errors import (
    Conflict,
    InvalidRequest,
    NoSuchTable,
    NotAStore,
    StoreClosed,
    StoreError,
    StoreLocked,
    UniqueViolation,
)
from kvstore.index.open_readers import OpenReaders
from kvstore.indexing.unique import duplicate, duplicate_row, violation
from kvstore.memtable.budget import Budget
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership, Leadership
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_files import TableFiles
from kvstore.options import StoreOptions
from kvstore.process.calls import uninterrupted
from kvstore.process.meter import Meter
from kvstore.sending.frames import Kind
from kvstore.sending.meeting import MeetingPlace
from kvstore.sending.receiver import Receiver
from kvstore.sending.sender import Sender
from kvstore.sending.slots import Slots
from kvstore.store.check import CheckReport, check_buckets
from kvstore.table.alteration import Alterations, CommitsOpen
from kvstore.table.creation import Replaced, TableDirectories
from kvstore.table.filled import Rows
from kvstore.table.open_table import HandOver, OpenTable, open_table
from kvstore.transaction.commit import committed_here
from kvstore.transaction.elsewhere import answer
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import CreateTable, DropConsumer, DropTable, DropWriter, TableOptions
from logformat.catalog.replicas import CATALOG
from logformat.catalog.store_file import STORE_BYTES_MAX, StoreFile
from logformat.ids import BucketId, TableId, Txid, WriterId

Offsets: TypeAlias = Mapping[int, int]
"""Offsets by bucket."""
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG)
_ENDS_SECONDS = 2.0
"""How long a change of a table's options waits until the commits before it have ended."""


class StoreRuntime:
    """State that all open stores of one directory share in this process.

    Args:
        path: The directory, absolute and without links.
        read_only: Whether the store must be there; otherwise a new or empty directory becomes one.
        leadership: Asked before anything is written.
    """

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        read_only: bool,
        files: Files,
        clock: Clock,
        leadership: Leadership,
    ) -> None:
        self.path = path
        self.options = options
        self.pid = os.getpid()
        self._uses: dict[object, bool] = {}
        """For each store that was not closed, whether it may write."""
        self._files = files
        self._clock = clock = SteadyClock(clock)
        self.meter = Meter(clock)
        self.budget = Budget(options.memtable_bytes)
        files.syncs = self.meter.sync
        self._mutex = threading.Lock()
        self._tables: dict[TableId, OpenTable] = {}
        self._hand_over: HandOver | None = None
        self._readers = OpenReaders()
        meeting_place = MeetingPlace(path, files, clock)
        self._receiver = Receiver(meeting_place, self._transact)
        slots = self._slots = Slots(path, files, lambda: self.new_writer_id())
        self._other_of = lambda context: Sender(context, meeting_place, slots)
        self._ended = False
        self._identity = _identity_of(path, files, clock, read_only=read_only)
        with refusals(path):
            self.held = files.held = HeldDirectory(path, clock)
        try:
            with suppress(OSError):  # what is wrong with it, the journal says
                files.hold(path / paths.JOURNAL.parent)
            self._journal = Journal(
                *(path, files, clock, self._identity.store_id),
                leadership=leadership,
                edits_per_segment=options.edits_per_journal,
                sync=options.journal_sync,
                wait_ms=options.sync_interval_ms,
            )
        except BaseException:
            self._let_go()
            raise
        self.checkpoints = Controller(
            *(path, self._identity.store_id, self._journal, files, clock),
            writes=lambda: self.writes,
            edits_per_image=options.edits_per_journal,
            shipped=self._shipped_edits,
            succeeded=self.meter.checkpoint.since,
        )
        self._journal.listen(self.checkpoints)
        self._ends = OpenEnds(self._journal, clock)
        self.held.is_dropped = self._is_dropped
        self._table_files = TableFiles(path, self._identity.store_id, files)
        self.alterations = Alterations(self._journal, self._table_files)
        self._directories = TableDirectories(
            *(path, self._identity.store_id, self._journal, self._table_files, options, files, clock)
        )

    @property
    def writes(self) -> bool:
        """Whether any store of this process may write."""
        return any(self._uses.copy().values())

    @property
    def journal(self) -> Journal:
        """Journal of the catalog."""
        return self._journal

    @property
    def files(self) -> Files:
        """The disk."""
        return self._files

    @property
    def clock(self) -> Clock:
        """The time."""
        return self._clock

    @property
    def store_id(self) -> UUID:
        """Id of the store."""
        return self._identity.store_id

    def catalog(self) -> CatalogState:
        """The catalog as of now; see :meth:`Journal.state`."""
        return self._journal.state()

    def _is_dropped(self, directory: str) -> bool:
        """Whether a directory of the store is of a table that was dropped."""
        below = Path(directory).relative_to(self.path).parts
        if below[:1] != (paths.TABLES,) or not below[1:2] or not below[1].isdecimal():
            return False
        try:
            state = self.catalog()
        except StoreError:
            return False
        id = TableId(int(below[1]))
        return id not in state.tables and id < state.next_table_id

    def _shipped_edits(self) -> list[Txid]:
        """The last edit of each replica to which edits were shipped: what it lacks, it needs."""
        shipped = [replica.of(CATALOG) for replica in self.catalog().replicas.values()]
        return [Txid(each.end) for each in shipped if each is not None]

    def health(self) -> Health:
        """Status of the catalog."""
        report = health(self.path, self._journal, self.checkpoints.failure, self.options.edits_per_journal)
        meters = self.meter.tables.values()
        return replace(
            report,
            memtable_bytes=sum(self.budget.sizes().values()),
            memtable_limit=self.budget.limit,
            merges=sum(meter.commit.read().count for meter in meters),
            merge_waits=sum(meter.wait.read().count for meter in meters),
        )

    def damaged_images(self) -> list[str]:
        """Reasons why damaged images can't be used."""
        images = self._journal.images
        for _ in images.usable():
            pass
        return [str(error) for error in images.damaged]

    def check(
        self, *, settles: bool, progress: Callable[[int, int], object] = lambda _done, _total: None
    ) -> CheckReport:
        """See :meth:`kvstore.Store.check`.

        Args:
            settles: Whether open commits of processes that died are completed first.
        """
        self._journal.verify()
        catalog = self.catalog()
        tables = sorted(catalog.tables.values(), key=lambda table: table.name)
        parts = [
            (handle, opened.catalog, BucketId(bucket))
            for opened in map(self.open_table, tables)
            for bucket, handle in enumerate(opened.handles)
        ]
        buckets = check_buckets(parts, progress)
        suspects = self._directories.unknown(catalog)
        now = self.catalog()  # others may have created tables while buckets were checked
        findings = [f"the catalog lacks table {id}" for id in suspects if id >= now.next_table_id]
        findings += self.damaged_images()
        for id, error in self._table_files.damaged(catalog).items():
            what = "read" if isinstance(error, OSError) else "used"
            findings.append(f"table {catalog.tables[id].name}: the file TABLE can't be {what}: {error}")
        for table in tables if settles else ():
            left = set(now.writers_of(table.id).commits) & set(catalog.writers_of(table.id).commits)
            deadline = self.clock.monotonic() + _ENDS_SECONDS
            while left:
                with suppress(StoreError):
                    self.open_table(table).commits.settle()
                left &= set(self.catalog().writers_of(table.id).commits)
                if self.clock.monotonic() >= deadline:
                    break
                pause()  # a process that lives ends its own
            findings += [f"table {table.name}: commit {commit.commit_id} was not completed" for commit in left]
        return CheckReport(buckets, findings)

    def definition(self, name: str) -> TableDefinition:
        """Definition of a table.

        Raises:
            NoSuchTable: There is none of that name.
        """
        state = self.catalog()
        definition = state.table(name)
        if definition is None:
            raise NoSuchTable(
                "There is no such table.", table=name, tables=sorted(t.name for t in state.tables.values())
            )
        return definition

    def open_table(self, definition: TableDefinition) -> OpenTable:
        """A table, opened in this process if it was not."""
        handle = self._tables.get(definition.id)
        return handle if handle is not None else self._opened(definition)

    def _transact(self, content: bytes) -> tuple[Kind, bytes]:
        """Commit a transaction that another process sends."""

        def opened(table: TableId) -> OpenTable:
            definition = self.catalog().tables.get(table)
            if definition is None:
                raise NoSuchTable("The table was dropped.", table_id=table)
            return self.open_table(definition)

        return answer(content, opened, committed_here)

    @uninterrupted
    def _opened(self, definition: TableDefinition) -> OpenTable:
        with self._mutex:
            self._check_open()
            if definition.id not in self._tables:
                if self.writes:
                    self._table_files.complete(self._journal, definition.id)
                self._tables[definition.id] = open_table(
                    *(self.path, self._identity.store_id, definition, self._journal),
                    *(self.options, self._files, self._clock, self.meter.table(definition.id)),
                    budget=self.budget,
                    read_only=lambda: not self.writes,
                    readers=self._readers,
                    ends=self._ends,
                    other_of=self._other_of,
                )
            if self._hand_over is None:
                self._hand_over = HandOver(self._all_tables, self._receiver, self._ends, self._clock)
            return self._tables[definition.id]

    @uninterrupted
    def create_table(self, table: CreateTable, rows: Rows | None = None) -> None:
        """Create a table, and its files; see :meth:`kvstore.Store.create_table`.

        Args:
            table: The edit; the table gets an id here.
            rows: Rows that it has from the first moment on.
        """
        self._directories.create(table, rows)

    @uninterrupted
    def replace_table(self, replaced: TableDefinition, seen: Offsets, table: CreateTable, rows: Rows) -> None:
        """Create a table under the name of one that goes in the same commit of the catalog.

        Args:
            replaced: The table that goes, with its changes, as it was known when its replacement began.
            seen: The offset of each bucket after the changes of this table that may go.

        Raises:
            Conflict: It was changed, dropped, renamed or replaced since. Nothing was changed.
            UnsupportedOperation: A consumer or a job goes on with its changes. Nothing was changed.
            StoreLocked: Another process writes it, and does not hand it over. Nothing was changed.
            InvalidRequest, StoreFull, LogFailed: See :meth:`TableDirectories.create`.
        """

        def known() -> TableDefinition:
            definition_now = self.catalog().tables.get(replaced.id)
            if definition_now is None or (definition_now.schema_id, definition_now.options) != (
                replaced.schema_id,
                replaced.options,
            ):
                raise changed
            return definition_now

        changed = Conflict(
            "The table has changed since the statement that replaces it began; nothing of the statement was done. Run "
            "it again.",
            table=replaced.name,
        )
        opened = self.open_table(known())

        @contextmanager
        def turn() -> Iterator[None]:
            with ExitStack() as taken:
                try:
                    taken.enter_context(opened.commits.turn())
                    taken.enter_context(self._dropping(opened))
                    now = {bucket: handle.state().applied_offset for bucket, handle in enumerate(opened.handles)}
                except StoreError:
                    known()  # its files may be gone
                    raise
                known()
                if now != seen:
                    raise changed
                yield

        self._directories.create(table, rows, Replaced(replaced.id, turn))
        self._forget(replaced.id, opened)

    def begin_index(self, definition: TableDefinition, altered: Callable[[TableDefinition], TableOptions]) -> None:
        """Give a table a new secondary index, as the writer of all buckets; it lacks entries.

        Raises:
            UniqueViolation: Two rows have the same values in a new unique index. Nothing was changed.
        """
        opened = self.open_table(definition)
        handles = opened.handles
        with opened.commits.turn(keeps=True):  # a process that writes the buckets hands them over
            # Before the catalog has the index, which refuses writes: if the process is killed, there is none.
            now = self.catalog().tables[definition.id]
            indexes = altered(now).indexes
            for index in indexes.known if indexes else ():
                for handle in handles if index.unique and index not in now.indexes else ():
                    with handle.snapshot() as view:
                        if (row_pair := duplicate_row(self.catalog().tables[definition.id], index, view)) is not None:
                            raise violation(now, index, *row_pair)
            self.alterations.alter(definition, altered)

    def make_entries(self, definition: TableDefinition, progress: Callable[[int, int], object]) -> None:
        """Make the entries that secondary indexes of a table lack.

        Args:
            progress: Called with the number of rows of which entries are made, and about of all.
        """
        opened, done, halves = self.open_table(definition), 0, 0
        handles = opened.handles

        def report(made: int) -> None:
            progress(made, max(made, sum(each.state().row_count for each in handles)))

        def made(handle: BucketHandle) -> int | None:
            try:
                return handle.writer().committer.make_some_entries()
            except (StoreLocked, StoreClosed):
                # Another process has taken the bucket, for a commit; a store that was closed is refused once more.
                with opened.commits.turn(keeps=True):
                    return handle.writer().committer.make_some_entries()

        for handle in handles:
            while (worked := made(handle)) is not None:
                halves += worked  # each row is read, and then its entry is stored
                if done < halves // 2:
                    done = halves // 2
                    report(done)
        if done < (total := sum(each.state().row_count for each in handles)):
            report(total)  # rows in memory get theirs as they are merged

    def duplicate(self, definition: TableDefinition, index: str) -> UniqueViolation | None:
        """Two rows of a table that have the same values in an index, as an error; None if there are none."""
        opened = self.open_table(definition)
        now = self.catalog().tables[definition.id]
        [unique] = [each for each in now.indexes if each.name == index]
        for handle in opened.handles:
            with handle.indexed() as view:
                pair = duplicate(now, unique, view)
            if pair is not None:
                return violation(now, unique, *pair)
        return None

    def alter_table(self, definition: TableDefinition, altered: Callable[[TableDefinition], TableOptions]) -> None:
        """Change options of a table; see :meth:`kvstore.Store.alter_table`."""
        deadline = self.clock.monotonic() + _ENDS_SECONDS
        while True:
            try:
                # What stays open goes by the new options if a power cut takes it from a log.
                once_ended = self.clock.monotonic() < deadline
                self.alterations.alter(definition, altered, once_ended=once_ended)
                break
            except CommitsOpen:
                with suppress(StoreError):
                    self.open_table(definition).commits.settle()
                pause()
        opened = self._tables.get(definition.id)
        for handle in opened.handles if opened is not None else ():
            if handle.writes:
                with suppress(StoreError):  # the next write reports it
                    handle.writer().committer.settle()  # now, and not with the next write, it goes by the new options

    @uninterrupted
    def drop_table(self, name: str) -> None:
        """Remove a table; see :meth:`kvstore.Store.drop_table`."""
        definition = self.definition(name)

        def decide(state: CatalogState) -> DropTable:
            if definition.id not in state.tables:
                raise NoSuchTable("Another process has dropped the table.", table=name)
            edit = DropTable(table_id=definition.id)
            self._table_files.before(state, edit)
            return edit

        table = self.open_table(definition)
        with table.lock.held(), self._dropping(table):
            self._journal.append(decide)
        self._forget(definition.id, table)

    @contextmanager
    def _dropping(self, table: OpenTable) -> Iterator[None]:
        """Let no process begin to write a table any more, but after an error; it is the caller's turn to commit.

        Raises:
            StoreLocked: Another process writes it, and does not hand it over.
        """
        deadline = self._clock.monotonic() + COMMIT_WAIT_SECONDS
        with ExitStack() as refused, ExitStack() as asking:
            for handle in table.handles:
                while not handle.try_claim():
                    if self._clock.monotonic() >= deadline:
                        handle.refuse()
                    if not table.lock.wanted:
                        asking.enter_context(table.lock.wanting())
                    pause()
                refused.callback(handle.give_back)
            asking.close()
            refused.callback(self._table_files.complete, self._journal)
            yield
            refused.pop_all()

    def _forget(self, id: TableId, table: OpenTable) -> None:
        """Remove what is left of a table that the catalog no longer has."""
        with self._mutex:
            self._tables.pop(id, None)
        self.meter.forget(id)
        with suppress(StoreError):  # what could not be committed goes too
            table.close()
        self._directories.remove(id)

    def drop_writer(self, name: str) -> None:
        """Forget a named writer; see :meth:`kvstore.Store.drop_writer`."""
        tables = [id for id, writers in self.catalog().writers.items() if name in writers.named]
        if not tables:
            raise InvalidRequest("No table has a writer of that name; see Table.writers.", writer=shown(name))
        for edit in [DropWriter(table_id=table_id, name=name) for table_id in tables]:
            self._journal.append(lambda _, edit=edit: edit)  # type: ignore[misc]

    def drop_consumer(self, name: str) -> None:
        """Forget a consumer; see :meth:`kvstore.Store.drop_consumer`."""
        tables = [id for id, consumers in self.catalog().consumers.items() if consumers.position(name) is not None]
        if not tables:
            raise InvalidRequest("No table has a consumer of that name; see Store.consumers.", consumer=shown(name))
        for edit in [DropConsumer(table_id=table_id, name=name) for table_id in tables]:
            self._journal.append(lambda _, edit=edit: edit)  # type: ignore[misc]

    def new_writer_id(self) -> WriterId:
        """See :func:`kvstore.commit.named_writers.new_writer_id`."""
        return new_writer_id(self._journal)

    @uninterrupted
    def flush(self) -> None:
        """Make everything acknowledged durable and visible to every process."""
        for table in self._all_tables():
            for handle in table.handles:
                handle.flush()
        self._journal.flush()
        self._files.check()

    def use(self, use: object, *, writes: bool) -> None:
        """Register a store as a user."""
        self._uses[use] = writes

    def has(self, use: object) -> bool:
        """Whether a store uses it."""
        return use in self._uses

    def release(self, use: object) -> None:
        """Unregister a store. After the last writing one, other processes may write; after the last, all is closed."""
        with _runtimes_mutex:
            if self._uses.pop(use, None) is None or self.pid != os.getpid():
                return
            wake_all()  # readers that wait report that their store is closed
            if not self._uses:
                self._end()
            elif not self.writes:
                with ExitStack() as stack:
                    for table in self._all_tables():
                        stack.callback(table.stop_writing)

    def abandon(self, use: object) -> None:
        """Release the runtime for a store object that was garbage-collected."""
        with suppress(StoreError):  # no caller is left; the next open reports the error
            self.release(use)

    def end(self) -> None:
        """Close everything, even if stores still use it."""
        with _runtimes_mutex:
            self._uses.clear()
            self._end()
            wake_all()

    def _end(self) -> None:
        with suppress(ValueError):
            _runtimes.remove(self)
        with self._mutex:
            self._ended = True
        if self._hand_over is not None:
            self._hand_over.close()
        with ExitStack() as stack:  # each of them, whatever the others raise
            stack.callback(self._let_go)
            stack.callback(self._journal.close)
            stack.callback(self._ends.close)
            stack.callback(self._slots.close)
            stack.callback(self._receiver.close)
            stack.callback(self.checkpoints.close)
            for table in self._all_tables():
                stack.callback(table.close)

    def _check_open(self) -> None:
        # A table opened just after close() would never be closed.
        if self._ended:
            raise StoreClosed("The store was closed; open it again.", path=self.path)

    def _let_go(self) -> None:
        self.held.close()
        if self._files.held is self.held:
            self._files.held = None

    def _all_tables(self) -> list[OpenTable]:
        with self._mutex:
            return list(self._tables.values())


# Two may have one path, if the directory of the first was moved, removed or replaced.
_runtimes: list[StoreRuntime] = []
_runtimes_mutex = threading.Lock()


def shared_runtime(
    use: object,
    path: Path,
    options: StoreOptions,
    read_only: bool,
    files: Files,
    clock: Clock,
    leadership: Leadership,
) -> StoreRuntime:
    """The runtime of a directory, in use by ``use`` from now on until :meth:`StoreRuntime.release`.

    Args:
        leadership: That of the first user is used.

    Raises:
        InvalidRequest: The store is open in this process with other settings.
        StoreError: See :class:`StoreRuntime`.
    """
    directory = resolved(path.expanduser())
    with _runtimes_mutex:
        runtime = next((each for each in _runtimes if each.path == directory and not each.held.is_replaced), None)
        if runtime is None:
            runtime = StoreRuntime(directory, options, read_only, files, clock, leadership)
            _runtimes.append(runtime)
        elif runtime.options != options and not read_only:
            differ = [
                each.name
                for each in fields(options)
                if getattr(runtime.options, each.name) != getattr(options, each.name)
            ]
            raise InvalidRequest(
                "The store is open in this process with other settings, which all its handles share; close it, or use"
                " the same.",
                path=directory,
                there={name: getattr(runtime.options, name) for name in differ},
                given={name: getattr(options, name) for name in differ},
            )
        runtime.use(use, writes=not read_only)
        return runtime


@contextmanager
def opened(
    path: Path, options: StoreOptions, files: Files, clock: Clock, leadership: Leadership
) -> Iterator[StoreRuntime]:
    """A runtime for a tool that opens a store for writing, without being one.

    Raises:
        StoreError: See :class:`StoreRuntime`.
    """
    use = object()
    runtime = shared_runtime(use, path, options, False, files, clock, leadership)
    try:
        yield runtime
    finally:
        runtime.release(use)


def _identity_of(path: Path, files: Files, clock: Clock, *, read_only: bool) -> StoreFile:
    """Content of the file STORE; a new or empty directory becomes a store."""
    try:
        return _identity_found(path, files, clock, read_only=read_only)
    except OSError as error:
        if error.errno not in _NOT_ALLOWED:
            raise no_file(error, path) or refusal(error, path) from error
        raise NotAStore(
            "This can't be opened as a store; see the reason.", path=error.filename or path, reason=error.strerror
        ) from error


def _identity_found(path: Path, files: Files, clock: Clock, *, read_only: bool) -> StoreFile:
    refuse_network(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        store = store_file.decode(read_file(path / paths.STORE_FILE, bytes_max=STORE_BYTES_MAX))
        if not read_only:
            # The process that created it may have died, or failed, before its name was durable.
            files.sync_directory(path)
        return store
    if path.exists() and not path.is_dir():
        raise NotAStore("This is a file; a store is a directory.", path=path)
    if (path / paths.UNFINISHED_BACKUP).exists():
        raise NotAStore(
            "This is an unfinished backup; make it again, which continues it, or remove the directory.", path=path
        )
    if read_only:
        raise NotAStore(
            "There is no store here; check the path. `kvstore init DIR`, or opening it for writing, creates one.",
            path=path,
        )
    try:
        files.make_directory(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAStore("A store is a directory in a directory that is there; create that first.", path=path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # two processes may have come to create it
        with suppress(FileNotFoundError):
            return store_file.decode(read_file(path / paths.STORE_FILE, bytes_max=STORE_BYTES_MAX))
        if foreign := _foreign(path):
            raise NotAStore("This directory is no store and not empty; choose a new one.", path=path, holds=foreign[:5])
        return _created(path, files, clock)
    finally:
        os.close(descriptor)


def _foreign(path: Path) -> list[str]:
    """Names in a directory, without those that an unfinished creation leaves there."""
    meta = paths.JOURNAL.parent
    left = {
        Path(paths.STORE_FILE + paths.TEMPORARY),
        meta,
        paths.JOURNAL,
        *(paths.JOURNAL / name for name in LMDB_FILES),
    }
    names = {each.relative_to(path) for each in (*path.iterdir(), *(path / meta).rglob("*"))}
    return sorted(map(str, names - left))


def _created(path: Path, files: Files, clock: Clock) -> StoreFile:
    # STORE comes last: without it, whatever else is here was never a store.
    files.remove_tree(path / paths.JOURNAL.parts[0])
    files.make_directory(path / paths.JOURNAL.parts[0])
    store = StoreFile(store_id=uuid4(), created_ms=clock.now_ms())
    Journal(path, files, clock, store.store_id, leadership=CatalogLeadership(), create=True).close()
    files.publish(path / paths.STORE_FILE, store_file.encode(store))
    return store


def _close_all() -> None:
    for runtime in _runtimes.copy():
        with suppress(StoreError):
            runtime.end()


def _forget_parent() -> None:
    # In a forked child nothing of the parent's stores may be used, nor closed.
    global _runtimes_mutex
    _inherited.extend(_runtimes)
    _runtimes.clear()
    _runtimes_mutex = threading.Lock()


_inherited: list[StoreRuntime] = []
atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_parent)
