"""The entries of a table's secondary indexes in one bucket: moved with each merge, compared with the rows by a check.

* Entries are of the rows that the bucket's index has. They change in the transaction that changes these rows.
* Entries whose record does not say that they are whole are no use to a search; see :mod:`kvstore.indexing.building`.
* Only the bucket's writer is here, in its turn (:mod:`kvstore.bucket.turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import groupby, islice
from operator import attrgetter, or_
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.index.found_rows import FoundRows
from kvstore.index.index import Index, View
from kvstore.meta.state import TableDefinition
from kvstore.request.native_rows import native_differences, rows_found
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import SecondaryIndex
from logformat.checksum import key_sums, mix
from logformat.rows.entries import ENTRIES, FEW, codes_of, entries_in_order, entries_prefix, index_of
from logformat.rows.keys import ROW

SCAN_ROWS = 1 << 15
CHECKED_AT_A_TIME = 1 << 16


class Unfinished(Protocol):
    """Entries of one secondary index while they are made; see :mod:`kvstore.indexing.building`."""

    def note_removed(self, entries: BinaryColumn) -> None:
        """Note that a merge removes entries, of rows that may have been read."""

    def go_on(self, made: TableEntries, index: Index, grow: Callable[[], None]) -> int:
        """Read some rows, or else store some entries, and return of how many."""


class TableEntries:
    """Entries of all secondary indexes of a table.

    Args:
        definition: The table's entry in the catalog; it has a primary key.

    Attributes:
        unfinished: Those that are being made, by the id of their index.
    """

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.indexes = definition.indexes
        self.unfinished: dict[int, Unfinished] = {}
        self._names = {each.index_id: columns_of(definition, each) for each in self.indexes}
        self._all_names = list(dict.fromkeys(name for names in self._names.values() for name in names))
        self._bits = tuple((name, 1 << nth) for nth, name in enumerate(self._all_names))

    def move(self, index: Index, keys: BinaryColumn, rows: BinaryColumn) -> None:
        """Change entries with rows, in the open transaction of the index that changes these.

        Args:
            index: Its last commit has the rows that are replaced.
            keys: Of the rows, sorted, each once.
            rows: The row that each key has now; empty if it has none.

        Raises:
            CorruptData: A row or a record is damaged. The transaction is to be aborted.
        """
        with index.view() as view:
            records = view.entries_records()
            counts = {id: record.entry_count for id, record in records.items() if view.has_entries(id)}
            counts |= {id: records[id].entry_count if id in records else 0 for id in self.unfinished}
            known = [each for each in self.indexes if each.index_id in counts]
            if not known:
                return
            there, old = view.find(keys)
        differ = native_differences(layout_of(self.definition), keys, there, old, rows, self._bits)
        if differ is not None and len(changed := np.flatnonzero(differ)) < len(keys):
            old = old.take((np.cumsum(there) - 1)[changed[there[changed]]])
            keys, rows, there, differ = keys.take(changed), rows.take(changed), there[changed], differ[changed]
        before = self._side(keys, there, old)
        after = self._side(keys, rows.lengths > 0, rows.without_empty())
        for each in sorted(known, key=attrgetter("index_id")):
            id, names = each.index_id, self._names[each.index_id]
            unfinished = self.unfinished.get(id)
            if differ is None:
                differs = before.differs(after, names)
            else:
                differs = differ & np.uint64(sum(bit for name, bit in self._bits if name in names)) != 0
            places = np.flatnonzero(differs)
            (removed, _), (added, values) = before.entries(id, names, places), after.entries(id, names, places)
            if unfinished is not None:
                unfinished.note_removed(removed)
            more = index.move_entries(removed.to_list(), added.to_list(), values.to_list())
            index.note_entries(id, counts[id] + more, are_whole=unfinished is None)

    def _side(self, keys: BinaryColumn, there: np.ndarray, rows: BinaryColumn) -> _Side:
        known = keys if there.all() else keys.take(np.flatnonzero(there))
        return _Side(keys, there, self._rows(known, rows) if len(known) else None)

    def are_due(self, view: View) -> bool:
        """Whether entries have to be made, or removed, before the table's rows change."""
        records = view.entries_records().keys() - self.unfinished.keys()
        needed = {each.index_id for each in self.indexes} - self.unfinished.keys()
        return records != needed or not all(map(view.has_entries, needed))

    def _rows(self, keys: BinaryColumn, rows: BinaryColumn) -> pa.RecordBatch:
        return rows_found(layout_of(self.definition), FoundRows.of(keys, rows), self._all_names)

    def codes(
        self, view: View, each: SecondaryIndex, start: bytes = ROW, rows: int = SCAN_ROWS
    ) -> Iterator[tuple[BinaryColumn, BinaryColumn]]:
        """Keys of the rows of a view from ``start`` on, in key order, and the codes of their columns; some at a time.

        Raises:
            CorruptData: A row is damaged.
        """
        for chunk in view.found(rows, start):
            yield chunk.keys().moved(), codes_of_found(self.definition, each, chunk)


