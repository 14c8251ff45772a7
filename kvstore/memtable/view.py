"""A view of a bucket that is ahead of its index: the index, and over it the rows of a generation.

* A newer row counts, and not the row of its key in the index, whatever part of a merge the index has.
* What a view shows does not change while it is open.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvstore.index.found_rows import FoundRows
from kvstore.index.index import FEW_BYTES, Layer, View
from kvstore.index.leaves import CHUNK_BYTES
from kvstore.memtable.derived import Made
from kvstore.memtable.run import FEW_KEYS, Run, found_over, merged
from logformat import binary_column
from logformat.binary_column import BinaryColumn
from logformat.ids import WriterId
from logformat.log.entries_record import EntriesRecord
from logformat.log.index_state import IndexState
from logformat.log.writer_entry import WriterEntry
from logformat.rows.keys import ROW

_STEP_GROWS = 4
FEW_OF = 256
"""Newer rows are put among this many times as many older ones one by one; more of them are sorted with these."""


class NewerView(View):
    """A view of an index, moved on to a later state.

    Args:
        tree: A view of the index.
        state: The state that this view has.
        find_all: Returns the row of each key as this view has it, empty if it was deleted; None if the index has it, or
            that there is none.
        run: Returns all rows that changed since the index.
        writers: Returns all writers that this view has.
        newer: See :meth:`View.newer`.
        layers: See :class:`View`.
    """

    def __init__(
        self,
        tree: View,
        state: IndexState,
        find_all: Callable[[BinaryColumn], list[bytes | None]],
        run: Callable[[], Run],
        writers: Callable[[], dict[WriterId, WriterEntry]],
        newer: Callable[[], Sequence[tuple[Layer, Made]]],
        layers: Sequence[Layer] | None = None,
    ) -> None:
        self.layers = layers
        # The pages of an index without rows can't be divided.
        self.leaves = tree.leaves if tree.leaves is not None and tree.bounds() is not None else None
        self._tree = tree
        self._state = state
        self._find_all = find_all
        self._run = run
        self._writers = writers
        self._newer = newer
        self._layers: Sequence[tuple[Layer, Made]] | None = None

    def state(self) -> IndexState:
        """See :meth:`View.state`."""
        return self._state

    def writers(self) -> dict[WriterId, WriterEntry]:
        """See :meth:`View.writers`."""
        return self._writers()

    def writers_of(self, ids: Iterable[WriterId]) -> dict[WriterId, WriterEntry]:
        """See :meth:`View.writers_of`."""
        all_writers = self._writers()
        return {id: all_writers[id] for id in ids if id in all_writers}

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """See :meth:`View.get`."""
        there, values = self.find(BinaryColumn.from_list(keys))
        found = iter(values.to_list())
        return [next(found) if is_there else b"" for is_there in there.tolist()]

    def find(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        """See :meth:`View.find`."""
        there, values = self._tree.find(keys)
        runs = [each for each in self.layers or () if isinstance(each, Run)]
        if runs and len(runs) == len(self.layers or ()) and len(keys) >= FEW_KEYS:
            return found_over(runs, keys, there, values)  # as columns
        newer = self._find_all(keys)
        if newer.count(None) == len(newer):
            return there, values
        stored = iter(values.to_list())
        rows: list[bytes | None] = [next(stored) if is_there else None for is_there in there.tolist()]
        rows = [row if newest is None else newest or None for row, newest in zip(rows, newer, strict=True)]
        there = np.fromiter((row is not None for row in rows), bool, len(rows))
        return there, BinaryColumn.from_list([row for row in rows if row is not None])

    def found(self, chunk: int, start: bytes = ROW, stop: bytes | None = None) -> Iterator[FoundRows]:
        """See :meth:`View.found`."""
        newer = self._run().between(start, stop)
        place = 0
        for rows in self._tree.found(chunk, start, stop):
            until = bisect_right(newer.keys, rows.keys()[-1], place) if place < len(newer) else place
            if until == place:
                yield rows
            else:
                yield from _in_chunks(_laid_over(rows, newer.slice(place, until)), chunk)
            place = until
        yield from _in_chunks(newer.slice(place, len(newer)).there(), chunk)

    def found_reversed(self, chunk: int, start: bytes = ROW, stop: bytes | None = None) -> Iterator[FoundRows]:
        """See :meth:`View.found_reversed`."""
        newer = self._run().between(start, stop)
        end = len(newer)
        for rows in self._tree.found_reversed(chunk, start, stop):
            place = bisect_left(newer.keys, rows.keys()[0], 0, end)
            if place == end:
                yield rows
            else:
                yield from reversed(list(_in_chunks(_laid_over(rows, newer.slice(place, end)), chunk)))
            end = place
        yield from reversed(list(_in_chunks(newer.slice(0, end).there(), chunk)))

    def first(
        self, most: int, start: bytes = ROW, stop: bytes | None = None, *, reverse: bool = False
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """See :meth:`View.first`."""
        return first_of(self._tree, [OrderedLayer.of(self._run())], most, start, stop, reverse=reverse)

    def bounds(self) -> tuple[bytes, bytes] | None:
        """A key at or before the first, and one at or after the last; None if there are no rows."""
        newer, older = self._run().keys, self._tree.bounds()
        ends = [*(older or ()), *((newer[0], newer[-1]) if len(newer) else ())]
        return (min(ends), max(ends)) if ends else None

    def first_from(self, key: bytes) -> bytes | None:
        """See :meth:`View.first_from`."""
        return next((rows.keys()[0] for rows in self.found(1, key)), None)

    def entries_records(self) -> dict[int, EntriesRecord]:
        """See :meth:`View.entries_records`."""
        return self._tree.entries_records()

    def has_entries(self, index_id: int) -> bool:
        """See :meth:`View.has_entries`."""
        return self._tree.has_entries(index_id)

    def entries(self, ranges: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """See :meth:`View.entries`."""
        return self._tree.entries(ranges)

    def get_stored(self, keys: Sequence[bytes]) -> list[bytes]:
        """See :meth:`View.get_stored`."""
        return self._tree.get(keys)

    def newer(self) -> Sequence[tuple[Layer, Made]]:
        """See :meth:`View.newer`."""
        if self._layers is None:  # kept, since the bucket forgets what was made of earlier layers than its current ones
            self._layers = self._newer()
        return self._layers

    def row_count(self) -> int:
        """See :meth:`View.row_count`."""
        newer = self._run()
        there, _ = self._tree.find(newer.keys)
        return self._tree.row_count() + int(np.count_nonzero(newer.rows.lengths)) - int(np.count_nonzero(there))

    def leaf_bytes(self) -> int:
        """See :meth:`View.leaf_bytes`; without what is newer."""
        return self._tree.leaf_bytes()


class OrderedLayer(NamedTuple):
    """Rows that are newer than an index, or than an older layer.

    Attributes:
        keys: Sorted.
        rows: Returns the keys from one place to another (exclusive), each with its row, empty if it was deleted.
    """

    keys: Sequence[bytes] | BinaryColumn
    rows: Callable[[int, int], Iterable[tuple[bytes, bytes]]]

    @classmethod
    def of(cls, run: Run) -> OrderedLayer:
        """Those of a run."""
        return cls(run.keys, lambda low, high: run.slice(low, high).pairs())


def first_of(
    tree: View, layers: Sequence[OrderedLayer], most: int, start: bytes, stop: bytes | None, *, reverse: bool
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """See :meth:`View.first`, of an index and the layers over it, of which the newest is the first."""
    found: list[tuple[bytes, bytes]] = []
    step = most
    while True:
        pairs, is_all = tree.first(step, start, stop, reverse=reverse)
        ends = [] if is_all else [pairs[-1][0]]  # what comes after it is not known yet
        newer: dict[bytes, bytes] = {}
        for keys, rows in reversed(layers):
            low = bisect_left(keys, start)
            high = len(keys) if stop is None else bisect_left(keys, stop, low)
            if high - low > step:
                low, high = (high - step, high) if reverse else (low, low + step)
                ends.append(keys[low] if reverse else keys[high - 1])
            newer.update(rows(low, high))
        if not newer:
            found += pairs
            return found[:most], is_all and len(found) <= most
        end = (max if reverse else min)(ends, default=None)
        both = dict(pairs) | newer
        known = both if end is None else [key for key in both if (key >= end if reverse else key <= end)]
        found += ((key, row) for key in sorted(known, reverse=reverse) if (row := both[key]))
        if end is None or len(found) >= most or sum(len(row) for _, row in found) > FEW_BYTES:
            return found[:most], end is None and len(found) <= most
        start, stop = (start, end) if reverse else (end + b"\0", stop)
        step *= _STEP_GROWS  # most of what was read was deleted


def _laid_over(older: FoundRows, newer: Run) -> Run:
    """Rows of an index with newer ones among them, or instead of them."""
    old = Run(older.keys(), older.values())
    if len(newer) > len(old) // FEW_OF:
        return merged([old, newer]).there()
    count, keys, live = len(old), newer.keys.to_list(), newer.there()
    kept = np.ones(count, bool)
    places = [bisect_left(old.keys, key) for key in keys]
    kept[[place for place, key in zip(places, keys, strict=True) if place < count and old.keys[place] == key]] = False
    at = np.asarray(places)[newer.rows.lengths > 0]
    order = np.insert(np.arange(count), at, count + np.arange(len(live)))[np.insert(kept, at, True)]
    both = (binary_column.concatenate(pair) for pair in ((old.keys, live.keys), (old.rows, live.rows)))
    return Run(*(column.take(order) for column in both))


def _in_chunks(run: Run, chunk: int) -> Iterator[FoundRows]:
    first, ends = 0, run.rows.offsets
    while first < len(run):
        of_size = int(np.searchsorted(ends, ends[first] + CHUNK_BYTES))
        last = min(first + chunk, max(of_size, first + 1), len(run))
        part = run.slice(first, last)
        first = last
        yield FoundRows.of(part.keys.moved(), part.rows.moved())
