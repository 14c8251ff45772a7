"""The turn to change a bucket: the committer's thread has it, or a caller's thread that finds the bucket idle.

A turn includes the bucket's lock, so no reader sees what is not acknowledged. Only the committer's thread can end the
index's transaction: a caller whose work fails leaves its work and the bucket's lock to that thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.errors import StoreError


class Turn:
    """Turns of one bucket.

    Args:
        lock: The bucket's lock.

    Attributes:
        is_callers: Whether a caller's thread has it.
        left: Whether a caller has left its work halfway, and with it the bucket's lock: the index is to be restored.
            A caller sets it before its work, so that nothing has to be done in time when that fails.
        end: Why nothing more can be written to the bucket, if that is so.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._changing = threading.Lock()
        self._lock = lock
        self.is_callers = self.left = False
        self.end: StoreError | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The turn of the committer's thread, once it comes."""
        with self._changing:
            if not self.left:
                self._lock.acquire()
            try:
                yield
            finally:
                if not self.left:
                    self._lock.release()

    def take(self) -> bool:
        """Take a turn of a caller's thread; False if there is one, or if the bucket is read."""
        if not self._changing.acquire(blocking=False):
            return False
        if self.left or not self._lock.acquire(blocking=False):
            self._changing.release()
            return False
        self.is_callers = True
        return True

    def give_back(self) -> None:
        """End a turn of a caller's thread."""
        self.is_callers = False
        if not self.left:
            self._lock.release()
        self._changing.release()
