"""A store: a directory with a catalog and tables, opened by any number of processes."""

from __future__ import annotations

import atexit
import datetime as dt
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

import pyarrow as pa

from kvstore.arguments import column_names, integer_within, printable, shown
from kvstore.bucket.handle import BucketHandle
from kvstore.calls import in_background, uninterrupted
from kvstore.check import CheckReport, check_bucket
from kvstore.checkpoint.controller import Checkpoint, Controller, Follower
from kvstore.checkpoint.health import Health, health
from kvstore.clock import Clock, SteadyClock, SystemClock
from kvstore.commit.consumers import Consumer, Consumers
from kvstore.commit.named_writers import new_writer_id
from kvstore.commit.staging import Staging
from kvstore.environment import LMDB_FILES
from kvstore.errors import (
    CorruptImage,
    ForkedStore,
    InvalidRequest,
    NoSuchTable,
    NotAStore,
    SchemaMismatch,
    StoreClosed,
    StoreError,
    TableExists,
    UnsupportedOperation,
)
from kvstore.files import Files, read_file, refusal, refusals, refuse_network
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.options import Durability, StoreOptions
from kvstore.place import StoreDirectory
from kvstore.table.definition import added_fields, bucket_key_of, options_of
from kvstore.table.open_table import HandingOver, OpenTable, open_parts
from kvstore.table.table import Table
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import (
    AddSchema,
    ChangelogImage,
    CreateTable,
    DeleteBehavior,
    DropConsumer,
    DropTable,
    DropWriter,
    TableOptions,
)
from logformat.catalog.replicas import CATALOG
from logformat.catalog.store_file import STORE_BYTES_MAX, StoreFile
from logformat.ids import BucketId, SchemaId, TableId, Txid, WriterId
from logformat.log.arrow_message import Compression
from logformat.log.segment import HEAD_BYTES
from logformat.rows import schema as schemas
from merge_engines.engine import MergeEngine

BUCKETS_MAX = 1024
SCHEMAS_MAX = 2**15 - 1
TABLE_NAME_BYTES_MAX = 255
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG)


def options_of_call(durability: Durability, settings: Mapping[str, Any]) -> StoreOptions:
    """Settings as they were given to :func:`kvstore.open`.

    Raises:
        InvalidRequest: There is no such setting.
    """
    if unknown := set(settings) - set(StoreOptions.__dataclass_fields__):
        raise InvalidRequest("There is no such setting.", unknown=sorted(unknown))
    return StoreOptions(durability, **settings)


def open_reader(path: str | os.PathLike[str]) -> Store:
    """Open a store read-only, but for its catalog: what is read of a log can be kept from expiring.

    Raises:
        NotAStore, UnsupportedVersion, CorruptImage, InvalidRequest: See :func:`kvstore.open`.
    """
    return Store(path_of(path), StoreOptions(), read_only=True, registers=True)


def check_follows_not(path: Path) -> None:
    """See whether a store may be written.

    Raises:
        UnsupportedOperation: It is a copy that follows a replica.
    """
    if _follows(path):
        raise UnsupportedOperation(
            "This copy follows a replica: open it with read_only=True, write where its leader is, or have it take the"
            " leader's place (`kvstore replica promote`).",
            path=path,
        )


def _follows(path: Path) -> bool:
    # False also if that can't be seen: then it can't be opened, and why not is told there.
    return os.path.exists(path.expanduser() / paths.FOLLOWING)


def path_of(given: str | os.PathLike[str]) -> Path:
    """Where a store is to be opened.

    Raises:
        InvalidRequest: It is no path.
    """
    try:
        path = Path(given).expanduser()
        encoded = os.fsencode(path)
    except (TypeError, UnicodeEncodeError, RuntimeError) as error:
        raise InvalidRequest("This is no path to a store.", path=shown(given), reason=str(error)) from error
    if b"\0" in encoded or not os.fspath(given):
        raise InvalidRequest("A path is not empty and has no null character; give another.", path=shown(given))
    return path