class _Side:
    """Indexed columns of rows, before or after a change.

    Args:
        keys: Of all rows.
        there: Whether each key has a row, bool ``(n,)``.
        rows: Of those that have one; None if none has.
    """

    def __init__(self, keys: BinaryColumn, there: np.ndarray, rows: pa.RecordBatch | None) -> None:
        self._keys = keys
        self._there = there
        self._rows = rows
        self._places = np.cumsum(there) - 1

    def differs(self, other: _Side, names: Sequence[str]) -> np.ndarray:
        """Whether the entry of each key may be another one: bool ``(n,)``."""
        differs = self._there | other._there
        both = np.flatnonzero(self._there & other._there)
        if len(both):
            columns = zip(self._columns(names, both), other._columns(names, both), strict=True)
            differs[both] = reduce(or_, (_unequal(one, another) for one, another in columns))
        return differs

    def entries(self, id: int, names: Sequence[str], places: np.ndarray) -> tuple[BinaryColumn, BinaryColumn]:
        """Keys and values of the entries of those rows at some places that are there, in their order."""
        places = places[self._there[places]]
        if not len(places):
            return BinaryColumn.from_list([]), BinaryColumn.from_list([])
        return in_order(id, codes_of(self._columns(names, places)), self._keys.take(places))

    def _columns(self, names: Sequence[str], places: np.ndarray) -> list[pa.Array]:
        assert self._rows is not None
        columns = [self._rows.column(name) for name in names]
        if len(places) == self._rows.num_rows:
            return columns
        taken = pa.array(self._places[places])
        return [column.take(taken) for column in columns]


def _unequal(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Whether values differ, bool ``(n,)``; those that are no number do."""
    if pa.types.is_float16(one.type):  # Arrow does not compare them
        one, other = one.cast(pa.float32()), other.cast(pa.float32())
    unequal = pc.not_equal(one, other)
    if unequal.null_count:
        unequal = pc.fill_null(unequal, pc.not_equal(one.is_null(), other.is_null()))
    flags: np.ndarray = unequal.to_numpy(zero_copy_only=False)
    return flags


def in_order(index_id: int, codes: BinaryColumn, keys: BinaryColumn) -> tuple[BinaryColumn, BinaryColumn]:
    """See :func:`logformat.rows.entries.entries_in_order`; by the native kernel where there is one."""
    from kvstore.kernel import library, writes

    kernel = library.kernel()
    if kernel is not None and len(keys) >= FEW:
        made = writes.entries(kernel, entries_prefix(index_id), codes, keys)
        if made is not None:
            return made
    return entries_in_order(index_id, codes, keys)


def columns_of(definition: TableDefinition, index: SecondaryIndex) -> list[str]:
    """Names of the columns of a secondary index, as they are called now."""
    return [definition.stored.field(number).name for number in index.columns]


def codes_of_found(definition: TableDefinition, index: SecondaryIndex, rows: FoundRows) -> BinaryColumn:
    """The code of each row, in memory of its own.

    Raises:
        CorruptData: A row is damaged.
    """
    return codes_of(rows_found(layout_of(definition), rows, columns_of(definition, index)).columns)


def entries_of_rows(
    definition: TableDefinition, index: SecondaryIndex, keys: BinaryColumn, rows: BinaryColumn
) -> tuple[BinaryColumn, BinaryColumn]:
    """Keys and values of the entries of some rows, in their order.

    Raises:
        CorruptData: A row is damaged.
    """
    if not len(keys):
        return BinaryColumn.from_list([]), BinaryColumn.from_list([])
    return in_order(index.index_id, codes_of_found(definition, index, FoundRows.of(keys, rows)), keys)


def different_entries(definition: TableDefinition, view: View) -> Iterator[str]:
    """What is wrong with the entries in a view of an index, one sentence each.

    Raises:
        CorruptData: A row, an entry or a record is damaged.
    """
    counts: dict[int, int] = {}
    sums: dict[int, int] = {}
    pairs = view.entries([(ENTRIES, ROW)])
    while some := list(islice(pairs, CHECKED_AT_A_TIME)):
        for id, group in groupby(some, lambda pair: index_of(*pair)):
            _add(counts, sums, id, list(group))
    records = view.entries_records()
    for id in counts.keys() | records.keys():
        counted, actual = records[id].entry_count if id in records else 0, counts.get(id, 0)
        if counted != actual:
            yield f"secondary index {id} counts {counted} entries, but {actual} are found"
    made = TableEntries(definition)
    for each in filter(lambda each: view.has_entries(each.index_id), definition.indexes):
        id = each.index_id
        expected_counts: dict[int, int] = {}
        expected_sums: dict[int, int] = {}
        for keys, codes in made.codes(view, each):
            its = list(zip(*(column.to_list() for column in entries_in_order(id, codes, keys)), strict=True))
            _add(expected_counts, expected_sums, id, its)
        if (expected_counts.get(id), expected_sums.get(id)) != (counts.get(id), sums.get(id)):
            yield f"secondary index {each.name} has other entries than the rows need; drop it and create it again"


def _add(counts: dict[int, int], sums: dict[int, int], id: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    hashes = mix(key_sums(BinaryColumn.from_list([entry + value for entry, value in pairs])))
    counts[id] = counts.get(id, 0) + len(pairs)
    sums[id] = (sums.get(id, 0) + int(hashes.sum(dtype=np.uint64))) % 2**64
