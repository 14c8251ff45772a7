"""``format("kvstore")``: reads a table, its changelog or its binlog as Arrow batches, and writes a table.

* A batch query's offsets are pinned when it is loaded: every task, and every query on the same DataFrame, reads the
  same offsets. With a schema given to Spark they are pinned at the first query, because Spark does not call the source
  before.
* If the table was dropped meanwhile, an error says so; another table of its name is never read instead.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from kvstore.errors import OffsetOutOfRange, SchemaMismatch, UnsupportedOperation
from kvstore.read.scan import KeyRange
from kvstore.replica.location import replica_at
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Kind, Options
from kvstore.spark.read.aggregates import JSON_TYPES, count_of
from kvstore.spark.read.batch import KvStoreReader, Pinned, pinned
from kvstore.spark.read.place import TablePlace, found
from kvstore.spark.read.replica import KvStoreReplicaReader, PinnedReplica, ReplicaPlace, found_replica
from kvstore.spark.read.replica_stream import KvStoreReplicaStreamReader
from kvstore.spark.read.splits import ROWS_TASK_BYTES_MIN
from kvstore.spark.read.stream import KvStoreStreamReader
from kvstore.spark.types import spark_schema
from kvstore.spark.write.sink import KvStoreStreamWriter, KvStoreWriter
from kvstore.store.session import check_follows_not
from kvstore.table.table import Table
from logformat.ids import Offset


@errors_shown_alone
class KvStoreSource(DataSource):
    """The data source; register it with ``spark.dataSource.register(KvStoreSource)``.

    Options: ``path`` (a directory or a ``file:`` URI; or the URL of a replica, which is only read) and ``table``
    (``name``, ``name$changelog`` or ``name$binlog``); docs/spark.md has the others.

    Spark runs in another process than the writer and reads what is committed: an acknowledged write is visible after
    at most 250 ms, or, on large tables where a commit of the index takes longer than 50 ms, after five such commits;
    after ``table.flush()`` all writes are visible.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._options = Options.of(options)
        self._keeps_log = True
        self._columns: pa.Schema | None = None
        self._pinned: Pinned | None = None
        self.rows_max: int | None = None
        """Number of rows that were pinned, or a little more; None if it is not known."""
        self.stored_bytes: int | None = None
        """About how much of the index or the log is read; None if it is not known."""
        self.bucketed: tuple[int, str] | None = None
        """Number of buckets and their key, if it is one column and there is a task or more for each bucket."""
        self._replica = replica_at(self._options.path)
        self._replica_place: ReplicaPlace | None = None
        self._pinned_replica: PinnedReplica | None = None

    @classmethod
    def name(cls) -> str:
        """Short name of the format."""
        return "kvstore"

    def schema(self) -> StructType:
        """Columns of the source; this call pins the offsets that every query on the DataFrame reads."""
        if self._replica is not None:
            # As below, a stream that continues from its checkpoint does not need where it began.
            with suppress(OffsetOutOfRange):
                self._read_replica(self._replica)
            assert self._replica_place is not None
            return spark_schema(self._replica_place.stored(self._options.columns))
        with found(self._options) as (place, table):
            self._columns = _columns(table, self._options)
            try:
                self._pinned = self._pinned_now(place, table)
            except OffsetOutOfRange:
                # A stream that continues from its checkpoint does not need them; a batch read raises the error again.
                self._pinned = None
        return spark_schema(self._columns)

    def pin(
        self, schema: StructType | None, *, keep_log: bool = True
    ) -> tuple[StructType, Pinned | PinnedReplica | None]:
        """Columns of the source, or those of ``schema``, and the pinned read.

        Args:
            keep_log: Whether a lease may keep the log from now on; else from the first plan of a query on.

        Returns:
            No read if only a stream can begin where the options say.

        Raises:
            SchemaMismatch: The source does not have the columns in ``schema``.
        """
        self._keeps_log = keep_log
        if schema is None:
            columns = self.schema()
            return columns, self._pinned if self._replica is None else self._pinned_replica
        self._options.check_use("read")
        return schema, self._pin(schema)

    def _pin(self, schema: StructType) -> Pinned | PinnedReplica:
        if self._replica is not None:
            pinned_replica = self._read_replica(self._replica)
            _check(schema, pinned_replica.columns)
            return pinned_replica
        if self._pinned is None or self._columns is None:
            with found(self._options) as (place, table):
                self._columns = _columns(table, self._options)
                self._pinned = self._pinned_now(place, table)
        _check(schema, self._columns)
        return self._pinned

    def _pinned_now(self, place: TablePlace, table: Table) -> Pinned:
        found = pinned(place, table, self._options, keep_log=self._keeps_log)
        shares = [(table.shares(each.bucket), each) for each in found.ranges]
        if place.kind is Kind.ROWS:
            self.rows_max = count_of(table, place.kind, found.ranges)
            self.stored_bytes = sum(share.row_bytes([KeyRange()]) for share, _ in shares)
            self.bucketed = _bucketed(table, self.stored_bytes)
        elif self._options.start != "full":
            self.rows_max = sum(each.end - each.start for each in found.ranges)  # an offset has one row or none
            self.stored_bytes = sum(share.change_bytes(Offset(each.start), Offset(each.end)) for share, each in shares)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``."""
        self._options.check_use("read")
        read = self._pin(schema)
        if isinstance(read, PinnedReplica):
            return KvStoreReplicaReader(read, schema, self._options)
        return KvStoreReader(read, schema, self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader that follows the changes and returns the columns in ``schema``."""
        self._options.check_use("read")
        if self._replica is not None:
            if self._replica_place is None:
                self._replica_place, _ = found_replica(self._replica, self._options)
            _check(schema, self._replica_place.stored(self._options.columns))
            return KvStoreReplicaStreamReader(self._replica_place, schema, self._options)
        with found(self._options) as (place, table):
            _check(schema, _columns(table, self._options))
            return KvStoreStreamReader(place, table, schema, self._options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of one DataFrame with the columns in ``schema``, all or nothing."""
        self._options.check_use("batch write")
        self.check_writable()
        with found(self._options) as (place, table):
            return KvStoreWriter(place, table, schema, self._options, replaces=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer of a stream's batches with the columns in ``schema``, each applied once."""
        self._options.check_use("stream write")
        self.check_writable()
        with found(self._options) as (place, table):
            return KvStoreStreamWriter(place, table, schema, self._options, replaces=overwrite)

    def _read_replica(self, url: str) -> PinnedReplica:
        if self._pinned_replica is None:
            self._replica_place, table = found_replica(url, self._options)
            self._pinned_replica = PinnedReplica.of(self._replica_place, table, self._options)
        return self._pinned_replica

    def check_writable(self) -> None:
        """Refuse a replica.

        Raises:
            UnsupportedOperation: It is one, or a copy that follows one.
        """
        if self._replica is not None:
            raise UnsupportedOperation(
                "A replica is read-only; give `path` the directory of the store that ships to it. A shared table is "
                "written by kvstore.spark.write() and kvstore.spark.sink().",
                url=self._replica,
            )
        check_follows_not(Path(self._options.path))


def _bucketed(table: Table, stored_bytes: int) -> tuple[int, str] | None:
    key, buckets = table.bucket_key, table.buckets
    if buckets == 1 or key is None or len(key) > 1 or stored_bytes < buckets * ROWS_TASK_BYTES_MIN:
        return None
    # Of these, equal values of Spark are equal stored values, and so in the same bucket.
    return (buckets, key[0]) if table.schema.field(key[0]).type in JSON_TYPES else None


def _columns(table: Table, options: Options) -> pa.Schema:
    if options.kind is Kind.ROWS:
        return table.scan_schema(options.columns)
    if options.kind is Kind.BINLOG:
        return table.binlog_schema(options.columns)
    return table.changelog_schema(options.columns)


def _check(schema: StructType, columns: pa.Schema) -> None:
    """Verify that Spark's schema has only the given columns, with their types.

    Raises:
        SchemaMismatch: It has another column or type.
    """
    if len(set(schema.names)) < len(schema.names):
        raise SchemaMismatch("The schema given to load() names a column twice; name each once.", names=schema.names)
    expected = spark_schema(columns)
    for field in schema:
        if field.name not in columns.names or field.dataType != expected[field.name].dataType:
            raise SchemaMismatch(
                "The schema given to load() differs from that of the table; it may only leave columns out.",
                column=field.simpleString(),
                expected=expected.simpleString(),
            )
