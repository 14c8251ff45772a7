"""Writing one segment of a log: its head, then batches one after the other (docs/format.md, Segment).

* A file has the name of a segment only once its head is durable, and everything else that was written before
  :func:`publish`.
* Appended batches are durable after the next sync. The caller syncs a segment before it begins the next one.
* After an error ``end`` is where it was, but the file may have bytes after it; the caller truncates it or gives it up.
* Small batches go where zeros were written ahead: a sync of bytes within a file's length costs less than one of a
  longer file. The zeros are no part of the log. They are cut off before the next segment begins, and at the end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from kvstore.disk.files import Files
from kvstore.log.segments import AHEAD_BYTES, LogEnd, LogIdentity, read_sparse_index
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log import sparse_index
from logformat.log.batch import BatchHeader
from logformat.log.segment import HEAD_BYTES, NO_OFFSET, START, SegmentHead, decode_head, encode_head
from logformat.log.sparse_index import Entry

SMALL_BYTES_MAX = 1 << 13
"""Small batches: larger ones take so long that zeros ahead of them would gain nothing."""


class EncodedBatch(NamedTuple):
    """A batch ready to be appended."""

    base_offset: Offset
    next_offset: Offset
    timestamp: int
    pieces: Sequence[memoryview]
    size: int
    """Of all pieces, in bytes."""

    @classmethod
    def of(cls, header: BatchHeader, pieces: Sequence[memoryview]) -> Self:
        """The batch with a header, in pieces."""
        last = header.base_offset + header.last_offset_delta
        return cls(header.base_offset, Offset(last + 1), header.commit_timestamp, pieces, sum(map(len, pieces)))


def head_at(base: Offset, identity: LogIdentity, previous: LogEnd | None = None) -> SegmentHead:
    """Head of a segment that begins at an offset.

    Args:
        previous: End of the segment before it; None for the first segment of a log.
    """
    before = (NO_OFFSET, START) if previous is None else (previous.base, previous.position)
    return SegmentHead(identity.store_id, identity.table_id, identity.bucket_id, base, *before)


def end_after(end: LogEnd, batches: Sequence[EncodedBatch]) -> LogEnd:
    """End of batches that were written from a position on."""
    if not batches:
        return end
    position = Position(end.position + sum([batch.size for batch in batches]))
    return LogEnd(end.base, position, batches[-1].next_offset)


class SegmentWriter:
    """Writes one segment file.

    Attributes:
        head: The segment's head.
        end: Where the next batch goes.
    """

    def __init__(self, descriptor: int, head: SegmentHead, end: LogEnd, files: Files) -> None:
        self.head = head
        self.end = end
        self._ahead_end = end.position
        self._descriptor = descriptor
        self._files = files

    @classmethod
    def begin(cls, log: Path, head: SegmentHead, files: Files) -> Self:
        """Create a segment with its head, durably; it replaces a file of its name.

        Raises:
            OSError: The disk refuses. The file may have its name already.
        """
        descriptor = files.create(paths.segment_file(log, head.base_offset), encode_head(head))
        return cls(descriptor, head, _start(head), files)

    @classmethod
    def begin_temporary(cls, log: Path, head: SegmentHead, files: Files) -> Self:
        """Begin a segment under a temporary name, which recovery removes; :func:`publish` renames it.

        Raises:
            OSError: The disk refuses. The temporary file may remain.
        """
        path = temporary_file(log, head.base_offset)
        if os.path.lexists(path):
            files.remove(path)
        descriptor = files.open(path, create=True)
        try:
            files.write(descriptor, [memoryview(encode_head(head))], 0)
        except BaseException:
            files.close(descriptor)
            raise
        return cls(descriptor, head, _start(head), files)

    @classmethod
    def resume(cls, log: Path, end: LogEnd, files: Files) -> Self:
        """Open an existing segment for appending at its end.

        Raises:
            CorruptBatch: The head is damaged.
            OSError: The file is missing, or the disk refuses.
        """
        descriptor = files.open(paths.segment_file(log, end.base))
        return cls(descriptor, decode_head(os.pread(descriptor, HEAD_BYTES, 0)), end, files)

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return os.fstat(self._descriptor).st_size

    def _fill_ahead(self) -> None:
        end = self.end.position
        try:
            self._ahead_end = Position(end + AHEAD_BYTES)
            self._files.fill(self._descriptor, end, AHEAD_BYTES)
        except OSError:
            self.truncate(self.end)  # there may be room for the batch

    def cut_ahead(self) -> bool:
        """Cut off the zeros after the end; returns whether there were any.

        Raises:
            OSError: The disk refuses.
        """
        had_room = self._ahead_end > self.end.position
        if had_room:
            self.truncate(self.end)
        return had_room

    def append(self, batches: Sequence[EncodedBatch], *, fills: bool = False) -> None:
        """Write batches at the end.

        Args:
            fills: Whether to have zeros there first, if the batches are small; on a full disk there may be none.

        Raises:
            OSError: The disk refuses. Half a batch may be in the file after ``end``.
        """
        base, position, _ = self.end
        pieces = batches[0].pieces if len(batches) == 1 else [piece for batch in batches for piece in batch.pieces]
        after = Position(position + sum([batch.size for batch in batches]))
        if fills and after > self._ahead_end and after - position <= SMALL_BYTES_MAX:
            self._fill_ahead()
        self._files.write(self._descriptor, pieces, position)
        self.end = LogEnd(base, after, batches[-1].next_offset)

    def truncate(self, end: LogEnd) -> None:
        """Remove what the file has after an earlier end.

        Raises:
            OSError: The disk refuses.
        """
        self._files.truncate(self._descriptor, end.position)
        self.end = end
        self._ahead_end = end.position

    def sync(self) -> None:
        """Make everything appended durable.

        Raises:
            OSError: The sync failed: the file is not to be trusted any more.
        """
        self._files.sync(self._descriptor)

    def close(self) -> None:
        """Close the file without a sync."""
        self._files.close(self._descriptor)

    def finish(self) -> None:
        """Sync the segment and close it.

        Raises:
            OSError: The sync failed. The file is closed.
        """
        try:
            self.sync()
        finally:
            self.close()


def temporary_file(log: Path, base: Offset) -> Path:
    """Path of a segment that :meth:`SegmentWriter.begin_temporary` writes."""
    path = paths.segment_file(log, base)
    return path.with_name(path.name + paths.TEMPORARY)


def publish(log: Path, base: Offset, files: Files) -> None:
    """Give a finished temporary segment its name, durably; it replaces a file of that name.

    Raises:
        OSError: The disk refuses. The file has one of the two names.
    """
    path = paths.segment_file(log, base)
    files.rename(temporary_file(log, base), path)
    files.sync_directory(log)


def _start(head: SegmentHead) -> LogEnd:
    return LogEnd(head.base_offset, Position(HEAD_BYTES), head.base_offset)


class SparseIndexWriter:
    """Writes the sparse index of the segment being written. It is only a hint, so disk errors are ignored."""

    def __init__(self, log: Path, base: Offset, files: Files) -> None:
        path = paths.sparse_index_file(log, base)
        self._files = files
        self._entries = 0
        self._last: Position | None = None
        self._descriptor = -1
        try:
            entries = read_sparse_index(path, files)
            self._descriptor = files.open(path) if entries else files.create(path, sparse_index.encode([]))
            self._entries = len(entries)
            self._last = entries[-1].position if entries else None
        except OSError:
            self.close()

    def add(self, batches: Sequence[EncodedBatch], position: Position) -> None:
        """Add entries for batches that became durable, the first at ``position``."""
        entries = []
        for batch in batches:
            if sparse_index.is_due(position, self._last):
                entries.append(Entry(batch.base_offset, batch.timestamp, position))
                self._last = position
            position = Position(position + batch.size)
        if entries and self._descriptor >= 0:
            index_end = Position(sparse_index.HEAD_BYTES + self._entries * sparse_index.ENTRY_BYTES)
            encoded = memoryview(b"".join(map(sparse_index.encode_entry, entries)))
            try:
                self._files.write(self._descriptor, [encoded], index_end)
                self._entries += len(entries)
            except OSError:
                self.close()

    def sync(self) -> None:
        """Make all entries durable: once a next segment exists, recovery no longer reads this file."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._files.sync(self._descriptor)

    def close(self) -> None:
        """Close the file; entries added later are ignored."""
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1
