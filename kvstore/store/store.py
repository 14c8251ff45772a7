"""A store: a directory with a catalog, tables, replicas and ingestion jobs, opened by any number of processes.

* A call on a store that was closed, forked or replaced is refused before it does anything.
* What stores of one process share is their runtime (:mod:`kvstore.store.runtime`); a store only checks its calls.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

from msgspec import UNSET, structs
from msgspec.structs import asdict

from kvstore.arguments import column_names, integer, integer_within, path_of, printable, shown
from kvstore.backup.backup import Backup, back_up
from kvstore.checkpoint.controller import Checkpoint
from kvstore.checkpoint.health import Health
from kvstore.clock import Clock, SystemClock
from kvstore.commit.consumers import Consumer, Consumers, Lease
from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest, NoSuchTable, StoreError
from kvstore.ingest import creation
from kvstore.ingest.creation import DEFAULTS
from kvstore.ingest.job import Job
from kvstore.ingest.records import Home, id_of, job_ids
from kvstore.meta.state import TableDefinition
from kvstore.options import Durability, StoreOptions, options_of_call
from kvstore.process.calls import uninterrupted
from kvstore.replica import registry
from kvstore.replica.leadership import ReplicaLeadership
from kvstore.replica.replica import Replica, ReplicaReport
from kvstore.replica.ship.background import Shipping
from kvstore.replica.ship.shipper import stored_name
from kvstore.shared.location import client_of_tables
from kvstore.shared.publish import publish
from kvstore.store.advice import counted_advice
from kvstore.store.altered_tables import AlteredTables
from kvstore.store.check import CheckReport
from kvstore.store.held_indexes import held_indexes, warning_of
from kvstore.store.metrics import Format, Metrics, metrics
from kvstore.store.read_store import ReadStore
from kvstore.store.session import Session
from kvstore.store.snapshot import StoreSnapshot
from kvstore.table.declared_schema import SchemaGiven, schema_of
from kvstore.table.definition import BUCKETS_MAX, bucket_key_of, indexes_like, options_of
from kvstore.table.read_table import ReadTable
from kvstore.table.table import Table
from kvstore.transaction.transaction import Transaction
from logformat.catalog.edits import ChangelogImage, CreateTable, DeleteBehavior
from logformat.ids import TableId
from logformat.log.arrow_message import Compression
from logformat.rows import schema as schemas
from merge_engines.engine import MergeEngine
from merge_engines.spec import engine_of

TABLE_NAME_BYTES_MAX = 255
SECONDS_MAX = 24 * 3600


def open_store(
    path: str | os.PathLike[str], read_only: bool = False, durability: Durability = "sync", **settings: int
) -> Store:
    """Open a store, creating it if the directory is new or empty.

    Args:
        path: Directory of the store, on a local disk.
        read_only: Write nothing but LMDB's lock files, in which readers register, and wait for no other process. Where
            these may not be written, as on a read-only mount, the store is read without; see docs/operations.md. Writes
            that need recovery after a crash are invisible until the store is opened for writing.
        durability: ``sync``, ``interval`` or ``none``; see :class:`kvstore.options.StoreOptions`.
        settings: Other fields of :class:`kvstore.options.StoreOptions`.

    Raises:
        NotAStore: The directory is neither a store nor empty; with ``read_only``: it does not exist. Nothing was
            written.
        UnsupportedVersion: A newer version of kvstore wrote the store.
        CorruptImage: The catalog of the store is damaged.
        InvalidRequest: The store is open in this process with other settings, or an argument is invalid.
    """
    return Store(path_of(path), options_of_call(durability, settings), read_only=read_only)


def new_table(
    name: str,
    schema: SchemaGiven,
    primary_key: Sequence[str] | str | None = None,
    *,
    buckets: int = 1,
    bucket_key: Sequence[str] | str | None = None,
    **options: Any,
) -> CreateTable:
    """The edit that creates a table, which has no id yet; see :meth:`Store.create_table`.

    Args:
        options: Those of :meth:`Store.create_table` that are left.

    Raises:
        InvalidRequest: A name, type or option is not possible.
    """
    name = table_name(name)
    buckets = integer_within("buckets", buckets, 1, BUCKETS_MAX)
    key = None if primary_key is None else column_names("primary_key", primary_key)
    columns = schemas.normalise(schema_of(schema), key or ())
    return CreateTable(
        table_id=TableId(0),
        name=name,
        columns=schemas.to_json(columns),
        primary_key=key,
        buckets=buckets,
        bucket_key=bucket_key_of(columns, key, bucket_key),
        options=options_of(columns, key, **options),
    )


def table_like(table: TableDefinition, schema: SchemaGiven, key: Sequence[str] | None) -> CreateTable:
    """The edit that creates a table with the options, buckets and name of another, and these columns.

    Args:
        key: Names of the columns of the other table's key in ``schema``.

    Raises:
        InvalidRequest: The options are not possible with these columns.
    """
    options = asdict(table.options) | {"retention": None, "merge_engine": engine_of(table.options.merge_engine)}
    del options["indexes"]
    if (retention_ms := options.pop("retention_ms")) is not None:
        options["retention"] = dt.timedelta(milliseconds=retention_ms)
    if key is None:
        options = {name: options[name] for name in ("compression", "retention")}
    names = dict(zip(table.primary_key or (), key or (), strict=True))
    bucket_key = None if table.bucket_key is None else [names.get(name, name) for name in table.bucket_key]
    made = new_table(table.name, schema, key, buckets=table.buckets, bucket_key=bucket_key, **options)
    indexes = UNSET if key is None else indexes_like(table, schemas.from_json(made.columns))
    return structs.replace(made, options=structs.replace(made.options, indexes=indexes))


def open_reader(path: str | os.PathLike[str]) -> Store:
    """Open a store whose tables may only be read, but whose log can be kept from expiring: readers may register.

    Raises:
        NotAStore, UnsupportedVersion, CorruptImage, InvalidRequest: See :func:`kvstore.open`.
    """
    return Store(path_of(path), StoreOptions(), read_only=True, registers=True)


class Store(AlteredTables, ReadStore):
    """An open store; a context manager. It may be used from any thread, but not across ``fork()``.

    Made by :func:`kvstore.open`.

    Args:
        path: Directory of the store.
        options: Settings of the store in this process.
        registers: Whether consumers and leases may be registered; None: if the store may be written.
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
        clock = clock or SystemClock()
        self._shippings: weakref.WeakSet[Shipping] = weakref.WeakSet()
        session = Session(
            *(path, options, files or Files(), clock, ReplicaLeadership(clock)),
            read_only=read_only,
            registers=registers,
        )
        super().__init__(session)

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return self.runtime.path

    @property
    def txid(self) -> int:
        """Number of the last edit of the catalog, which counts every one.

        Raises:
            CorruptImage, UnsupportedVersion: The catalog can't be loaded.
        """
        self._session.check_open()
        return self.runtime.catalog().txid

    def create_table(
        self,
        name: str,
        schema: SchemaGiven,
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
        indexes: Mapping[str, Sequence[str] | str] | None = None,
    ) -> Table:
        """Create a table.

        Args:
            name: Up to 255 bytes of printable text without ``$``.
            schema: Columns: a ``pyarrow.Schema``, a dict such as ``{"path": "string", "size": "int64"}``, a dataclass,
                a pydantic model or a TypedDict; docs/types.md lists the types. Columns take nulls unless their type's
                name ends with `` not null``; those with a type of Python only if it has ``| None``.
            primary_key: Key columns in key order; None for a log table, which is only appended to.
            buckets: Parts of the table, 1 to 1,024, each with a log of its own; they are written and read in parallel.
                A process has about eight files open for each it uses.
            bucket_key: Columns whose values say which bucket a row goes to; the primary key if None. In a table with a
                primary key, they are columns of that key. Rows of a log table without a bucket key go to any bucket.
            merge_engine: How a new row is merged into the stored row of its key: ``last_row``, ``first_row``,
                ``kvstore.Versioned(column)`` or ``kvstore.Aggregate({column: function})``.
            changelog_image: ``full``, or ``wal``: updates without the row before, which is faster; then there is no row
                count and no time travel, and with the engine ``last_row`` every upsert is an update.
            delete_behavior: ``allow``, ``ignore`` or ``disable``; the engine's default if None.
            auto_increment: An integer column that the table fills: 1, 2, … for each new row.
            skip_identical_updates: Whether an update that changes nothing leaves no change.
            compression: Of the changelog: ``lz4``, ``zstd`` or None.
            retention: Segments of the changelog are removed once all their changes are older than this; rows stay, and
                so do changes that recovery or a registered consumer needs. If None, all are kept. See also the
                setting ``log_bytes_max``.
            indexes: Columns of secondary indexes, by the name of each; see :meth:`create_index`.

        Raises:
            TableExists: There is a table of that name. Nothing was written.
            InvalidRequest: A name, type or option is not possible. Nothing was written.
        """
        self._session.check_writable()
        table = new_table(
            name,
            schema,
            primary_key,
            buckets=buckets,
            bucket_key=bucket_key,
            merge_engine=merge_engine,
            changelog_image=changelog_image,
            compression=compression,
            delete_behavior=delete_behavior,
            auto_increment=auto_increment,
            skip_identical_updates=skip_identical_updates,
            retention=retention,
            indexes=indexes,
        )
        self.runtime.create_table(table)
        return self.table(name)

    def rename_table(self, name: str, new_name: str) -> None:
        """Give a table another name; its rows, changes, writers, consumers and jobs stay, and readers go on.

        Args:
            new_name: As in :meth:`create_table`.

        Raises:
            NoSuchTable: There is none of that name.
            TableExists: There is a table of the new name. Nothing was written.
            InvalidRequest: It is not a name for a table. Nothing was written.
        """
        self._session.check_writable()
        self.runtime.alterations.rename(self.runtime.definition(name), table_name(new_name))

    def table(self, name: str) -> Table:
        """A table of the store.

        Raises:
            NoSuchTable: There is none of that name.
        """
        self._session.check_open()
        opened = self.runtime.open_table(self.runtime.definition(name))
        table = Table(opened, self._session, self.runtime.options.batch_rows_max)
        if self._session.follows:
            self._session.tables[table] = opened.catalog
        return table

    def table_by_id(self, id: int) -> Table:
        """A table by its id, which stays when it is renamed and is never used again; see :attr:`Table.identity`.

        Raises:
            NoSuchTable: The store has no table of this id.
        """
        self._session.check_open()
        definition = self.runtime.catalog().tables.get(TableId(integer("id", id)))
        if definition is None:
            raise NoSuchTable("The store has no table with this id; it may have been dropped.", id=id)
        return self.table(definition.name)

    def transaction(self, writer: str | None = None, epoch: int | None = None) -> Transaction:
        """Change rows of several tables by one commit: ``with store.transaction() as tx: tx.upsert("orders", row); …``.

        All of it is written when the block is left, or nothing: not if the block is left by an error, and not if the
        process dies. What ``tx.get`` returned is a condition: if another one changes such a row before the commit, that
        raises TransactionConflict, and nothing is written; run the block again. Rows that are only scanned are no
        conditions. A transaction that writes nothing tests nothing.

        The commit takes all buckets of the tables: if another process owns the first one, it commits the transaction,
        and other processes hand theirs over to it. If all that was read and written is in one bucket, it is an ordinary
        write. A reader that reads one table after the other may see the commit in only one of them.

        Args:
            writer: Name that counts ``epoch``: a transaction that is sent again under the same number, because its
                answer was lost, is not written again; ``tx.result.duplicated`` is true then. In each table it is a name
                as of :meth:`kvstore.Table.apply_epoch`.
            epoch: Number of the transaction under ``writer``; each larger than the last.

        Raises:
            InvalidRequest: Only one of ``writer`` and ``epoch`` is given. At the end of the block: both are, and the
                transaction writes nothing.
            SchemaMismatch: At the end of the block: a row has a value in a column that was dropped since the
                transaction first used the table. Nothing was written.
            TransactionConflict: At the end of the block: a row that was read has changed. Nothing was written.
            OutOfOrderSequence: At the end of the block: ``epoch`` is too small. Nothing was written.
            NotAcknowledged: At the end of the block: another process was to commit it, and does not answer; it may be
                written. Or it is committed, and the disk does not take its rows yet; ``where["committed"]`` is true
                then.
            StoreLocked, StoreFull, CorruptData, LogFailed: At the end of the block; see
                :meth:`kvstore.Table.apply_epoch`.
        """
        self._session.check_writable()
        return Transaction(
            self._session, lambda name: self.runtime.open_table(self.runtime.definition(name)), writer, epoch
        )

    def snapshot(self, tables: Sequence[str] | None = None) -> StoreSnapshot:
        """All tables as they are now, at one cut: ``with store.snapshot() as at: at.table("orders").scan(); …``.

        No commit over several buckets or tables is in one of them and not in another. Writing goes on; what is written
        later is not seen. While the snapshot is open, indexes that are written grow, as beside a long scan.

        Args:
            tables: Names of the tables that it has; all if None. Every bucket of them is opened.

        Returns:
            Tables by name (``at["orders"]``), each a :class:`kvstore.ReadTable`, and ``at.sql(…)`` over all of them.
            A reader that waits for changes (``follow``) finds none; it ends with the snapshot.

        Raises:
            NoSuchTable: There is no table of one of the names.
            Unavailable: A commit is decided and not completed: its process does not go on, or it died and this store
                may only be read.
            CorruptData: An index is damaged.
        """
        self._session.check_open()
        names = self.list_tables() if tables is None else [tables] if isinstance(tables, str) else tables
        return StoreSnapshot(
            self._session, {name: self.runtime.open_table(self.runtime.definition(name)) for name in names}
        )

    @contextmanager
    def _at_once(self, names: Sequence[str]) -> Iterator[Callable[[str], ReadTable]]:
        with self.snapshot(names) as at:
            yield at.table

    def __repr__(self) -> str:
        try:
            tables = ", ".join(self.list_tables()) or "no tables"
        except StoreError as error:
            return f"<kvstore.Store: {error.message}>"
        return f"<kvstore.Store {str(self.path)!r}: {tables}>"

    def list_tables(self) -> list[str]:
        """Names of all tables, sorted."""
        self._session.check_open()
        return sorted(table.name for table in self.runtime.catalog().tables.values())

    def drop_table(self, name: str) -> None:
        """Remove a table and all its files.

        Raises:
            NoSuchTable: There is none of that name.
            StoreLocked: Another process writes it, and has not handed it over within 30 s. Nothing was removed.
            StoreFull, LogFailed: The disk refuses. If the table is not listed any more it is dropped, and what is left
                of its files goes when the next table is created.
        """
        self._session.check_writable()
        self.runtime.drop_table(name)

    def new_writer_id(self) -> int:
        """A writer id that was never given out before and never will be again; see :meth:`Bucket.apply`.

        They begin at 2^62, so that ids that programs choose themselves do not collide with them.
        """
        self._session.check_writable()
        return self.runtime.new_writer_id()

    def drop_writer(self, name: str) -> None:
        """Forget a named writer of any table, and fence its current user; the name may be used again.

        Raises:
            InvalidRequest: No table has a writer of that name.
        """
        self._session.check_writable()
        self.runtime.drop_writer(name)

    def consumer(self, name: str) -> Consumer:
        """A named reader of changes; its first commit for a table registers it there.

        A name is for one reader: two readers with one name would move each other's position.

        Raises:
            InvalidRequest: It is no name.
        """
        self._session.check_open()

        def of_table(table: str) -> Consumers:
            self._session.check_open()
            return self.runtime.open_table(self.runtime.definition(table)).consumers

        return Consumer(name, of_table, self._session.check_registers)

    @property
    def consumers(self) -> dict[str, dict[str, dict[int, int]]]:
        """Registered consumers: by name and table, the next offset to read of each bucket."""
        self._session.check_open()
        catalog = self.runtime.catalog()
        offsets_of: dict[str, dict[str, dict[int, int]]] = {}
        for id, consumers in catalog.consumers.items():
            for name, offsets in consumers.lasting().items():
                offsets_of.setdefault(name, {})[catalog.tables[id].name] = offsets
        return offsets_of

    @property
    def leases(self) -> dict[str, dict[str, Lease]]:
        """Readers that are registered for a while, by name and table; see :meth:`kvstore.Table.lease`.

        A lease that has ended is kept until the next process registers a reader of its table.
        """
        self._session.check_open()
        catalog, now_ms = self.runtime.catalog(), self.runtime.clock.now_ms()
        leases: dict[str, dict[str, Lease]] = {}
        for id, consumers in catalog.consumers.items():
            for name, (offsets, until_ms) in consumers.leases().items():
                lease = Lease(offsets, until_ms, until_ms <= now_ms)
                leases.setdefault(name, {})[catalog.tables[id].name] = lease
        return leases

    def drop_consumer(self, name: str) -> None:
        """Forget a consumer in every table: what only it had yet to read may expire.

        Raises:
            InvalidRequest: No table has a consumer of that name.
        """
        self._session.check_registers()
        self.runtime.drop_consumer(name)

    def check(self, progress: Callable[[int, int], object] = lambda _done, _total: None) -> CheckReport:
        """Verify everything: pages, checksums, offsets and sequences, images, and that each index agrees with its log.

        Args:
            progress: Called with the approximate number of bytes that were verified, and of all.

        Raises:
            CorruptData: The catalog is damaged; without it nothing can be looked at.
            LogFailed: Too many files are open to look at all.
        """
        self._session.check_open()
        return self.runtime.check(settles=not self._session.follows, progress=progress)

    def checkpoint(self) -> Checkpoint:
        """Make an image of the catalog in another process, so that the next open need not replay its edits.

        What two images make superfluous of the journal goes. It is done of its own accord after every 50,000 edits.

        Raises:
            StoreLocked: Another process is about to.
            Unavailable: There is too little memory, or the worker ended without an answer; try again.
            StoreFull, LogFailed: The disk refuses.
            CorruptImage: The catalog is damaged.
        """
        self._session.check_writable()
        return self.runtime.checkpoints.checkpoint()

    def health(self) -> Health:
        """The status of the catalog, and warnings about images, replicas that lag, and scans that make indexes grow.

        Also advice about memory, which is no warning.

        Raises:
            CorruptImage, UnsupportedVersion: The catalog can't be loaded.
        """
        self._session.check_open()
        report = self.runtime.health()
        tables = sorted(self.runtime.catalog().tables.values(), key=lambda table: table.name)
        held = list(held_indexes(self.path, tables, self.runtime.open_table))
        growing = [warning for each in held if (warning := warning_of(each)) is not None]
        lagging = registry.lag_warnings(self.runtime)
        advice = counted_advice(tables, self.runtime.budget)
        return dataclasses.replace(report, warnings=[*report.warnings, *lagging, *growing], held=held, advice=advice)

    @overload
    def metrics(self, format: Literal["dict"] = "dict") -> Metrics: ...

    @overload
    def metrics(self, format: Literal["prometheus"]) -> str: ...

    def metrics(self, format: Format = "dict") -> Metrics | str:
        """Counts, bytes and latencies of this process, and how far consumers and replicas lag.

        All names begin with ``kvstore_``; docs/operations.md has the list. Latencies are of this process since it
        opened the store, in seconds: their count, sum, median and 99th percentile, to 6%.

        Args:
            format: ``dict``: from name to value, or to values by table, consumer or replica; ``prometheus``: the text
                that Prometheus reads.

        Raises:
            InvalidRequest: It is neither.
            CorruptImage, UnsupportedVersion: The catalog can't be loaded.
        """
        self._session.check_open()
        return metrics(self.runtime, format)

    def backup(
        self, path: str | os.PathLike[str], progress: Callable[[int, int], object] = lambda _done, _total: None
    ) -> Backup:
        """Copy the store into a directory while writing goes on; the copy is a store, which :func:`kvstore.open` opens.

        It has everything acknowledged before the call, of other processes what is durable. No commit over several
        buckets is in it in part. All checksums of its logs and the pages of its indexes are verified. It has no
        replicas, and takes no writes of this store's replicas or followers.

        Args:
            path: A new or empty directory on a local disk, outside of the store; or one in which a backup of this store
                was interrupted: that is continued, as of now.
            progress: Called with the approximate number of bytes that are copied, and of all.

        Raises:
            NotAStore: The directory is something else. Nothing was written.
            StoreLocked: Another backup is being made there; or another process writes a table with epochs or a job, and
                does not hand it over.
            CorruptData: The store is damaged.
            StoreFull, LogFailed: The disk refuses. After this and any other error the directory is no store, and the
                same call continues; unless all was copied, and only the last sync failed: then it is one.
        """
        self._session.check_writable()
        return back_up(self.runtime, path_of(path), progress)

    def flush(self) -> None:
        """Make all acknowledged changes of all tables durable, and visible to every process."""
        self._session.check_open()
        self.runtime.flush()

    @uninterrupted
    def close(self) -> None:
        """Make everything durable and close the store; a second call does nothing.

        If Ctrl-C comes meanwhile, close it again: what was left is done then.

        Raises:
            LogFailed, StoreFull: Not everything could be made durable, of rows that were written with another
                durability than ``"sync"``; what was synced is there at the next open. The store is given up all the
                same.
        """
        for shipping in list(self._shippings):
            shipping.close()
        self._session.close()

    # Replicas

    def add_replica(self, url: str, name: str | None = None, *, retention: dt.timedelta | None = None) -> Replica:
        """Add a replica of the store; ships nothing yet.

        Args:
            url: ``file:///dir`` or a directory's path, ``s3://bucket/path``, ``gs://…``, ``az://…``, or any other URL
                that obstore supports. Credentials and endpoints come from the environment.
            name: Name of the replica; None for the URL.
            retention: How far back the store can be restored to any time, also if its tables keep their changes for a
                shorter time; an object of the replica has it. None: what that object has, or else what the tables keep.

        Raises:
            InvalidRequest: The URL or the retention is not valid, the URL has credentials, or a replica of this name or
                at this place exists.
            Unavailable: The replica can't be reached; only if a retention is given.
        """
        self._session.check_registers()
        return self.replica(registry.register(self.runtime, url, name, retention))

    def replica(self, name: str) -> Replica:
        """A replica of the store.

        Raises:
            InvalidRequest: There is none of that name.
        """
        return Replica(self.runtime, stored_name(self.runtime, name), self._session.check_open)

    @property
    def replicas(self) -> dict[str, ReplicaReport]:
        """The status of each replica according to the store; see :meth:`Replica.check`."""
        self._session.check_open()
        return {name: self.replica(name).report() for name in registry.names(self.runtime)}

    def replicate(self, every: float = 1.0) -> Shipping:
        """Ship to all replicas in a thread, until the returned object or the store is closed.

        Writers do not wait for objects to be shipped. `kvstore replicate` does the same in a separate process.

        Args:
            every: Seconds between two rounds.

        Raises:
            InvalidRequest: ``every`` is out of range.
        """
        self._session.check_open()
        if not 0 < every <= SECONDS_MAX:
            raise InvalidRequest("every is a number of seconds above 0, up to a day.", every=shown(every))
        shipping = Shipping(self._replicas_now, every)
        self._shippings.add(shipping)
        return shipping.begin()

    def _replicas_now(self) -> dict[str, Replica]:
        self._session.check_open()
        return {name: self.replica(name) for name in registry.names(self.runtime)}

    def drop_replica(self, name: str) -> None:
        """Remove a replica from the store: nothing is shipped to it any more. Its objects stay.

        Raises:
            InvalidRequest: There is no replica of this name.
        """
        self._session.check_registers()
        registry.unregister(self.runtime, name)

    # Shared tables

    def publish(self, table: str, url: str) -> None:
        """Make a shared table of a table, of the same name: from then on Spark writes it, from any machine.

        It has the whole changelog of the table: offsets, times and writers' sequences are the same, and names given
        to Spark's writes as ``txnId`` stay known. The table stays in this store, and what is written to it later does
        not come into the shared one. Its retention is not taken over.

        Args:
            table: Name of a table whose log has not expired, and whose columns were not altered.
            url: A place for shared tables only: ``s3://bucket/path``, ``gs://…``, ``az://…``, or ``file:///dir``.

        Raises:
            NoSuchTable: There is none of that name.
            TableExists: There is a shared table of that name at the URL. Nothing was published.
            UnsupportedOperation: The table can't be a shared one, or there is a replica or a store at the URL. Nothing
                was published.
            InvalidRequest: The URL is not valid, or has credentials.
            StoreLocked: Another process writes the table and does not hand it over.
            Unavailable: The object store can't be reached. If it was lost at the last step, the table may be there:
                publish it again, and ``TableExists`` says so. Other objects that were uploaded have no effect.
        """
        self._session.check_writable()
        opened = self.runtime.open_table(self.runtime.definition(table))
        client = client_of_tables(url)
        publish(opened, client.url, client, self.runtime.clock)

    # Ingestion jobs

    def create_job(
        self,
        name: str,
        *,
        source: str | os.PathLike[str],
        format: str,
        table: str,
        offset: str | None = None,
        max_files: int = DEFAULTS.max_files,
        max_bytes: int = DEFAULTS.max_bytes,
        max_filter_ratio: float = DEFAULTS.max_filter_ratio,
    ) -> Job:
        """Create an ingestion job: :meth:`Job.run` loads every file of ``source`` into a table, once.

        Files are loaded in the order of their paths. Names that begin with ``.`` or ``_`` are ignored: write a file
        under such a name, then rename it.

        Args:
            name: Up to 255 bytes of printable text.
            source: A directory, which means all files below it with a suffix of the format; a pattern such as
                ``in/*.csv``, where ``**`` spans directories; or a URL of either, such as ``s3://bucket/in``.
            format: ``parquet``, ``arrow``, ``csv``, or ``json`` (also ``jsonl``).
            table: Name of the table. Rows are upserted, or appended to a log table; a column ``_change_type`` may say
                ``delete``.
            offset: Load only files after this path, which is relative to the source's directory.
            max_files, max_bytes: Limits of a task, which is one commit; a task takes at least one file of any size.
            max_filter_ratio: Fraction of a task's rows, from 0 to 1, that may be left out because they do not fit.

        Raises:
            NoSuchTable: The store has no table of that name.
            InvalidRequest: A job has that name, or an argument is invalid. Nothing was written.
        """
        self._session.check_writable()
        options = {"max_files": max_files, "max_bytes": max_bytes, "max_filter_ratio": max_filter_ratio}
        return creation.create(self._home(), self.runtime.definition(table), name, source, format, offset, options)

    def job(self, name: str) -> Job:
        """A job of the store.

        Raises:
            InvalidRequest: There is none of that name.
        """
        self._session.check_open()
        return Job(self._home(), id_of(self.runtime.catalog(), name))

    def list_jobs(self) -> list[str]:
        """Names of all jobs, sorted."""
        self._session.check_open()
        return list(job_ids(self.runtime.catalog()))

    def _home(self) -> Home:
        runtime, session = self.runtime, self._session
        return Home(
            *(runtime.path, runtime.files, runtime.clock, runtime.journal),
            *(self.table_by_id, session.check_open, session.check_writable),
        )


def table_name(name: str) -> str:
    """The name, if a table may have it.

    Raises:
        InvalidRequest: It may not.
    """
    name = printable("name", name, TABLE_NAME_BYTES_MAX)
    if "$" in name:
        raise InvalidRequest("A table's name is without $.", name=name)
    return name