class Store:
    """An open store; a context manager. It may be used from any thread, but not across ``fork()``.

    Args:
        path: Directory of the store.
        options: How it behaves in this process.
        registers: Whether consumers and leases may be registered; None for whoever may write.
        files, clock: The disk and the time; for tests.
    """

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        *,
        read_only: bool = False,
        registers: bool | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._follows = _follows(path)
        if not read_only:
            check_follows_not(path)
        self._read_only = read_only
        self._registers = (not read_only if registers is None else registers) and not self._follows
        self._closed = self._is_given_up = False
        self._use = object()
        self._core: _Core
        self._join(path, options, files or Files(), clock or SystemClock())

    @uninterrupted
    def _join(self, path: Path, options: StoreOptions, files: Files, clock: Clock) -> None:
        self._core = _shared_core(self._use, path, options, self._read_only, files, clock)

    def __del__(self) -> None:
        """Give the store up: nobody can close it any more."""
        core: _Core | None = getattr(self, "_core", None)
        if core is not None and core.has(self._use) and core.pid == os.getpid():
            in_background(partial(core.abandon, self._use))

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return self._core.path

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str] | str | None = None,
        *,
        buckets: int = 1,
        bucket_key: Sequence[str] | str | None = None,
        merge_engine: str | MergeEngine = "last_row",
        changelog_image: ChangelogImage = "full",
        delete_behavior: DeleteBehavior | None = None,
        auto_increment: str | None = None,
        skip_identical_updates: bool = False,
        compression: Compression = "lz4",
        retention: dt.timedelta | None = None,
    ) -> Table:
        """Create a table.

        Args:
            name: Up to 255 bytes of printable text without ``$``.
            schema: Columns; what types there may be stands in docs/types.md.
            primary_key: Key columns in key order; None for a log table, which is only appended to.
            buckets: Parts of the table, 1 to 1,024, each with a log of its own; they are written and read in parallel.
                A process has about eight files open for each it uses.
            bucket_key: Columns whose values say which bucket a row goes to; the primary key if None. Of a table with a
                primary key, some of its columns. Rows of a log table without one go to any.
            merge_engine: What becomes of a stored row when another comes: ``last_row``, ``first_row``,
                ``kvstore.Versioned(column)`` or ``kvstore.Aggregate({column: function})``.
            changelog_image: ``full``, or ``wal``: updates without the row before, which is faster; then there is no row
                count, no reading of former rows, and with the engine ``last_row`` every upsert is an update.
            delete_behavior: ``allow``, ``ignore`` or ``disable``; the engine's default if None.
            auto_increment: An integer column that the table fills: 1, 2, … for each new row.
            skip_identical_updates: Whether an update that changes nothing leaves no change.
            compression: Of the changelog: ``lz4``, ``zstd`` or None.
            retention: Segments of the changelog go once all their changes are older than this; rows stay, and so does
                what recovery or a registered consumer needs. All of it is kept if None. See also the setting
                ``log_bytes_max``.

        Raises:
            TableExists: There is one of that name. Nothing was written.
            InvalidRequest: A name, type or option is not possible. Nothing was written.
        """
        self._check_writable()
        name = _table_name(name)
        buckets = integer_within("buckets", buckets, 1, BUCKETS_MAX)
        key = None if primary_key is None else column_names("primary_key", primary_key)
        columns = schemas.normalise(schema, key or ())
        options = options_of(
            columns,
            key,
            merge_engine=merge_engine,
            changelog_image=changelog_image,
            compression=compression,
            delete_behavior=delete_behavior,
            auto_increment=auto_increment,
            skip_identical_updates=skip_identical_updates,
            retention=retention,
        )
        placed_by = bucket_key_of(columns, key, bucket_key)
        self._core.create_table(name, schemas.to_json(columns), key, placed_by, buckets, options)
        return self.table(name)

    def add_columns(self, name: str, fields: Sequence[pa.Field] | pa.Schema) -> None:
        """Add columns behind those of a table; in rows and changes that are there they are null.

        Args:
            fields: New columns, all nullable; what types there may be stands in docs/types.md.

        Raises:
            NoSuchTable: There is none of that name.
            InvalidRequest: A name, type or option is not possible. Nothing was written.
        """
        self._check_writable()
        self._core.add_columns(name, added_fields(fields))

    def table(self, name: str) -> Table:
        """A table of the store.

        Raises:
            NoSuchTable: There is none of that name.
        """
        self._check_open()
        core = self._core
        definition = core.definition(name)

        def current() -> TableDefinition:
            self._check_open()
            return core.current(definition)

        parts = core.parts(definition)
        if not self._read_only:
            with suppress(StoreError):  # who writes to the table next is told why
                parts.commits.settle()
        return Table(
            parts.handles,
            parts.writers,
            parts.consumers,
            current,
            self._check_writable,
            self._check_registers,
            core.options.batch_rows_max,
        )

    def list_tables(self) -> list[str]:
        """Names of all tables, sorted."""
        self._check_open()
        return sorted(table.name for table in self._core.catalog().tables.values())

    def drop_table(self, name: str) -> None:
        """Remove a table and all its files.

        Raises:
            NoSuchTable: There is none of that name.
            StoreLocked: Another process writes it. Nothing was removed.
            StoreFull, LogFailed: The disk refuses. If the table is not listed any more it is dropped, and what is left
                of its files goes when the next table is created.
        """
        self._check_writable()
        self._core.drop_table(name)

    def new_writer_id(self) -> int:
        """A writer id that was never given out before and never will be again; see :meth:`Bucket.apply`.

        They begin at 2^62, so that nobody who chooses ids of their own is in the way.
        """
        self._check_writable()
        return self._core.new_writer_id()

    def drop_writer(self, name: str) -> None:
        """Forget a named writer of any table, and fence whoever writes under it; the name may be given anew.

        Raises:
            InvalidRequest: No table has a writer of that name.
        """
        self._check_writable()
        self._core.drop_writer(name)

    def consumer(self, name: str) -> Consumer:
        """Somebody who reads changes, by name; it is registered with a table by its first commit.

        A name is for one reader: two under one name would move each other.

        Raises:
            InvalidRequest: It is no name.
        """
        self._check_open()

        def of_table(table: str) -> Consumers:
            self._check_open()
            return self._core.parts(self._core.definition(table)).consumers

        return Consumer(name, of_table, self._check_registers)

    @property
    def consumers(self) -> dict[str, dict[str, dict[int, int]]]:
        """Who reads and said so: by name and table, for each bucket the next offset to read."""
        self._check_open()
        catalog = self._core.catalog()
        found: dict[str, dict[str, dict[int, int]]] = {}
        for id, consumers in catalog.consumers.items():
            for name, offsets in consumers.lasting().items():
                found.setdefault(name, {})[catalog.tables[id].name] = offsets
        return found

    def drop_consumer(self, name: str) -> None:
        """Forget a consumer in every table: what only it had yet to read may expire.

        Raises:
            InvalidRequest: No table has a consumer of that name.
        """
        self._check_registers()
        self._core.drop_consumer(name)

    def check(self) -> CheckReport:
        """Verify everything: pages, checksums, offsets and sequences, images, and that each index agrees with its log.

        Raises:
            CorruptData: The catalog is damaged; without it nothing can be looked at.
        """
        self._check_open()
        core = self._core
        core.verify_catalog()
        catalog = core.catalog()
        tables = sorted(catalog.tables.values(), key=lambda table: table.name)
        buckets = [
            check_bucket(handle, table, BucketId(bucket))
            for table in tables
            for bucket, handle in enumerate(core.parts(table).handles)
        ]
        findings = [f"the catalog lacks table {id}" for id in core.unknown_tables(catalog)]
        findings += core.damaged_images()
        now = core.catalog()
        for table in tables if not self._follows else ():
            if open_commits := set(now.writers_of(table.id).commits) & set(catalog.writers_of(table.id).commits):
                with suppress(StoreError):
                    core.parts(table).commits.settle()
                left = open_commits & set(core.catalog().writers_of(table.id).commits)
                findings += [f"table {table.name}: commit {commit.commit_id} came to no end" for commit in left]
        return CheckReport(buckets, findings)

    def checkpoint(self) -> Checkpoint:
        """Make an image of the catalog, so that the next open need not replay its edits; another process does it.

        What two images make superfluous of the journal goes. It is done of its own accord after every 50,000 edits.

        Raises:
            StoreLocked: Another process is about to.
            Unavailable: There is too little memory, or the worker ended without an answer; try again.
            StoreFull, LogFailed: The disk refuses.
            CorruptImage: The catalog is damaged.
        """
        self._check_writable()
        return self._core.checkpoints.checkpoint()

    def health(self) -> Health:
        """How the catalog stands, and what somebody should see to: images that are damaged, or too old.

        Raises:
            CorruptImage, UnsupportedVersion: The catalog can't be loaded.
        """
        self._check_open()
        return self._core.health()

    def flush(self) -> None:
        """Return once everything acknowledged, of any table, is on the disk and seen by every process."""
        self._check_open()
        self._core.flush()

    def close(self) -> None:
        """Commit everything and give the store up; doing so again does nothing.

        If Ctrl-C comes meanwhile, close it again: what was left is done then.

        Raises:
            LogFailed, StoreFull: Not everything could be committed; all of it that was synced is recovered at the next
                open. The store is given up all the same.
        """
        if not self._is_given_up:
            self._give_up()

    @uninterrupted
    def _give_up(self) -> None:
        self._closed = True
        try:
            self._core.release(self._use)
        finally:
            self._is_given_up = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._core.pid != os.getpid():
            raise ForkedStore("The store was opened before a fork(); open it again in this process.")
        if self._closed:
            raise StoreClosed("The store was closed; open it again.", path=self.path)
        self._core.place.check()

    def _check_writable(self) -> None:
        self._check_open()
        if self._follows:
            check_follows_not(self.path)
        if self._read_only:
            raise UnsupportedOperation("The store was opened read-only; open it for writing.", path=self.path)

    def _check_registers(self) -> None:
        if not self._registers:
            self._check_writable()
        self._check_open()


