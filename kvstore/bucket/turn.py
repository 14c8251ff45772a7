"""The turn to change a bucket: the committer's thread has it, or a caller's thread that finds the bucket idle.

A sender whose conditions are out of date whenever their turn comes gets a :class:`Hold`: once its turn has come, the
bucket changes nothing before its next request is there, or the time is over. So the sender decides by rows that are
still the same when its request is applied.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvstore.errors import StoreError
from kvstore.process.calls import Answer, Reply
from kvstore.request.encoded import Submitted

HOLD_SECONDS = 0.1
"""How long a bucket waits: a sender needs a hundredth of it, unless it is busy."""


class Turn:
    """Turns of one bucket.

    Attributes:
        is_callers: Whether a caller's thread has it.
        left: Whether work was left halfway, and the memtable is to be restored first. It is set before work begins, so
            that nothing has to be done in time when that fails.
        end: Why nothing more can be written to the bucket, if that is so.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self.is_callers = self.left = False
        self.end: StoreError | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A turn, once it comes."""
        with self._changing:
            yield

    def take(self, seconds: float = 0.0) -> bool:
        """Take a turn of a caller's thread; False if there is another one all that time."""
        if not (self._changing.acquire(blocking=False) or (seconds and self._changing.acquire(timeout=seconds))):
            return False
        self.is_callers = True
        return True

    def give_back(self) -> None:
        """End a turn of a caller's thread."""
        self.is_callers = False
        self._changing.release()


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold of a bucket.

    Attributes:
        keys: Encoded keys.
        answer: Set once the bucket waits, and all that was written before is durable.
        found: What is stored for the keys then; empty where there is no row.
    """

    keys: list[bytes]
    answer: Reply[Any] | Future[None] = field(default_factory=Answer)
    found: list[bytes] = field(default_factory=list)
    _next: Future[Submitted | None] = field(default_factory=Future)

    def go_on(self, request: Submitted | None) -> bool:
        """Give the next request, or None to give the bucket up; False if the time is over, or it was given before."""
        if self._next.done() or not self._next.set_running_or_notify_cancel():
            return False
        self._next.set_result(request)
        return True

    def next(self) -> Submitted | None:
        """The next request; None if none comes in time."""
        try:
            return self._next.result(HOLD_SECONDS)
        except TimeoutError:
            return None if self._next.cancel() else self._next.result()  # it comes at this moment
