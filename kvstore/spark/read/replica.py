"""Reads of a replica in its place: each executor reads some of its objects.

* Loading pins the names of the objects. Executors share nothing else, so they may run anywhere.
* Changes are read directly from the objects. One task rebuilds the rows of a bucket from all its objects, in a
  temporary index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kvstore.clock import SystemClock
from kvstore.errors import NoSuchTable, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.read.binlog import binlog_of, binlog_schema, changelog_columns
from kvstore.read.changelog import changelog_schema
from kvstore.read.pruning import possible_places
from kvstore.read.scan import rows_where, scan_schema
from kvstore.read.time_travel import check_undoable
from kvstore.replica.client import ObjectStore
from kvstore.replica.read.parts import Changes, Rows
from kvstore.replica.read.reader import ReplicaReader
from kvstore.replica.read.table import ReplicaTable
from kvstore.replica.read.tail import ReplicaTail, Tail
from kvstore.request.partition import bucket_of
from kvstore.shared.reading import SharedTail
from kvstore.shared.table import SharedTable, has_shared_tables
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Kind, Options
from kvstore.spark.read.batch import BucketOf, FilteredReader
from kvstore.spark.read.splits import Part, columns_needed, columns_of_rows, divided, freeze_once, larger
from kvstore.spark.types import for_spark

TASK_BYTES_MIN, TASK_BYTES_MAX = 1 << 20, 64 << 20
"""Bytes of a task's objects: fewer are not worth a task; more are divided, because executors may outnumber cores."""


