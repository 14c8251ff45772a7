"""Writes: tasks stage rows in files, then one commit over all buckets applies all of them, or none.

* What a job leaves behind that fails is files, which are of no use to anybody; never a row.
* A stream's batch is an epoch: its writer's name is that of the sink, its run the query, its number the batch. One that
  comes again is answered as before, whatever was committed of it the first time.
* Columns of a changelog beside its rows say what to do: ``_change_type`` which kind of change, ``_commit_timestamp``
  and ``_log_offset`` in which order. So a changelog can be written into another table as it is.
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
"""Rows that a task spreads over the buckets at once."""
BATCHES = "spark batches"
"""Name under which batch writes without a name of their own are counted."""
_QUERY = "spark query"


@errors_shown_alone
class _Sink:
    """What batch writes and streams have in common; it goes to every task."""

    def __init__(
        self, place: TablePlace, table: Table, schema: StructType, options: Options, *, replaces: bool
    ) -> None:
        self._place = place
        self._options = options
        self._replaces = replaces
        self._schema_id = table.schema_id
        self._job = uuid4().hex
        # What does not fit is told before any task is run.
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
        """The same, told which task it is.

        Raises:
            InvalidRequest: A row does not fit the table. No file is left, nor after any other error.
            NoSuchTable: The table was dropped since.
            StoreFull, LogFailed: The disk refused.
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
        store = open_store(self._place.path)  # one that asks its replicas whether it leads
        try:
            table = self._place.table_of(store)
            table.apply_parts(parts, writer, epoch, run, self._options.takeover, self._replaces)
        finally:
            with suppress(StoreError):  # whatever was committed is in the log
                store.close()
        with suppress(OSError):  # a job must not fail now: it would be run again
            sweep(store.path)
            self._remove(messages)

    def _remove(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Rows of a commit that takes place are staged with it, so these are of no use whatever came of it.
        remove(message.file for message in messages if isinstance(message, Staged) and message.file)


@errors_shown_alone
class KvStoreWriter(_Sink, DataSourceArrowWriter):
    """Writes one DataFrame: all of it or nothing."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Apply what the tasks have staged."""
        transaction = self._options.transaction
        if transaction is None:
            self._commit(_told(messages), BATCHES, None, None)
        else:
            self._commit(_told(messages), transaction, 0, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have staged."""
        self._remove(messages)


@errors_shown_alone
class KvStoreStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Apply what the tasks have staged, unless it was applied before."""
        told = _told(messages)
        query = told[0].query  # Spark runs one task at least
        assert query is not None
        self._commit(told, self._options.writer or f"{_QUERY} {query}", batchId, query)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what the tasks have staged."""
        self._remove(messages)


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def changes_of(batch: pa.RecordBatch) -> tuple[Changes, dict[str, pa.Array]]:
    """What rows of Spark do to a table, and the columns that say in which order; by default, each is an upsert.

    Raises:
        SchemaMismatch: They have columns of a changelog, but not the one that says what they do; or it says nothing
            known.
    """
    names = batch.schema.names
    rows = batch.drop_columns([name for name in CHANGE_FIELDS.names if name in names])
    if rows.num_columns == batch.num_columns:
        return Changes.upserts(rows), {}
    if CHANGE_TYPE not in names:
        raise SchemaMismatch(
            f"Rows of a changelog are written with their column {CHANGE_TYPE}, which says what is deleted; or drop "
            "all that is not of the row.",
            columns=[name for name in CHANGE_FIELDS.names if name in names],
        )
    kinds = _kinds(batch.column(CHANGE_TYPE))
    changes = Changes(rows, pa.array(kinds == ChangeType.DELETE))
    order = {name: _in_utc(batch.column(name)) for name in ORDER if name in names}
    for name, column in order.items():
        if column.type != CHANGE_FIELDS.field(name).type or column.null_count:
            raise SchemaMismatch(
                "What says the order of changes has the type it has in a changelog, and is never null.",
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
    """Moments as moments in UTC: Spark tells them in the zone of its session, which says nothing of when they were."""
    is_moment = pa.types.is_timestamp(column.type) and column.type.tz is not None
    return column.cast(pa.timestamp(column.type.unit, "UTC")) if is_moment else column


def _kinds(column: pa.Array) -> np.ndarray:
    """Byte codes of change types, uint8 ``(n,)``."""
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        raise SchemaMismatch("The kind of a change is a string.", column=CHANGE_TYPE, type=column.type)
    encoded = column.dictionary_encode()
    try:
        codes = np.array([ChangeType(word) for word in encoded.dictionary.to_pylist()], np.uint8)
    except ValueError as error:
        raise SchemaMismatch(
            "There is no such kind of change.",
            given=encoded.dictionary.to_pylist()[:5],
            kinds=[kind.word for kind in ChangeType],
        ) from error
    if encoded.null_count:
        raise SchemaMismatch("Every row says what it does.", column=CHANGE_TYPE, nulls=encoded.null_count)
    return codes[encoded.indices.to_numpy()] if len(codes) else np.zeros(0, np.uint8)
