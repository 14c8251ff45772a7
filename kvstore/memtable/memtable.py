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
from math import ceil
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow.compute as pc

from kvstore.disk.environment import Transaction
from kvstore.index.index import Index, Layer as RowLayer, View
from kvstore.memtable.layers import MADE_BYTES, Layer, Layers, newest
from kvstore.memtable.run import Run, found_over, merged
from kvstore.memtable.sorted_rows import RowLayers, SortedRows
from kvstore.memtable.view import NewerView
from logformat.binary_column import BinaryColumn
from logformat.ids import Offset, WriterId
from logformat.log.index_state import IndexState
from logformat.log.writer_entry import WriterEntry

T = TypeVar("T")
First: TypeAlias = Callable[..., tuple[list[tuple[bytes, bytes]], bool]]
_ORDER = "order"
ROW_BYTES = 200
"""What a row takes in memory beside its key and its value, about."""
SLICE_ROWS = 4096
"""Rows that one transaction of a merge stores, at least: for fewer, its fsync would take longer than they do."""
SLICE_ROWS_MAX = 1 << 16
"""Rows that it stores, at most: each may be on a page of its own, and LMDB keeps changed pages in memory."""
SLICE_BYTES = 16 << 20
"""It takes no more rows once they have more bytes than this."""
PASSED_ROWS = 1 << 20
"""So many rows are compared at a time with those that the index has already."""

FEW_KEYS = 128
"""Up to so many keys are found faster without numpy."""


@dataclass(eq=False)  # frozen would make setting its fields slow
class Published:
    """What every reader sees; never changed.

    Attributes:
        start: The index has at least every change before it.
        state: With every change that is acknowledged.
        rows: The rows that changed since the start.
        writers: The writers that did; None for one that was forgotten.
        size: About what these take in memory, in bytes.
    """

    start: Offset
    state: IndexState
    rows: RowLayers = field(default_factory=RowLayers)
    writers: Layers[WriterId, WriterEntry | None] = field(default_factory=Layers)
    size: int = 0


class MovedEntries(Protocol):
    """Entries that change with the rows of an index."""

    def move(self, index: Index, keys: BinaryColumn, rows: BinaryColumn) -> None:
        """Change them in the open transaction that stores rows.

        Args:
            index: Its last commit has the rows that are replaced.
            keys: Keys of the rows, sorted, each once.
            rows: The row that each key has now; empty if it has none.

        Raises:
            CorruptData: A row is damaged.
        """


class _Merge:
    """What is merged: everything that was published at one moment.

    Args:
        published: It.
        is_repeated: Whether the index has a beginning of it, as a merge that was not completed has left it.

    Attributes:
        state: The state of the index after the merge.
        size: About what it takes in memory, in bytes.
        count: Number of its rows, at most.
    """

    def __init__(self, published: Published, *, is_repeated: bool) -> None:
        self.state = published.state
        self.size = published.size
        self._is_repeated = is_repeated
        self._rows, self._writers = SortedRows(published.rows), published.writers
        self.count = self._rows.left

    @property
    def share(self) -> float:
        """Which part of the rows is in the index."""
        return self._rows.share

    def store(self, index: Index, share: float, before: IndexState, entries: MovedEntries | None) -> bool:
        """Store the next slice.

        Args:
            share: See :meth:`Memtable.merge_slice`.
            before: The state of the index before the merge.
            entries: See :attr:`Memtable.entries`.

        Returns:
            See :meth:`Memtable.merge_slice`.

        Raises:
            StoreFull, lmdb.Error: See :meth:`Index.commit`. Nothing was stored.
            CorruptData: See :meth:`MovedEntries.move`. The same.
        """
        due = ceil((share - self.share) * self.count)
        start = self._rows.places
        try:
            run, is_whole = self._slice(min(max(due, SLICE_ROWS), SLICE_ROWS_MAX), index)
            is_last = not self._rows.left
            if len(run) or is_last:
                self._store(run, index, before, entries, is_last=is_last)
        except BaseException:
            self._rows.taken(start)
            raise
        return is_whole

    def _slice(self, count: int, index: Index) -> tuple[Run, bool]:
        """So many of the next rows, taken; and False if there are fewer, because the index has many already."""
        parts: list[Run] = []
        passed = size = 0
        while True:
            run, places = self._rows.next(count, SLICE_BYTES)
            self._rows.taken(places)
            if self._is_repeated:
                passed += len(run)
                missing = _without_stored(run, index)
                self._is_repeated = len(missing) < len(run)  # else its beginning ended before
                run = missing
            parts.append(run)
            size += run.size
            is_full = size >= SLICE_BYTES or sum(map(len, parts)) >= count
            is_whole = is_full or not self._is_repeated or not self._rows.left
            if is_whole or passed >= PASSED_ROWS:
                return merged(parts), is_whole

    def _store(
        self, run: Run, index: Index, before: IndexState, entries: MovedEntries | None, *, is_last: bool
    ) -> None:
        try:
            if entries is not None:
                entries.move(index, run.keys, run.rows)
            index.put(run.keys.to_list(), run.rows.to_list())
            if is_last:
                for writer_id, entry in self._writers.all().items():
                    index.put_writer(writer_id, entry)
            index.commit(self.state if is_last else _halfway(before, self.state))
        finally:
            index.abort()  # without effect after the commit


