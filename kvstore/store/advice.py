"""Tables that would write fewer pages of their indexes if memtables were larger; see :mod:`kvstore.memtable.advice`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import CorruptData
from kvstore.memtable.advice import Merges, advice_of
from kvstore.memtable.budget import Budget
from kvstore.meta.state import TableDefinition
from kvstore.process.memory import available_memory
from kvstore.table.open_table import OpenTable
from logformat import paths
from logformat.ids import BucketId


def counted_advice(tables: Iterable[TableDefinition], budget: Budget) -> list[str]:
    """Advice about tables that this process has written, by what that has cost."""
    merges, available = budget.merges(), available_memory()
    advice = [advice_of(table.name, merges.get(table.id, ()), available, counted=True) for table in tables]
    return [each for each in advice if each is not None]


def expected_advice(
    store: Path, tables: Iterable[TableDefinition], opened: Callable[[TableDefinition], OpenTable]
) -> list[str]:
    """Advice for a process that writes random keys with the usual memory. Small indexes are not opened.

    Args:
        opened: Returns the open table of a definition.
    """
    usual, available, advice = Budget(None), available_memory(), []
    for table in tables:
        merges = []
        for bucket in map(BucketId, range(table.buckets)):
            data = paths.bucket_directory(store, table.id, bucket) / f"{paths.INDEX}/{LMDB_FILES[0]}"
            with suppress(CorruptData, FileNotFoundError):  # `kvstore check` reports what is damaged or missing
                if data.stat().st_size >= usual.bucket_limit and table.primary_key is not None:
                    with opened(table).handles[bucket].latest() as view:
                        rows, size = view.state().row_count, view.leaf_bytes()
                    merges.append(Merges.expected(rows, size, usual.limit_of(size)))
        advice.append(advice_of(table.name, merges, available, counted=False))
    return [each for each in advice if each is not None]
