"""Writes of shared tables from Spark: ``kvstore.spark.create_table`` and ``kvstore.spark.write``.

* One job stages the rows by bucket in the object store. A second has one task for each bucket, which applies and
  uploads its changes. Then the driver commits all of it by creating one object.
* Only what the driver heard of is used: a task that ran twice, or was given up, leaves objects that nothing names.
"""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import StringType, StructField, StructType

from kvstore.arguments import column_names, integer_within, printable, shown
from kvstore.clock import SystemClock
from kvstore.commit.named_writers import NAME_BYTES_MAX
from kvstore.errors import InvalidRequest, StoreError, Unavailable, UnsupportedOperation
from kvstore.replica.client import ObjectStore
from kvstore.replica.in_place.cache import DIRECTORY, directory_of_cache
from kvstore.request.partition import row_indices_by_bucket
from kvstore.request.preparation import fitted
from kvstore.request.sizes import of_size
from kvstore.shared.bucket import apply_changes
from kvstore.shared.location import client_of_tables, url_of_tables
from kvstore.shared.room import make_room
from kvstore.shared.table import SharedTable
from kvstore.shared.write import WriteSummary, write_once
from kvstore.spark.failures import raised_here, shown_alone
from kvstore.spark.frames import mapped
from kvstore.spark.types import arrow_schema
from kvstore.spark.write.changes import changes_of
from kvstore.spark.write.job import TASK_ROWS
from kvstore.spark.write.staged import staged_batch, together
from kvstore.store.store import table_name
from kvstore.table.declared_schema import SchemaGiven, schema_of
from kvstore.table.definition import BUCKETS_MAX, bucket_key_of, options_of
from logformat.catalog.edits import ChangelogImage, CreateTable, DeleteBehavior
from logformat.checksum import crc32c
from logformat.ids import BucketId, TableId
from logformat.log.arrow_message import Compression
from logformat.replica.shared_table import STAGING, SharedDefinition, SharedEpoch, SharedRange, batch_name
from logformat.rows import schema as schemas
from logformat.rows.changes import Changes
from logformat.rows.intake import empty

STAGED_BYTES = 64 << 20
"""A task stages its rows in pieces of about this size for all buckets together."""
_REQUESTS = 16
"""Staged objects, of which there are as many as tasks times buckets, are removed so many at a time."""
_QUERY_BYTES = 64
"""Room for the id of a query and the number of a batch in a name."""
_RESULT = StructType([StructField("result", StringType())])


def create_table(
    url: str,
    name: str,
    schema: SchemaGiven,
    primary_key: Sequence[str] | str | None = None,
    *,
    buckets: int = 1,
    bucket_key: Sequence[str] | str | None = None,
    merge_engine: object = "last_row",
    changelog_image: ChangelogImage = "full",
    delete_behavior: DeleteBehavior | None = None,
    skip_identical_updates: bool = False,
    compression: Compression = "lz4",
    retention: dt.timedelta | None = None,
) -> None:
    """Create a shared table: Spark writes it from any machine, and it needs no store.

    Args:
        url: A place for shared tables only: ``s3://bucket/path``, ``gs://…``, ``az://…``, or ``file:///dir`` in a
            directory that all machines share.
        buckets: Parts of the table, each written by one task of a write.
        name, schema, primary_key, bucket_key, merge_engine: See :meth:`kvstore.Store.create_table`.
        changelog_image, delete_behavior, skip_identical_updates, compression: See :meth:`kvstore.Store.create_table`.
        retention: Changes that are older than this expire with the next :func:`kvstore.shared.snapshot`; rows stay.
            None keeps all changes. It can't be changed later.

    Raises:
        TableExists: There is a shared table of that name. Nothing was written.
        InvalidRequest: A name, type or option is not possible. Nothing was written.
        UnsupportedOperation: There is a replica or a store at the URL, or its object store lacks conditional puts. No
            table was created.
        Unavailable: The object store can't be reached.
    """
    key = None if primary_key is None else column_names("primary_key", primary_key)
    columns = schemas.normalise(schema_of(schema), key or ())
    options = options_of(
        columns,
        key,
        merge_engine=merge_engine,
        changelog_image=changelog_image,
        compression=compression,
        delete_behavior=delete_behavior,
        auto_increment=None,
        skip_identical_updates=skip_identical_updates,
        retention=retention,
    )
    table = CreateTable(
        table_id=TableId(0),
        name=table_name(name),
        columns=schemas.to_json(columns),
        primary_key=key,
        buckets=integer_within("buckets", buckets, 1, BUCKETS_MAX),
        bucket_key=bucket_key_of(columns, key, bucket_key),
        options=options,
    )
    client = client_of_tables(url)
    SharedTable.create(client.url, client, table, SystemClock())


