"""The lock of a bucket: one process at a time writes it, and others can tell whether that process has recovered it.

Theory of operation. The holder of ``flock`` on the file ``LOCK`` of a bucket writes it. After its last writer died, the
log has acknowledged changes that the index lacks, until a process that takes ``LOCK`` has recovered the bucket. So a
process takes ``LOCK`` only while it holds ``flock`` on the bucket's directory, and keeps that one until it has
recovered the bucket. A process that only recovers, for a read, gives both up then; a writer keeps ``LOCK``. From this
follows what a process that holds the lock of the directory may conclude from ``LOCK``:

* ``LOCK`` is free: nobody writes, and what a dead writer left is for this process to recover.
* ``LOCK`` is held: by a living writer that has recovered the bucket. The index has all that earlier writers
  acknowledged; what it lacks is of this writer, which commits it soon.

So nobody has to tell a reader that recovers from a writer, and nothing is written for it: a process that waits for the
directory's lock waits for a recovery, or for one that looks at ``LOCK`` for a moment. Both locks end with the process,
at whatever instruction it ends. What ``LOCK`` contains only serves messages, as it may be of an earlier holder, or not
be there on a full disk.

A process of version 0.1.0 takes ``LOCK`` without the directory's lock: while it recovers, others take it for a writer.
"""

from __future__ import annotations

from pathlib import Path

from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock, RecoveryLock, is_locked
from logformat import paths


class BucketLock(ProcessLock):
    """The lock of one bucket.

    Args:
        directory: Directory of the bucket.
        files: The disk.
        takes_requests: See :class:`ProcessLock`.
    """

    def __init__(self, directory: Path, files: Files, clock: Clock, *, takes_requests: bool = False) -> None:
        super().__init__(directory / paths.LOCK_FILE, files, takes_requests=takes_requests)
        self._recovery = RecoveryLock(directory, files, clock)

    def is_written(self) -> bool | None:
        """Whether a process writes the bucket, which may be this one; None while one recovers it, or asks for it.

        Raises:
            StoreError: See :meth:`RecoveryLock.looked_at`.
            OSError: The lock can't be looked at.
        """
        if self.held:
            return True
        with self._recovery.looked_at() as is_recovered:
            return None if is_recovered else is_locked(self._path, self._files)

    def try_acquire(self) -> bool:
        """Take the lock to recover the bucket, unless another process writes it; waits while one only recovers it.

        A process that wants to read or write the bucket waits from then on, until :meth:`recovered` or :meth:`release`.

        Raises:
            StoreError: See :meth:`RecoveryLock.acquire` and :meth:`ProcessLock.try_acquire`. The lock is as it was.
        """
        self._recovery.acquire()
        taken = False
        try:
            taken = super().try_acquire()
        finally:
            if not taken:
                self._recovery.release()
        return taken

    def recovered(self) -> None:
        """Keep the lock to write: the index has everything that earlier writers acknowledged."""
        self._recovery.release()

    def recover_again(self) -> None:
        """Have others wait, until :meth:`recovered`, while an older index is in the place of the bucket's.

        Raises:
            StoreError: See :meth:`RecoveryLock.acquire`.
        """
        self._recovery.acquire()

    def release(self) -> None:
        """Release the lock, if it is held."""
        super().release()
        self._recovery.release()  # last: who waits for it finds a bucket that nobody writes
