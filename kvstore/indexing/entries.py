"""The entries of a table's secondary indexes in one bucket: moved with each merge, made for rows that are there.

* Entries are of the rows that the bucket's index has. They change in the transaction that changes these rows.
* Entries whose record does not say that they are whole are no use to a search. They are made in the order of the rows'
  keys, some at a time, and those that are made already are moved meanwhile. Of a new index that is not unique they are
  made between writes; else before the next write, from the beginning.
* Only the bucket's writer is here, in its turn (:mod:`kvstore.bucket.turn`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from itertools import groupby, islice
from operator import attrgetter, or_

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.index.found_rows import FoundRows
from kvstore.index.index import Index, View
from kvstore.meta.state import TableDefinition
from kvstore.request.native_rows import native_differences, rows_found
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn, concatenate
from logformat.catalog.edits import SecondaryIndex
from logformat.checksum import key_sums, mix
from logformat.rows.entries import ENTRIES, FEW, between, codes_of, entries_in_order, entries_prefix, index_of
from logformat.rows.keys import ROW

BUILD_ROWS = 1 << 16
"""Entries of so many rows are made at a time, put in their order, and committed."""
SCAN_ROWS = 1 << 15
REMOVED_AT_A_TIME = 1 << 16


class TableEntries:
    """Entries of all secondary indexes of a table.

    Args:
        definition: The table's entry in the catalog; it has a primary key.

    Attributes:
        made_to: Of each index whose entries are being made, the key from which on no row has one.
    """

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.indexes = definition.indexes
        self.made_to: dict[int, bytes] = {}
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
            counts = {
                id: record.entry_count for id, record in records.items() if id in self.made_to or view.has_entries(id)
            }
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
        removed: list[bytes] = []
        added: list[bytes] = []
        values: list[bytes] = []
        for each in sorted(known, key=attrgetter("index_id")):
            id, names = each.index_id, self._names[each.index_id]
            made_to = self.made_to.get(id)
            stop = len(keys) if made_to is None else bisect_left(keys, made_to)
            if differ is None:
                differs = before.differs(after, names)
            else:
                differs = differ & np.uint64(sum(bit for name, bit in self._bits if name in names)) != 0
            places = np.flatnonzero(differs[:stop])
            (gone, _), (new, its_values) = before.entries(id, names, places), after.entries(id, names, places)
            removed += gone.to_list()
            added += new.to_list()
            values += its_values.to_list()
            index.note_entries(id, counts[id] + len(new) - len(gone), are_whole=made_to is None)
        index.move_entries(removed, added, values)

    def _side(self, keys: BinaryColumn, there: np.ndarray, rows: BinaryColumn) -> _Side:
        known = keys if there.all() else keys.take(np.flatnonzero(there))
        return _Side(keys, there, self._rows(known, rows) if len(known) else None)

    def go_on_from(self, former: TableEntries) -> None:
        """Take over from the entries as an earlier definition of the table needed them, which has written the rows.

        Entries of new indexes are made from now on, but those of unique ones, which are needed by the next write.
        """
        known = {each.index_id for each in former.indexes}
        for each in self.indexes:
            id = each.index_id
            if id in former.made_to or (id not in known and not each.unique):
                self.made_to[id] = former.made_to.get(id, ROW)

    def are_due(self, view: View) -> bool:
        """Whether entries have to be made, or removed, before the table's rows change."""
        needed = {each.index_id for each in self.indexes} - self.made_to.keys()
        return view.entries_records().keys() - self.made_to.keys() != needed or not all(map(view.has_entries, needed))

    def _rows(self, keys: BinaryColumn, rows: BinaryColumn) -> pa.RecordBatch:
        return rows_found(layout_of(self.definition), FoundRows.of(keys, rows), self._all_names)

    def codes(
        self, view: View, each: SecondaryIndex, start: bytes = ROW
    ) -> Iterator[tuple[BinaryColumn, BinaryColumn]]:
        """Keys of the rows of a view from ``start`` on, in key order, and the codes of their columns.

        Raises:
            CorruptData: A row is damaged.
        """
        names, layout = self._names[each.index_id], layout_of(self.definition)
        for chunk in view.found(SCAN_ROWS, start):
            # Copied, since rows may lie in memory that the next ones are read into.
            yield chunk.keys().moved(), codes_of(rows_found(layout, chunk, names).columns)


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