def write(
    df: DataFrame, url: str, table: str, *, txn: str | None = None, columns: Sequence[str] | None = None
) -> WriteSummary:
    """Write a DataFrame to a shared table: all of it in one commit, or nothing.

    Args:
        df: Rows to be upserted. With a column ``_change_type`` it says what each row does, as in other writes; columns
            ``_commit_timestamp`` and ``_log_offset`` order them.
        url, table: See :func:`create_table`.
        txn: Name under which this is written once, however often it is repeated. The table remembers the last 10,000
            names: a name that is repeated after as many others is written once more.
        columns: Columns of a partial update, with the key; the others of a row stay as they are, and are null in a new
            row. A delete makes these columns null. By default rows are whole. Other columns of ``df`` are not written.

    Returns:
        The epoch of the commit, and whether an earlier write of this name had it already.

    Errors of tasks, after Spark has repeated the task, are raised as they are here. Nothing was written then.

    Raises:
        NoSuchTable: There is no shared table of that name.
        InvalidRequest: The columns or values do not fit the table, or a bucket gets too many rows for one commit.
        UnsupportedOperation: The table has too many ranges for another epoch. Nothing was written.
        StoreLocked: Other tasks of a machine have applied changes to the bucket for a minute.
        StoreFull, LogFailed: The disk with the copies of an executor is full or failed.
        Unavailable: The object store can't be reached, or others write all the time. Repeat it with a name to know
            whether it was written.
        MissingVersion, CorruptData: An object of the table is damaged or gone; :func:`kvstore.shared.check` names all.
            Nothing was written.
        StoreError: The staged rows of a task are gone or damaged; write again.
    """
    return _written(df, url, table, None if txn is None else printable("txn", txn, NAME_BYTES_MAX), columns)


def _written(df: DataFrame, url: str, table: str, name: str | None, columns: Sequence[str] | None) -> WriteSummary:
    if not isinstance(df, DataFrame):
        raise InvalidRequest("`df` is a DataFrame of Spark: spark.createDataFrame(…) makes one.", given=shown(type(df)))
    url = url_of_tables(url)
    shared = SharedTable.find(url, ObjectStore(url), table)
    job = _Write(url, shared.described, uuid4().hex, None if columns is None else column_names("columns", columns))
    job.fitting(shared, empty(arrow_schema(df.schema)))  # columns that do not fit are refused before any task runs
    base = shared.newest()
    if name is not None and (epoch := base.written(name)) is not None:
        return WriteSummary(epoch, duplicated=True)
    pieces = sorted(
        (piece for result in _results(mapped(df, job.stage, _RESULT)) for piece in result),
        key=lambda piece: (piece["partition"], piece["number"]),
    )
    of_bucket: dict[int, list[dict[str, Any]]] = {}
    for piece in pieces:
        of_bucket.setdefault(int(piece["bucket"]), []).append(piece)
    buckets = _buckets(df.sparkSession, shared.described)

    def apply(base: SharedEpoch, at_ms: int) -> Mapping[BucketId, SharedRange] | None:
        if not of_bucket:
            return {}
        task = _Applying(job, base, at_ms, of_bucket, os.environ.get(DIRECTORY))
        results = _results(mapped(buckets, task.run, _RESULT))
        ranges = {BucketId(each["bucket"]): each["range"] for each in results}
        if None in ranges.values():
            return None
        return {bucket: SharedRange(*range) for bucket, range in ranges.items()}

    try:
        return write_once(shared, name, apply, SystemClock())
    finally:
        with suppress(Unavailable), ThreadPoolExecutor(_REQUESTS, "kvstore-staging") as threads:
            list(threads.map(shared.client.delete, [piece["object"] for piece in pieces]))


def _buckets(session: SparkSession, described: SharedDefinition) -> DataFrame:
    """The numbers of a table's buckets, a partition each.

    They are persisted, once for the table: Spark runs the task of a partition where that is, if it can, so the next
    write of a bucket finds the copy that this one leaves.
    """
    count = described.buckets
    numbers = session.range(0, count, 1, count).withColumn("table", lit(f"{described.store_id} {described.table_id}"))
    if numbers.storageLevel == StorageLevel.NONE:
        numbers.persist(StorageLevel.MEMORY_ONLY)
    return numbers


