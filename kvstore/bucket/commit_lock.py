"""Who commits to several buckets of a table at once: one at a time, of all processes, and the buckets come to it.

* The lock of a table's commits is ``flock`` on a file, like that of a bucket, so it ends with the process.
* Who holds it and finds a bucket written elsewhere says so in a file; whoever writes there looks for it, commits what
  it has and lets go. It writes again when the commit is over, and waits for that.
* Who writes buckets by itself, not in commits only, shares another lock as long as it has the table open. Who commits
  keeps the buckets it took for the next commit only if nobody else is there: the others want them back.
* What stands there and nobody who commits is alive was left by a dead process; it is removed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvstore.calls import check_caller
from kvstore.clock import Clock
from kvstore.errors import StoreLocked
from kvstore.files import Files, refusals
from kvstore.lock import Presence, ProcessLock, is_locked
from logformat import paths
from logformat.ids import TableId

COMMIT_WAIT_SECONDS = 30
"""How long one waits for another who commits, or who writes what is to be committed to."""
HANDOVER_LOOK_MS = 20
"""How often who writes looks whether its buckets are wanted."""
_PAUSE_SECONDS = 0.003
_LOOK_SECONDS = 0.1
"""How often who waits for another thread looks whether it is still waited for."""


class CommitLock:
    """The lock of one table's commits, shared by all threads of a process.

    Args:
        store: Directory of the store.

    Attributes:
        wanted: Whether this process, which holds it, asks for buckets.
        presence: Of processes that write buckets of the table by themselves.
    """

    def __init__(self, store: Path, table: TableId, files: Files, clock: Clock) -> None:
        self._path = paths.commit_lock(store, table)
        self._wanted_file = paths.wanted_file(store, table)
        self.wanted = False
        self._files = files
        self._clock = clock
        self._threads = threading.Lock()
        self._processes = ProcessLock(self._path, files)
        self.presence = Presence(paths.writing_file(store, table), files)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            StoreLocked: Another commit did not come to its end for ``COMMIT_WAIT_SECONDS``.
        """
        deadline = self._clock.monotonic() + COMMIT_WAIT_SECONDS
        while not self._threads.acquire(timeout=_LOOK_SECONDS):
            check_caller()
            if self._clock.monotonic() >= deadline:
                raise StoreLocked(
                    "Another thread commits to this table; wait until it is done.", path=self._path.parent
                )
        try:
            while not self._processes.try_acquire():
                if self._clock.monotonic() >= deadline:
                    self._processes.acquire()
                    break
                pause()
            try:
                yield
            finally:
                self._processes.release()
        finally:
            self._threads.release()

    def held_elsewhere(self) -> bool:
        """Whether another process commits to the table."""
        if self._processes.held:
            return False
        return is_locked(self._path, self._files)

    @contextmanager
    def wanting(self) -> Iterator[None]:
        """Ask whoever writes the table's buckets for them; the lock is held."""
        with refusals(self._wanted_file):
            self._files.publish(self._wanted_file, b"")
        self.wanted = True
        try:
            yield
        finally:
            self.wanted = False
            with suppress(OSError):  # without a holder of the lock it means nothing
                self._files.remove(self._wanted_file)

    def is_wanted(self) -> bool:
        """Whether another process waits for the buckets."""
        if not self._files.exists(self._wanted_file) or self._processes.held:
            return False
        if self.held_elsewhere():
            return True
        self._remove_stale()
        return False

    def _remove_stale(self) -> None:
        # Who asked died. Under the lock, so that nobody asks at this moment.
        if self._threads.acquire(blocking=False):
            try:
                if self._processes.try_acquire():
                    try:
                        if self._files.exists(self._wanted_file):
                            self._files.remove(self._wanted_file)
                    finally:
                        self._processes.release()
            finally:
                self._threads.release()


def pause() -> None:
    """Wait a moment for another process; ends the call of whoever was interrupted meanwhile."""
    check_caller()
    threading.Event().wait(_PAUSE_SECONDS)
