"""Finding rows of a bucket by a secondary index.

* Entries are of what the bucket's index has; the view may have more. So an entry only names a row to look at, and all
  rows that are newer than the index are looked at, too.
* The rows that are found are those that a scan of the view with the same condition would return.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product

import numpy as np
import pyarrow as pa

from kvstore.index.index import View
from kvstore.indexing.conditions import Condition, matching
from kvstore.indexing.entries import columns_of
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import SecondaryIndex
from logformat.rows import intake
from logformat.rows.entries import between, codes_of, row_key_of
from logformat.rows.keys import ROW

SOUGHT_MAX = 1 << 20
"""More combinations of values are not looked for one after the other."""
FEW_ROWS = 1024
SHARE_MAX = 8
"""Of more rows than this, and more than one of so many, a scan is faster."""


class Search:
    """A search by one secondary index.

    Args:
        index: One of the table's.
        ranges: Where the entries of all rows are that can have the values: start and stop (exclusive) of each.
        columns: Number of columns of the index that it uses.
    """

    def __init__(self, index: SecondaryIndex, ranges: list[tuple[bytes, bytes]], columns: int) -> None:
        self.index = index
        self.columns = columns
        self._ranges = ranges

    def keys(self, view: View) -> list[bytes] | None:
        """Keys of all rows of a view's index that can have the values; None if a scan is to be preferred."""
        if not view.has_entries(self.index.index_id):
            return None
        limit = max(FEW_ROWS, view.state().row_count // SHARE_MAX)
        found: set[bytes] = set()
        for start, stop in self._ranges:
            for entry, value in islice(view.entries(start, stop), limit + 1 - len(found)):
                found.add(row_key_of(entry, value))
            if len(found) > limit:
                return None
        return list(found)


def best_search(definition: TableDefinition, conditions: Sequence[Condition]) -> Search | None:
    """The search by the index that uses most of the conditions; None if none uses any."""
    by_column = {each.column: each for each in conditions}
    found = [
        search
        for each in definition.indexes
        if (search := _search(each, columns_of(definition, each), by_column)) is not None
    ]
    return max(found, key=lambda search: search.columns, default=None)


def _search(index: SecondaryIndex, columns: Sequence[str], by_column: dict[str, Condition]) -> Search | None:
    sought: list[list[bytes]] = []
    count = 1
    for column in columns:
        condition = by_column.get(column)
        if condition is None or condition.values is None or count * len(condition.values) > SOUGHT_MAX:
            break
        sought.append(condition.codes())
        count *= len(condition.values)
    used = len(sought)
    codes = list(map(b"".join, product(*sought)))
    condition = by_column.get(columns[used]) if used < len(columns) else None
    if condition is not None and condition.values is None:
        low, high = (ROW if end is None else codes_of([pa.array([end])])[0] for end in (condition.low, condition.high))
        return Search(index, [between(index.index_id, code + low, code + high) for code in codes], used + 1)
    return Search(index, [between(index.index_id, code, code) for code in codes], used) if used else None


def rows_by(
    search: Search, view: View, definition: TableDefinition, conditions: Sequence[Condition]
) -> pa.RecordBatch | None:
    """The rows of a view for which all conditions are true, in key order; None if a scan is to be preferred.

    Args:
        search: Finds all rows of the view's index for which they can be true.
        definition: It has the schemas of all rows of the view.

    Raises:
        CorruptData: A row or an entry is damaged.
    """
    keys = search.keys(view)
    if keys is None:
        return None
    layout, newer = layout_of(definition), view.newer()
    if newer is not None:
        keys += _matching(definition, newer, conditions)
    column = BinaryColumn.from_list(sorted(set(keys)))
    there, values = view.find(column)
    if not there.any():
        return intake.empty(layout.columns())
    rows, _ = layout.decode_found(column.take(np.flatnonzero(there)), values)
    return matching(rows, conditions)


def _matching(
    definition: TableDefinition, newer: tuple[BinaryColumn, BinaryColumn], conditions: Sequence[Condition]
) -> list[bytes]:
    """Keys of the newer rows for which all conditions are true."""
    keys, rows = newer
    places = np.flatnonzero(rows.lengths > 0)
    if not len(places):
        return []
    layout = layout_of(definition)
    found, _ = layout.decode_found(keys.take(places), rows.take(places))
    return layout.encode_keys(matching(found, conditions)).to_list()
