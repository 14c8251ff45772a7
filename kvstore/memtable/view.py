"""A view of a bucket that is ahead of its index: the index, and layers of rows over it.

* A newer row counts, and not the row of its key in the index, whatever part of a merge the index has.
* What a view shows does not change while it is open.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import numpy as np

from kvstore.index.found_rows import FoundRows
from kvstore.index.index import FEW_BYTES, View
from kvstore.index.leaves import CHUNK_BYTES
from kvstore.memtable.run import FEW_KEYS, Run, found_over, merged
from kvstore.memtable.sorted_rows import RowLayers
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
        rows: All that changed since the index; they change no more.
        writers: Returns those of some ids that this view has, or all; it may return others, too.
    """

    def __init__(
        self,
        tree: View,
        state: IndexState,
        rows: RowLayers,
        writers: Callable[[Sequence[WriterId] | None], dict[WriterId, WriterEntry]],
    ) -> None:
        self.layers = tuple(zip(rows.dicts, rows.made, strict=True))
        # The pages of an index without rows can't be divided.
        self.leaves = tree.leaves if tree.leaves is not None and tree.bounds() is not None else None
        self._tree = tree
        self._state = state
        self._rows = rows
        self._writers = writers

    def state(self) -> IndexState:
        """See :meth:`View.state`."""
        return self._state

    def writers(self) -> dict[WriterId, WriterEntry]:
        """See :meth:`View.writers`."""
        return self._writers(None)

    def writers_of(self, ids: Iterable[WriterId]) -> dict[WriterId, WriterEntry]:
        """See :meth:`View.writers_of`."""
        wanted = list(ids)
        known = self._writers(wanted)
        return {id: known[id] for id in wanted if id in known}

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """See :meth:`View.get`."""
        older, newer = self._tree.get(keys), self._rows.newest(keys)
        return older if newer is None else [old if new is None else new for old, new in zip(older, newer, strict=True)]

    def find(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        """See :meth:`View.find`."""
        runs = [each for each in self._rows.dicts if isinstance(each, Run)]
        if len(runs) == len(self._rows.dicts) and len(keys) >= FEW_KEYS:
            return found_over(runs, keys, self._tree.find)  # as columns
        there, values = self._tree.find(keys)
        newer = self._rows.newest(keys.to_list())
        if newer is None:
            return there, values
        stored = iter(values.to_list())
        rows: list[bytes | None] = [next(stored) if is_there else None for is_there in there.tolist()]
        rows = [row if newest is None else newest or None for row, newest in zip(rows, newer, strict=True)]
        there = np.fromiter((row is not None for row in rows), bool, len(rows))
        return there, BinaryColumn.from_list([row for row in rows if row is not None])

    def found(
        self, chunk: int, start: bytes = ROW, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[FoundRows]:
        """See :meth:`View.found`."""
        left = self._rows.run.between(start, stop)
        for rows in self._tree.found(chunk, start, stop, reverse=reverse):
            if not len(left):
                yield rows
                continue
            if reverse:
                at = bisect_left(left.keys, rows.keys()[0])
                newer, left = left.slice(at, len(left)), left.slice(0, at)
            else:
                at = bisect_right(left.keys, rows.keys()[-1])
                newer, left = left.slice(0, at), left.slice(at, len(left))
            if len(newer):
                yield from _in_chunks(_laid_over(rows, newer), chunk, reverse=reverse)
            else:
                yield rows
        yield from _in_chunks(left.there(), chunk, reverse=reverse)

    def first(
        self, most: int, start: bytes = ROW, stop: bytes | None = None, *, reverse: bool = False
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """See :meth:`View.first`."""
        layers = self._rows.in_order()
        chosen: list[tuple[bytes, bytes]] = []
        step = most
        while True:
            pairs, is_all = self._tree.first(step, start, stop, reverse=reverse)
            ends = [] if is_all else [pairs[-1][0]]  # what comes after it is not known yet
            newer: dict[bytes, bytes] = {}
            for layer, keys in reversed(layers):
                low = bisect_left(keys, start)
                high = len(keys) if stop is None else bisect_left(keys, stop, low)
                if high - low > step:
                    low, high = (high - step, high) if reverse else (low, low + step)
                    ends.append(keys[low] if reverse else keys[high - 1])
                if isinstance(layer, Run):
                    newer.update(layer.slice(low, high).items())
                else:
                    newer.update((key, layer[key]) for key in cast("list[bytes]", keys)[low:high])
            if not newer:
                chosen += pairs
                return chosen[:most], is_all and len(chosen) <= most
            end = (max if reverse else min)(ends, default=None)
            both = dict(pairs) | newer
            known = both if end is None else [key for key in both if (key >= end if reverse else key <= end)]
            chosen += ((key, row) for key in sorted(known, reverse=reverse) if (row := both[key]))
            if end is None or len(chosen) >= most or sum(len(row) for _, row in chosen) > FEW_BYTES:
                return chosen[:most], end is None and len(chosen) <= most
            start, stop = (start, end) if reverse else (end + b"\0", stop)
            step *= _STEP_GROWS  # most of what was read was deleted

    def bounds(self) -> tuple[bytes, bytes] | None:
        """A key at or before the first, and one at or after the last; None if there are no rows."""
        newer, older = self._rows.run.keys, self._tree.bounds()
        ends = [*(older or ()), *((newer[0], newer[-1]) if len(newer) else ())]
        return (min(ends), max(ends)) if ends else None

    def entries_records(self) -> dict[int, EntriesRecord]:
        """See :meth:`View.entries_records`."""
        return self._tree.entries_records()

    def has_entries(self, index_id: int) -> bool:
        """See :meth:`View.has_entries`."""
        return self._tree.has_entries(index_id)

    def entries(self, ranges: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """See :meth:`View.entries`."""
        return self._tree.entries(ranges)

    def row_count(self) -> int:
        """See :meth:`View.row_count`."""
        newer = self._rows.run
        there, _ = self._tree.find(newer.keys)
        return self._tree.row_count() + int(np.count_nonzero(newer.rows.lengths)) - int(np.count_nonzero(there))

    def leaf_bytes(self) -> int:
        """See :meth:`View.leaf_bytes`; without what is newer."""
        return self._tree.leaf_bytes()


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


def _in_chunks(run: Run, chunk: int, *, reverse: bool) -> Iterator[FoundRows]:
    first, ends = 0, run.rows.offsets
    parts = []
    while first < len(run):
        of_size = int(np.searchsorted(ends, ends[first] + CHUNK_BYTES))
        last = min(first + chunk, max(of_size, first + 1), len(run))
        parts.append(run.slice(first, last))
        first = last
    for part in reversed(parts) if reverse else parts:
        yield FoundRows.of(part.keys.moved(), part.rows.moved())
