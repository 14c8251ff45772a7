"""Appending to a log, for its one writer.

* Batches follow each other without gaps, in bytes and in offsets; nothing after the durable end is promised to be
  durable.
* A file whose fsync failed is sealed: it is never written or trusted again. Before anything else, a new segment begins
  at the durable end with the batches after it. The kernel may have dropped the pages and marked them clean. The log
  stays sealed until the new segment exists.
* The end is the durable end plus the batches that wait for a sync, which are kept in memory. Refused batches are in
  neither.
* A short write is truncated, so that no batch ever follows half a batch.
* After each sync the durable end is published, and only then are callers answered. Batches of a decided commit are
  published at once: if a power cut takes them, they are appended again before anything else, from what was staged.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from kvstore.disk.files import Files, is_too_many_open, refusal
from kvstore.errors import LogFailed, StoreError, StoreFull
from kvstore.log.published import EndPublisher
from kvstore.log.segment_writer import EncodedBatch, SegmentWriter, SparseIndexWriter, end_after, head_at
from kvstore.log.segments import LogEnd, LogIdentity
from logformat import paths

UNSYNCED_BYTES_MAX = 64 << 20
"""Limit of the bytes that wait for a sync; they are kept in memory, to be rewritten if the sync fails."""


class Log:
    """The log of one bucket, opened for appending.

    Args:
        directory: Directory of its files.
        identity: The store, table and bucket that the log belongs to.
        end: End of the log and of the last segment's file; everything before it is durable.
        files: The disk.
        segment_bytes_max: See :class:`kvstore.options.StoreOptions`.

    Attributes:
        end: Position of the next batch.
        durable: End of what is known to be durable.
    """

    def __init__(
        self, directory: Path, identity: LogIdentity, end: LogEnd, files: Files, *, segment_bytes_max: int
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._files = files
        self._segment_bytes_max = segment_bytes_max
        self.end = self.durable = end
        self._unsynced: list[EncodedBatch] = []
        self._undecided = False
        self._sealed = False
        self._failed = False
        files.hold(directory)
        try:
            self._segment = SegmentWriter.resume(directory, end, files)
        except BaseException:
            files.let_go(directory)
            raise
        self._index = SparseIndexWriter(directory, end.base, files)
        self._published = EndPublisher(directory.parent, identity, files)
        self._published.publish(end.offset)
        self._shown = self._seen = end.offset
        """Up to where other processes may see the log, and up to where they do."""

    @property
    def has_lost(self) -> bool:
        """Whether the disk has failed permanently while appended batches were not durable."""
        return self._failed and bool(self._unsynced)

    @property
    def has_undecided(self) -> bool:
        """Whether a power cut could take appended batches that are nowhere else: those of no decided commit."""
        return self._undecided

    @property
    def is_full(self) -> bool:
        """Whether the segment has reached its size limit, so that :meth:`roll` is due."""
        return self.end.position >= self._segment_bytes_max

    def append(
        self, batches: Sequence[EncodedBatch], *, durable: bool = False, decided: bool = False, shows: bool = True
    ) -> None:
        """Write batches at the end; the next :meth:`sync` makes them durable.

        Args:
            durable: Whether to sync at once.
            decided: Whether they belong to commits that are decided, and stay open until the log is durable so far.
            shows: Whether other processes see at once what can't be lost; else :meth:`show` follows.

        Raises:
            StoreFull: No space. The log has what it had, and these batches never come back.
            LogFailed: The disk refused; the log can't be appended to until it is opened again.
            StoreReplaced: The store's path leads elsewhere. The batches are written all the same, where the log is now.
        """
        if self._failed:
            self._refuse()
        if self._sealed:
            self._leave_sealed_segment()
        count, undecided = len(self._unsynced), self._undecided
        self._write(batches, fills=durable or decided)
        self._unsynced.extend(batches)
        self._undecided = undecided or not decided
        if durable or self.end.position - self.durable.position > UNSYNCED_BYTES_MAX:
            try:
                self._make_durable()
            except StoreError:
                self._undecided = undecided
                self._take_back(count)
                raise
        if durable or decided:
            self._shown = self.end.offset
        if shows:
            self.show()
        self._files.check()

    def show(self) -> None:
        """Show other processes what can't be lost."""
        if self._shown != self._seen:
            self._published.publish(self._shown)
            self._seen = self._shown

    def sync_undecided(self) -> None:
        """Make durable what a power cut could take; see :meth:`sync`."""
        if self._undecided:
            self.sync()

    def sync(self) -> None:
        """Make everything appended durable.

        Raises:
            StoreFull: The disk is full, so the batches of a failed fsync can't be rewritten. They are kept; the next
                call tries again.
            LogFailed: The disk failed twice; the log takes no appends until it is reopened.
        """
        if self._failed:
            self._refuse()
        self._make_durable()
        self.show()

    def _make_durable(self) -> None:
        if not self._unsynced:
            return
        if self._sealed:
            self._leave_sealed_segment()
        try:
            self._segment.sync()
        except OSError:
            self._sealed = True
            self._leave_sealed_segment()
            self._sync_again()
        self._index.add(self._unsynced, self.durable.position)
        self.durable = self.end
        self._unsynced = []
        self._undecided = False
        self._shown = self.durable.offset

    def roll(self, writers: bytes) -> None:
        """Continue in a new segment, unless this one is still empty.

        Args:
            writers: The writers known at the end of the log, encoded.

        Raises:
            StoreFull: The disk is full. The log is unchanged.
            LogFailed: The disk failed; the log takes no appends until it is reopened.
        """
        self.sync()
        if self.end.offset == self.end.base:
            return
        if self._sealed:
            self._leave_sealed_segment()
            return
        try:
            if self._segment.cut_ahead():
                self._segment.sync()
        except OSError:
            self._sealed = True
            self._leave_sealed_segment()
            return
        try:
            self._files.publish(paths.writers_file(self._directory, self.end.offset), writers)
        except OSError as error:
            raise self._refused(error) from error
        self._begin_segment()

    def close(self, *, is_merged: bool = False) -> None:
        """Close the files; what was not synced may be lost in a power cut.

        Args:
            is_merged: Whether the index has all of the log.
        """
        with suppress(OSError):  # zeros after the end are no damage
            self._segment.cut_ahead()
        self._segment.close()
        self._index.close()
        self._published.close(voids=is_merged)
        self._files.let_go(self._directory)

    def _write(self, batches: Sequence[EncodedBatch], *, fills: bool = False) -> None:
        try:
            self._segment.append(batches, fills=fills)
        except OSError as error:
            self._cut(self._segment.end)  # half a batch must not stay where the next one goes
            raise self._refused(error) from error
        self.end = self._segment.end

    def _take_back(self, count: int) -> None:
        """After a failed sync, drop all but the first ``count`` unsynced batches: their append is refused."""
        self._unsynced = self._unsynced[:count]
        self.end = end_after(self.durable, self._unsynced)
        if self._segment.file_bytes > self.end.position:
            # Until the next segment exists, recovery reads past the durable end.
            self._cut(self.end)
            with suppress(OSError):
                self._segment.sync()

    def _cut(self, end: LogEnd) -> None:
        try:
            self._segment.truncate(end)
        except OSError as error:
            self._failed = True
            raise LogFailed(
                "The log can't be truncated at its end; repair the disk and reopen the store.",
                path=self._directory,
                reason=error.strerror,
            ) from error

    def _leave_sealed_segment(self) -> None:
        """Continue in a new segment after a failed sync, and rewrite there the batches that wait for a sync.

        Raises:
            StoreFull: The disk is full. The log stays sealed, and is otherwise unchanged.
            LogFailed: The disk failed; the log takes no appends until it is reopened.
        """
        if self.durable.offset != self.durable.base:
            # One that a roll left means: the segment before has no bytes after its end.
            try:
                with suppress(FileNotFoundError):
                    self._files.remove(paths.writers_file(self._directory, self.durable.offset))
            except OSError as error:
                raise self._refused(error) from error
        self._begin_segment()
        if not self._unsynced:
            return
        try:
            self._write(self._unsynced)
        except StoreError:
            self._sealed = True  # the new segment lacks what the old one had
            self.end = end_after(self.durable, self._unsynced)
            raise

    def _sync_again(self) -> None:
        try:
            self._segment.sync()
        except OSError as error:
            self._sealed = True
            raise self._refused(error) from error

    def _begin_segment(self) -> None:
        """Begin a new segment at the durable end."""
        if self.durable.offset == self.durable.base:
            # The failed segment has nothing durable: the new one takes its name and its predecessor.
            head = self._segment.head
        else:
            head = head_at(self.durable.offset, self._identity, self.durable)
        self._index.sync()
        try:
            following = SegmentWriter.begin(self._directory, head, self._files)
        except OSError as error:
            # The file may already have its name; then appends to the old segment after that point would be lost.
            self._sealed = True
            raise self._refused(error) from error
        self._segment.close()
        self._segment = following
        self._index.close()
        self._index = SparseIndexWriter(self._directory, head.base_offset, self._files)
        self.durable = following.end
        self.end = end_after(self.durable, self._unsynced)
        self._sealed = False

    def _refuse(self) -> NoReturn:
        raise LogFailed("The log has failed; repair the disk and reopen the store.", path=self._directory)

    def _refused(self, error: OSError) -> StoreFull | LogFailed:
        self._files.verify()
        refused = refusal(error, self._directory)
        self._failed = self._failed or (isinstance(refused, LogFailed) and not is_too_many_open(error))
        return refused