@dataclass(frozen=True, slots=True)
class _Replica:
    """Who has the edits up to one."""

    txid: Txid

    def replayed(self) -> Txid:
        return self.txid


class _Core:
    """What all the stores of one process that are the same directory share."""

    def __init__(self, path: Path, options: StoreOptions, read_only: bool, files: Files, clock: Clock) -> None:
        self.path = path
        self.options = options
        self.pid = os.getpid()
        self._uses: dict[object, bool] = {}
        """For each store that was not closed, whether it may write."""
        self._files = files
        self._clock = clock = SteadyClock(clock)
        self._mutex = threading.Lock()
        self._parts: dict[TableId, OpenTable] = {}
        self._handing_over: HandingOver | None = None
        self._ended = False
        self._identity = _identity_of(path, files, clock, read_only=read_only)
        with refusals(path):
            self.place = files.place = StoreDirectory(path, clock)
        try:
            with suppress(OSError):  # what is wrong with it, the journal says
                files.hold(path / paths.JOURNAL.parent)
            self._journal = Journal(
                *(path, files, clock, self._identity.store_id),
                edits_per_segment=options.edits_per_journal,
                sync=options.journal_sync,
                wait_ms=options.sync_interval_ms,
                appended=lambda txid: self.checkpoints.appended(txid),
            )
        except BaseException:
            self._let_go()
            raise
        self.checkpoints = Controller(
            *(path, self._identity.store_id, self._journal, files, clock),
            writes=lambda: self.writes,
            edits_per_image=options.edits_per_journal,
            followers=self._replicas,
        )

    @property
    def writes(self) -> bool:
        """Whether any store of this process may write."""
        return any(self._uses.copy().values())

    @property
    def journal(self) -> Journal:
        return self._journal

    @property
    def files(self) -> Files:
        return self._files

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def store_id(self) -> UUID:
        return self._identity.store_id

    def catalog(self) -> CatalogState:
        return self._journal.state()

    def _replicas(self) -> list[Follower]:
        """Replicas to which edits were shipped: what they lack, they need."""
        shipped = [replica.of(CATALOG) for replica in self.catalog().replicas.values()]
        return [_Replica(Txid(each.end)) for each in shipped if each is not None]

    def health(self) -> Health:
        return health(self.path, self._journal, self.checkpoints.failure, self.options.edits_per_journal)

    def verify_catalog(self) -> None:
        self._journal.verify()

    def damaged_images(self) -> list[str]:
        images = self._journal.images
        for _ in images.usable():
            pass
        return [str(error) for error in images.damaged]

    def definition(self, name: str) -> TableDefinition:
        state = self.catalog()
        definition = state.table(name)
        if definition is None:
            raise NoSuchTable(
                "There is no such table.", table=name, tables=sorted(t.name for t in state.tables.values())
            )
        return definition

    def current(self, definition: TableDefinition) -> TableDefinition:
        now = self.catalog().tables.get(definition.id)
        if now is None:
            raise NoSuchTable("The table was dropped.", table=definition.name)
        return now

    def parts(self, definition: TableDefinition) -> OpenTable:
        """What this process has open of a table."""
        known = self._parts.get(definition.id)
        return known if known is not None else self._opened_parts(definition)

    @uninterrupted
    def _opened_parts(self, definition: TableDefinition) -> OpenTable:
        with self._mutex:
            self._check_open()
            if definition.id not in self._parts:
                self._parts[definition.id] = self._opened(definition, lambda: self.current(definition))
            if self._handing_over is None:
                self._handing_over = HandingOver(self._all_parts)
            return self._parts[definition.id]

    @uninterrupted
    def create_table(
        self,
        name: str,
        columns: list[dict[str, object]],
        key: list[str] | None,
        bucket_key: list[str] | None,
        buckets: int,
        options: TableOptions,
    ) -> None:
        def decide(state: CatalogState) -> CreateTable:
            if state.table(name) is not None:
                raise TableExists("There is a table of that name; choose another, or drop it.", table=name)
            self._remove_orphans(state)
            edit = CreateTable(
                table_id=state.next_table_id,
                name=name,
                columns=columns,
                primary_key=key,
                buckets=buckets,
                bucket_key=bucket_key,
                options=options,
            )
            # Its files first: what the catalog names is always there.
            definition = TableDefinition.of(edit)
            with refusals(self.path):
                self._files.make_directory(self.path / paths.TABLES)
                self._files.make_directory(self.path / paths.TABLES / str(definition.id))
            for handle in self._opened(definition, lambda: definition).handles:
                with refusals(self.path):
                    self._files.make_directory(handle.place.directory)
                handle.create()
            return edit

        self._journal.append(decide)

    def add_columns(self, name: str, fields: list[pa.Field]) -> None:
        definition = self.definition(name)

        def decide(state: CatalogState) -> AddSchema:
            now = state.tables.get(definition.id)
            if now is None:
                raise NoSuchTable("The table was dropped.", table=name)
            if doubled := [field.name for field in fields if field.name in now.schema.names]:
                raise SchemaMismatch("The table has a column of that name; choose another.", columns=doubled)
            whole = schemas.normalise(pa.schema([*now.schema, *fields]), now.primary_key or ())
            if len(now.schemas) == SCHEMAS_MAX:
                raise InvalidRequest("A table has at most this many schemas; make a new one.", schemas=SCHEMAS_MAX)
            return AddSchema(table_id=now.id, schema_id=SchemaId(now.schema_id + 1), columns=schemas.to_json(whole))

        self._journal.append(decide)

    @uninterrupted
    def drop_table(self, name: str) -> None:
        definition = self.definition(name)
        parts = self.parts(definition)
        with ExitStack() as refused:
            for handle in parts.handles:
                handle.claim()
                refused.callback(handle.give_back)
            self._journal.append(lambda _: DropTable(table_id=definition.id))
            refused.pop_all()
        with self._mutex:
            self._parts.pop(definition.id, None)
        with suppress(StoreError):  # what could not be committed goes too
            parts.close()
        self._remove_files(definition.id)

    def drop_writer(self, name: str) -> None:
        tables = [id for id, writers in self.catalog().writers.items() if name in writers.named]
        if not tables:
            raise InvalidRequest("No table has a writer of that name; see Table.writers.", writer=shown(name))
        for edit in [DropWriter(table_id=table_id, name=name) for table_id in tables]:
            self._journal.append(lambda _, edit=edit: edit)  # type: ignore[misc]

    def drop_consumer(self, name: str) -> None:
        tables = [id for id, consumers in self.catalog().consumers.items() if name in consumers.lasting()]
        if not tables:
            raise InvalidRequest("No table has a consumer of that name; see Store.consumers.", consumer=shown(name))
        for edit in [DropConsumer(table_id=table_id, name=name) for table_id in tables]:
            self._journal.append(lambda _, edit=edit: edit)  # type: ignore[misc]

    def new_writer_id(self) -> WriterId:
        return new_writer_id(self._journal)

    @uninterrupted
    def flush(self) -> None:
        for handle in self._all_handles():
            handle.flush()
        self._journal.flush()
        self._files.check()

    def use(self, use: object, *, writes: bool) -> None:
        """Be used by a store."""
        self._uses[use] = writes

    def has(self, use: object) -> bool:
        """Whether a store uses it."""
        return use in self._uses

    def release(self, use: object) -> None:
        """Be used by a store no more: without stores that write, others may; without any, all is closed."""
        with _cores_mutex:
            if self._uses.pop(use, None) is None or self.pid != os.getpid():
                return
            if not self._uses:
                self._end()
            elif not self.writes:
                with ExitStack() as stack:
                    for parts in self._all_parts():
                        stack.callback(parts.stop_writing)

    def abandon(self, use: object) -> None:
        """Be used by a store no more that nobody refers to."""
        with suppress(StoreError):  # nobody is left to be told; who opens the store next is told what is wrong
            self.release(use)

    def end(self) -> None:
        """Close everything, whoever uses it."""
        with _cores_mutex:
            self._uses.clear()
            self._end()

    def _end(self) -> None:
        with suppress(ValueError):
            _cores.remove(self)
        with self._mutex:
            self._ended = True
        if self._handing_over is not None:
            self._handing_over.close()
        with ExitStack() as stack:  # each of them, whatever the others raise
            stack.callback(self._let_go)
            stack.callback(self._journal.close)
            stack.callback(self.checkpoints.close)
            for parts in self._all_parts():
                stack.callback(parts.close)

    def _check_open(self) -> None:
        # What is opened a moment after close() nobody closes again.
        if self._ended:
            raise StoreClosed("The store was closed; open it again.", path=self.path)

    def _let_go(self) -> None:
        self.place.close()
        if self._files.place is self.place:
            self._files.place = None

    def _all_parts(self) -> list[OpenTable]:
        with self._mutex:
            return list(self._parts.values())

    def _all_handles(self) -> list[BucketHandle]:
        return [handle for parts in self._all_parts() for handle in parts.handles]

    def _opened(self, definition: TableDefinition, current: Callable[[], TableDefinition]) -> OpenTable:
        return open_parts(
            *(self.path, self._identity.store_id, definition, current, self._journal),
            *(self.options, self._files, self._clock),
            read_only=lambda: not self.writes,
        )

    def _remove_orphans(self, state: CatalogState) -> None:
        """Remove what is left of tables that were dropped, or never quite created, when a process died."""
        if unknown := self.unknown_tables(state):
            raise CorruptImage(
                "The catalog is older than the tables: restore a newer one, or move away the directories it lacks.",
                path=self.path / paths.TABLES,
                lacks=unknown,
            )
        for table_id in self._table_ids() - state.tables.keys():
            self._remove_files(table_id)

    def _remove_files(self, table_id: TableId) -> None:
        """Remove everything a table has that is gone from the catalog."""
        Staging(self.path, table_id, self._files).sweep(())
        directory = self.path / paths.TABLES / str(table_id)
        with refusals(directory):
            self._files.remove_tree(directory)

    def unknown_tables(self, state: CatalogState) -> list[TableId]:
        """Tables with changes that the catalog knows nothing of, and has never dropped: it has lost edits."""
        return sorted(id for id in self._table_ids() if id >= state.next_table_id and self._has_changes(id))

    def _table_ids(self) -> set[TableId]:
        tables = self.path / paths.TABLES
        return {TableId(int(path.name)) for path in tables.glob("*") if path.is_dir() and path.name.isdecimal()}

    def _has_changes(self, table_id: TableId) -> bool:
        logs = (self.path / paths.TABLES / str(table_id)).glob(f"*/{paths.LOG}/*")
        segments = [path for path in logs if paths.segment_base(path.name) is not None]
        return any(segment.stat().st_size > HEAD_BYTES for segment in segments)


