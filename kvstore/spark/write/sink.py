"""Writes: tasks stage rows in files, then one commit over all buckets applies all of them, or none.

* A failed job leaves files that are removed later, but never a row.
* A stream's batch is an epoch: the sink is the name of its writer, the query its run, the batch its number. A repeated
  batch gets the same result as the first time, whatever was committed of it then.
* The columns of a changelog define the changes: ``_change_type`` their kinds, ``_bucket``, ``_commit_timestamp`` and
  ``_log_offset`` their order. So a changelog can be written to another table unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kvstore.errors import InvalidRequest
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Options
from kvstore.spark.read.address import TableAddress
from kvstore.spark.types import arrow_schema
from kvstore.spark.write.job import WriteJob
from kvstore.spark.write.staged import CHANGE_TYPE, Staged
from kvstore.table.table import Table
from logformat.rows.intake import empty

_QUERY = "spark query"


@errors_shown_alone
class _Sink:
    """Common base of batch writes and streams, pickled for every task.

    Attributes:
        job: What stages the rows and commits them.
    """

    def __init__(
        self, address: TableAddress, table: Table, schema: StructType, options: Options, *, replaces: bool
    ) -> None:
        self._options = options
        self.job = WriteJob(address, replaces, options.takeover, options.transaction)
        # Columns that do not fit are refused before any task runs.
        self.job.fitting(table, empty(arrow_schema(schema)))
        if replaces:
            table.parts.check_replaceable()
            if CHANGE_TYPE in schema.names:
                raise InvalidRequest("Changes are written in mode (or output mode) `append`.", column=CHANGE_TYPE)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        return self.job.stage(iterator, context.partitionId(), context.taskAttemptId(), query)


@errors_shown_alone
class KvStoreWriter(_Sink, DataSourceArrowWriter):
    """Writes one DataFrame: all of it or nothing."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Apply the rows that the tasks have staged."""
        self.job.commit(_staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files that the tasks have staged."""
        self.job.remove(_staged(messages))


@errors_shown_alone
class KvStoreStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Apply the rows that the tasks have staged, unless this batch was applied before."""
        staged = _staged(messages)
        query = staged[0].query  # Spark runs at least one task
        assert query is not None
        self.job.commit(staged, self._options.writer or f"{_QUERY} {query}", batchId, query)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove the files that the tasks have staged."""
        self.job.remove(_staged(messages))


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]
