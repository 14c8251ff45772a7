"""The index of a bucket that this process reads and does not write, and what the log has after it.

* What a writer has acknowledged and not committed to its index, living or dead, is read from the log
  (``kvstore/bucket/reading/overlay.py``).
* Every :data:`LOOK_SECONDS` a process that may write looks whether a decided commit lacks its batch here, because its
  coordinator died; if so it appends that, and where nothing may be written, reads are refused. It also builds an index
  that is missing or damaged, if nobody else does.
* An index that was rebuilt or compacted is opened again; scans of the old file go on.

Every call here is made under the lock with which the handle opens and closes the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from kvstore.bucket.commit_lock import pause
from kvstore.bucket.context import BucketContext
from kvstore.bucket.engine import BucketEngine
from kvstore.bucket.ownership import BucketOwnership
from kvstore.bucket.reading.overlay import LOOK_SECONDS, OverlayReader
from kvstore.bucket.recovery import usable_index
from kvstore.disk.lock import is_locked
from kvstore.errors import CorruptData, StoreError, Unavailable
from kvstore.index.index import AtRest, Index, View
from kvstore.log.writer_state import WriterStates
from kvstore.meta.writers import OpenCommit
from logformat import paths
from logformat.log.index_state import IndexState

_SWAP_LOOKS = 300
"""How often a reader looks for an index that is missing while another process writes the bucket."""


class BucketReader:
    """Opens a bucket's index for reading, and recovers the bucket if that is needed.

    Args:
        ownership: Ownership of the bucket.
        read_only: Whether nothing at all may be written; then nothing is built or completed.
        opened: Called when an index was opened.

    Attributes:
        index: The open index; None if there is none.
    """

    def __init__(
        self,
        context: BucketContext,
        ownership: BucketOwnership,
        read_only: Callable[[], bool],
        opened: Callable[[], None],
    ) -> None:
        self.index: Index | None = None
        self._context = context
        self._paths = context.paths
        self._ownership = ownership
        self._read_only = read_only
        self._opened = opened
        self._at_rest: AtRest | None = None
        self._look_next = 0.0
        self._is_halfway = False
        self._overlay = OverlayReader(context, self._is_written)

    def ready(self) -> Index | None:
        """The open index, if nothing has to be done before it is read."""
        index = self.index
        return None if index is None or index.environment.is_stale() or not self._was_just_looked_at else index

    def found(self, key: bytes) -> tuple[Index, bytes | None] | None:
        """The open index and what the log has of a key after it, if nothing has to be done before they are read.

        While the log is as it was read, an old index is as good as a new one, so no file is looked at.

        Raises what :meth:`newer` does.
        """
        index = self.index
        if index is None or self._is_halfway or not self._was_just_looked_at:
            return None
        if self._overlay.is_as_read():
            return index, self._overlay.find(key)
        return None if index.environment.is_stale() else (index, self.newest(key))

    @property
    def _was_just_looked_at(self) -> bool:
        return self._context.clock.monotonic() < self._look_next

    def newer(self, view: View) -> View:
        """A view of an index, moved on to the end of the log.

        Raises:
            CorruptBatch: The log is damaged.
            OffsetOutOfRange: The log begins after the view.
            Unavailable: A process died halfway through a commit over several buckets: others may have their part.
        """
        self._check_whole()
        return self._moved_on(view)

    def _check_whole(self) -> None:
        if self._is_halfway:
            raise Unavailable(
                "A commit over several buckets is not completed, because its process died; open the store for writing"
                " to do so.",
                table=self._context.catalog.definition().name,
            )

    def _moved_on(self, view: View) -> View:
        state = view.state()
        overlay = self._overlay.at(state, rows=True)
        return view if overlay is None else overlay.view(view, state)

    def state_after(self, state: IndexState) -> IndexState:
        """The state of an index, moved on to the end of the log.

        Raises what :meth:`newer` does.
        """
        self._check_whole()
        overlay = self._overlay.at(state)
        return state if overlay is None else overlay.state_after(state)

    def newest(self, key: bytes) -> bytes | None:
        """What the log has of a key after the open index; see :meth:`Overlay.find`.

        Raises what :meth:`newer` does.
        """
        assert self.index is not None
        self._check_whole()
        return self._overlay.newest(key, self.index)

    def state_at_rest(self) -> IndexState | None:
        """The state of a bucket whose index is not open; None if the index was written, or is to be looked at."""
        known = self._at_rest
        if known is None or self.index is not None:
            return None
        self._ownership.check_open()
        if not known.is_current(self._paths.index):
            return None
        if not self._was_just_looked_at:
            if self._context.catalog.writers().commits:
                return None
            self._is_halfway = False
            self._look_next = self._context.clock.monotonic() + LOOK_SECONDS
        try:
            return self.state_after(known.state)
        finally:
            self._overlay.close()

    def opened(self) -> Index:
        """The index, and a log with all commits that were decided before a coordinator died.

        Raises:
            CorruptData: The index is missing or damaged, and may not be written here.
        """
        self._close_stale()
        now = self._context.clock.monotonic()
        is_due = self.index is None or now >= self._look_next
        if is_due and not self._read_only():
            self._complete()
        if self.index is None:
            self.open()
        assert self.index is not None
        if is_due:
            self._is_halfway = self._read_only() and self._lacks_batch(self.index)
            if not self._is_halfway:
                self._look_next = now + LOOK_SECONDS  # as long ago as what was found
        return self.index

    def _close_stale(self) -> bool:
        """Close an index that was rebuilt, or compacted, to read the new one from now on; scans go on."""
        if self.index is None or not self.index.environment.is_stale():
            return False
        self.index.environment.retire()
        self.close()
        return True

    def close(self) -> None:
        """Close the index, if it is open."""
        self._overlay.close()
        if self.index is not None:
            self.index.close()
            self.index = None

    def close_if_unread(self) -> bool:
        """Close the index until it is read again; False if it is in use now."""
        index = self.index
        if index is not None and index.environment.is_read:
            return False
        if index is not None:
            self._at_rest = None
            with suppress(StoreError):  # the caller reads another bucket: it is not that one's error
                self._at_rest = index.at_rest()
            if not index.close_if_unread():
                return False
            self.index = None
            self._overlay.close()
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

    def _complete(self) -> None:
        """Build the index if it is missing or ahead, and append what the bucket lacks of decided commits.

        Raises:
            StoreError: The index is missing and can't be built.
        """
        while not self._lacks_nothing():
            with self._ownership.borrowed() as is_owner:
                # Another process may have done it meanwhile; if one owns the bucket now, it has.
                was_replaced = self._close_stale()
                if is_owner and not self._lacks_nothing():
                    self._replay()
                    return
            if not was_replaced:
                return

    def _lacks_batch(self, index: Index) -> bool:
        """Whether the log lacks its batch of an open commit, and no process is about to append it."""
        commits = self._context.catalog.writers().commits
        # In this order: the process that decided a commit owns the bucket until it has appended its batch.
        if not commits or self._is_written() or self._is_of_copy():
            return False
        with index.view() as view:
            return not self._has(self._moved_on(view), commits)

    def _replay(self) -> None:
        is_readable = self.index is not None
        try:
            BucketEngine(self._context).close()
        except StoreError:
            # The bucket can be read; writes and `kvstore check` report why a commit can't be completed.
            if not is_readable:
                raise
        finally:
            self._close_stale()
        if self.index is None:
            self.open()  # before others may drop the table

    def _lacks_nothing(self) -> bool:
        """Whether there is an index, the log has what it has, and its batch of each open commit."""
        if self.index is None:
            self._use(usable_index(self._paths, self._context.options, self._context.files))
        if self.index is None or self._overlay.is_ahead(self.index.committed_state()):
            return False
        commits = self._context.catalog.writers().commits
        if not commits:
            return True
        with self.index.view() as view:
            return self._has(self._moved_on(view), commits)

    def _has(self, view: View, commits: tuple[OpenCommit, ...]) -> bool:
        writers = WriterStates(view.writers_of(commit.writer_id for commit in commits))
        return all(writers.has(commit.writer_id, commit.sequence) for commit in commits)

    def _is_of_copy(self) -> bool:
        """Whether it is a copy that follows a replica: its catalog may be ahead of all its buckets."""
        return (paths.store_of(self._paths.directory) / paths.FOLLOWING).exists()

    def _is_written(self) -> bool | None:
        """Whether another process writes the bucket; None if that can't be seen now."""
        try:
            return self._ownership.is_written()
        except (OSError, StoreError):  # for example, on a read-only disk
            return None

    def _is_written_elsewhere(self) -> bool:
        try:
            return is_locked(self._paths.directory / paths.LOCK_FILE, self._context.files)
        except OSError:  # it can't be seen, for example on a read-only disk
            return False

    def _found(self) -> Index:
        for _ in range(_SWAP_LOOKS):
            index = usable_index(self._paths, self._context.options, self._context.files)
            if index is not None:
                return index
            if not self._is_written_elsewhere():
                break
            pause()  # the process that writes the bucket may be replacing its index
        raise CorruptData(
            "The index of a bucket is missing or damaged; open the store for writing: it is built from the log.",
            path=self._paths.index,
        )
