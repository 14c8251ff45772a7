"""A table that is made with its rows, before the catalog has it: no process sees it until then.

The table is written below a directory of its own as the table of a store, with the same code. That store has a catalog
with this table alone, under the id that the table will have, and ends with the writing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.index.open_readers import OpenReaders
from kvstore.memtable.budget import Budget
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.process.calls import answer_of
from kvstore.process.meter import TableMeter
from kvstore.request.preparation import request_of
from kvstore.request.sizes import BATCH_BYTES, bytes_of
from kvstore.table.open_table import OpenTable, open_table
from logformat import paths
from logformat.catalog.edits import CreateTable
from logformat.ids import BucketId
from logformat.rows.changes import Changes

Rows: TypeAlias = Callable[[TableDefinition], Iterable[tuple[BucketId, Changes]]]
"""Returns the changes of each bucket, in order, given the table; it may be called again."""

_WAITING_BYTES = 4 * BATCH_BYTES
"""Rows that wait for their buckets; buckets work in parallel."""


def fill(
    made: Path, edit: CreateTable, rows: Rows, store_id: UUID, options: StoreOptions, files: Files, clock: Clock
) -> None:
    """Write rows into the buckets of a table that no catalog has yet.

    Args:
        made: The directory of a store whose only table this is; the buckets are there, without rows.

    Raises:
        InvalidRequest: A row does not fit.
        StoreFull, LogFailed: The disk is full or failed.
    """
    files.make_directory(made / paths.JOURNAL.parent)
    definition = TableDefinition.of(edit)
    with (
        closing(Journal(made, files, clock, store_id, leadership=CatalogLeadership(), create=True)) as journal,
        # What it writes is durable once it is closed, and counts for nothing before.
        _opened(made, definition, journal, store_id, replace(options, durability="none"), files, clock) as table,
    ):
        journal.append(lambda _: edit)
        waiting = deque[tuple[Callable[[], object], int]]()
        size = 0
        for bucket, changes in rows(definition):
            request = request_of(changes, definition)
            table.handles[bucket].submit(request)
            waiting.append((lambda request=request: answer_of(request.answer), bytes_of(changes.rows)))  # type: ignore[misc]
            size += waiting[-1][1]
            while size > _WAITING_BYTES:
                answer, bytes_answered = waiting.popleft()
                answer()
                size -= bytes_answered
        for answer, _ in waiting:
            answer()


@contextmanager
def _opened(
    made: Path,
    definition: TableDefinition,
    journal: Journal,
    store_id: UUID,
    options: StoreOptions,
    files: Files,
    clock: Clock,
) -> Iterator[OpenTable]:
    table = open_table(
        *(made, store_id, definition, journal, options, files, clock, TableMeter(clock)),
        budget=Budget(options.memtable_bytes),
        read_only=lambda: False,
        readers=OpenReaders(),
    )
    try:
        yield table
    finally:
        try:
            table.close()
        finally:
            files.forget(made)
