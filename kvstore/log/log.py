"""Appending to a log: the one writer's side.

* Batches lie one behind the other, offsets without a gap; nothing behind the durable end was promised to be durable.
* A file whose fsync failed is never written or trusted again: it is sealed, and before anything else a new segment is
  begun at the durable end with what came after. The kernel may have dropped the pages and called them clean. The log
  stays sealed for as long as the new segment can't be begun.
* The end is the durable end and what waits for a sync, which is kept in memory. What was refused is in neither.
* A write that fell short is cut off again, so that nothing is ever appended behind half a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import LogFailed, StoreError, StoreFull
from kvstore.files import Files, refusal
from kvstore.log.segments import LogIdentity
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log import segment, sparse_index
from logformat.log.sparse_index import Entry

UNSYNCED_BYTES_MAX = 64 << 20
"""Bytes that may wait for a sync; they are kept in memory, to be written again should it fail."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch ready to be appended."""

    base_offset: Offset
    next_offset: Offset
    timestamp: int
    pieces: Sequence[memoryview]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class LogEnd:
    """A place in a log: in the segment of this base, at this position, before this offset."""

    base: Offset
    position: Position
    offset: Offset


class Log:
    """The log of one bucket, open for appending.

    Args:
        directory: Where its files are.
        identity: Whose log it is.
        end: Where it ends, and the segment's file too; all before it is durable.
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
        """Where the next batch goes."""
        return self._end

    @property
    def durable(self) -> LogEnd:
        """Where what is known to be durable ends."""
        return self._durable

    @property
    def trusted_end(self) -> Offset:
        """Offset up to which the log can be brought back: its end, or once the disk has failed its durable end."""
        return self._durable.offset if self._failed else self._end.offset

    @property
    def has_lost(self) -> bool:
        """Whether the disk has failed for good with batches that were appended and are not durable."""
        return self._failed and bool(self._unsynced)

    @property
    def is_full(self) -> bool:
        """Whether the segment has its size and :meth:`roll` is due."""
        return self._end.position >= self._segment_bytes_max

    def unsynced(self, start: Offset) -> Iterator[memoryview]:
        """Batches from an offset on, up to the trusted end, that are not durable; also those no file holds."""
        for batch in self._unsynced:
            if start <= batch.base_offset < self.trusted_end:
                yield memoryview(b"".join(batch.pieces))

    def append(self, batches: Sequence[EncodedBatch], *, durable: bool = False) -> None:
        """Write batches behind the end; they are durable after the next :meth:`sync`.

        Args:
            durable: Whether to sync at once.

        Raises:
            StoreFull: No space. The log has what it had, and these batches never come back.
            LogFailed: The disk refused; the log can't be appended to until it is opened again.
            StoreReplaced: The store's path leads elsewhere. The batches are written all the same, where the log is now.
        """
        self._check()
        if self._sealed:
            self._begin_again()
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
            StoreFull: No space to write anew what a failed fsync left behind. It is kept, and tried again next time.
            LogFailed: The disk refused, twice; the log can't be appended to until it is opened again.
        """
        self._check()
        if not self._unsynced:
            return
        if self._sealed:
            self._begin_again()
        try:
            self._files.sync(self._descriptor)
        except OSError:
            self._sealed = True
            self._begin_again()
            self._sync_again()
        self._index.note(self._unsynced, self._durable.position)
        self._durable = self._end
        self._unsynced = []

    def roll(self, writers: bytes) -> None:
        """Go on in a new segment, unless this one holds nothing yet.

        Args:
            writers: What is known of writers at the end of the log, encoded.

        Raises:
            StoreFull: No space. The log has what it had.
            LogFailed: The disk refused; the log can't be appended to until it is opened again.
        """
        self.sync()
        if self._end.offset == self._end.base:
            return
        if self._sealed:
            self._begin_again()
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
            self._cut(start)  # or half a batch would stay where the next one goes
            raise self._refused(error) from error
        self._end = _behind(self._end, batches)

    def _take_back(self, count: int) -> None:
        """Forget what waits for a sync but for the first ``count`` batches, after the sync failed: it was refused."""
        self._unsynced = self._unsynced[:count]
        self._end = _behind(self._durable, self._unsynced)
        if os.fstat(self._descriptor).st_size > self._end.position:
            # Until there is a next segment, recovery reads on behind the durable end.
            self._cut(self._end.position)
            with suppress(OSError):
                self._files.sync(self._descriptor)

    def _cut(self, position: Position) -> None:
        try:
            self._files.truncate(self._descriptor, position)
        except OSError as error:
            self._failed = True
            raise LogFailed(
                "The log can't be cut where it ends; mend the disk and reopen the store.",
                path=self._directory,
                reason=error.strerror,
            ) from error

    def _begin_again(self) -> None:
        """Leave a sealed file for a new segment, and write there what waits for a sync.

        Raises:
            StoreFull: No space. The log is sealed as before, and has what it had.
            LogFailed: The disk refused; the log can't be appended to until it is opened again.
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
            self._sealed = True  # the new one has not what the old one had
            self._end = _behind(self._durable, self._unsynced)
            raise

    def _sync_again(self) -> None:
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            self._sealed = True
            raise self._refused(error) from error

    def _begin_segment(self) -> None:
        """Go on in a new segment, begun at the durable end."""
        base, last = self._durable.offset, self._durable
        path = paths.segment_file(self._directory, base)
        identity = self._identity
        if base == last.base:
            # Nothing durable is in the segment that failed: the new one takes its name, and its predecessor.
            head = self._head
        else:
            head = segment.SegmentHead(
                identity.store_id, identity.table_id, identity.bucket_id, base, last.base, last.position
            )
        self._index.sync()
        try:
            descriptor = self._files.create(path, segment.encode_head(head))
        except OSError as error:
            # It may have its name already, and then batches behind the end of the old segment would be lost.
            self._sealed = True
            raise self._refused(error) from error
        self._files.close(self._descriptor)
        self._descriptor, self._head = descriptor, head
        self._index.close()
        self._index = _SparseIndexFile(paths.sparse_index_file(self._directory, base), self._files)
        self._durable = LogEnd(base, Position(segment.HEAD_BYTES), base)
        self._end = _behind(self._durable, self._unsynced)
        self._sealed = False

    def _check(self) -> None:
        if self._failed:
            raise LogFailed("The log failed before; mend the disk and reopen the store.", path=self._directory)

    def _refused(self, error: OSError) -> StoreFull | LogFailed:
        self._files.verify()
        refused = refusal(error, self._directory)
        self._failed = self._failed or isinstance(refused, LogFailed)
        return refused


def _behind(place: LogEnd, batches: Sequence[EncodedBatch]) -> LogEnd:
    """Where batches written from a place on end."""
    if not batches:
        return place
    return LogEnd(place.base, Position(place.position + sum(batch.size for batch in batches)), batches[-1].next_offset)


class _SparseIndexFile:
    """The sparse index of the segment being written. It is a hint, so a disk that refuses it is no failure."""

    def __init__(self, path: Path, files: Files) -> None:
        self._files = files
        self._entries = 0
        self._last = Position(0)
        self._descriptor = -1
        try:
            entries = sparse_index.decode(files.read(path)) if files.exists(path) else []
            self._descriptor = files.open(path) if entries else files.create(path, sparse_index.encode([]))
            self._entries = len(entries)
            self._last = entries[-1].position if entries else Position(0)
        except OSError:
            self.close()

    def note(self, batches: Sequence[EncodedBatch], position: Position) -> None:
        """Batches became durable, the first at ``position``."""
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
        """Make all entries durable: once there is a next segment, recovery looks into this file no more."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._files.sync(self._descriptor)

    def close(self) -> None:
        """Write no more."""
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1
