"""Finding rows of a bucket by a secondary index.

* Entries are of what the bucket's index has; the view may have more. So an entry only names a row to look at, and all
  rows that are newer than the index are looked at, too.
* The rows that are found are those that a scan of the view with the same condition would return.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.index.index import Layer, View
from kvstore.indexing.conditions import Condition, matching, satisfying
from kvstore.indexing.entries import columns_of
from kvstore.memtable.layers import MADE_BYTES
from kvstore.memtable.run import rows_there
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

    def keys(self, view: View, most: int) -> set[bytes] | None:
        """Keys of all rows of a view's index that can have the values; None if there are more than so many."""
        found: set[bytes] = set()
        for start, stop in self._ranges:
            for entry, value in islice(view.entries(start, stop), most + 1 - len(found)):
                found.add(row_key_of(entry, value))
            if len(found) > most:
                return None
        return found


def searches(definition: TableDefinition, conditions: Sequence[Condition]) -> list[Search]:
    """Searches by the indexes that use some of the conditions; those that use most of them come first."""
    by_column = {each.column: each for each in conditions}
    found = (_search(each, columns_of(definition, each), by_column) for each in definition.indexes)
    return sorted(filter(None, found), key=lambda search: -search.columns)


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


@dataclass(frozen=True)
class Named:
    """Rows that a search names.

    Attributes:
        search: The search.
        keys: Of all rows of a view for which the conditions can be true, sorted, each once.
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
    found = [each for each in searches(definition, conditions) if view.has_entries(each.index.index_id)]
    if not found:
        return None
    share = max(FEW_ROWS, view.state().row_count // SHARE_MAX)
    most = share if most is None else min(most, share)
    limit = FEWEST_ROWS if len(found) > 1 else most
    while True:
        for search in found:
            keys = search.keys(view, min(limit, most))
            if keys is not None:
                for layer, made in view.layers:
                    keys.update(_matching(definition, layer, made, conditions))
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


def _matching(
    definition: TableDefinition, layer: Layer, made: dict[Any, Any], conditions: Sequence[Condition]
) -> list[bytes]:
    """Keys of the rows of a layer for which all conditions are true."""
    known: _Columns | None = made.get(_COLUMNS)
    if known is None:
        known = made[_COLUMNS] = _Columns(layer)
    if not len(known.keys):
        return []
    columns = known.of(definition, {each.column for each in conditions})
    made[MADE_BYTES] = known.size
    satisfied = pc.fill_null(satisfying(columns, conditions), False).to_numpy(zero_copy_only=False)
    return known.keys.take(np.flatnonzero(satisfied)).to_list()


class _Columns:
    """Columns of the rows of a layer, kept as long as the layer is there.

    Attributes:
        keys: Of the rows.
        size: Bytes that all of it takes in memory.
    """

    def __init__(self, layer: Layer) -> None:
        self.keys, _ = rows_there(layer)
        self.size = 0
        self._layer = layer
        self._known: dict[tuple[int, int], pa.Array] = {}

    def of(self, definition: TableDefinition, names: Collection[str]) -> pa.RecordBatch:
        """Columns by their names in a definition."""
        stored, known = definition.stored, self._known
        wanted = {name: (definition.schema_id, stored.get_field_index(name)) for name in names}
        missing = [name for name, place in wanted.items() if place not in known]
        if missing:
            rows = rows_there(self._layer)
            columns, _ = layout_of(definition).decode_found(*rows, missing)
            known = known | {wanted[name]: columns.column(name) for name in missing}
            if sum(column.nbytes for column in known.values()) > int(rows[1].lengths.sum()):
                known = {place: known[place] for place in wanted.values()}
            self._known = known
            self.size = sum(column.nbytes for column in known.values()) + int(self.keys.lengths.sum())
        return pa.RecordBatch.from_arrays([known[place] for place in wanted.values()], names=list(wanted))
