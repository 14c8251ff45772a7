"""A write of a table: tasks stage rows in files, then one commit over all buckets applies all of them, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import OutOfOrderSequence, StoreError
from kvstore.request.sizes import of_size
from kvstore.spark.read.address import TableAddress
from kvstore.spark.write.changes import changes_of
from kvstore.spark.write.staged import Staged, TaskFile, parts_of, remove, sweep
from kvstore.spark.write.statement import Statement
from kvstore.store.store import open_store
from kvstore.table.table import Table
from logformat.ids import BucketId
from logformat.rows.changes import Changes

TASK_ROWS = 1 << 16
"""Number of rows that a task partitions by bucket at a time."""
_BATCHES = "spark batches"
"""Name of the writer of batch writes without a name."""


@dataclass(frozen=True)
class WriteJob:
    """A write, as its driver, each of its tasks and its commit know it; text and numbers only.

    Attributes:
        replaces: Whether all rows with other keys are deleted.
        takeover: See :meth:`kvstore.Table.apply_epoch`.
        transaction: Name of the writer of a write that is applied once; None for one without a name, and for a stream.
        statement: For a statement of SQL that changes rows which it has read, what it knows of them.
        id: Random id of the write, in the names of its files.
    """

    address: TableAddress
    replaces: bool = False
    takeover: bool = False
    transaction: str | None = None
    statement: Statement | None = None
    id: str = field(default_factory=lambda: uuid4().hex)

    def fitting(self, table: Table, batch: pa.RecordBatch) -> tuple[Changes, dict[str, pa.Array]]:
        """Changes of the table that Spark's rows are, and the columns that define their order.

        Raises:
            InvalidRequest: They do not fit the table.
            Conflict: See :meth:`Statement.completed`.
        """
        if self.statement is not None:
            batch = self.statement.completed(table, batch, self.address.schema_id)
        changes, order = changes_of(batch)
        return table.parts.fitting(changes, schema_id=self.address.schema_id), order

    def stage(self, batches: Iterator[pa.RecordBatch], partition: int, attempt: int, query: str | None) -> Staged:
        """Stage the rows of one task, given its partition and attempt.

        No error leaves a file.

        Raises:
            InvalidRequest: A row does not fit the table.
            Conflict: A row that the statement changes has changed since it was read.
            NoSuchTable: The table was dropped meanwhile.
            SchemaMismatch: Columns of the table were renamed or dropped meanwhile.
            StoreFull, LogFailed: The disk is full or failed.
        """
        with (
            self.address.open() as table,
            TaskFile(Path(self.address.path), self.id, partition, attempt) as file,
        ):
            for batch in of_size(batches, TASK_ROWS):
                changes, order = self.fitting(table, batch)
                buckets = table.parts.row_indices_by_bucket(changes.rows, partition % table.buckets)
                add_by_bucket(file, buckets, changes, order)
            return file.staged(query)

    def commit(
        self,
        staged: Sequence[Staged],
        writer: str | None = None,
        epoch: int | None = None,
        run: str | None = None,
        where: pc.Expression | None = None,
    ) -> None:
        """Apply what the tasks have staged, and remove their files; see :meth:`kvstore.table.parts.TableParts.apply`.

        Args:
            writer, epoch, run: Of a stream's batch; None for a batch write, which is known by its ``transaction``.
            where: For a write that replaces: which rows it does; None for all.

        Raises:
            Conflict: A row that the statement changes has changed since it was read. Nothing was written.
            InvalidRequest: The statement writes a key twice. Nothing was written.
            OutOfOrderSequence: A stream's batch is older than the last one of its query. Nothing was written.
            StoreError: Staged rows are missing or damaged. Nothing was written.
        """
        if writer is None:
            writer, epoch = (_BATCHES, None) if self.transaction is None else (self.transaction, 0)
        parts = parts_of(staged)
        store = open_store(self.address.path)  # this store asks its replicas whether it is still the leader
        try:
            table = self.address.table_of(store)
            if run is not None and writer is not None and epoch is not None:
                _check_not_put_back(table, writer, run, epoch)
            confirm = None
            if self.statement is not None and parts:
                parts, confirm = self.statement.decided(table, parts, self.address.schema_id)
            if parts or self.statement is None:
                table.parts.apply(
                    parts,
                    writer,
                    epoch,
                    run,
                    self.takeover,
                    self.replaces,
                    confirm,
                    schema_id=self.address.schema_id,
                    where=where,
                )
        finally:
            with suppress(StoreError):  # committed rows are already in the log
                store.close()
        with suppress(OSError):  # a failure now would make Spark repeat the job
            sweep(store.path)
            self.remove(staged)

    def remove(self, staged: Iterable[Staged]) -> None:
        """Remove the files of tasks."""
        # A commit stages its rows by itself, so these files are obsolete whether or not it succeeded.
        remove(each.file for each in staged if each.file)


def _check_not_put_back(table: Table, writer: str, run: str, epoch: int) -> None:
    """Refuse a batch of a stream that is older than the last one, which Spark itself never repeats.

    It would get the answer of the batch of that number, though Spark has put other rows into it.
    """
    known = table.writers.get(writer)
    last = None if known is None or known.run != run else known.last_epoch
    if last is not None and epoch < last:
        raise OutOfOrderSequence(
            "The checkpoint of this stream is older than the table: an older copy of it was put back, or another stream"
            " goes on with a copy. Take the newest one; or begin with a new checkpoint, and another `writer` if it has"
            " one, at the changes that the table lacks.",
            writer=writer,
            batch=epoch,
            last_batch=last,
        )


def add_by_bucket(
    file: TaskFile,
    buckets: Iterable[tuple[BucketId, pa.Int64Array | None]],
    changes: Changes,
    order: Mapping[str, pa.Array],
) -> None:
    """Write changes into a task's file, divided by bucket.

    Args:
        buckets: Places of the changes of each bucket; None for all.
        order: See :meth:`TaskFile.add`.
    """
    for bucket, places in buckets:
        if places is None:
            file.add(bucket, changes, order)
        else:
            file.add(bucket, changes.take(places), {name: column.take(places) for name, column in order.items()})