# Two may have one path, if the directory of the first was moved, removed or replaced.
_cores: list[_Core] = []
_cores_mutex = threading.Lock()


def _shared_core(use: object, path: Path, options: StoreOptions, read_only: bool, files: Files, clock: Clock) -> _Core:
    resolved = path.expanduser().resolve()
    with _cores_mutex:
        core = next((each for each in _cores if each.path == resolved and not each.place.is_replaced), None)
        if core is None:
            core = _Core(resolved, options, read_only, files, clock)
            _cores.append(core)
        elif core.options != options and not read_only:
            raise InvalidRequest(
                "The store is open in this process with other settings; close it, or use the same.",
                path=resolved,
                settings=core.options,
            )
        core.use(use, writes=not read_only)
        return core


def _identity_of(path: Path, files: Files, clock: Clock, *, read_only: bool) -> StoreFile:
    """What the file STORE says; a directory that is new or empty becomes a store."""
    try:
        return _identity_found(path, files, clock, read_only=read_only)
    except OSError as error:
        if error.errno not in _NOT_ALLOWED:
            raise refusal(error, path) from error
        raise NotAStore(
            "This can't be opened as a store; see the reason.", path=error.filename or path, reason=error.strerror
        ) from error


def _identity_found(path: Path, files: Files, clock: Clock, *, read_only: bool) -> StoreFile:
    refuse_network(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        store = store_file.decode(read_file(path / paths.STORE_FILE, bytes_max=STORE_BYTES_MAX))
        if not read_only:
            # Whoever created it may have died, or been refused, before its name was durable.
            files.sync_directory(path)
        return store
    if read_only:
        raise NotAStore(
            "There is no store here; see whether the path is right, or open it for writing to create one.", path=path
        )
    try:
        files.make_directory(path)
        foreign = _foreign(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAStore("A store is a directory in a directory that is there; create that first.", path=path) from error
    if foreign:
        raise NotAStore("This directory is no store and not empty; choose a new one.", path=path, holds=foreign[:5])
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # two processes may have come to create it
        with suppress(FileNotFoundError):
            return store_file.decode(read_file(path / paths.STORE_FILE, bytes_max=STORE_BYTES_MAX))
        return _created(path, files, clock)
    finally:
        os.close(descriptor)


def _foreign(path: Path) -> list[str]:
    """What is in a directory, but for what a creation that did not come to its end leaves there."""
    meta = paths.JOURNAL.parent
    left = {
        Path(paths.STORE_FILE + paths.TEMPORARY),
        meta,
        paths.JOURNAL,
        *(paths.JOURNAL / name for name in LMDB_FILES),
    }
    found = {each.relative_to(path) for each in (*path.iterdir(), *(path / meta).rglob("*"))}
    return sorted(map(str, found - left))


def _created(path: Path, files: Files, clock: Clock) -> StoreFile:
    # STORE comes last: without it, whatever else is here was never a store.
    files.remove_tree(path / paths.JOURNAL.parts[0])
    files.make_directory(path / paths.JOURNAL.parts[0])
    store = StoreFile(store_id=uuid4(), created_ms=clock.now_ms())
    Journal(path, files, clock, store.store_id, create=True).close()
    files.publish(path / paths.STORE_FILE, store_file.encode(store))
    return store


def _table_name(name: str) -> str:
    name = printable("name", name, TABLE_NAME_BYTES_MAX)
    if "$" in name:
        raise InvalidRequest("A table's name is without $.", name=name)
    return name


def _close_all() -> None:
    for core in _cores.copy():
        with suppress(StoreError):
            core.end()


def _forget_parent() -> None:
    # In a forked child nothing of the parent's stores may be used, nor closed.
    global _cores_mutex
    _inherited.extend(_cores)
    _cores.clear()
    _cores_mutex = threading.Lock()


_inherited: list[_Core] = []
atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_parent)
