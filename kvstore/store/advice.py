"""Tables that would write fewer pages of their indexes if memtables were larger.

D rows of random keys that are merged together are on P(1 − e^(−D/P)) of P leaf pages. So a row writes about one page
while D is much smaller than P, and half a page if D is 1.6 P. Keys in increasing order write few pages in any case:
what a process has merged is counted, and not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import exp
from pathlib import Path

from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import CorruptData
from kvstore.memtable.budget import Budget, Merges
from kvstore.memtable.pace import PAGE_BYTES
from kvstore.memtable.run import ROW_BYTES
from kvstore.meta.state import TableDefinition
from kvstore.process.memory import available_memory
from kvstore.table.open_table import OpenTable
from logformat import paths
from logformat.ids import BucketId

PAGES_A_ROW_MAX = 0.6
"""Up to so many are as good as the usual limits of memory make it."""
ROWS_A_PAGE = 2.5
"""So many rows a leaf, merged together, write 0.37 pages each."""
GAIN_MIN = 1.25
"""Advice that saves less is not worth the memory."""
MEMORY_PARTS = 2
"""At most this part of the memory that is available is advised."""
LEAF_SHARE = 0.7
"""Part of a leaf that rows take, if keys came in random order."""
ROUND_BYTES = 64 << 20


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
                    merges.append(expected_merges(rows, size, usual.limit_of(size)))
        advice.append(advice_of(table.name, merges, available, counted=False))
    return [each for each in advice if each is not None]


def expected_merges(row_count: int, leaf_bytes: int, limit: int) -> Merges:
    """One merge of random keys, in a bucket of so many rows, with the memory of one memtable."""
    leaves = leaf_bytes // PAGE_BYTES
    bytes_of_row = int(LEAF_SHARE * leaf_bytes / max(row_count, 1)) + ROW_BYTES
    rows = max(limit // 2 // bytes_of_row, 1)  # a merge begins when half of the memory is taken
    return Merges(rows, rows * bytes_of_row, int(rows * pages_a_row(leaves, rows)), 1, leaves)


def pages_a_row(leaf_pages: int, rows: int) -> float:
    """Leaf pages that a row of a random key writes, if so many rows are merged together."""
    return leaf_pages / rows * -(exp(-rows / leaf_pages) - 1) if leaf_pages else 0.0


def advice_of(table: str, buckets: Iterable[Merges], available: int | None, *, counted: bool) -> str | None:
    """What to set for a table, and why; None if larger memtables would gain little.

    Args:
        buckets: Those that are written together.
        available: Memory of the machine, if it is known.
        counted: Whether the merges have happened.
    """
    merges = [each for each in buckets if each.rows and each.leaf_pages]
    rows, pages = sum(each.rows for each in merges), sum(each.pages for each in merges)
    if not rows or pages <= PAGES_A_ROW_MAX * rows:
        return None
    needed, taken = _memory(merges), sum(2 * each.bytes // each.count for each in merges)
    share = 1.0 if available is None else min(1.0, available // MEMORY_PARTS / needed)
    setting = max(int(needed * share) // ROUND_BYTES, 1) * ROUND_BYTES
    if min(needed * share, setting) <= taken:  # such as of rows that are larger than a page, or have many entries
        return None
    then = pages_a_row(1000, int(1000 * ROWS_A_PAGE * setting / needed))
    if pages < GAIN_MIN * then * rows:
        return None
    leaves, together = sum(each.leaf_pages for each in merges), sum(each.rows // each.count for each in merges)
    row, writes, are = ("A row", "wrote", "were") if counted else ("A row of a random key", "writes about", "are")
    return (
        f"{row} of table {table} {writes} {pages / rows:.2f} pages of the index, which has {leaves} leaves: memtables"
        f" {are} merged at {together} rows. Where the table is written, open the store with memtable_bytes={setting}:"
        f" then it is about {then:.2f}."
    )


def _memory(merges: Sequence[Merges]) -> int:
    """Memory with which each bucket's merges have :data:`ROWS_A_PAGE`; a merge begins at half of it."""
    return int(sum(2 * ROWS_A_PAGE * each.leaf_pages * each.bytes / each.rows for each in merges))
