"""What callers hand to the sending thread, and what they wait for: all that threads share, under one lock.

* A caller only ever appends; whatever interrupts it, an item is in the buffer or it is not.
* Who finds no room waits until there is some.
* Each row that was refused is told once.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from copy import copy

from logformat.errors import ForkedStore, RowsRefused, StoreError
from logformat.rows.changes import Changes
from writer.intake import Item, Whole
from writer.refused import Refused

_FIRST_CHUNK_ROWS = 64
_CHUNK_ROWS_MAX = 4096
_CHUNK_BYTES_MAX = 1 << 20
_CHUNKS = 4


class Buffer:
    """See above.

    Args:
        bytes_max: More than this waits neither for an answer nor, as refused rows, for its caller.
        batch_rows: So many rows are worth being taken, whatever their bytes.
        nudge: Wakes the sending thread.

    Attributes:
        unacknowledged: What was not acknowledged when the writer ended.
    """

    def __init__(self, bytes_max: int, batch_rows: int, nudge: Callable[[], None]) -> None:
        self.unacknowledged: list[Changes] = []
        self._bytes_max = bytes_max
        self._nudge = nudge
        self._new_lock()
        self._items: list[Item] = []
        self._chunk_rows = min(_CHUNK_ROWS_MAX, batch_rows)
        self._chunk_bytes = min(_CHUNK_BYTES_MAX, bytes_max // _CHUNKS)
        self._chunk = min(_FIRST_CHUNK_ROWS, self._chunk_rows)
        """So many items are worth being taken; what those before took says how many."""
        self._size = self._items_size = 0
        """Bytes, as far as known, of everything that is not settled, and of the items among it."""
        self._refused: list[Refused] = []
        self._refused_size = 0
        self._asked = self._flushed = 0
        self._aborted = self._abandoned = False
        self._converting = False
        """Whether the sending thread has items of which it has not said what they are."""
        self._ended: StoreError | None = None
        self._has_room = True
        _buffers.add(self)

    def _new_lock(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    # For callers

    def add(self, item: Item) -> None:
        """Hand over an item, once there is room.

        Raises:
            RowsRefused: Too many refused rows were not told yet; these are. Nothing was handed over.
            StoreError: Why the writer has ended. Nothing was handed over.
        """
        with self._lock:
            if not self._has_room:
                self._wait_for_room()
            items = self._items
            items.append(item)
            waiting = len(items)
            if waiting == 1 or waiting == self._chunk:
                self._nudge()
            elif waiting >= _CHUNKS * self._chunk:
                self._look()

    def add_all(self, items: Iterable[Item]) -> None:
        """Hand over items, the first as :meth:`add` does; then no more refused rows are told before all are taken.

        Raises:
            StoreError: See :meth:`add`; why the writer has ended. Some may have been handed over.
        """
        is_first = True
        for item in items:
            with self._lock:
                if not self._has_room:
                    self._wait_for_room(tell=is_first)
                size = item.changes.rows.nbytes if isinstance(item, Whole) else 0
                self._items.append(item)
                self._size += size
                self._items_size += size
                if size or len(self._items) in (1, self._chunk):
                    self._nudge()
                self._look()
            is_first = False

    def flush(self) -> None:
        """Return once everything handed over before is settled.

        Raises:
            RowsRefused: These were refused, everything else is acknowledged.
            StoreError: Why the writer has ended.
        """
        with self._lock:
            self._asked = ticket = self._asked + 1
            self._nudge()
            self._changed.wait_for(lambda: self._flushed >= ticket or self._ended is not None)
            if self._flushed < ticket:
                self._raise_ended()
            if self._refused:
                self._tell_refused()

    def abort(self) -> None:
        """Have nothing more sent, and return once the sending thread has ended."""
        with self._lock:
            self._aborted = True
            self._nudge()
            self._changed.wait_for(lambda: self._ended is not None)

    def abandon(self) -> bool:
        """Nobody will hand over or ask for anything again: have the sending thread end once all is settled.

        It takes no lock, so that a garbage collector may call it, whichever thread that interrupts.

        Returns:
            Whether anything is not settled.
        """
        if self._ended is not None or self._aborted:
            return False
        open = bool(self._items) or self._converting or self._size > 0
        self._abandoned = True
        self._nudge()
        return open

    def take_refused(self) -> list[Refused]:
        """Rows that were refused and not told yet."""
        with self._lock:
            refused, self._refused, self._refused_size = self._refused, [], 0
            self._look()
        return refused

    @property
    def refused(self) -> list[Refused]:
        """The same, and they are still to be told."""
        with self._lock:
            return list(self._refused)

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child of the process it was made in."""
        return isinstance(self._ended, ForkedStore)

    def _wait_for_room(self, *, tell: bool = True) -> None:
        while True:
            if self._ended is not None:
                self._raise_ended()
            if tell and self._refused_size >= self._bytes_max:
                self._tell_refused()
            if len(self._items) < _CHUNKS * self._chunk and self._size < self._bytes_max:
                return
            self._nudge()
            self._changed.wait()

    def _tell_refused(self) -> None:
        refused, self._refused, self._refused_size = self._refused, [], 0
        self._look()
        first = refused[0].error
        rows = sum(len(each.changes) for each in refused)
        raise RowsRefused(
            "Rows were refused and are not written, but for those whose error says that it is not known; look into"
            " `refused`. All others of this writer are not concerned.",
            refused=refused,
            rows=rows,
            first=str(first),
        ) from first

    def _raise_ended(self) -> None:
        assert self._ended is not None
        raise copy(self._ended) from self._ended.__cause__

    def _look(self) -> None:
        self._has_room = (
            self._ended is None
            and len(self._items) < _CHUNKS * self._chunk
            and self._size < self._bytes_max
            and self._refused_size < self._bytes_max
        )

    # For the sending thread

    @property
    def waiting(self) -> int:
        """Items not taken yet."""
        return len(self._items)

    @property
    def is_worth_it(self) -> bool:
        """Whether so many items wait that they are to be taken now."""
        return len(self._items) >= self._chunk or self._items_size >= self._chunk_bytes

    @property
    def is_full(self) -> bool:
        """Whether callers wait, or soon will."""
        return self._size >= self._bytes_max

    @property
    def asked(self) -> int:
        """The last flush that was asked for."""
        return self._asked

    @property
    def abandoned(self) -> bool:
        """Whether to end once all is settled."""
        return self._abandoned

    @property
    def aborted(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._aborted

    def take(self) -> tuple[list[Item], int]:
        """All items, and how many bytes were known of them."""
        with self._lock:
            self._converting = bool(self._items)
            items, self._items = self._items, []
            known, self._items_size = self._items_size, 0
            self._look()
            self._changed.notify_all()
        return items, known

    def converted(self, items: int, known: int, now: int) -> None:
        """Items became changes.

        Args:
            known: Bytes that were known of them.
            now: Bytes they have.
        """
        with self._lock:
            self._size += now - known
            self._converting = False
            if items and not known:
                self._chunk = max(1, min(self._chunk_rows, self._chunk_bytes * items // max(1, now)))
            self._look()

    def settle(self, size: int, refused: list[Refused]) -> None:
        """Something needs no room any more."""
        with self._lock:
            self._size -= size
            self._refused += refused
            self._refused_size += sum(each.size for each in refused)
            self._look()
            self._changed.notify_all()

    def flushed(self, ticket: int) -> None:
        """Everything handed over before this flush is settled."""
        with self._lock:
            self._flushed = ticket
            self._changed.notify_all()

    def end(self, error: StoreError, leave: Callable[[list[Item]], tuple[list[Changes], list[Refused]]]) -> None:
        """Nothing more is sent.

        Args:
            leave: Says what is not acknowledged and what was refused, with the items that were not taken.
        """
        with self._lock:
            # Under the lock: what comes later is not taken at all.
            try:
                self.unacknowledged, refused = leave(self._items)
                self._refused += refused
                self._items = []
            finally:
                # Whatever happened, nobody waits for ever.
                self._ended = error
                self._look()
                self._changed.notify_all()

    def forget_parent(self) -> None:
        """In a forked child: the thread is not there, and what waits is the parent's to send."""
        self._new_lock()
        self._ended = ForkedStore("The writer was opened before a fork(); open one in this process.")
        self._has_room = False


_buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()


def _forget_parent() -> None:
    for buffer in _buffers:
        buffer.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
