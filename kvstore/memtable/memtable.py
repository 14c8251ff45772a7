"""The rows and writers of a bucket that its log has and its index lacks, as the bucket's writer keeps them.

* A change is pending until its batch is in the log. Only the changes after it see it; if its group fails, it is
  dropped, and there is nothing to put back.
* Then everything of the group is published in one step: from there on every reader of this process sees it.
* What is published at one moment is merged into the index together, in slices of keys, each in one transaction of the
  index; other changes are published meanwhile. The merged rows are kept here until the last slice is in the index, so a
  view finds all of them here, whatever slices its tree has. A view that is older keeps what it has.
* Rows are as the index stores them. An empty one stands for a row that was deleted.
* The bucket's turn is needed for everything but reading what is published (:mod:`kvstore.bucket.turn`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, compress
from math import ceil
from typing import Any, Protocol, TypeVar

import numpy as np

from kvstore.disk.environment import Transaction
from kvstore.index.index import Index, View
from kvstore.memtable.layers import Layers
from kvstore.memtable.run import Run
from kvstore.memtable.view import Layer, NewerView, first_of
from logformat.binary_column import BinaryColumn
from logformat.ids import Offset, WriterId
from logformat.log.index_state import IndexState
from logformat.log.writer_entry import WriterEntry
from logformat.rows.ordering import in_order

T = TypeVar("T")
ROW_BYTES = 200
"""What a row takes in memory beside its key and its value, about."""
SLICE_ROWS = 4096
"""Rows that one transaction of a merge stores, at least: for fewer, its fsync would take longer than they do."""
SLICE_ROWS_MAX = 1 << 16
"""Rows that it stores, at most: each may be on a page of its own, and LMDB keeps changed pages in memory."""
SLICE_BYTES = 16 << 20
"""It takes no more rows once they have more bytes than this."""

_SORTED_BY_NUMBERS = 1000
"""So many keys are sorted faster by numbers than as objects."""


@dataclass(frozen=True)
class Published:
    """What every reader sees.

    Attributes:
        start: The index has at least every change before it.
        state: With every change that is acknowledged.
        rows: The rows that changed since the start.
        writers: The writers that did; None for one that was forgotten.
        size: About what these take in memory, in bytes.
    """

    start: Offset
    state: IndexState
    rows: Layers[bytes, bytes] = field(default_factory=Layers)
    writers: Layers[WriterId, WriterEntry | None] = field(default_factory=Layers)
    size: int = 0

    def find_all(self, keys: BinaryColumn) -> list[bytes | None]:
        """The row of each key, empty if it was deleted; None if it did not change."""
        return self.rows.newest(keys.to_list()) or [None] * len(keys)

    @cached_property
    def run(self) -> Run:
        """All rows that changed."""
        return Run.of(*_in_order(self.rows))


class MovedEntries(Protocol):
    """Entries that change with the rows of an index."""

    def move(self, index: Index, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Change them in the open transaction that stores rows.

        Args:
            index: Its last commit has the rows that are replaced.
            keys: Of the rows, sorted, each once.
            rows: The row that each key has now; empty if it has none.

        Raises:
            CorruptData: A row is damaged.
        """


