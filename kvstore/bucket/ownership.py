"""Which process may write a bucket, and what this process does with that right. All transitions are in one table.

Theory of operation. One process at a time owns a bucket: it holds the bucket's lock
(``kvstore/bucket/bucket_lock.py``), which ends with the process. Here a bucket is READING until a write, or a commit
over several buckets, takes the lock; then it is WRITING, with an engine. Others wait until the engine has recovered the
bucket. It goes back to READING when the process stops writing, or hands the bucket over to another process that
commits. ``drop_table`` claims every bucket first, so that no process can begin to write: CLAIMED, or WRITING_CLAIMED
where this process writes. A reader that has to build the index borrows the lock for a moment, and changes no state.

Every call here is made under the handle's mutex, so the table has no races of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import NoReturn

from kvstore.bucket.bucket_lock import BucketLock
from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.errors import StoreClosed


class State(Enum):
    """What this process does with a bucket."""

    READING = auto()
    """Another process may write it."""
    WRITING = auto()
    """This process holds the lock and has an engine."""
    CLAIMED = auto()
    """This process holds the lock so that no process writes."""
    WRITING_CLAIMED = auto()
    """It writes, and does not hand the bucket over."""
    CLOSED = auto()
    """Given up for good."""


class Event(Enum):
    """What changes a state."""

    TAKE = auto()
    """Begin to write; the lock is taken."""
    STOP = auto()
    """Stop writing, or fail to begin."""
    CLAIM = auto()
    """Let no process begin to write; the lock is taken."""
    GIVE_BACK = auto()
    """Take the claim back."""
    CLOSE = auto()
    """Give the bucket up for good."""


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.READING: {
        Event.TAKE: State.WRITING,
        Event.STOP: State.READING,
        Event.CLAIM: State.CLAIMED,
        Event.GIVE_BACK: State.READING,
        Event.CLOSE: State.CLOSED,
    },
    State.WRITING: {
        Event.STOP: State.READING,
        Event.CLAIM: State.WRITING_CLAIMED,
        Event.GIVE_BACK: State.WRITING,
        Event.CLOSE: State.CLOSED,
    },
    State.CLAIMED: {
        Event.TAKE: State.WRITING_CLAIMED,
        Event.STOP: State.CLAIMED,
        Event.CLAIM: State.CLAIMED,
        Event.GIVE_BACK: State.READING,
        Event.CLOSE: State.CLOSED,
    },
    State.WRITING_CLAIMED: {
        Event.STOP: State.CLAIMED,
        Event.CLAIM: State.WRITING_CLAIMED,
        Event.GIVE_BACK: State.WRITING,
        Event.CLOSE: State.CLOSED,
    },
    State.CLOSED: {
        Event.STOP: State.CLOSED,
        Event.GIVE_BACK: State.CLOSED,
        Event.CLOSE: State.CLOSED,
    },
}
_LOCKED = frozenset({State.WRITING, State.CLAIMED, State.WRITING_CLAIMED})


class BucketOwnership:
    """Ownership of one bucket in this process.

    Args:
        directory: Of the bucket.
        files: The disk.
        takes_requests: Whether this process takes requests of others while it owns the bucket.

    Attributes:
        writes_alone: Whether the bucket was written here other than by commits over several buckets since it was taken:
            then this process keeps it between such commits.
    """

    def __init__(self, directory: Path, files: Files, clock: Clock, *, takes_requests: bool = False) -> None:
        self._directory = directory
        self._lock = BucketLock(directory, files, clock, takes_requests=takes_requests)
        self._state = State.READING
        self.writes_alone = False

    @property
    def state(self) -> State:
        """State of the bucket here."""
        return self._state

    @property
    def is_claimed(self) -> bool:
        """Whether the bucket is not to be handed over."""
        return self._state in (State.CLAIMED, State.WRITING_CLAIMED)

    def check_open(self) -> None:
        """Refuse a bucket that was given up: a file opened now would never be closed.

        Raises:
            StoreClosed: It was.
        """
        if self._state is State.CLOSED:
            raise StoreClosed("The store was closed; open it again.", path=self._directory)

    def try_take(self) -> bool:
        """Begin to write, unless another process owns the bucket; others wait until :meth:`recovered`.

        Raises:
            StoreError: See :meth:`BucketLock.try_acquire`. The state is as it was.
        """
        self.check_open()
        if not self._lock.try_acquire():
            return False
        self._change(Event.TAKE)
        return True

    def is_written(self) -> bool | None:
        """Whether a process writes the bucket; see :meth:`BucketLock.is_written`."""
        return self._lock.is_written()

    def recovered(self) -> None:
        """Let others go on: the bucket's index has everything that earlier writers acknowledged."""
        self._lock.recovered()

    def recover_again(self) -> None:
        """Have others wait until :meth:`recovered`; see :meth:`BucketLock.recover_again`."""
        self._lock.recover_again()

    def try_claim(self) -> bool:
        """Let no process begin to write the bucket; False if another process writes it.

        Raises:
            StoreError: See :meth:`BucketLock.try_acquire`. The state is as it was.
        """
        self.check_open()
        if not self._lock.try_acquire():
            return False
        self._lock.recovered()  # or never will be: the table goes
        self._change(Event.CLAIM)
        return True

    def give_back(self) -> None:
        """Take a claim back; the lock stays if this process writes."""
        self._change(Event.GIVE_BACK)

    def stop(self) -> None:
        """Stop writing; other processes may write, unless the bucket is claimed."""
        self.writes_alone = False
        self._change(Event.STOP)

    def close(self) -> None:
        """Give the bucket up for good."""
        self._change(Event.CLOSE)

    def refuse(self) -> NoReturn:
        """Report which process owns the bucket.

        Raises:
            StoreLocked: Always.
        """
        self._lock.refuse()

    @contextmanager
    def borrowed(self) -> Iterator[bool]:
        """Hold the lock to recover the bucket, without a change of state.

        False if it is held already: here, or by another process, which has recovered the bucket.

        Raises:
            StoreError: See :meth:`BucketLock.try_acquire`.
        """
        if self._lock.held or not self._lock.try_acquire():
            yield False
            return
        try:
            yield True
        finally:
            self._lock.release()

    def _change(self, event: Event) -> None:
        self._state = TRANSITIONS[self._state][event]
        if self._state not in _LOCKED:
            self._lock.release()