def make_entries(entries: TableEntries, index: Index, grow: Callable[[], None]) -> None:
    """Make the entries that an index lacks, of all its rows, and remove those of secondary indexes that are dropped.

    It takes several commits. If it ends early, the next call removes what is not whole, and begins again.

    Args:
        index: Without an open transaction.
        grow: Enlarges its map.

    Raises:
        CorruptData: A row is damaged.
        StoreFull, lmdb.Error: See :meth:`Index.commit`.
    """
    ids = {each.index_id for each in entries.indexes}
    with index.view() as view:
        kept = set(filter(view.has_entries, ids)) | entries.made_to.keys()
    for id in _records(index).keys() - kept:
        while id in _records(index):
            _commit(index, grow, partial(_remove_some, index, id))
    missing = dict.fromkeys(ids - kept, ROW)
    entries.made_to |= missing
    try:
        while missing.keys() & entries.made_to.keys():
            make_some_entries(entries, index, grow)
    finally:
        for id in missing:
            entries.made_to.pop(id, None)


def make_some_entries(entries: TableEntries, index: Index, grow: Callable[[], None]) -> int:
    """Make entries of some rows, in one commit, and return of how many; 0 once all are made.

    Args:
        index, grow: See :func:`make_entries`, also for errors.
    """
    for each in entries.indexes:
        id = each.index_id
        if id in entries.made_to:
            (keys, values), following = _some(entries, index, each, entries.made_to[id])
            count = _records(index).get(id, 0) + len(keys)
            _commit(index, grow, partial(_put, index, id, keys, values, count, are_whole=not following))
            if following:
                entries.made_to[id] = following
            else:
                del entries.made_to[id]
            if keys:
                return len(keys)
    return 0


def _commit(index: Index, grow: Callable[[], None], change: Callable[[], None]) -> None:
    """Commit a change of entries; the state of the index stays."""
    with index.view() as view:
        state = view.state()
    while True:
        try:
            change()
            index.commit(state)
            return
        except lmdb.MapFullError:
            index.abort()
            grow()
        finally:
            index.abort()  # without effect after the commit


def _records(index: Index) -> dict[int, int]:
    """How many entries each secondary index has that has any, or a record."""
    with index.view() as view:
        return {id: record.entry_count for id, record in view.entries_records().items()}


def _remove_some(index: Index, id: int) -> None:
    with index.view() as view:
        keys = [key for key, _ in islice(view.entries([between(id, b"", b"")]), REMOVED_AT_A_TIME)]
    index.move_entries(keys, [], [])
    if len(keys) < REMOVED_AT_A_TIME:
        index.forget_entries(id)
    else:
        index.note_entries(id, _records(index)[id] - len(keys), are_whole=False)


def _some(
    made: TableEntries, index: Index, each: SecondaryIndex, start: bytes
) -> tuple[tuple[list[bytes], list[bytes]], bytes]:
    """Keys and values of entries of rows from a key on, in their order; and the key to go on from, empty at the end."""
    rows: list[tuple[BinaryColumn, BinaryColumn]] = []
    count, following = 0, b""
    # A view of its own for each part: the map can't grow while one is open.
    with index.scan_view() as view:
        for keys, codes in made.codes(view, each, start):
            rows.append((codes, keys))
            count += len(keys)
            if count >= BUILD_ROWS:
                following = keys[-1] + b"\0"
                break
    if not rows:
        return ([], []), b""
    entries, values = in_order(each.index_id, *map(concatenate, zip(*rows, strict=True)))
    return (entries.to_list(), values.to_list()), following


def _put(index: Index, id: int, keys: Sequence[bytes], values: Sequence[bytes], count: int, *, are_whole: bool) -> None:
    index.move_entries([], keys, values)
    index.note_entries(id, count, are_whole=are_whole)


def different_entries(definition: TableDefinition, view: View) -> Iterator[str]:
    """What is wrong with the entries in a view of an index, one sentence each.

    Raises:
        CorruptData: A row, an entry or a record is damaged.
    """
    counts: dict[int, int] = {}
    sums: dict[int, int] = {}
    pairs = view.entries([(ENTRIES, ROW)])
    while some := list(islice(pairs, BUILD_ROWS)):
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
