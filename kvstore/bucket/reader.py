"""The index of a bucket that this process reads and does not write.

* Before a process reads the bucket, and every :data:`RECOVER_SECONDS` from then on, it looks whether the index lacks
  what a dead writer had acknowledged. If so it recovers that, or waits until another process has.
* An index that was rebuilt or compacted is opened again; scans of the old file go on.

Every call here is made under the lock with which the handle opens and closes the bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from kvstore.bucket.commit_lock import pause
from kvstore.bucket.context import BucketContext
from kvstore.bucket.engine import BucketEngine
from kvstore.bucket.ownership import BucketOwnership
from kvstore.bucket.recovery import is_at_end, usable_index
from kvstore.disk.lock import is_locked
from kvstore.errors import CorruptData, StoreError
from kvstore.index.index import AtRest, Index, View
from kvstore.log.writer_state import WriterStates
from kvstore.meta.writers import OpenCommit
from logformat import paths
from logformat.log.index_state import IndexState

RECOVER_SECONDS = 0.25
"""How long changes that a dead writer acknowledged may stay invisible to a process that read the bucket before."""
_SWAP_LOOKS = 300
"""How often a reader looks for an index that is missing while another process writes the bucket."""


class BucketReader:
    """Opens a bucket's index for reading, and recovers the bucket if that is needed.

    Args:
        ownership, lock: Of the bucket.
        read_only: Whether nothing at all may be written; what a dead writer left to be recovered is not seen then.
        opened: Called when an index was opened.

    Attributes:
        index: The open index; None if there is none.
    """

    def __init__(
        self,
        context: BucketContext,
        ownership: BucketOwnership,
        lock: threading.Lock,
        read_only: Callable[[], bool],
        opened: Callable[[], None],
    ) -> None:
        self.index: Index | None = None
        self._context = context
        self._place = context.place
        self._ownership = ownership
        self._lock = lock
        self._read_only = read_only
        self._opened = opened
        self._at_rest: AtRest | None = None
        self._look_next = 0.0

    @property
    def was_just_looked_at(self) -> bool:
        """Whether the bucket is open, and was looked at a moment ago."""
        return self.index is not None and self._context.clock.monotonic() < self._look_next

    def ready(self) -> Index | None:
        """The open index, if nothing has to be done before it is read."""
        index = self.index
        if index is None or index.is_stale() or (not self._read_only() and not self.was_just_looked_at):
            return None
        return index

    def state_at_rest(self) -> IndexState | None:
        """The state of a bucket that is not open, unless something was written or is to be recovered."""
        known = self._at_rest
        if known is None or self.index is not None:
            return None
        self._ownership.check_open()
        if not known.is_current(self._place.index):
            return None
        now = self._context.clock.monotonic()
        if not self._read_only() and now >= self._look_next:
            if not is_at_end(self._place, known.state, self._context.files) or self._context.catalog.writers().commits:
                return None
            self._look_next = now + RECOVER_SECONDS
        return known.state

    def opened(self) -> Index:
        """The index, with all that was acknowledged before a writer died.

        Raises:
            StoreLocked: Another process recovers the bucket, and does not finish.
            CorruptData: The index is missing or damaged, and may not be written here.
        """
        self._close_stale()
        now = self._context.clock.monotonic()
        if self.index is None or now >= self._look_next:
            if not self._read_only():
                self._recover()
            self._look_next = now + RECOVER_SECONDS  # as long ago as what was found
        if self.index is None:
            self.open()
        assert self.index is not None
        return self.index

    def _close_stale(self) -> bool:
        """Close an index that was rebuilt, or compacted, to read the new one from now on; scans go on."""
        if self.index is None or not self.index.is_stale():
            return False
        self.index.retire()
        self.index.close()
        self.index = None
        return True

    def close(self) -> None:
        """Close the index, if it is open."""
        if self.index is not None:
            self.index.close()
            self.index = None

    def close_if_unread(self) -> bool:
        """Close the index until it is read again; False if it is in use now."""
        index = self.index
        if index is not None and index.is_read:
            return False
        if index is not None:
            self._at_rest = None
            with suppress(StoreError):  # the caller reads another bucket: it is not that one's error
                self._at_rest = index.at_rest()
            if not index.close_if_unread():
                return False
            self.index = None
        return True

    def open(self) -> None:
        """Open the index as it is.

        Raises:
            CorruptData: It is missing or damaged.
        """
        self._use(self._found())

    def _use(self, index: Index | None) -> None:
        self.index = index
        self._at_rest = None
        if index is not None:
            self._opened()

    def _recover(self) -> None:
        """Recover what a dead writer had acknowledged, so that it can be read.

        Raises:
            StoreLocked: Another process recovers the bucket, and does not finish.
        """
        while not self._lacks_nothing():
            with self._ownership.borrowed() as is_owner:
                # Another process may have recovered the bucket meanwhile; if one owns it now, it has.
                was_replaced = self._close_stale()
                if is_owner and not self._lacks_nothing():
                    self._replay()
                    return
            if not was_replaced:
                return

    def _replay(self) -> None:
        is_readable = self._is_at_end()
        try:
            BucketEngine(self._context, self._lock).close()
        except StoreError:
            # The bucket can be read; writes and `kvstore check` report why a commit can't be completed.
            if not is_readable:
                raise
        finally:
            self._close_stale()

    def _lacks_nothing(self) -> bool:
        """Whether the index has all of the log, and its batch of each open commit."""
        if self.index is None:
            self._use(usable_index(self._place, self._context.options, self._context.files))
        if not self._is_at_end():
            return False
        commits = self._context.catalog.writers().commits
        if not commits:
            return True
        assert self.index is not None
        with self.index.view() as view:
            return self._has(view, commits)

    def _is_at_end(self) -> bool:
        return self.index is not None and is_at_end(self._place, self.index.committed_state(), self._context.files)

    def _has(self, view: View, commits: tuple[OpenCommit, ...]) -> bool:
        writers = WriterStates(view.writers_of(commit.writer_id for commit in commits))
        return all(writers.has(commit.writer_id, commit.sequence) for commit in commits)

    def _is_written_elsewhere(self) -> bool:
        try:
            return is_locked(self._place.directory / paths.LOCK_FILE, self._context.files)
        except OSError:  # it can't be seen, for example on a read-only disk
            return False

    def _found(self) -> Index:
        for _ in range(_SWAP_LOOKS):
            index = usable_index(self._place, self._context.options, self._context.files)
            if index is not None:
                return index
            if not self._is_written_elsewhere():
                break
            pause()  # the process that writes the bucket may be replacing its index
        raise CorruptData(
            "The index of a bucket is missing or damaged; open the store for writing: it is built from the log.",
            path=self._place.index,
        )