@dataclass(frozen=True)
class ReplicaPlace:
    """A table in a replica, or a shared table, and the view of it that is read, for any process."""

    url: str
    store_id: UUID
    definition: TableDefinition
    kind: Kind
    is_shared: bool = False

    @property
    def table_id(self) -> int:
        """Id of the table."""
        return self.definition.id

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.definition.name

    def tail(self) -> Tail:
        """The table from now on.

        Raises:
            NoSuchTable: It was dropped.
            MissingVersion, ReplicaBehind, CorruptData, Unavailable: It can't be read.
        """
        if not self.is_shared:
            return ReplicaTail(self.url, self.definition.id)
        shared = SharedTable.find(self.url, ObjectStore(self.url), self.name)
        if shared.definition.id != self.table_id:
            raise NoSuchTable("The table was dropped since it was loaded; load it again.", table=self.name)
        return SharedTail(shared, SystemClock())

    def stored(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Stored columns.

        Raises:
            SchemaMismatch: There is no such column.
            UnsupportedOperation: The table does not have this view.
        """
        if self.kind is Kind.CHANGELOG:
            return changelog_schema(self.definition, columns)
        if self.kind is Kind.BINLOG:
            check_undoable(self.definition)
            return binlog_schema(self.definition, columns)
        self.check_key()
        return scan_schema(self.definition, columns)

    def check_key(self) -> None:
        """Verify that the table has a key, and so rows.

        Raises:
            UnsupportedOperation: It is a log table.
        """
        if self.definition.primary_key is None:
            raise UnsupportedOperation(
                "A log table has no key; read `<table>$changelog` from `earliest`.", table=self.definition.name
            )


@dataclass(frozen=True)
class PinnedReplica:
    """The pinned objects of a batch read, and the columns to choose from."""

    place: ReplicaPlace
    columns: pa.Schema
    reads: tuple[Changes | Rows, ...]

    @classmethod
    def of(cls, place: ReplicaPlace, table: ReplicaTable, options: Options) -> PinnedReplica:
        """Pin the objects that the options select.

        Raises:
            InvalidRequest, UnsupportedOperation, OffsetOutOfRange: The table does not have what the options select.
            MissingVersion: The replica has a gap before the selected end.
            ReplicaBehind: The replica does not reach as far.
            CorruptData, Unavailable: An object that has to be read is damaged, or can't be read.
        """
        return cls(place, place.stored(options.columns), tuple(_reads(place, table, options)))


def found_replica(url: str, options: Options) -> tuple[ReplicaPlace, ReplicaTable]:
    """The table of a replica that options name, or the shared table; see :meth:`ReplicaTable.of` for errors."""
    client = ObjectStore(url)
    is_shared = has_shared_tables(client)
    if is_shared:
        table = SharedTail(SharedTable.find(url, client, options.table), SystemClock()).table
    else:
        table = ReplicaTable.of(url, options.table, client)
    return ReplicaPlace(url, table.store_id, table.definition, options.kind, is_shared), table


def _reads(place: ReplicaPlace, table: ReplicaTable, options: Options) -> Iterator[Changes | Rows]:
    if place.kind is Kind.ROWS:
        ends = table.ends() if options.as_of is None else table.offsets_as_of(options.as_of)
        yield from (table.rows(bucket, end) for bucket, end in ends.items())
        return
    start = options.start or "earliest"
    ranges = table.offset_ranges(start, options.end or "latest", fail_on_data_loss=options.fail_on_data_loss)
    if start == "full":
        place.check_key()
        yield from (table.rows(bucket, first) for bucket, (first, _) in ranges.items())
    yield from (table.changes(bucket, *each) for bucket, each in ranges.items() if each[0] < each[1])


@dataclass
class ReplicaReadTask(InputPartition):
    """The reads of one task."""

    place: ReplicaPlace
    pieces: tuple[Changes | Rows, ...]


@errors_shown_alone
class KvStoreReplicaReader(FilteredReader):
    """Reads the pinned objects in a few large partitions."""

    def __init__(self, pinned: PinnedReplica, schema: StructType, options: Options) -> None:
        super().__init__(pinned.place.kind, schema, options)
        self._pinned = pinned

    @contextmanager
    def _buckets(self) -> Iterator[tuple[pa.Schema, BucketOf]]:
        place = self._pinned.place
        yield place.stored(), partial(bucket_of, place.definition)

    def partitions(self) -> list[InputPartition]:
        """Partitions, one for each core, fewer if there is little to read, more if there is much."""
        place = self._pinned.place
        reads = [
            piece
            for each in self._pinned.reads
            if self._bucket in (None, each.bucket)
            for piece in _possible(each, place.stored(), self._filter)
        ]
        return tasks_of_replica(place, reads, self.cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition.

        Raises:
            CorruptData: An object is missing or damaged.
            Unavailable: The replica can't be reached.
            StoreFull, LogFailed: The local disk is full or failed, which holds the temporary index.
        """
        # Without any partition, Spark calls this with another object.
        if isinstance(partition, ReplicaReadTask):
            yield from read_replica(partition, self._target, self._filter)


def tasks_of_replica(
    place: ReplicaPlace, reads: Sequence[Changes | Rows], cores: int | None = None
) -> list[InputPartition]:
    """Tasks, one for each core, fewer if there is little to read, more if there is much."""
    parts = [_part(each) for each in reads]
    return [ReplicaReadTask(place, pieces) for pieces in divided(parts, cores, TASK_BYTES_MAX / TASK_BYTES_MIN)]


def read_replica(
    task: ReplicaReadTask, target: pa.Schema, filter: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a task's pieces as batches for Spark; see :meth:`KvStoreReplicaReader.read`.

    Args:
        target: Requested columns, with the types that Spark expects.
        filter: Only rows for which it is true.
    """
    freeze_once()
    place = task.place
    reader = ReplicaReader(ObjectStore(place.url), place.store_id, place.definition)
    for piece in task.pieces:
        batches = _batches(reader, place.kind, piece, target, filter)
        if filter is not None:
            batches = larger(rows_where(batches, filter))
        for batch in batches:
            yield for_spark(batch, target)


def _part(piece: Changes | Rows) -> Part[Changes | Rows]:
    def cut(parts: int) -> Sequence[Changes | Rows]:
        return piece.pieces(parts) if isinstance(piece, Changes) else [piece]

    return Part(piece.bytes / TASK_BYTES_MIN, cut)


def _possible(piece: Changes | Rows, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[Changes | Rows]:
    """Parts of a read that may have rows that pass a filter, by the names of the objects."""
    if filter is None or isinstance(piece, Rows):
        yield piece
        return
    offset, version = pc.field("_log_offset"), pc.field("_commit_version")
    of_bucket = pc.field("_bucket") == pa.scalar(piece.bucket, pa.int32())
    guarantees = [
        of_bucket
        & ((offset >= each.start) & (offset < each.until))
        & ((version >= each.start) & (version < each.until))
        for each in piece.ranges
    ]
    found = possible_places(guarantees, schema, filter)
    while found:
        count = next((at for at, place in enumerate(found) if place != found[0] + at), len(found))
        yield piece.within(piece.ranges[found[0] : found[0] + count])
        found = found[count:]


def _batches(
    reader: ReplicaReader, kind: Kind, piece: Changes | Rows, target: pa.Schema, filter: pc.Expression | None
) -> Iterator[pa.RecordBatch]:
    definition = reader.definition
    needed = columns_needed(target, kind, definition.primary_key)
    if kind is Kind.ROWS:
        assert isinstance(piece, Rows)
        return reader.rows(piece, needed, filter, room())
    whole = binlog_schema(definition, columns_of_rows(definition.schema, target)) if kind is Kind.BINLOG else None
    names = needed if whole is None else changelog_columns(whole)
    if isinstance(piece, Rows):
        changes = reader.inserts(piece, names, room())
    else:
        changes = reader.changes(piece, names, whole_updates=whole is not None)
    return changes if whole is None else binlog_of(changes, whole)


def room() -> Path:
    """A directory for temporary indexes: Spark's own, which it clears when the executor ends, if there is one."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((Path(each) for each in given if each and os.access(each, os.W_OK)), Path(gettempdir()))