class Memtable:
    """The memtable of one bucket.

    Args:
        index: Index of the bucket.

    Attributes:
        index: The argument.
        entries: What changes with the rows of the index; None for a table without secondary indexes.
        published: What every reader sees; replaced as a whole.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.entries: MovedEntries | None = None
        self._pending: dict[bytes, bytes] = {}
        self._pending_before: tuple[Run, ...] = ()  # the newest first
        self._pending_writers: dict[WriterId, WriterEntry | None] = {}
        self._lock = threading.Lock()  # held while something is published, or given to a view
        self._is_showing = False
        self._is_seen = False
        self._merge: _Merge | None = None
        with index.view() as view:
            state = view.state()
        self.published = Published(state.applied_offset, state)
        self._tree = state._replace(merging=None)
        self._is_halfway = state.merging is not None

    # Reads, by any thread

    @property
    def size(self) -> int:
        """About how many bytes of memory everything published takes, with what reads have made of it."""
        published = self.published
        size = published.size
        for made in published.rows.made:
            if made:
                size += made.get(MADE_BYTES, 0)
        return size

    @property
    def is_merged(self) -> bool:
        """Whether the index has everything that is published."""
        published = self.published
        return published.start == published.state.applied_offset

    @property
    def is_merging(self) -> bool:
        """Whether a merge has begun, and is not complete."""
        return self._merge is not None

    @property
    def merging_size(self) -> int:
        """About how many bytes of memory the rows take that are being merged; 0 if none are."""
        return 0 if self._merge is None else self._merge.size

    @property
    def merging_rows(self) -> int:
        """How many rows are being merged, at most; 0 if none are."""
        return 0 if self._merge is None else self._merge.count

    @property
    def merged_share(self) -> float:
        """Which part of the merge that is under way is in the index."""
        return 0.0 if self._merge is None else self._merge.share

    def wait_shown(self) -> None:
        """Wait, if other processes are shown at this moment what is published here next: a read is not to miss it."""
        if self._is_showing:
            with self._lock:
                pass

    def value(self, key: bytes) -> bytes | None:
        """The published row of a key; None if it is not there."""
        if self._is_showing:  # a call would take a hundredth of a read's time
            self.wait_shown()
        for layer in self.published.rows.dicts:
            row = layer.get(key)
            if row is not None:
                return row or None
        # If it was merged meanwhile, the index has the row, or a newer one.
        return self.index.environment.get(key)

    def at_once(self, look: Callable[[Transaction, Published], T]) -> T:
        """What a function finds, soon, in the index and in what is published over it.

        Raises:
            CorruptData: A page of the index is damaged.
        """

        def within(transaction: Transaction) -> tuple[T] | None:
            with self._lock:
                published, self._is_seen = self.published, True
            # As for a view.
            return (look(transaction, published),) if published.start == start else None

        while True:
            start = self.published.start
            result = self.index.environment.at_once(within)
            if result is not None:
                return result[0]

    def first_at_once(self, look: Callable[[First], T]) -> T:
        """What a function finds, soon, that is given :meth:`View.first` of everything that is published.

        Raises:
            CorruptData: A page of the index is damaged.
        """
        return self.at_once(lambda transaction, published: look(_over(View(transaction), published).first))

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

    def find(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        """The length of the row of each key, int64, 0 if there is none; and the rows that are there, in their order.

        Pending changes are seen.

        Raises:
            CorruptData: A page of the index is damaged.
        """
        rows = self.stored(keys)
        if isinstance(rows, tuple):
            return rows
        column = BinaryColumn.from_list(rows)
        return column.lengths, column.without_empty()

    def stored(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn] | list[bytes]:
        """The rows of keys, as :meth:`find` or as :meth:`get` returns them, whichever takes less time; see these."""
        layers, are_many = self._layers(), len(keys) > FEW_KEYS
        runs: list[Run] = [each for each in layers if isinstance(each, Run)]
        if are_many and len(runs) == len(layers):
            there, rows_there = found_over(runs, keys, self.index.find)
            lengths = np.zeros(len(keys), np.int64)
            lengths[there] = rows_there.lengths
            return lengths, rows_there
        names = keys.to_list()
        rows = newest(layers, names)
        if are_many and rows and 2 * rows.count(None) > len(rows):  # to take the others out would take longer
            return [old if new is None else new for new, old in zip(rows, self._in_index(keys), strict=True)]
        return self._completed(names, rows)

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """The rows of keys with the changes that are pending; empty where there is none.

        Raises:
            CorruptData: See :meth:`find`; or a row in the index is empty.
        """
        layers = self._layers()
        if len(keys) > 1:
            return self._completed(keys, newest(layers, keys))
        for key in keys:
            for layer in layers:
                if (row := layer.get(key)) is not None:
                    return [row]
        return self.index.get(keys)

    def _layers(self) -> tuple[Layer[bytes, bytes], ...]:
        """What is pending and what is published, the newest first."""
        older: tuple[Layer[bytes, bytes], ...] = (*self._pending_before, *self.published.rows.dicts)
        return (self._pending, *older) if self._pending else older

    def _completed(self, keys: Sequence[bytes], rows: list[bytes | None] | None) -> list[bytes]:
        """The rows of keys, of which the index has those that are None, or all if there are no rows."""
        if rows is not None and None not in rows:
            return cast("list[bytes]", rows)
        missing = keys if rows is None else [key for key, row in zip(keys, rows, strict=True) if row is None]
        is_few = len(missing) <= FEW_KEYS
        stored = self.index.get(missing) if is_few else self._in_index(BinaryColumn.from_list(missing))
        if rows is None:
            return stored
        others = iter(stored)
        return [next(others) if row is None else row for row in rows]

    def _in_index(self, keys: BinaryColumn) -> list[bytes]:
        there, stored = self.index.find(keys)
        rows = iter(stored.to_list())
        return [next(rows) if is_there else b"" for is_there in there.tolist()]

    def newer(self) -> dict[bytes, bytes]:
        """Rows that neither the index nor a published run has, with what is pending; empty where one was deleted."""
        dicts: list[Layer[bytes, bytes]] = [each for each in self.published.rows.dicts if isinstance(each, dict)]
        return Layers((self._pending, *self._pending_before, *dicts)).all()

    def runs(self) -> list[tuple[RowLayer, dict[Any, Any]]]:
        """The published runs that the index lacks, each with what reads have made of it."""
        rows = self.published.rows
        return [each for each in zip(rows.dicts, rows.made, strict=True) if isinstance(each[0], Run)]

    def put(self, rows: Mapping[bytes, bytes] | Run) -> None:
        """Store rows by key, pending; an empty one removes that of its key. A run is kept as it is."""
        if isinstance(rows, Run):
            before = (Run.of_dict(self._pending), *self._pending_before) if self._pending else self._pending_before
            self._pending, self._pending_before = {}, (rows, *before) if len(rows) else before
        else:
            self._pending.update(rows)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove the rows of keys, pending."""
        self._pending.update(dict.fromkeys(keys, b""))

    def put_writer(self, writer_id: WriterId, entry: WriterEntry | None) -> None:
        """Store a writer's entry, pending; None removes it."""
        self._pending_writers[writer_id] = entry

    def publish(self, state: IndexState, show: Callable[[], None] | None = None) -> None:
        """Publish what is pending: its batches are in the log.

        Args:
            state: With all of it.
            show: Shows it to other processes. Reads here wait meanwhile, so that none sees less than one of another
                process has seen.
        """
        changed, writers, old = self._pending, self._pending_writers, self.published
        rows, size = old.rows, old.size
        if self._pending_before:
            for run in reversed(self._pending_before):
                rows, size = rows.over(run), size + run.size
            runs = [each.size for each in rows.dicts if isinstance(each, Run)]
            size = sum(runs) if len(runs) == len(rows.dicts) else size  # what became one takes less
        size += ROW_BYTES * len(changed) + sum(map(len, changed)) + sum(map(len, changed.values()))
        with self._lock:
            self._is_showing = True
            try:
                if show is not None:
                    show()
                in_place = not self._is_seen
                rows = rows.added(changed, in_place=in_place) if changed else rows
                writers_now = old.writers if in_place and not writers else old.writers.added(writers, in_place=in_place)
                self.published = Published(old.start, state, rows, writers_now, size)
                self._is_seen = self._is_seen and rows is old.rows
            finally:
                self._is_showing = False
        self._pending, self._pending_before, self._pending_writers = {}, (), {}

    def drop(self) -> None:
        """Drop what is pending."""
        self._pending, self._pending_before, self._pending_writers = {}, (), {}

    def begin_merge(self, state: IndexState) -> None:
        """Begin to merge everything that is published; no other merge may be under way.

        Args:
            state: That of what is published, and where the log is durable, which is not before its end.
        """
        assert self._merge is None
        with self._lock:
            old = self.published
            self.published = replace(old, state=state, rows=old.rows.freeze(), writers=old.writers.freeze())
        self._merge = _Merge(self.published, is_repeated=self._is_halfway)

    def merge_slice(self, share: float = 1.0) -> bool:
        """Store the next slice of the merge in the index, in one transaction.

        Args:
            share: Which part of the merge's rows is to be in the index then, unless the slice would be too large.

        Returns:
            Whether it is a whole one: the index may have many slices already, that an earlier process has stored.

        Raises:
            StoreFull, lmdb.Error: See :meth:`Index.commit`. The slice is not stored.
            CorruptData: See :meth:`MovedEntries.move`. The same.
        """
        merge = self._merge
        assert merge is not None
        is_whole = merge.store(self.index, share, self._tree, self.entries)
        if merge.share == 1:
            self._merge, self._tree, self._is_halfway = None, merge.state, False
            with self._lock:
                old = self.published
                self.published = Published(
                    merge.state.applied_offset,
                    old.state,
                    old.rows.without_frozen(),
                    old.writers.without_frozen(),
                    old.size - merge.size,
                )
        return is_whole


