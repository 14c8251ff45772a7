"""Finding rows of a bucket by a secondary index.

* Entries name rows to look at: those in the bucket's index, and those that are made of what the view has beside it.
* The rows that are found are those that a scan of the view with the same condition would return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

import numpy as np
import pyarrow as pa

from kvstore.index.index import View
from kvstore.indexing.conditions import Condition, matching
from kvstore.indexing.entries import columns_of
from kvstore.indexing.newer import NewerEntries
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import SecondaryIndex
from logformat.rows import intake
from logformat.rows.entries import between, codes_of, ranges_of, row_keys_of
from logformat.rows.keys import ROW

SOUGHT_MAX = 1 << 20
"""More combinations of values are not looked for one after the other."""
FEW_ROWS = 1024
SHARE_MAX = 8
"""Of more rows than this, and more than one of so many, a scan is faster."""
_COLUMNS = "columns"
FEWEST_ROWS, LIMIT_GROWS = 64, 16
"""Several indexes are searched up to so many rows, then up to so many times more, for the one that names the fewest."""


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

    def explained(self, definition: TableDefinition) -> str:
        """What it uses, in words."""
        return f"index {self.index.name} by {', '.join(columns_of(definition, self.index)[: self.columns])}"

    def keys(self, view: View, newer: NewerEntries, most: int) -> set[bytes] | None:
        """Keys of all rows of a view that can have the values; None if there are more than so many.

        Args:
            newer: The entries of what the view has and its index lacks.
        """
        later = newer.few_keys(self._ranges, most)
        if later is None:
            return None
        room = most + 1 - len(later)
        pairs = list(islice(view.entries(self._ranges), room))
        return None if len(pairs) == room else {*later, *row_keys_of(pairs)}


def searches(definition: TableDefinition, conditions: Sequence[Condition]) -> list[Search]:
    """Searches by the indexes that use some of the conditions; those that use most of them come first."""
    by_column = {each.column: each for each in conditions}
    possible = (_search(each, columns_of(definition, each), by_column) for each in definition.indexes)
    return sorted(filter(None, possible), key=lambda search: -search.columns)


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
    return Search(index, ranges_of(index.index_id, codes), used) if used else None


@dataclass(frozen=True)
class Named:
    """Rows that a search names.

    Attributes:
        search: The search.
        keys: Keys of all rows of a view for which the conditions can be true, sorted, each once.
    """

    search: Search
    keys: BinaryColumn


def named_rows(
    view: View, definition: TableDefinition, conditions: Sequence[Condition], most: int | None = None
) -> Named | None:
    """Rows that an index names, by the search that names the fewest; None if a scan is to be preferred.

    Args:
        definition: It has the schemas of all rows of the view.
        conditions: All of them are true for the rows that are sought.
        most: A scan is to be preferred to more rows; None to compare only with the number of all rows.

    Raises:
        CorruptData: A row or an entry is damaged.
    """
    usable = [each for each in searches(definition, conditions) if view.has_entries(each.index.index_id)]
    if not usable:
        return None
    share = max(FEW_ROWS, view.state().row_count // SHARE_MAX)
    most = share if most is None else min(most, share)
    limit = FEWEST_ROWS if len(usable) > 1 else most
    while True:
        for search in usable:
            keys = search.keys(view, NewerEntries(view.layers, definition, search.index), min(limit, most))
            if keys is not None:
                return Named(search, BinaryColumn.from_list(sorted(keys)))
        if limit >= most:
            return None
        limit *= LIMIT_GROWS


def rows_by(named: Named, view: View, definition: TableDefinition, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """The rows of a view for which all conditions are true, in key order.

    Args:
        named: It names at least these.
        definition: It has the schemas of all rows of the view.

    Raises:
        CorruptData: A row is damaged.
    """
    layout = layout_of(definition)
    there, values = view.find(named.keys)
    if not there.any():
        return intake.empty(layout.columns())
    rows, _ = layout.decode_found(named.keys.take(np.flatnonzero(there)), values)
    return matching(rows, conditions)
