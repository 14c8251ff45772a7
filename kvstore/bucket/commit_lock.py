"""The lock of commits over several buckets of a table: one commit at a time, among all processes.

* The lock is ``flock`` on a file, like the lock of a bucket, so it ends with the process.
* If another process writes a bucket, the lock's holder creates a file that asks for the buckets. The writing process
  checks for this file, commits its changes and releases its buckets. It waits for the end of the commit to write again.
* A process that writes single buckets, not only commits, holds a shared lock while it has the table open. A committing
  process keeps its buckets for the next commit only if no other process holds the shared lock.
* A file that asks for buckets while no process holds the commit lock was left by a dead process, and is removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvstore.clock import Clock
from kvstore.disk.files import Files, refusals
from kvstore.disk.lock import Presence, ProcessLock, is_locked
from kvstore.errors import CorruptData, StoreLocked
from kvstore.process.calls import check_caller
from logformat import paths
from logformat.ids import TableId

COMMIT_WAIT_SECONDS = 30
"""How long a commit waits for another commit, or for a process that writes a bucket it needs."""
OWNER_LOOK_MS = 20
"""How often a writing process checks whether another process asks for its buckets."""
_PAUSE_SECONDS = 0.003
_LOOK_SECONDS = 0.1
"""How often a thread that waits for another one checks whether its caller still waits."""


class CommitLock:
    """The lock of one table's commits, shared by all threads of a process.

    Args:
        store: Directory of the store.
        check_listed: Called when the table's directory is missing; raises NoSuchTable if the table was dropped.

    Attributes:
        wanted: Whether this process holds the lock and asks for buckets.
        presence: Shared lock of processes that write single buckets of the table.
    """

    def __init__(
        self,
        store: Path,
        table: TableId,
        files: Files,
        clock: Clock,
        check_listed: Callable[[], object] = lambda: None,
    ) -> None:
        self._check_listed = check_listed
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
            StoreLocked: Another commit did not end within ``COMMIT_WAIT_SECONDS``.
            NoSuchTable: The table was dropped.
        """
        deadline = self._clock.monotonic() + COMMIT_WAIT_SECONDS
        with self.held_here(deadline):
            while not self._is_taken():
                if self._clock.monotonic() >= deadline:
                    self._processes.acquire()
                    break
                pause()
            try:
                yield
            finally:
                self._processes.release()

    def _is_taken(self) -> bool:
        try:
            return self._processes.try_acquire()
        except CorruptData:
            self._check_listed()
            raise

    @contextmanager
    def held_here(self, deadline: float | None = None, *, waits: bool = True) -> Iterator[bool]:
        """Hold the lock against the other threads of this process, but not against other processes.

        Args:
            waits: Whether to wait for another thread; false if it is not held in the end.

        Raises:
            StoreLocked: See :meth:`held`.
        """
        if not waits and not self._threads.acquire(blocking=False):
            yield False
            return
        if deadline is None:
            deadline = self._clock.monotonic() + COMMIT_WAIT_SECONDS
        while waits and not self._threads.acquire(timeout=_LOOK_SECONDS):
            check_caller()
            if self._clock.monotonic() >= deadline:
                raise StoreLocked(
                    "Another thread commits to this table; wait until it is done.", path=self._path.parent
                )
        try:
            yield True
        finally:
            self._threads.release()

    def held_elsewhere(self) -> bool:
        """Whether another process commits to the table."""
        if self._processes.held:
            return False
        return is_locked(self._path, self._files)

    @contextmanager
    def wanting(self) -> Iterator[None]:
        """Ask the process that writes the table's buckets for them; this process holds the lock."""
        with refusals(self._wanted_file):
            try:
                self._files.publish(self._wanted_file, b"")
            except FileNotFoundError:
                self._check_listed()
                raise
        self.wanted = True
        try:
            yield
        finally:
            self.wanted = False
            with suppress(OSError):  # without a holder of the lock the file has no effect
                self._files.remove(self._wanted_file)

    def is_wanted(self) -> bool:
        """Whether another process waits for the buckets."""
        if not self._files.exists(self._wanted_file) or self._processes.held:
            return False
        if self.held_elsewhere():
            return True
        self.forget_the_dead()
        return False

    def forget_the_dead(self) -> None:
        """Remove the file of a process that asked for the buckets and died."""
        if not self._files.exists(self._wanted_file):
            return
        # Under the lock, so that no process asks at this moment.
        if self._threads.acquire(blocking=False):
            try:
                if self._processes.try_acquire():
                    try:
                        with suppress(OSError):  # it is gone, or has no effect
                            self._files.remove(self._wanted_file)
                    finally:
                        self._processes.release()
            finally:
                self._threads.release()


def pause() -> None:
    """Wait a moment for another process; raises if the caller was interrupted meanwhile."""
    check_caller()
    threading.Event().wait(_PAUSE_SECONDS)
