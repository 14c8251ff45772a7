"""Buffer between callers and the sending thread: all state that threads share.

* A caller only appends; wherever it is interrupted, an item is either in the buffer or not.
* A caller with room appends without the lock: it appends, and then looks whether to wake the sending thread and
  whether the writer has ended. That thread first asks to be woken, or ends the writer, and then looks for items. So one
  of the two sees the other.
* A caller that finds no room waits until there is room.
* Each refused row is reported once.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
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
    """A bounded buffer of items; see the module.

    Args:
        bytes_max: Limit in bytes, both for rows that await an answer and for refused rows that are not yet reported.
        batch_rows: Number of rows that the sending thread takes at once, whatever their size.
        nudge: Wakes the sending thread.

    Attributes:
        unacknowledged: Changes that were not acknowledged when the writer ended.
    """

    def __init__(self, bytes_max: int, batch_rows: int, nudge: Callable[[], None]) -> None:
        self.unacknowledged: list[Changes] = []
        self._bytes_max = bytes_max
        self._nudge = nudge
        self._new_lock()
        self._items: deque[Item] = deque()
        self._chunk_rows = min(_CHUNK_ROWS_MAX, batch_rows)
        self._chunk_bytes = min(_CHUNK_BYTES_MAX, bytes_max // _CHUNKS)
        self._chunk = min(_FIRST_CHUNK_ROWS, self._chunk_rows)
        """Number of items to take at once; derived from the size of the items taken before."""
        self._look_at = 1
        """Number of items at which a caller wakes the sending thread: 1 if that knows of none."""
        self._size = self._items_size = 0
        """Bytes, as far as known, of everything that is not settled, and of the items in it."""
        self._refused: list[Refused] = []
        self._refused_size = 0
        self._asked = self._flushed = 0
        self._aborted = self._abandoned = False
        self._converting = False
        """Whether the sending thread has taken items and not yet reported their size."""
        self._ended: StoreError | None = None
        self._has_room = True
        _buffers.add(self)

    def _new_lock(self) -> None:
        # One that knows who has it: a wait that Ctrl-C ends may release it though another thread has it by then.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    # For callers

    def add(self, item: Item) -> None:
        """Hand over an item; waits for room.

        Raises:
            RowsRefused: Too many refused rows were not yet reported; this error reports them. Nothing was handed over.
            StoreError: The writer has ended, for this reason. Nothing was handed over.
        """
        if not self._has_room:
            with self._lock:
                self._wait_for_room()
        items = self._items
        items.append(item)
        if len(items) >= self._look_at:
            self._look()
        if self._ended is not None:
            self._take_back(item)

    def _look(self) -> None:
        """Wake the sending thread if it is to know of the items, and look whether there is room."""
        with self._lock:
            waiting = len(self._items)
            if waiting >= self._look_at:
                self._nudge()
                self._look_at = self._chunk if waiting < self._chunk else _CHUNKS * self._chunk
            self._update_has_room()

    def _take_back(self, item: Item) -> None:
        """Refuse an item that was added while the writer ended, unless it is among those that the writer reports."""
        with self._lock:
            for number, other in enumerate(self._items):
                if other is item:
                    del self._items[number]
                    self._raise_ended()

    def add_all(self, items: Iterable[Item]) -> None:
        """Hand over items, the first as :meth:`add` does; refused rows are not reported again until all are taken.

        Raises:
            StoreError: See :meth:`add`; the writer may have ended. Some items may have been handed over.
        """
        is_first = True
        for item in items:
            with self._lock:
                if not self._has_room:
                    self._wait_for_room(report=is_first)
                size = item.changes.rows.nbytes if isinstance(item, Whole) else 0
                self._items.append(item)
                self._size += size
                self._items_size += size
                if size:
                    self._nudge()
                self._look()
            is_first = False

    def flush(self) -> None:
        """Wait until everything handed over before is settled.

        Raises:
            RowsRefused: These rows were refused; all others are acknowledged.
            StoreError: The writer has ended, for this reason.
        """
        with self._lock:
            self._asked = ticket = self._asked + 1
            self._nudge()
            self._changed.wait_for(lambda: self._flushed >= ticket or self._ended is not None)
            if self._flushed < ticket:
                self._raise_ended()
            if self._refused:
                self._raise_refused()

    def abort(self) -> None:
        """Stop sending, and wait until the sending thread has ended."""
        with self._lock:
            self._aborted = True
            self._nudge()
            self._changed.wait_for(lambda: self._ended is not None)

    def abandon(self) -> bool:
        """Ask the sending thread to end once everything is settled; no caller will use the buffer again.

        It takes no lock, so a garbage collector may call it from any thread at any point.

        Returns:
            Whether something is not settled.
        """
        if self._ended is not None:
            return False
        open = bool(self._items) or self._converting or self._size > 0
        self._abandoned = True
        self._nudge()  # also after an abort: Ctrl-C may have come before its nudge
        return open and not self._aborted

    def take_refused(self) -> list[Refused]:
        """Return the refused rows that are not yet reported, and count them as reported."""
        with self._lock:
            refused, self._refused, self._refused_size = self._refused, [], 0
            self._update_has_room()
        return refused

    @property
    def refused(self) -> list[Refused]:
        """Refused rows that are not yet reported; they stay unreported."""
        with self._lock:
            return list(self._refused)

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child of the process that created the buffer."""
        return isinstance(self._ended, ForkedStore)

    def _wait_for_room(self, *, report: bool = True) -> None:
        while True:
            if self._ended is not None:
                self._raise_ended()
            if report and self._refused_size >= self._bytes_max:
                self._raise_refused()
            if len(self._items) < _CHUNKS * self._chunk and self._size < self._bytes_max:
                return
            self._nudge()
            self._changed.wait()

    def _raise_refused(self) -> None:
        refused, self._refused, self._refused_size = self._refused, [], 0
        self._update_has_room()
        first = refused[0].error
        rows = sum(len(each.changes) for each in refused)
        raise RowsRefused(
            "Rows were refused and not written, except rows whose error says that this is unknown; see `refused`."
            " The writer's other rows are not affected.",
            refused=refused,
            rows=rows,
            first=str(first),
        ) from first

    def _raise_ended(self) -> None:
        assert self._ended is not None
        raise copy(self._ended) from self._ended.__cause__

    def _update_has_room(self) -> None:
        self._has_room = (
            self._ended is None
            and len(self._items) < _CHUNKS * self._chunk
            and self._size < self._bytes_max
            and self._refused_size < self._bytes_max
        )

    # For the sending thread

    @property
    def waiting(self) -> int:
        """Number of items not yet taken."""
        return len(self._items)

    def is_empty(self) -> bool:
        """Whether no items wait; if so, the next one wakes the sending thread."""
        with self._lock:
            self._look_at = 1
            if self._items:
                self._look_at = self._chunk
        return self._look_at == 1

    @property
    def is_worth_it(self) -> bool:
        """Whether enough items wait for the sending thread to take them now."""
        return len(self._items) >= self._chunk or self._items_size >= self._chunk_bytes

    @property
    def is_full(self) -> bool:
        """Whether callers wait, or soon will."""
        return self._size >= self._bytes_max

    @property
    def asked(self) -> int:
        """Ticket of the latest flush that a caller asked for."""
        return self._asked

    @property
    def abandoned(self) -> bool:
        """Whether the sending thread should end once everything is settled."""
        return self._abandoned

    @property
    def aborted(self) -> bool:
        """Whether the sending thread should stop sending."""
        return self._aborted

    def take(self) -> tuple[list[Item], int]:
        """Take all items; returns them and the bytes counted for them so far."""
        with self._lock:
            self._converting, self._look_at = bool(self._items), self._chunk
            items = [self._items.popleft() for _ in range(len(self._items))]
            size, self._items_size = self._items_size, 0
            self._update_has_room()
            self._changed.notify_all()
        return items, size

    def converted(self, items: int, known: int, now: int) -> None:
        """Record the size of converted items.

        Args:
            known: Bytes counted for them before.
            now: Their actual bytes.
        """
        with self._lock:
            self._size += now - known
            self._converting = False
            if items and not known:
                self._look_at = self._chunk = max(1, min(self._chunk_rows, self._chunk_bytes * items // max(1, now)))
            self._update_has_room()

    def settle(self, size: int, refused: list[Refused]) -> None:
        """Release room and record refused rows."""
        with self._lock:
            self._size -= size
            self._refused += refused
            self._refused_size += sum(each.size for each in refused)
            self._update_has_room()
            self._changed.notify_all()

    def flushed(self, ticket: int) -> None:
        """Wake the callers of this flush and of earlier ones: everything handed over before is settled."""
        with self._lock:
            self._flushed = ticket
            self._changed.notify_all()

    def end(self, error: StoreError, leave: Callable[[list[Item]], tuple[list[Changes], list[Refused]]]) -> None:
        """End the writer: nothing more is sent.

        Args:
            leave: Takes the items that were not taken; returns the changes not acknowledged and the rows refused.
        """
        with self._lock:
            # Before the items are taken, so that a later one is not accepted; under the lock until they are reported.
            self._ended = error
            try:
                left = [self._items.popleft() for _ in range(len(self._items))]
                self.unacknowledged, refused = leave(left)
                self._refused += refused
            finally:
                # Even if `leave` raises, no caller waits forever.
                self._update_has_room()
                self._changed.notify_all()

    def forget_parent(self) -> None:
        """End the buffer in a forked child: the thread does not exist here, and the parent sends what waits."""
        self._new_lock()
        self._ended = ForkedStore("The writer was opened before a fork(); open one in this process.")
        self._has_room = False


_buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()


def _forget_parent() -> None:
    for buffer in _buffers:
        buffer.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
