"""A table that a statement creates together with its rows, perhaps in the place of another.

Tasks stage rows as those of any write do; then one commit of the catalog shows the table, with all of them. Until then
nothing of it is in the store but staged rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from kvstore.errors import Conflict, NoSuchTable, StoreError, TableExists
from kvstore.meta.state import TableDefinition
from kvstore.request.partition import row_indices_by_bucket
from kvstore.request.preparation import fitted
from kvstore.request.sizes import of_size
from kvstore.spark.options import Kind
from kvstore.spark.read.tasks import Pinned
from kvstore.spark.write.job import TASK_ROWS, add_by_bucket
from kvstore.spark.write.staged import Staged, TaskFile, batches_of, remove, sweep, together
from kvstore.store.store import Store, open_store
from kvstore.table.creation import check_replaceable
from logformat.catalog.edits import CreateTable
from logformat.ids import BucketId
from logformat.rows.changes import Changes


@dataclass(frozen=True)
class Replaced:
    """The table whose place a new one takes.

    Attributes:
        definition: The table when the statement began.
        seen: The offset of each bucket up to which its changes may go with it.
    """

    definition: TableDefinition
    seen: dict[int, int]

    def check_read(self, read: Pinned) -> None:
        """Verify that a read which the query makes has the rows of this table that may go, if it is of its rows.

        Raises:
            Conflict: It lacks changes.
        """
        ends = {each.bucket: each.end for each in read.ranges}
        if read.address.kind is Kind.ROWS and read.address.table_id == self.definition.id and ends != self.seen:
            raise Conflict(
                "The query reads the table that it replaces, and the table was written since: those changes would be "
                "lost. Nothing was changed; run it again, with a DataFrame that is made again.",
                table=self.definition.name,
            )


@dataclass(frozen=True)
class NewTable:
    """A table that is to be, as its driver, its tasks and its commit know it.

    Attributes:
        path: Directory of the store.
        table: The edit that creates it, without an id.
        replaced: None if there was no table of its name.
        replaces: Whether there may be one.
        id: Random id of the statement, in the names of its files.
    """

    path: str
    table: CreateTable
    replaced: Replaced | None
    replaces: bool
    id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def definition(self) -> TableDefinition:
        """The table, without an id."""
        return TableDefinition.of(self.table)

    def fitting(self, batch: pa.RecordBatch) -> Changes:
        """Rows of the table that Spark's rows are.

        Raises:
            InvalidRequest: They do not fit.
        """
        definition = self.definition
        return fitted(Changes.upserts(batch), definition, definition.schema_id, None, overwrite=False)[0]

    def stage(self, batches: Iterator[pa.RecordBatch], partition: int, attempt: int, query: str | None) -> Staged:
        """Stage the rows of one task, given its partition and attempt; no error leaves a file.

        Raises:
            InvalidRequest: A row does not fit.
            StoreFull, LogFailed: The disk is full or failed.
        """
        definition = self.definition
        with TaskFile(Path(self.path), self.id, partition, attempt) as file:
            for batch in of_size(batches, TASK_ROWS):
                changes = self.fitting(batch)
                other = BucketId(partition % definition.buckets)
                add_by_bucket(file, row_indices_by_bucket(definition, changes.rows, other), changes, {})
            return file.staged(query)

    def commit(self, staged: Sequence[Staged]) -> None:
        """Show the table with the rows that the tasks have staged, and remove their files.

        Raises:
            TableExists: There is a table of this name by now. Nothing was written.
            Conflict: The table that is to be replaced has changed, or is another one. Nothing was written.
            UnsupportedOperation: A consumer or a job goes on with the changes of that table. Nothing was written.
            StoreError: Staged rows are missing or damaged, or the disk refuses. Nothing was written.
        """

        def rows(_: TableDefinition) -> Iterator[tuple[BucketId, Changes]]:
            for bucket, batch in batches_of(staged):
                yield bucket, together([batch])

        store = open_store(self.path)
        try:
            runtime = store.runtime
            if self.replaced is None:
                try:
                    runtime.create_table(self.table, rows)
                except TableExists as error:
                    if not self.replaces:
                        raise
                    raise Conflict(
                        "A table of that name was created meanwhile, and nothing was changed; run it again.",
                        table=self.table.name,
                    ) from error
            else:
                runtime.replace_table(self.replaced.definition, self.replaced.seen, self.table, rows)
        finally:
            with suppress(StoreError):  # the table is there, or is not
                store.close()
        with suppress(OSError):
            sweep(store.path)
            self.remove(staged)

    def remove(self, staged: Sequence[Staged]) -> None:
        """Remove the files of tasks."""
        remove(each.file for each in staged if each.file)


def replaced_by(store: Store, name: str, *, creates: bool, replaces: bool) -> Replaced | None:
    """The table that a new one replaces, if nothing speaks against it now.

    Args:
        creates, replaces: Whether there may be no table of this name, and whether there may be one.

    Raises:
        TableExists, NoSuchTable: There is one, or none, that there must not be, or must be.
        UnsupportedOperation: A consumer or a job goes on with its changes.
    """
    state = store.runtime.catalog()
    there = state.table(name)
    if there is None:
        if not creates:
            raise NoSuchTable("There is no such table.", table=name, tables=store.list_tables())
        return None
    if not replaces:
        raise TableExists("There is a table of that name; choose another, or drop it.", table=name)
    check_replaceable(state, there.id)
    ends = store.table(name).offset_ranges("latest")
    return Replaced(there, {int(bucket): int(end) for bucket, (_, end) in ends.items()})
