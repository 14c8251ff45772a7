"""Reading a log's files: its segments, their ends, and the batches in them.

* Any process may read while another appends: a reader stops at a given end, which is never beyond what the writer has
  finished.
* Nothing is trusted before its checksum is verified.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import numpy as np

from kvstore.disk.address_space import mapped
from kvstore.disk.files import Files, data_ranges, no_file, open_file, refusals, size_of
from kvstore.errors import CorruptBatch, CorruptData, OffsetOutOfRange
from logformat import paths
from logformat.ids import OFFSET_MAX, BucketId, Offset, Position, TableId
from logformat.log import sparse_index
from logformat.log.batch import ALIGNMENT, MAGIC, BatchHeader, decode_header, verify
from logformat.log.segment import HEAD_BYTES, SEGMENT_BYTES_MAX, decode_head

AHEAD_BYTES = 1 << 16
"""Zeros that a writer puts at the end of the last segment at a time, for small batches to go there."""
_OPEN_MAX = 2
"""Segments kept open: the one being read, and the one before or after it."""
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The store, table and bucket of a log; every segment and batch repeats them, so a misplaced file is detected."""

    store_id: UUID
    table_id: TableId
    bucket_id: BucketId


class LogEnd(NamedTuple):
    """A position in a log: segment by base offset, byte in it, and the offset of the batch that begins there."""

    base: Offset
    position: Position
    offset: Offset


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch and its position.

    Attributes:
        data: The whole batch, verified; a view of the mapped file.
    """

    header: BatchHeader
    data: memoryview
    path: Path
    position: Position

    @property
    def end(self) -> Position:
        """Position of the next batch."""
        return Position(self.position + self.header.size)

    @property
    def after(self) -> LogEnd:
        """Where the batch after this one may begin."""
        base = paths.segment_base(self.path.name)
        assert base is not None
        return LogEnd(base, self.end, self.header.next_offset)


class Mark(NamedTuple):
    """Position of a batch according to a sparse index."""

    base: Offset
    offset: Offset
    position: Position


class Segment:
    """The file of one segment, mapped into memory.

    Raises:
        CorruptBatch: Its head is damaged, or another log's, or the file is larger than a segment can be.
        NotAStore: It is a link, or no file at all.
    """

    def __init__(self, log: Path, base: Offset, identity: LogIdentity, files: Files | None = None) -> None:
        self.path = paths.segment_file(log, base)
        self.base = base
        self._identity = identity
        self._files = files or Files()
        self._map = memoryview(b"")
        self._extend()
        try:
            self.head = decode_head(self._map[:HEAD_BYTES])
        except CorruptBatch as error:
            raise CorruptBatch(error.message, path=self.path, position=0) from error
        head = self.head
        if head.base_offset != base or LogIdentity(head.store_id, head.table_id, head.bucket_id) != identity:
            raise CorruptBatch("A log segment belongs to another log; run `kvstore check`.", path=self.path)

    @property
    def size(self) -> int:
        """Size in bytes of the mapped file."""
        return len(self._map)

    def batch_at(self, position: Position, expected: Offset, *, counts_only: bool = False) -> FoundBatch:
        """The batch at a position.

        Args:
            expected: The offset it must begin with.
            counts_only: Whether only offsets and numbers of records are used. The checksum, which reads the whole
                batch, is then verified only of a batch without a record for each of its offsets. In any other, the
                number of records and the last offset say the same, so damage to one of them shows.

        Raises:
            CorruptBatch: There is no batch at the position, or it is damaged.
        """
        if position + sparse_index.INTERVAL_BYTES >= len(self._map):
            self._extend()
        data = self._map[position:]
        try:
            header = decode_header(data)
            if position + header.size > len(self._map):
                self._extend()
                data = self._map[position:]
            counts_agree = header.record_count == header.next_offset - header.base_offset
            if not (counts_only and counts_agree and len(data) >= header.size):
                verify(header, data)
        except CorruptBatch as error:
            raise self._corrupt(error.message, position, expected) from error
        if (header.table_id, header.bucket_id) != (self._identity.table_id, self._identity.bucket_id):
            raise self._corrupt("A batch belongs to another log; run `kvstore check`.", position, expected)
        if header.base_offset != expected:
            raise self._corrupt(
                f"A batch has base offset {header.base_offset}; run `kvstore check`.", position, expected
            )
        return FoundBatch(header, data[: header.size], self.path, position)

    def has_batch(self, position: Position) -> bool:
        """Whether the file has more than zeros now where a batch may begin."""
        # Not through the map: if the zeros were cut off meanwhile, a look at them would end the process.
        with suppress(FileNotFoundError), open_file(self.path, self._files) as file:
            return any(os.pread(file.fileno(), ALIGNMENT, position))
        return False

    def bytes_with_batches(self) -> int:
        """Size of the file without the zeros at its end; approximate, because a batch may end in zeros, too."""
        with suppress(FileNotFoundError), open_file(self.path, self._files) as file:
            size = os.fstat(file.fileno()).st_size
            zeros = os.pread(file.fileno(), AHEAD_BYTES, max(size - AHEAD_BYTES, 0))
            return size - (len(zeros) - len(zeros.rstrip(b"\0"))) // ALIGNMENT * ALIGNMENT
        return len(self._map)

    def bytes_from(self, position: Position) -> memoryview:
        """The rest of the file."""
        self._extend()
        return self._map[position:]

    def possible_batches(self, position: Position) -> Iterator[memoryview]:
        """The rest of the file from each place on at which a batch of magic 3 may begin."""
        self._extend()
        with open_file(self.path, self._files) as file:
            for start in places_of_batches(file.fileno(), position, len(self._map)):
                yield self._map[start:]

    def sparse_index(self) -> list[sparse_index.Entry]:
        """What the sparse index says; it may be wrong."""
        return read_sparse_index(self.path.with_suffix(".index"), self._files)

    def _extend(self) -> None:
        try:
            file = open_file(self.path, self._files)
        except FileNotFoundError:
            if not self._map:
                raise
            return  # removed meanwhile; the map stays valid, and only complete segments are removed
        except OSError as error:
            raise no_file(error, self.path) or error from error
        with file:
            while (size := self._size(file.fileno())) != len(self._map):
                # The old map lives on for as long as rows are views of it.
                with suppress(ValueError):  # its writer has cut off the zeros ahead: the file is shorter than it was
                    self._map = mapped(file.fileno(), size, self.path)
                    return

    def _size(self, descriptor: int) -> int:
        return size_of(descriptor, self.path, bytes_max=SEGMENT_BYTES_MAX, error=CorruptBatch)

    def _corrupt(self, message: str, position: Position, expected: Offset) -> CorruptBatch:
        return CorruptBatch(message, path=self.path, position=position, offset=expected)


def ends_at(path: Path, size: int, position: Position, files: Files) -> bool:
    """Whether a segment's batches end at a position: its file ends there, or with zeros that were written ahead.

    Args:
        size: Size of the file.
    """
    rest = size - position
    if rest <= 0 or rest > AHEAD_BYTES:
        return rest == 0
    with suppress(FileNotFoundError), open_file(path, files) as file:
        return os.pread(file.fileno(), rest, position) == bytes(rest)
    return False


def read_sparse_index(path: Path, files: Files) -> list[sparse_index.Entry]:
    """What a sparse index says; nothing if the file is missing, or larger than one can be: it is only a hint."""
    try:
        return sparse_index.decode(files.read(path, bytes_max=sparse_index.SPARSE_INDEX_BYTES_MAX))
    except (FileNotFoundError, CorruptData):
        return []


def places_of_batches(descriptor: int, start: int, end: int) -> Iterator[int]:
    """Places in a segment at which a batch of magic 3 may begin; what is no such place is ruled out without a checksum.

    Memory for a piece at a time is enough, and holes of the file are not read.

    Args:
        start: A multiple of the alignment.
    """
    for begin, stop in data_ranges(descriptor, start, end):
        for at in range(begin // ALIGNMENT * ALIGNMENT, stop, _PIECE_BYTES):
            piece = os.pread(descriptor, min(_PIECE_BYTES, stop - at), at)
            lines = np.frombuffer(piece, np.uint8, len(piece) // ALIGNMENT * ALIGNMENT).reshape(-1, ALIGNMENT)
            yield from (at + int(line) * ALIGNMENT for line in np.flatnonzero(lines[:, 12] == MAGIC))


class LogFiles:
    """The segments of one log, for reading.

    Args:
        files: Of the store that it belongs to, if that is open.
        back_offset: From where on no commit timestamp is less than the one before; see
            :class:`logformat.log.index_state.IndexState`. Asked only by those that look for a time.
    """

    def __init__(
        self,
        directory: Path,
        identity: LogIdentity,
        files: Files | None = None,
        back_offset: Callable[[], Offset] = lambda: Offset(0),
    ) -> None:
        self.back_offset = back_offset
        self._directory = directory
        self._identity = identity
        self._files = files or Files()
        self._bases: list[Offset] = []
        self._open: dict[Offset, Segment] = {}  # the last used is the last
        self._reached: LogEnd | None = None

    def bases(self) -> list[Offset]:
        """Base offsets of all segments in order, as the directory lists them now; a log has at least one.

        Raises:
            CorruptBatch: There are no segments.
            NotAStore: The path is not a directory.
        """
        names = map(paths.segment_base, self._files.names_in(self._directory))
        self._bases = sorted(base for base in names if base is not None)
        if not self._bases:
            self._files.verify()
            raise CorruptBatch("The log of a bucket is missing; restore it from a copy.", path=self._directory)
        return self._bases

    def start(self) -> Offset:
        """The first offset of the log."""
        return self.bases()[0]

    def segment(self, base: Offset) -> Segment:
        """A segment by its base offset.

        Raises:
            OffsetOutOfRange: The segment was removed.
            CorruptBatch: The segment is missing, or its head is damaged.
        """
        segment = self._open.pop(base, None) or self._opened(base)
        self._open[base] = segment
        if len(self._open) > _OPEN_MAX:
            # Each map holds a descriptor until the last batch that is a view of it is gone.
            del self._open[next(iter(self._open))]
        return segment

    def _opened(self, base: Offset) -> Segment:
        try:
            return Segment(self._directory, base, self._identity, self._files)
        except FileNotFoundError as error:
            if base < self.start():
                raise self._out_of_range(base) from error
            self._files.verify()
            raise CorruptBatch(
                "A segment of the log is missing; run `kvstore check`.",
                path=paths.segment_file(self._directory, base),
                offset=base,
            ) from error

    def sync(self, start: Offset) -> None:
        """Make durable what the files have from an offset on, which another process has written.

        Raises:
            StoreError: The disk failed.
        """
        first = self._base_of(start)
        for base in (base for base in self.bases() if base >= first):
            path = paths.segment_file(self._directory, base)
            with refusals(path):
                descriptor = self._files.open_name(path, os.O_RDONLY)
                try:
                    self._files.sync(descriptor)
                finally:
                    os.close(descriptor)
        with refusals(self._directory):
            self._files.sync_directory(self._directory)

    def batches(self, start: Offset, end: Offset, *, counts_only: bool = False) -> Iterator[FoundBatch]:
        """Batches that contain offsets from ``start`` to ``end`` (exclusive), in order; the first may begin earlier.

        Args:
            end: ``OFFSET_MAX`` reads whatever is in the files now, and then raises CorruptBatch.
            counts_only: See :meth:`Segment.batch_at`.

        Raises:
            OffsetOutOfRange: The log begins after ``start``, possibly only once the iterator continues.
            CorruptBatch: A batch or the chain of segments is damaged.
        """
        if start < end:
            base = self._base_of(start)
            begin = self._reached
            if begin is None or begin.offset != start:
                expected, position = self._near(base, start)
                begin = LogEnd(base, position, expected)
            yield from self._batches(begin, start, end, counts_only)

    def rest(self) -> None:
        """Close the files until there is more to read, which goes on where the last batch ended."""
        self._open.clear()

    def batches_at(self, begin: LogEnd, end: Offset) -> Iterator[FoundBatch]:
        """Batches from a known place on, up to an offset; raises what :meth:`batches` raises."""
        if begin.offset < end:
            self._base_of(begin.offset)
            yield from self._batches(begin, begin.offset, end, counts_only=False)

    def position_of(self, offset: Offset) -> LogEnd:
        """Where the batch begins that has an offset as its first, or where the log ends with it.

        Raises:
            OffsetOutOfRange: The log begins after the offset.
            CorruptBatch: The log is damaged, or no batch begins or ends there.
        """
        base = self._base_of(offset)
        expected, position = self._near(base, offset)
        reached = LogEnd(base, position, expected)
        for batch in self._batches(reached, expected, offset, counts_only=True):
            reached = batch.after
        if reached.offset != offset:
            raise CorruptBatch("No batch of a log begins where it should; run `kvstore check`.", offset=offset)
        return reached

    def _batches(self, begin: LogEnd, start: Offset, end: Offset, counts_only: bool) -> Iterator[FoundBatch]:
        base, position, expected = begin
        while expected < end:
            if end == OFFSET_MAX:
                self._look(base, position, expected)
            batch, base = self._next(base, position, expected, counts_only)
            expected, position = batch.header.next_offset, batch.end
            self._reached = LogEnd(base, position, expected)
            if expected > start:
                yield batch

    def first_at_or_after(self, timestamp: int, end: Offset) -> Offset:
        """Base offset of the first batch not older than a time (ms); ``end`` if all are."""
        start = self.start()
        back = min(max(start, self.back_offset()), end)
        for batch in self.batches(start, back):  # timestamps do not rise there, so nothing can be left out
            if batch.header.commit_timestamp >= timestamp:
                return batch.header.base_offset
        if back >= end:
            return end
        base = self._base_of(back)
        for candidate in self._bases[self._bases.index(base) + 1 :]:
            entries = self.segment(candidate).sparse_index() if candidate < end else []
            if candidate >= end or not entries or entries[0].timestamp >= timestamp:
                break
            base = candidate
        entries = [entry for entry in self.segment(base).sparse_index() if entry.offset >= back]
        entry = sparse_index.before_time(entries, timestamp)
        for batch in self.batches(entry.offset if entry else max(base, back), end):
            if batch.header.commit_timestamp >= timestamp:
                return batch.header.base_offset
        return end

    def first_counted_after(self, counted_ms: int, end: Offset) -> Offset:
        """Base offset of the first batch of a later counted time, which never goes back; ``end`` if there is none."""
        start = self.start()
        marks = self.marks(start, end)
        low, high = 0, len(marks)
        while low < high:
            middle = (low + high) // 2
            batch = self.marked(marks[middle])
            if batch is None or batch.header.counted_ms > counted_ms:
                high = middle
            else:
                low = middle + 1
        for batch in self.batches(marks[low - 1].offset if low else start, end):
            if batch.header.counted_ms > counted_ms:
                return batch.header.base_offset
        return end

    def commit_end(self, start: Offset, end: Offset, records: int) -> Offset:
        """The end of a read of whole batches: at most ``records`` records, but at least one batch.

        Args:
            start, end: Batch boundaries: the start of the read, and its upper limit.

        Raises:
            OffsetOutOfRange: The log no longer has ``start``.
        """
        if end - start <= records:
            return end
        header = next(self.batches(Offset(start + records), end)).header
        return header.base_offset if header.base_offset > start else header.next_offset

    def bytes_between(self, start: Offset, end: Offset) -> int:
        """Approximate bytes of a range of offsets, rounded to entries of the sparse index."""
        _, first, last = self._places(start, end)
        return last - first

    def split(self, start: Offset, end: Offset, parts: int) -> list[tuple[Offset, Offset]]:
        """Split a range of offsets at batches that the sparse indexes list.

        Args:
            parts: Maximum number of parts, of about equal size in bytes.
        """
        inner, first, last = self._places(start, end)
        places = [first + (last - first) * part // parts for part in range(1, parts)]
        nearest = (bisect_right(inner, (place, Offset(0))) for place in places)
        cuts = sorted({inner[at][1] for at in nearest if at < len(inner)})
        return list(pairwise([start, *cuts, end]))

    def marks(self, start: Offset, end: Offset) -> list[Mark]:
        """Batches between two offsets (exclusive) that the sparse indexes list, in order; they may be wrong."""
        return [
            Mark(base, entry.offset, entry.position)
            for base in self._bases_between(start, end)
            for entry in self.segment(base).sparse_index()
            if start < entry.offset < end
        ]

    def marked(self, mark: Mark) -> FoundBatch | None:
        """The batch at a mark; None if the sparse index was wrong."""
        try:
            return self.segment(mark.base).batch_at(mark.position, mark.offset)
        except CorruptBatch:
            return None

    def _places(self, start: Offset, end: Offset) -> tuple[list[tuple[int, Offset]], int, int]:
        """Relative byte positions of the listed batches between two offsets, and of the start and the end."""
        known: list[tuple[int, Offset]] = []
        size = 0
        for base in self._bases_between(start, end):
            segment = self.segment(base)
            known += [(size + entry.position, entry.offset) for entry in segment.sparse_index()]
            size += segment.bytes_with_batches()
        inner = [(place, offset) for place, offset in known if start < offset < end]
        first = max((place for place, offset in known if offset <= start), default=0)
        last = min((place for place, offset in known if offset >= end), default=size)
        return inner, first, last

    def _bases_between(self, start: Offset, end: Offset) -> list[Offset]:
        """Segments that may overlap a range."""
        bases = self.bases()
        return bases[max(bisect_right(bases, start) - 1, 0) : bisect_right(bases, end - 1)]

    def _look(self, base: Offset, position: Position, expected: Offset) -> None:
        """Verify that a batch is to be read next: at the position, or in a segment that begins after it.

        Raises:
            CorruptBatch: The log goes on no further.
        """
        segment = self.segment(base)
        if not segment.has_batch(position) and bisect_right(self.bases(), base) == len(self._bases):
            raise CorruptBatch("No batch is here yet.", path=segment.path, position=position, offset=expected)

    def _next(self, base: Offset, position: Position, expected: Offset, counts_only: bool) -> tuple[FoundBatch, Offset]:
        following = self._following(base, position)
        if following is not None:
            ends = self.segment(following).head.previous_end
            if position == ends and expected == following:
                first = Position(HEAD_BYTES)
                return self.segment(following).batch_at(first, expected, counts_only=counts_only), following
            if position >= ends:
                raise CorruptBatch(
                    "A segment of the log is missing, or does not end where the next begins; run `kvstore check`.",
                    path=self.segment(base).path,
                    position=position,
                    offset=expected,
                )
        return self.segment(base).batch_at(position, expected, counts_only=counts_only), base

    def _following(self, base: Offset, position: Position) -> Offset | None:
        number = bisect_right(self._bases, base)
        # Segments exist before any reader learns of their offsets. Only a reader with an end that is too far reaches
        # the end of the last known segment, and by then there may be another one.
        if number == len(self._bases) and position >= self.segment(base).size:
            number = bisect_right(self.bases(), base)
        return self._bases[number] if number < len(self._bases) else None

    def _base_of(self, offset: Offset) -> Offset:
        number = bisect_right(self.bases(), offset)
        if not number:
            raise self._out_of_range(offset)
        return self._bases[number - 1]

    def _out_of_range(self, offset: Offset) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            "The log does not hold this offset any more; start at `earliest`.", offset=offset, log_start=self._bases[0]
        )

    def _near(self, base: Offset, offset: Offset) -> tuple[Offset, Position]:
        """The nearest batch at or before an offset that the sparse index lists."""
        entry = sparse_index.at_offset(self.segment(base).sparse_index(), offset)
        if entry is not None and self.marked(Mark(base, entry.offset, entry.position)) is not None:
            return entry.offset, entry.position
        return base, Position(HEAD_BYTES)  # an entry is a hint: reading from here shows whether the log is damaged


class KnownEnd:
    """Where the whole batches in a log's files end, and what its last file was when that was last read.

    * A file is remembered only if it ended where its last batch did, or had zeros there: until it is written again, it
      has no other batch. Its size and its times may stay as they are then, so these zeros are looked at each time.

    Args:
        directory: Of the log.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._known: _Known | None = None

    def after(self, offset: Offset, log: LogFiles) -> Offset:
        """Where the whole batches that follow an offset end, in the files as they are now.

        Args:
            offset: The end of a batch, or of an empty log.
        """
        known = self._known
        if known is not None and known.end == offset and self._still_ends(known):
            return offset
        self._known, end = None, offset
        with suppress(CorruptBatch):  # the log is missing
            start = log.start()
            path, position = paths.segment_file(self._directory, start), Position(HEAD_BYTES)
            with suppress(CorruptBatch):  # at the end of the log, or at half a batch
                for batch in log.batches(max(Offset(offset - 1), start), OFFSET_MAX):
                    end, path, position = batch.header.next_offset, batch.path, batch.end
            version = self._version(path)
            if end == offset and version is not None:
                # Another file that has the batch at the offset is named after it.
                known = _Known(offset, path, position, version, paths.segment_file(self._directory, offset))
                self._known = known if self._is_last(known) else None
        return max(end, offset)

    def _still_ends(self, known: _Known) -> bool:
        if self._version(known.path) != known.version or not self._is_last(known):
            return False
        return known.path == known.following or not self._files.exists(known.following)

    def _is_last(self, known: _Known) -> bool:
        return ends_at(known.path, known.version.size, known.position, self._files)

    def _version(self, path: Path) -> _Version | None:
        status = self._files.status(path)
        return None if status is None else _Version(status.st_ino, status.st_size, status.st_mtime_ns)


class _Known(NamedTuple):
    """The last file of a log.

    Attributes:
        end: Where its last batch ends.
        position: The same in the file.
        following: The file that the next batch would be in, if it is not this one.
    """

    end: Offset
    path: Path
    position: Position
    version: _Version
    following: Path


class _Version(NamedTuple):
    """What differs when a file was written or replaced: also one that was cut may have its old size again."""

    number: int
    size: int
    changed_ns: int
