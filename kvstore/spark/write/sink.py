"""Writes: tasks stage rows in files, then one commit over all buckets applies all of them, or none.

* A failed job leaves files that are removed later, but never a row.
* A stream's batch is an epoch: the sink is the name of its writer, the query its run, the batch its number. A repeated
  batch gets the same result as the first time, whatever was committed of it then.
* The columns of a changelog define the changes: ``_change_type`` their kinds, ``_commit_timestamp`` and
  ``_log_offset`` their order. So a changelog can be written to another table unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kvstore.errors import InvalidRequest, SchemaMismatch, StoreError
from kvstore.read.changelog import CHANGE_FIELDS
from kvstore.request.sizes import of_size
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Options
from kvstore.spark.read.place import TablePlace
from kvstore.spark.types import arrow_schema
from kvstore.spark.write.staged import CHANGE_TYPE, ORDER, Staged, TaskFile, parts_of, remove, sweep
from kvstore.store import open_store
from kvstore.table.table import Table
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes
from logformat.rows.intake import empty

TASK_ROWS = 1 << 16
"""Number of rows that a task partitions by bucket at a time."""
BATCHES = "spark batches"
"""Name of the writer of batch writes without a name."""
_QUERY = "spark query"


@errors_shown_alone
class _Sink:
    """Common base of batch writes and streams, pickled for every task."""

    def __init__(
        self, place: TablePlace, table: Table, schema: StructType, options: Options, *, replaces: bool
    ) -> None:
        self._place = place
        self._options = options
        self._replaces = replaces
        self._schema_id = table.schema_id
        self._job = uuid4().hex
        # Columns that do not fit are refused before any task runs.
        self._fitting(table, empty(arrow_schema(schema)))
        if replaces:
            table.check_replaceable()
            if CHANGE_TYPE in schema.names:
                raise InvalidRequest("Changes are written in mode (or output mode) `append`.", column=CHANGE_TYPE)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        return self.stage(iterator, context.partitionId(), context.taskAttemptId(), query)

    def stage(self, batches: Iterator[pa.RecordBatch], partition: int, attempt: int, query: str | None) -> Staged:
        """Stage the rows of one task, given its partition and attempt.

        No error leaves a file.

        Raises:
            InvalidRequest: A row does not fit the table.
            NoSuchTable: The table was dropped meanwhile.
            SchemaMismatch: Columns of the table were renamed or dropped meanwhile.
            StoreFull, LogFailed: The disk is full or failed.
        """
        with (
            self._place.open() as table,
            TaskFile(Path(self._place.path), self._job, partition, attempt) as file,
        ):
            for batch in of_size(batches, TASK_ROWS):
                changes, order = self._fitting(table, batch)
                for bucket, places in table.row_indices_by_bucket(changes.rows, partition % table.buckets):
                    if places is None:
                        file.add(bucket, changes, order)
                    else:
                        its_order = {name: column.take(places) for name, column in order.items()}
                        file.add(bucket, changes.take(places), its_order)
            return file.staged(query)

    def _fitting(self, table: Table, batch: pa.RecordBatch) -> tuple[Changes, dict[str, pa.Array]]:
        changes, order = changes_of(batch)
        return table.fitting(changes, schema_id=self._schema_id), order

    def _commit(self, messages: Sequence[Staged], writer: str, epoch: int | None, run: str | None) -> None:
        parts = parts_of(messages)
        store = open_store(self._place.path)  # this store asks its replicas whether it is still the leader
        try:
            table = self._place.table_of(store)
            table.apply_parts(
                parts, writer, epoch, run, self._options.takeover, self._replaces, schema_id=self._schema_id
            )
        finally:
            with suppress(StoreError):  # committed rows are already in the log
                store.close()
        with suppress(OSError):  # a failure now would make Spark repeat the job
            sweep(store.path)
            self._remove(messages)

    def _remove(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # A commit stages its rows by itself, so these files are obsolete whether or not it succeeded.
        remove(message.file for message in messages if isinstance(message, Staged) and message.file)


@errors_shown_alone
class KvStoreWriter(_Sink, DataSourceArrowWriter):
    """Writes one DataFrame: all of it or nothing."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Apply the rows that the tasks have staged."""
        transaction = self._options.transaction
        if transaction is None:
            self._commit(_staged(messages), BATCHES, None, None)
        else:
            self._commit(_staged(messages), transaction, 0, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files that the tasks have staged."""
        self._remove(messages)


@errors_shown_alone
class KvStoreStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Apply the rows that the tasks have staged, unless this batch was applied before."""
        staged = _staged(messages)
        query = staged[0].query  # Spark runs at least one task
        assert query is not None
        self._commit(staged, self._options.writer or f"{_QUERY} {query}", batchId, query)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove the files that the tasks have staged."""
        self._remove(messages)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def changes_of(batch: pa.RecordBatch) -> tuple[Changes, dict[str, pa.Array]]:
    """Changes of a table from Spark's rows, and the columns that define their order; by default, rows are upserts.

    Raises:
        SchemaMismatch: The rows have columns of a changelog without ``_change_type``, or an unknown change type.
    """
    names = batch.schema.names
    rows = batch.drop_columns([name for name in CHANGE_FIELDS.names if name in names])
    if rows.num_columns == batch.num_columns:
        return Changes.upserts(rows), {}
    if CHANGE_TYPE not in names:
        raise SchemaMismatch(
            f"Rows of a changelog need their column {CHANGE_TYPE}, which distinguishes deletes; give it, or drop all "
            "columns of the changelog.",
            columns=[name for name in CHANGE_FIELDS.names if name in names],
        )
    kinds = _kinds(batch.column(CHANGE_TYPE))
    changes = Changes(rows, pa.array(kinds == ChangeType.DELETE))
    order = {name: _in_utc(batch.column(name)) for name in ORDER if name in names}
    for name, column in order.items():
        if column.type != CHANGE_FIELDS.field(name).type or column.null_count:
            raise SchemaMismatch(
                "A column that orders changes must have its type of a changelog, and no nulls.",
                column=name,
                type=column.type,
                expected=CHANGE_FIELDS.field(name).type,
            )
    kept = kinds != ChangeType.UPDATE_PREIMAGE
    if kept.all():
        return changes, order
    places = pa.array(np.flatnonzero(kept))
    return changes.take(places), {name: column.take(places) for name, column in order.items()}


def _in_utc(column: pa.Array) -> pa.Array:
    """Timestamps in UTC: Spark gives them in the zone of its session, which does not change the moment."""
    is_moment = pa.types.is_timestamp(column.type) and column.type.tz is not None
    return column.cast(pa.timestamp(column.type.unit, "UTC")) if is_moment else column


def _kinds(column: pa.Array) -> np.ndarray:
    """Byte codes of change types, uint8 ``(n,)``."""
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        raise SchemaMismatch("A change type must be a string.", column=CHANGE_TYPE, type=column.type)
    encoded = column.dictionary_encode()
    try:
        codes = np.array([ChangeType(word) for word in encoded.dictionary.to_pylist()], np.uint8)
    except ValueError as error:
        raise SchemaMismatch(
            "Unknown change type.",
            given=encoded.dictionary.to_pylist()[:5],
            kinds=[kind.word for kind in ChangeType],
        ) from error
    if encoded.null_count:
        raise SchemaMismatch("Every row needs a change type.", column=CHANGE_TYPE, nulls=encoded.null_count)
    return codes[encoded.indices.to_numpy()] if len(codes) else np.zeros(0, np.uint8)
