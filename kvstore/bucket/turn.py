"""The turn to change a bucket: the committer's thread has it, or a caller's thread that finds the bucket idle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.errors import StoreError


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