class _Merge:
    """What is merged: everything that was published at one moment.

    Args:
        published: It.

    Attributes:
        state: The state of the index after the merge.
        size: About what it takes in memory, in bytes.
    """

    def __init__(self, published: Published) -> None:
        self.state = published.state
        self.size = published.size
        self._rows, self._writers = published.rows, published.writers
        self._names, self._order = _ordered(published.rows)
        self._place = 0

    @property
    def share(self) -> float:
        """Which part of the rows is in the index."""
        return self._place / len(self._order) if len(self._order) else 1.0

    def store(self, index: Index, share: float, before: IndexState, entries: MovedEntries | None) -> None:
        """Store the next slice.

        Args:
            share: See :meth:`Memtable.merge_slice`.
            before: The state of the index before the merge.
            entries: See :attr:`Memtable.entries`.

        Raises:
            StoreFull, lmdb.Error: See :meth:`Index.commit`. Nothing was stored.
            CorruptData: See :meth:`MovedEntries.move`. The same.
        """
        keys, rows = self._slice(share)
        end = self._place + len(keys)
        is_last = end == len(self._order)
        try:
            if entries is not None:
                entries.move(index, keys, rows)
            if all(rows):
                index.put(keys, rows)
            else:
                index.put(list(compress(keys, rows)), list(filter(None, rows)))
                index.remove([key for key, row in zip(keys, rows, strict=True) if not row])
            if is_last:
                for writer_id, entry in self._writers.all().items():
                    index.put_writer(writer_id, entry)
            index.commit(self.state if is_last else _halfway(before, self.state))
        finally:
            index.abort()  # without effect after the commit
        self._place = end

    def _slice(self, share: float) -> tuple[list[bytes], list[bytes]]:
        """Keys and rows of the next slice."""
        end = max(ceil(share * len(self._order)), self._place + SLICE_ROWS)
        places = self._order[self._place : min(end, self._place + SLICE_ROWS_MAX)].tolist()
        keys = list(map(self._names.__getitem__, places))
        rows = _rows_of(keys, self._rows)
        if sum(map(len, rows)) > SLICE_BYTES:
            count = next(count for count, size in enumerate(accumulate(map(len, rows)), 1) if size > SLICE_BYTES)
            return keys[:count], rows[:count]
        return keys, rows


