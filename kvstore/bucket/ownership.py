"""Which process may write a bucket, and what this process does with that right.

Theory of operation. One process at a time owns a bucket: it holds the bucket's lock
(``kvstore/bucket/bucket_lock.py``), which ends with the process. Here a bucket is read until a write, or a commit over
several buckets, takes the lock; then it is written, with an engine. Others wait until the engine has recovered the
bucket. It is only read again when the process stops writing, or hands the bucket over to another process that commits.
``drop_table`` claims every bucket first, so that no process can begin to write; a claim outlives the writing. A reader
that has to build the index borrows the lock for a moment.

Every call here is made under the handle's mutex, so there are no races.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.bucket.bucket_lock import BucketLock
from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.errors import StoreClosed


class BucketOwnership(BucketLock):
    """The lock of one bucket in this process, held while it writes the bucket or claims it.

    Attributes:
        is_claimed: Whether the bucket is not to be handed over.
        writes_alone: Whether the bucket was written here other than by commits over several buckets since it was taken:
            then this process keeps it between such commits.
    """

    def __init__(self, directory: Path, files: Files, clock: Clock, *, takes_requests: bool = False) -> None:
        super().__init__(directory, files, clock, takes_requests=takes_requests)
        self._directory = directory
        self._is_taken = self._is_closed = False
        self.is_claimed = self.writes_alone = False

    def check_open(self) -> None:
        """Refuse a bucket that was given up: a file opened now would never be closed.

        Raises:
            StoreClosed: It was.
        """
        if self._is_closed:
            raise StoreClosed("The store was closed; open it again.", path=self._directory)

    def try_take(self) -> bool:
        """Begin to write, unless another process owns the bucket; others wait until :meth:`recovered`.

        Raises:
            StoreError: See :meth:`try_acquire`. Nothing was changed.
        """
        self.check_open()
        self._is_taken = self.try_acquire()
        return self._is_taken

    def try_claim(self) -> bool:
        """Let no process begin to write the bucket; False if another process writes it.

        Raises:
            StoreError: See :meth:`BucketLock.try_acquire`. The state is as it was.
        """
        self.check_open()
        if not self.try_acquire():
            return False
        self.recovered()  # or never will be: the table goes
        self.is_claimed = True
        return True

    def give_back(self) -> None:
        """Take a claim back; the lock stays if this process writes."""
        self.is_claimed = False
        self._release_unless_needed()

    def stop(self) -> None:
        """Stop writing, or fail to begin; other processes may write, unless the bucket is claimed."""
        self._is_taken = self.writes_alone = False
        self._release_unless_needed()

    def close(self) -> None:
        """Give the bucket up for good."""
        self._is_closed = True
        self.release()

    @contextmanager
    def borrowed(self) -> Iterator[bool]:
        """Hold the lock to recover the bucket, and neither write nor claim it.

        False if it is held already: here, or by another process, which has recovered the bucket.

        Raises:
            StoreError: See :meth:`try_acquire`.
        """
        if self.held or not self.try_acquire():
            yield False
            return
        try:
            yield True
        finally:
            self.release()

    def _release_unless_needed(self) -> None:
        if self._is_closed or not (self._is_taken or self.is_claimed):
            self.release()
