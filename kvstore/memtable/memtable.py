"""The rows and writers of a bucket that its log has and its index lacks, as the bucket's writer keeps them.

* A change is pending until its batch is in the log. Only the changes after it see it; if its group fails, it is
  dropped, and there is nothing to put back.
* Then everything of the group is published in one step: from there on every reader of this process sees it.
* What is published is merged into the index in one transaction. A view that is older keeps what it has.
* Rows are as the index stores them. An empty one stands for a row that was deleted.
* The bucket's turn is needed for everything but reading what is published (:mod:`kvstore.bucket.turn`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from kvstore.index.index import Index, View
from kvstore.memtable.layers import Layers
from kvstore.memtable.run import Run
from kvstore.memtable.view import NewerView
from logformat.binary_column import BinaryColumn
from logformat.ids import Offset, WriterId
from logformat.log.index_state import IndexState
from logformat.log.writer_entry import WriterEntry

ROW_BYTES = 200
"""What a row takes in memory beside its key and its value, about."""


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


class Memtable:
    """The memtable of one bucket.

    Args:
        index: Of the bucket.

    Attributes:
        index: The argument.
        entries: What changes with the rows of the index; None for a table without secondary indexes.
        published: What every reader sees; replaced as a whole.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.entries: MovedEntries | None = None
        self._pending = Layers[bytes, bytes]()
        self._pending_writers: dict[WriterId, WriterEntry | None] = {}
        self._lock = threading.Lock()  # held while something is published, or given to a view
        self._is_seen = False
        with index.view() as view:
            self.published = _of(view.state())

    # Reads, by any thread

    @property
    def is_merged(self) -> bool:
        """Whether the index has everything that is published."""
        published = self.published
        return published.start == published.state.applied_offset

    def value(self, key: bytes) -> bytes | None:
        """The published row of a key; None if it is not there."""
        for layer in self.published.rows.dicts:
            row = layer.get(key)
            if row is not None:
                return row or None
        # If it was merged meanwhile, the index has the row, or a newer one.
        return self.index.environment.get(key)

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
        missing = np.fromiter((row is None for row in rows), bool, len(rows))
        if missing.any():
            places = np.flatnonzero(missing)
            there, found = self._in_index(keys.take(places))
            for place, row in zip(places[there].tolist(), found.to_list(), strict=True):
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

    def merge(self, state: IndexState) -> None:
        """Store what is published in the index, in one transaction. After an error it is not.

        Args:
            state: That of what is published, and where the log is durable, which is not before its end.

        Raises:
            StoreFull, lmdb.Error: See :meth:`Index.commit`.
            CorruptData: See :meth:`MovedEntries.move`.
        """
        try:
            for writer_id, entry in self.published.writers.all().items():
                self.index.put_writer(writer_id, entry)
            keys, rows = _in_order(self.published.rows)
            if self.entries is not None:
                self.entries.move(self.index, keys, rows)
            if all(rows):
                self.index.put(keys, rows)
            else:
                self.index.put([key for key, row in zip(keys, rows, strict=True) if row], list(filter(None, rows)))
                self.index.remove([key for key, row in zip(keys, rows, strict=True) if not row])
            self.index.commit(state)
        finally:
            self.index.abort()  # without effect after the commit
        self.published = _of(state)

    def _in_index(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        with self.index.view() as view:
            return view.find(keys)


def _of(state: IndexState) -> Published:
    """What is published if an index has this state."""
    return Published(state.applied_offset, state)


def _in_order(rows: Layers[bytes, bytes]) -> tuple[list[bytes], list[bytes]]:
    """Keys in order, and the row of each."""
    found = rows.all()
    keys = sorted(found)
    return keys, list(map(found.__getitem__, keys))


def _over(tree: View, published: Published) -> View:
    if published.start == published.state.applied_offset:
        return tree

    def writers() -> dict[WriterId, WriterEntry]:
        both = tree.writers() | published.writers.all()
        return {id: entry for id, entry in both.items() if entry is not None}

    layers = published.rows.dicts
    return NewerView(tree, published.state, published.find_all, lambda: published.run, writers, layers)