class Memtable:
    """The memtable of one bucket.

    Args:
        index: Of the bucket.

    Attributes:
        index: The argument.
        entries: What changes with the rows of the index; None for a table without secondary indexes.
        published: What every reader sees; replaced as a whole.
        derived: What searches have made of layers, each with its layer; nothing of those that are merged.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.entries: MovedEntries | None = None
        self.derived: tuple[tuple[Mapping[bytes, bytes], Any], ...] = ()
        self._ordered: tuple[tuple[Mapping[bytes, bytes], Layer], ...] = ()
        self._pending = Layers[bytes, bytes]()
        self._pending_writers: dict[WriterId, WriterEntry | None] = {}
        self._lock = threading.Lock()  # held while something is published, or given to a view
        self._is_seen = False
        self._merge: _Merge | None = None
        with index.view() as view:
            state = view.state()
        self.published = Published(state.applied_offset, state)
        self._tree = state._replace(merging=None)

    # Reads, by any thread

    @property
    def is_merged(self) -> bool:
        """Whether the index has everything that is published."""
        published = self.published
        return published.start == published.state.applied_offset

    @property
    def is_merging(self) -> bool:
        """Whether a merge has begun, and is not complete."""
        return self._merge is not None

    def due_share(self, bytes_max: int) -> float:
        """Which part of a merge is due: as much as there is of what was published meanwhile, compared with its room.

        Args:
            bytes_max: What both may take. There is no more room than the merge takes itself.
        """
        merge = self._merge
        if merge is None:
            return 0.0
        room = min(merge.size, bytes_max - merge.size)
        return 1.0 if room <= 0 else min(1.0, (self.published.size - merge.size) / room)

    def is_behind(self, bytes_max: int) -> bool:
        """Whether less than the due part is merged."""
        return self._merge is not None and self._merge.share < self.due_share(bytes_max)

    def value(self, key: bytes) -> bytes | None:
        """The published row of a key; None if it is not there."""
        for layer in self.published.rows.dicts:
            row = layer.get(key)
            if row is not None:
                return row or None
        # If it was merged meanwhile, the index has the row, or a newer one.
        return self.index.environment.get(key)

    def at_once(self, look: Callable[[Transaction, tuple[dict[bytes, bytes], ...]], T]) -> T:
        """What a function finds, soon, in the index and in the layers over it, of which the newest is the first.

        Raises:
            CorruptData: A page of the index is damaged.
        """

        def within(transaction: Transaction) -> tuple[T] | None:
            with self._lock:
                published, self._is_seen = self.published, True
            # As for a view.
            return (look(transaction, published.rows.dicts),) if published.start == start else None

        while True:
            start = self.published.start
            found = self.index.environment.at_once(within)
            if found is not None:
                return found[0]

    def first(
        self, most: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The first rows of a range of everything that is published; see :meth:`View.first`.

        Raises:
            CorruptData: A page of the index is damaged.
        """

        def look(transaction: Transaction, layers: tuple[dict[bytes, bytes], ...]) -> Any:
            tree = View(transaction)
            if not layers:
                return tree.first(most, start, stop, reverse=reverse)
            return first_of(tree, self._in_order_of(layers), most, start, stop, reverse=reverse)

        found: tuple[list[tuple[bytes, bytes]], bool] = self.at_once(look)
        return found

    def _in_order_of(self, layers: tuple[dict[bytes, bytes], ...]) -> list[Layer]:
        """Layers with their keys in order; what was put in order is kept as long as it is asked for."""
        known = self._ordered
        self._ordered = ordered = tuple(
            next((each for each in known if each[0] is layer), None) or (layer, _sorted_layer(layer))
            for layer in layers
        )
        return [layer for _, layer in ordered]

    @contextmanager
    def view(self, kind: Callable[[Index], AbstractContextManager[View]] = Index.view) -> Iterator[View]:
        """A view of everything that is published.

        Args:
            kind: The view of the index below it.
        """
        while True:
            start = self.published.start
            with kind(self.index) as tree:
                with self._lock:
                    published, self._is_seen = self.published, True
                # Else it may lack rows that were merged after it was opened, and are gone from here.
                if published.start == start:
                    yield _over(tree, published)
                    return

    # Changes, in the bucket's turn

    def pending_value(self, key: bytes) -> bytes | None:
        """The row of a key with the changes that are pending; None if it is not there."""
        for layer in self._pending.dicts:
            row = layer.get(key)
            if row is not None:
                return row or None
        return self.value(key)

    def find(self, keys: BinaryColumn, names: list[bytes]) -> tuple[np.ndarray, BinaryColumn]:
        """The length of the row of each key, int64, 0 if there is none; and the rows that are there, in their order.

        Pending changes are seen.

        Args:
            names: The keys, as objects.

        Raises:
            CorruptData: A page of the index is damaged.
        """
        rows = Layers((*self._pending.dicts, *self.published.rows.dicts)).newest(names)
        if rows is None:
            there, found = self._in_index(keys)
            lengths = np.zeros(len(names), np.int64)
            lengths[there] = found.lengths
            return lengths, found
        places = [place for place, row in enumerate(rows) if row is None]
        if places:
            there, found = self._in_index(BinaryColumn.from_list([names[place] for place in places]))
            for place, row in zip(compress(places, there.tolist()), found.to_list(), strict=True):
                rows[place] = row
        column = BinaryColumn.from_list([row or b"" for row in rows])
        return column.lengths, column.without_empty()

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """The rows of keys with the changes that are pending; empty where there is none."""
        lengths, found = self.find(BinaryColumn.from_list(keys), list(keys))
        rows = iter(found.to_list())
        return [next(rows) if length else b"" for length in lengths.tolist()]

    def newer(self) -> dict[bytes, bytes]:
        """All rows that the index lacks with the changes that are pending, empty where one was deleted."""
        return Layers((*self._pending.dicts, *self.published.rows.dicts)).all()

    def put(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Store rows, pending."""
        self._pending = self._pending.added(dict(zip(keys, rows, strict=True)), in_place=True)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove the rows of keys, pending."""
        self._pending = self._pending.added(dict.fromkeys(keys, b""), in_place=True)

    def replace(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> list[bytes]:
        """Store rows, pending, and return those that they replace, empty if none."""
        replaced = self.get(keys)
        self.put(keys, rows)
        return replaced

    def remove(self, keys: Sequence[bytes]) -> list[bytes]:
        """Remove the rows of keys, pending, and return them, empty if there is none."""
        removed = self.get(keys)
        self.delete(keys)
        return removed

    def put_writer(self, writer_id: WriterId, entry: WriterEntry | None) -> None:
        """Store a writer's entry, pending; None removes it."""
        self._pending_writers[writer_id] = entry

    def publish(self, state: IndexState) -> None:
        """Publish what is pending: its batches are in the log.

        Args:
            state: With all of it.
        """
        rows = self._pending.all()
        more = ROW_BYTES * len(rows) + sum(map(len, rows)) + sum(map(len, rows.values()))
        with self._lock:
            old, in_place = self.published, not self._is_seen
            self.published = Published(
                old.start,
                state,
                old.rows.added(rows, in_place=in_place),
                old.writers.added(self._pending_writers, in_place=in_place),
                old.size + more,
            )
            self._is_seen = False
        self.drop()

    def drop(self) -> None:
        """Drop what is pending."""
        self._pending, self._pending_writers = Layers(), {}

    def begin_merge(self, state: IndexState) -> None:
        """Begin to merge everything that is published; no other merge may be under way.

        Args:
            state: That of what is published, and where the log is durable, which is not before its end.
        """
        assert self._merge is None
        with self._lock:
            old = self.published
            self.published = replace(old, state=state, rows=old.rows.freeze(), writers=old.writers.freeze())
        self._merge = _Merge(self.published)

    def merge_slice(self, share: float = 1.0) -> None:
        """Store the next slice of the merge in the index, in one transaction.

        Args:
            share: Which part of the merge's rows is to be in the index then, unless the slice would be too large.

        Raises:
            StoreFull, lmdb.Error: See :meth:`Index.commit`. The slice is not stored.
            CorruptData: See :meth:`MovedEntries.move`. The same.
        """
        merge = self._merge
        assert merge is not None
        merge.store(self.index, share, self._tree, self.entries)
        if merge.share == 1:
            self._merge, self._tree, self.derived, self._ordered = None, merge.state, (), ()
            with self._lock:
                old = self.published
                self.published = Published(
                    merge.state.applied_offset,
                    old.state,
                    old.rows.without_frozen(),
                    old.writers.without_frozen(),
                    old.size - merge.size,
                )

    def _in_index(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        with self.index.view() as view:
            return view.find(keys)


def _halfway(before: IndexState, after: IndexState) -> IndexState:
    """The state of an index with some of the changes from one state to another."""
    base, position, offset = after.synced_base, after.synced_position, after.synced_offset
    return before._replace(synced_base=base, synced_position=position, synced_offset=offset, merging=after)


def _in_order(rows: Layers[bytes, bytes]) -> tuple[list[bytes], list[bytes]]:
    """Keys in order, and the row of each."""
    names, order = _ordered(rows)
    keys = list(map(names.__getitem__, order.tolist()))
    return keys, _rows_of(keys, rows)


def _sorted_layer(rows: Mapping[bytes, bytes]) -> Layer:
    keys = sorted(rows)
    return Layer(keys, lambda low, high: [(key, rows[key]) for key in keys[low:high]])


def _ordered(rows: Layers[bytes, bytes]) -> tuple[list[bytes], np.ndarray]:
    """Keys, some perhaps more than once; and the place of each key, int64, in their order."""
    names = list(chain.from_iterable(rows.dicts))
    if len(names) < _SORTED_BY_NUMBERS:
        names = sorted({*names})
        return names, np.arange(len(names))
    order, differs = in_order(BinaryColumn.from_list(names))
    return names, order[np.append(True, differs)]


def _rows_of(keys: list[bytes], rows: Layers[bytes, bytes]) -> list[bytes]:
    """The row of each key, of which each is there."""
    return [row for row in rows.newest(keys) or () if row is not None]


def _over(tree: View, published: Published) -> View:
    if published.start == published.state.applied_offset:
        return tree

    def writers() -> dict[WriterId, WriterEntry]:
        both = tree.writers() | published.writers.all()
        return {id: entry for id, entry in both.items() if entry is not None}

    layers = published.rows.dicts
    return NewerView(tree, published.state, published.find_all, lambda: published.run, writers, layers)