def _without_stored(run: Run, index: Index) -> Run:
    """The rows of a run that an index does not have as they are; of the deleted ones those that it has."""
    there, old = index.find(run.keys)
    lengths = np.zeros(len(run), np.int64)
    lengths[there] = old.lengths
    stored = BinaryColumn(old.flat, np.append(old.offsets[0], old.offsets[0] + lengths.cumsum()))
    is_same = pc.equal(stored.to_arrow(), run.rows.to_arrow()).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(~is_same)
    return run if len(places) == len(run) else Run(run.keys.take(places), run.rows.take(places))


def _halfway(before: IndexState, after: IndexState) -> IndexState:
    """The state of an index with some of the changes from one state to another."""
    base, position, offset = after.synced_base, after.synced_position, after.synced_offset
    return before._replace(synced_base=base, synced_position=position, synced_offset=offset, merging=after)


def _over(tree: View, published: Published) -> View:
    if published.start == published.state.applied_offset:
        return tree

    def writers(ids: Sequence[WriterId] | None) -> dict[WriterId, WriterEntry]:
        if ids is None:
            both = tree.writers() | published.writers.all()
        else:
            both = dict(tree.writers_of(ids))
            for layer in reversed(published.writers.dicts):
                both |= {id: layer[id] for id in ids if isinstance(layer, dict) and id in layer}
        return {id: entry for id, entry in both.items() if entry is not None}

    return NewerView(tree, published.state, published.rows, writers)
