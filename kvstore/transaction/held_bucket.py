"""A bucket as it was at one moment: every read of it uses the same view."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Self, TypeVar

import numpy as np

from kvstore.bucket.handle import BucketHandle
from kvstore.errors import StoreClosed
from kvstore.index.found_rows import FoundRows
from kvstore.index.index import View
from kvstore.log.segments import LogFiles, LogIdentity
from logformat.binary_column import BinaryColumn
from logformat.ids import Offset, WriterId
from logformat.log.entries_record import EntriesRecord
from logformat.log.index_state import IndexState
from logformat.log.writer_entry import WriterEntry
from logformat.rows.keys import ROW

T = TypeVar("T")


ENTRIES_AT_A_TIME = 256


class HeldView(View):
    """A view for several threads, one at a time: a transaction of LMDB is not made for more.

    Args:
        view: The view; whoever holds it calls :meth:`end` first.
    """

    def __init__(self, view: View) -> None:
        self.leaves, self.layers = view.leaves, view.layers
        self._view = view
        self._turn = threading.Lock()
        self._is_ended = False

    def end(self) -> None:
        """Refuse reads from now on."""
        with self._turn:
            self._is_ended = True

    def _read(self, read: Callable[[], T]) -> T:
        with self._turn:
            if self._is_ended:
                raise StoreClosed("The snapshot has ended; read within its block: with store.snapshot() as at: …")
            return read()

    def _each(self, chunks: Iterator[FoundRows]) -> Iterator[FoundRows]:
        while (rows := self._read(lambda: next(chunks, None))) is not None:
            yield rows

    def state(self) -> IndexState:
        """See :meth:`View.state`."""
        return self._read(self._view.state)

    def writers(self) -> dict[WriterId, WriterEntry]:
        """See :meth:`View.writers`."""
        return self._read(self._view.writers)

    def writers_of(self, ids: Iterable[WriterId]) -> dict[WriterId, WriterEntry]:
        """See :meth:`View.writers_of`."""
        return self._read(lambda: self._view.writers_of(ids))

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """See :meth:`View.get`."""
        return self._read(lambda: self._view.get(keys))

    def find(self, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        """See :meth:`View.find`."""
        return self._read(lambda: self._view.find(keys))

    def found(
        self, chunk: int, start: bytes = ROW, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[FoundRows]:
        """See :meth:`View.found`."""
        return self._each(self._view.found(chunk, start, stop, reverse=reverse))

    def first(
        self, most: int, start: bytes = ROW, stop: bytes | None = None, *, reverse: bool = False
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """See :meth:`View.first`."""
        return self._read(lambda: self._view.first(most, start, stop, reverse=reverse))

    def bounds(self) -> tuple[bytes, bytes] | None:
        """See :meth:`View.bounds`."""
        return self._read(self._view.bounds)

    def row_count(self) -> int:
        """See :meth:`View.row_count`."""
        return self._read(self._view.row_count)

    def entries_records(self) -> dict[int, EntriesRecord]:
        """See :meth:`View.entries_records`."""
        return self._read(self._view.entries_records)

    def has_entries(self, index_id: int) -> bool:
        """See :meth:`View.has_entries`."""
        return self._read(lambda: self._view.has_entries(index_id))

    def entries(self, ranges: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """See :meth:`View.entries`."""
        pairs = self._read(lambda: self._view.entries(ranges))
        while some := self._read(lambda: list(islice(pairs, ENTRIES_AT_A_TIME))):
            yield from some

    def leaf_bytes(self) -> int:
        """See :meth:`View.leaf_bytes`."""
        return self._read(self._view.leaf_bytes)


class HeldBucket:
    """A bucket as one view shows it; see :class:`kvstore.bucket.reads.BucketReads`.

    Args:
        handle: The bucket.
        view: A view of it.
    """

    def __init__(self, handle: BucketHandle, view: View) -> None:
        self.view = HeldView(view)
        self._handle = handle
        self._state = view.state()

    @property
    def identity(self) -> LogIdentity:
        """Ids of the store, the table and the bucket."""
        return self._handle.identity

    @property
    def log(self) -> LogFiles:
        """The changes of the bucket."""
        return self._handle.log

    @property
    def watched(self) -> None:
        """The view does not change."""

    def snapshot(self) -> AbstractContextManager[View]:
        """The view."""
        return nullcontext(self.view)

    latest = snapshot

    def memtable(self) -> None:
        """See :meth:`kvstore.bucket.reads.BucketReads.memtable`."""

    def value(self, key: bytes) -> bytes | None:
        """Value of a key in the view; None if it is not there."""
        return self.view.get([key])[0] or None

    def offsets(self) -> tuple[Offset, Offset]:
        """The first offset that the log holds, and the offset after the last change of the view."""
        return self.log.start(), self._state.applied_offset

    def shown(self) -> IndexState:
        """How far the view is."""
        return self.view.state()

    committed = shown

    def is_newest(self) -> bool:
        """Whether the bucket has no more than the view."""
        return self._handle.committed().applied_offset == self._state.applied_offset

    def row_count(self) -> int:
        """See :meth:`kvstore.bucket.reads.BucketReads.row_count`."""
        self._handle.check_counted()
        return self.view.state().row_count

    def for_one_reader(self) -> Self:
        """This bucket."""
        return self