def sink(
    url: str, table: str, *, writer: str, columns: Sequence[str] | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that writes each batch of a stream to a shared table, once.

    Spark Connect does not tell a batch its query: there the function raises UnsupportedOperation.

    Args:
        url, table: See :func:`create_table`.
        writer: Name of the stream. A batch is known by it, the query and the number of the batch, so a query with a new
            checkpoint is another one.
        columns: See :func:`write`.

    Returns:
        The function; it raises what :func:`write` raises, and Spark repeats the batch when the query starts again. A
        batch before the last one that the table has of the stream is OutOfOrderSequence: nothing is written.

    Raises:
        InvalidRequest: It is no name.
    """
    printable("writer", writer, NAME_BYTES_MAX - _QUERY_BYTES)

    def write_batch(df: DataFrame, batch: int) -> None:
        try:
            query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        except PySparkAttributeError as error:
            raise UnsupportedOperation(
                "Spark Connect does not tell a batch which query it is of; call write() in a function of your own, with"
                " a `txn` of the batch's number and of a name that is new for each checkpoint."
            ) from error
        if query is None:
            raise UnsupportedOperation("This is for `writeStream.foreachBatch`; write a DataFrame with write().")
        _written(df, url, table, batch_name(writer, query, batch), columns)

    return write_batch


@dataclass(frozen=True)
class _Write:
    """A write, as its driver and its tasks know it."""

    url: str
    described: SharedDefinition
    id: str
    columns: list[str] | None

    def table(self) -> SharedTable:
        return SharedTable(self.url, ObjectStore(self.url), self.described)

    def fitting(self, table: SharedTable, batch: pa.RecordBatch) -> tuple[Changes, dict[str, pa.Array]]:
        """Changes of the table that Spark's rows are, and the columns that define their order."""
        changes, order = changes_of(batch)
        definition = table.definition
        return fitted(changes, definition, definition.schema_id, self.columns, overwrite=False)[0], order

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of one task; one row with the pieces, as JSON."""
        context = TaskContext.get()
        assert context is not None
        _freeze_modules()
        with shown_alone():
            stager = _Stager(self, self.table(), context.partitionId())
            for batch in of_size(batches, TASK_ROWS):
                stager.add(batch)
            stager.flush()
        yield _result(stager.pieces)


class _Stager:
    """Stages the rows of one task by bucket."""

    def __init__(self, write: _Write, table: SharedTable, partition: int) -> None:
        self._write = write
        self._table = table
        self._partition = partition
        self._attempt = uuid4().hex
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = 0
        self.pieces: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add some of Spark's rows."""
        changes, order = self._write.fitting(self._table, batch)
        definition = self._table.definition
        other = BucketId(self._partition % definition.buckets)
        for bucket, places in row_indices_by_bucket(definition, changes.rows, other):
            part = changes if places is None else changes.take(places)
            its_order = order if places is None else {name: column.take(places) for name, column in order.items()}
            staged = staged_batch(part, its_order)
            self._waiting.setdefault(bucket, []).append(staged)
            self._bytes += staged.nbytes
        if self._bytes >= STAGED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Upload what waits, one object for each bucket."""
        for bucket, batches in self._waiting.items():
            if not sum(batch.num_rows for batch in batches):
                continue
            number, sink = len(self.pieces), pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batches[0].schema) as stream:
                for batch in batches:
                    stream.write_batch(batch)
            data = memoryview(sink.getvalue())
            name = f"{STAGING}/{self._write.id}/{self._partition}-{self._attempt}-{number}"
            self._table.client.replace(name, [data])
            about = {"bucket": int(bucket), "partition": self._partition, "number": number}
            self.pieces.append(about | {"object": name, "bytes": len(data), "crc32c": crc32c(data)})
        self._waiting, self._bytes = {}, 0


@dataclass(frozen=True)
class _Applying:
    """The second job of a write: each of its tasks applies the changes of some buckets."""

    write: _Write
    base: SharedEpoch
    at_ms: int
    pieces: Mapping[int, list[dict[str, Any]]]
    cache: str | None

    def _cache(self) -> Path:
        """The directory that the executor's environment names, else the driver's."""
        return Path(self.cache) if self.cache and DIRECTORY not in os.environ else directory_of_cache()

    def run(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the buckets of these numbers; for each, one row with its range, as JSON."""
        _freeze_modules()
        table = self.write.table()
        for batch in numbers:
            for bucket in batch.column(0).to_pylist():
                if (pieces := self.pieces.get(bucket)) is None:
                    continue
                with shown_alone():
                    changes = together([applied for piece in pieces for applied in _staged(table, piece)])
                    columns, cache = self.write.columns, self._cache()
                    applied = apply_changes(
                        *(table, self.base, BucketId(bucket), changes, cache, SystemClock()),
                        at_ms=self.at_ms,
                        columns=columns,
                    )
                make_room(self._cache(), SystemClock())
                yield _result({"bucket": bucket, "range": None if applied is None else msgspec.to_builtins(applied)})


@cache
def _freeze_modules() -> None:
    """Keep what this worker has imported out of garbage collections: Spark runs a full one after each task.

    For all modules it takes a twentieth of a second of CPU, as long as the changes of 20,000 rows.
    """
    gc.collect()
    gc.freeze()


def _staged(table: SharedTable, piece: Mapping[str, Any]) -> list[pa.RecordBatch]:
    try:
        data = table.client.get(piece["object"], bytes_max=piece["bytes"])
    except FileNotFoundError as error:
        raise StoreError("The staged rows of a task are gone; write again.", object=piece["object"]) from error
    if crc32c(data) != piece["crc32c"]:
        raise StoreError("The staged rows of a task are damaged; write again.", object=piece["object"])
    return list(pa.ipc.open_stream(pa.py_buffer(data)))


def _result(result: object) -> pa.RecordBatch:
    return pa.record_batch([pa.array([json.dumps(result)])], names=_RESULT.names)


def _results(frame: DataFrame) -> list[Any]:
    with raised_here():
        return [json.loads(row.result) for row in frame.collect()]
