"""Appending to a log, for its one writer.

* Batches follow each other without gaps, in bytes and in offsets; nothing after the durable end is promised to be
  durable.
* A file whose fsync failed is sealed: it is never written or trusted again. Before anything else, a new segment begins
  at the durable end with the batches after it. The kernel may have dropped the pages and marked them clean. The log
  stays sealed until the new segment exists.
* The end is the durable end plus the batches that wait for a sync, which are kept in memory. Refused batches are in
  neither.
* A short write is truncated, so that no batch ever follows half a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import LogFailed, StoreError, StoreFull
from kvstore.files import Files, refusal
from kvstore.log.segments import LogIdentity, read_sparse_index
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log import segment, sparse_index
from logformat.log.sparse_index import Entry

UNSYNCED_BYTES_MAX = 64 << 20
"""Limit of the bytes that wait for a sync; they are kept in memory, to be rewritten if the sync fails."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch ready to be appended."""

    base_offset: Offset
    next_offset: Offset
    timestamp: int
    pieces: Sequence[memoryview]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class LogEnd:
    """A position in a log: segment by base offset, byte in it, and the offset of the batch that begins there."""

    base: Offset
    position: Position
    offset: Offset


class Log:
    """The log of one bucket, opened for appending.

    Args:
        directory: Directory of its files.
        identity: The store, table and bucket that the log belongs to.
        end: End of the log and of the last segment's file; everything before it is durable.
        files: The disk.
        segment_bytes_max: See :class:`kvstore.options.StoreOptions`.
    """

    def __init__(
        self, directory: Path, identity: LogIdentity, end: LogEnd, files: Files, *, segment_bytes_max: int
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._files = files
        self._segment_bytes_max = segment_bytes_max
        self._end = self._durable = end
        self._unsynced: list[EncodedBatch] = []
        self._sealed = False
        self._failed = False
        files.hold(directory)
        try:
            self._descriptor = files.open(paths.segment_file(directory, end.base))
        except BaseException:
            files.let_go(directory)
            raise
        self._head = segment.decode_head(os.pread(self._descriptor, segment.HEAD_BYTES, 0))
        self._index = _SparseIndexFile(paths.sparse_index_file(directory, end.base), files)

    @property
    def end(self) -> LogEnd:
        """Position of the next batch."""
        return self._end

    @property
    def durable(self) -> LogEnd:
        """End of what is known to be durable."""
        return self._durable

    @property
    def trusted_end(self) -> Offset:
        """Offset up to which the log can be restored: its end, or its durable end once the disk has failed."""
        return self._durable.offset if self._failed else self._end.offset

    @property
    def has_lost(self) -> bool:
        """Whether the disk has failed permanently while appended batches were not durable."""
        return self._failed and bool(self._unsynced)

    @property
    def is_full(self) -> bool:
        """Whether the segment has reached its size limit, so that :meth:`roll` is due."""
        return self._end.position >= self._segment_bytes_max

    def unsynced(self, start: Offset) -> Iterator[memoryview]:
        """Batches from an offset to the trusted end that are not durable, including those that no file holds."""
        for batch in self._unsynced:
            if start <= batch.base_offset < self.trusted_end:
                yield memoryview(b"".join(batch.pieces))

    def append(self, batches: Sequence[EncodedBatch], *, durable: bool = False) -> None:
        """Write batches at the end; the next :meth:`sync` makes them durable.

        Args:
            durable: Whether to sync at once.

        Raises:
            StoreFull: No space. The log has what it had, and these batches never come back.
            LogFailed: The disk refused; the log can't be appended to until it is opened again.
            StoreReplaced: The store's path leads elsewhere. The batches are written all the same, where the log is now.
        """
        self._check()
        if self._sealed:
            self._leave_sealed_segment()
        count = len(self._unsynced)
        self._write(batches)
        self._unsynced.extend(batches)
        if durable or self._end.position - self._durable.position > UNSYNCED_BYTES_MAX:
            try:
                self.sync()
            except StoreError:
                self._take_back(count)
                raise
        self._files.check()

    def sync(self) -> None:
        """Make everything appended durable.

        Raises:
            StoreFull: The disk is full, so the batches of a failed fsync can't be rewritten. They are kept; the next
                call tries again.
            LogFailed: The disk failed twice; the log takes no appends until it is reopened.
        """
        self._check()
        if not self._unsynced:
            return
        if self._sealed:
            self._leave_sealed_segment()
        try:
            self._files.sync(self._descriptor)
        except OSError:
            self._sealed = True
            self._leave_sealed_segment()
            self._sync_again()
        self._index.note(self._unsynced, self._durable.position)
        self._durable = self._end
        self._unsynced = []

    def roll(self, writers: bytes) -> None:
        """Continue in a new segment, unless this one is still empty.

        Args:
            writers: The writers known at the end of the log, encoded.

        Raises:
            StoreFull: The disk is full. The log is unchanged.
            LogFailed: The disk failed; the log takes no appends until it is reopened.
        """
        self.sync()
        if self._end.offset == self._end.base:
            return
        if self._sealed:
            self._leave_sealed_segment()
            return
        try:
            self._files.publish(paths.writers_file(self._directory, self._end.offset), writers)
        except OSError as error:
            raise self._refused(error) from error
        self._begin_segment()

    def close(self) -> None:
        """Close the files; what was not synced may be lost in a power cut."""
        self._files.close(self._descriptor)
        self._index.close()
        self._files.let_go(self._directory)

    def _write(self, batches: Sequence[EncodedBatch]) -> None:
        start = self._end.position
        try:
            self._files.write(self._descriptor, [piece for batch in batches for piece in batch.pieces], start)
        except OSError as error:
            self._cut(start)  # half a batch must not stay where the next one goes
            raise self._refused(error) from error
        self._end = _end_after(self._end, batches)

    def _take_back(self, count: int) -> None:
        """After a failed sync, drop all but the first ``count`` unsynced batches: their append is refused."""
        self._unsynced = self._unsynced[:count]
        self._end = _end_after(self._durable, self._unsynced)
        if os.fstat(self._descriptor).st_size > self._end.position:
            # Until the next segment exists, recovery reads past the durable end.
            self._cut(self._end.position)
            with suppress(OSError):
                self._files.sync(self._descriptor)

    def _cut(self, position: Position) -> None:
        try:
            self._files.truncate(self._descriptor, position)
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
        if self._durable.offset != self._durable.base:
            # One that a roll left stands for a segment without bytes behind its end.
            try:
                with suppress(FileNotFoundError):
                    self._files.remove(paths.writers_file(self._directory, self._durable.offset))
            except OSError as error:
                raise self._refused(error) from error
        self._begin_segment()
        if not self._unsynced:
            return
        self._end = self._durable
        try:
            self._write(self._unsynced)
        except StoreError:
            self._sealed = True  # the new segment lacks what the old one had
            self._end = _end_after(self._durable, self._unsynced)
            raise

    def _sync_again(self) -> None:
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            self._sealed = True
            raise self._refused(error) from error

    def _begin_segment(self) -> None:
        """Begin a new segment at the durable end."""
        base, last = self._durable.offset, self._durable
        path = paths.segment_file(self._directory, base)
        identity = self._identity
        if base == last.base:
            # The failed segment has nothing durable: the new one takes its name and its predecessor.
            head = self._head
        else:
            head = segment.SegmentHead(
                identity.store_id, identity.table_id, identity.bucket_id, base, last.base, last.position
            )
        self._index.sync()
        try:
            descriptor = self._files.create(path, segment.encode_head(head))
        except OSError as error:
            # The file may already have its name; then appends to the old segment after that point would be lost.
            self._sealed = True
            raise self._refused(error) from error
        self._files.close(self._descriptor)
        self._descriptor, self._head = descriptor, head
        self._index.close()
        self._index = _SparseIndexFile(paths.sparse_index_file(self._directory, base), self._files)
        self._durable = LogEnd(base, Position(segment.HEAD_BYTES), base)
        self._end = _end_after(self._durable, self._unsynced)
        self._sealed = False

    def _check(self) -> None:
        if self._failed:
            raise LogFailed("The log has failed; repair the disk and reopen the store.", path=self._directory)

    def _refused(self, error: OSError) -> StoreFull | LogFailed:
        self._files.verify()
        refused = refusal(error, self._directory)
        self._failed = self._failed or isinstance(refused, LogFailed)
        return refused


def _end_after(place: LogEnd, batches: Sequence[EncodedBatch]) -> LogEnd:
    """End of batches that were written from a position on."""
    if not batches:
        return place
    return LogEnd(place.base, Position(place.position + sum(batch.size for batch in batches)), batches[-1].next_offset)


class _SparseIndexFile:
    """The sparse index of the segment being written. It is only a hint, so disk errors are ignored."""

    def __init__(self, path: Path, files: Files) -> None:
        self._files = files
        self._entries = 0
        self._last = Position(0)
        self._descriptor = -1
        try:
            entries = read_sparse_index(path, files)
            self._descriptor = files.open(path) if entries else files.create(path, sparse_index.encode([]))
            self._entries = len(entries)
            self._last = entries[-1].position if entries else Position(0)
        except OSError:
            self.close()

    def note(self, batches: Sequence[EncodedBatch], position: Position) -> None:
        """Add entries for batches that became durable, the first at ``position``."""
        entries = []
        for batch in batches:
            if not self._last or position - self._last >= sparse_index.INTERVAL_BYTES:
                entries.append(Entry(batch.base_offset, batch.timestamp, position))
                self._last = position
            position = Position(position + batch.size)
        if entries and self._descriptor >= 0:
            place = Position(sparse_index.HEAD_BYTES + self._entries * sparse_index.ENTRY_BYTES)
            encoded = memoryview(b"".join(map(sparse_index.encode_entry, entries)))
            try:
                self._files.write(self._descriptor, [encoded], place)
                self._entries += len(entries)
            except OSError:
                self.close()

    def sync(self) -> None:
        """Make all entries durable: once a next segment exists, recovery no longer reads this file."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._files.sync(self._descriptor)

    def close(self) -> None:
        """Close the file; later notes are ignored."""
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1
