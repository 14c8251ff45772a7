"""The log of a bucket, for programs that inspect or watch a store.

* Batches can be read up to the end that :meth:`kvstore.Table.committed` says; what comes after may be half written.
* Nothing is decoded that was not asked for: segments are known by the names of files, batches by their headers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

from kvstore.arguments import integer, integer_within, shown
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import InvalidRequest, OffsetOutOfRange
from kvstore.history.origin import Origin, Origins
from kvstore.log.segments import FoundBatch, LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.read.binlog import binlog_of, binlog_schema, changelog_columns
from kvstore.read.changelog import changes_between, milliseconds
from logformat import paths
from logformat.ids import BucketId, Offset, Position
from logformat.log.segment import HEAD_BYTES

PROBED_BYTES = 4 << 20
"""A log up to this size is sampled at any offset; a larger one only where its files list batches."""

TIMES_MAX = 100_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogSegment:
    """A segment of a log.

    Attributes:
        start, end: Its offsets; ``end`` is exclusive.
        name: Name of its file.
    """

    start: Offset
    end: Offset
    name: str


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """What is in the file of a segment.

    Attributes:
        bytes: Size of its batches and its head.
        first_ms: Commit time of its first batch, in milliseconds since the Unix epoch; None if it has none.
    """

    bytes: int
    first_ms: int | None


@dataclass(frozen=True, slots=True)
class LoggedBatch(FoundBatch):
    """A batch of the log.

    Attributes:
        header: Its header.
        data: The whole batch, verified; a view of the mapped file.
        path: File of the segment that it is in.
        position: Where in the file it begins, in bytes.
        origin: Who wrote it, by what the catalog says now.
    """

    origin: Origin


class BucketLog:
    """The log of a bucket, for one thread. Made by :attr:`kvstore.Bucket.log`.

    Args:
        handle: The bucket.
        current: Returns the definition by which columns are called.
        latest: Returns the one that has the schemas of all changes.
        origins: Returns who wrote batches, by what the catalog says now.
    """

    def __init__(
        self,
        handle: BucketHandle,
        current: Callable[[], TableDefinition],
        latest: Callable[[], TableDefinition],
        origins: Callable[[], Origins],
    ) -> None:
        self._files: LogFiles = handle.log
        self._handle = handle
        self._current = current
        self._latest = latest
        self._origins = origins
        self._bucket: BucketId = handle.identity.bucket_id

    def start(self) -> Offset:
        """The first offset that the log holds.

        Raises:
            CorruptBatch: The log is missing.
        """
        return self._files.start()

    def end(self) -> Offset:
        """The offset after every change that any process has acknowledged.

        Of what another process writes, this is where the whole batches of the log's files end, also of those that it
        writes now.

        Raises:
            CorruptData: The index or the log is damaged.
        """
        return self._handle.state().applied_offset

    def segments(self) -> list[LogSegment]:
        """All segments in order, from the names of their files; the last one is still written.

        Raises:
            CorruptBatch: The log is missing.
        """
        end = self._committed()
        bases = self._files.bases()
        bases = [base for base in bases if base < end] or bases[:1]
        return [
            LogSegment(base, stop, paths.segment_file(self._handle.paths.log, base).name)
            for base, stop in pairwise([*bases, end])
        ]

    def segment(self, segment: LogSegment) -> SegmentContent:
        """What is in a segment; reads its first batch.

        Raises:
            OffsetOutOfRange: The segment has expired.
            CorruptBatch: It is missing, or its head or its first batch is damaged.
        """
        stored = self._files.segment(segment.start)
        is_empty = segment.end <= segment.start
        timestamp = None if is_empty else stored.batch_at(Position(HEAD_BYTES), segment.start).header.commit_timestamp
        return SegmentContent(stored.bytes_with_batches(), timestamp)

    def batches(self, start: int, end: int) -> Iterator[LoggedBatch]:
        """Batches that contain offsets from ``start`` to ``end`` (exclusive), in order; the first may begin earlier.

        Raises:
            InvalidRequest: ``end`` comes before ``start``, or one is no offset.
            OffsetOutOfRange: The log does not hold them; the iterator raises it, too, if they expire meanwhile.
            CorruptBatch: A batch or the chain of segments is damaged; the iterator raises it.
        """
        within = self._within(start, end)
        origins = self._origins()
        return (
            LoggedBatch(each.header, each.data, each.path, each.position, origins.of(each.header))
            for each in self._files.batches(*within)
        )

    def binlog(
        self, batches: Iterable[LoggedBatch], start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The changes of some batches, as :meth:`kvstore.Table.binlog` has them.

        Of a WAL image too: there an update has no row before.

        Args:
            batches: Some of :meth:`batches`, in order.
            start, end: Only changes at these offsets; an update belongs to those that have its second half.
            columns: Columns of the rows before and after; all if None.

        Raises:
            SchemaMismatch: There is no such column.
            CorruptBatch: A batch is damaged.
        """
        definition = self._latest().named_as(self._current())
        schema = binlog_schema(definition, columns)
        names = changelog_columns(schema)
        within = Offset(start), Offset(end)
        return binlog_of(changes_between(batches, definition, self._bucket, *within, names, whole_updates=True), schema)

    def bytes_between(self, start: int, end: int) -> int:
        """Approximate bytes of a range of offsets.

        Raises:
            InvalidRequest: ``end`` comes before ``start``, or one is no offset.
            OffsetOutOfRange: The log does not hold them.
            CorruptBatch: A segment is missing, or its head is damaged.
        """
        return self._files.bytes_between(*self._within(start, end))

    def offset_at(self, time: dt.datetime) -> Offset:
        """The first offset of the first commit at or after a time; the log's end if there is none.

        Raises:
            InvalidRequest: It is no time, or has no time zone.
            CorruptBatch: A batch is damaged.
        """
        if not isinstance(time, dt.datetime):
            raise InvalidRequest("Give a time, as a datetime with a time zone.", given=shown(time))
        return self._files.first_at_or_after(milliseconds(time), self._committed())

    def commit_times(self, most: int) -> dict[Offset, int]:
        """Commit times of some batches, by their first offsets: how the log grew.

        They come from the first batches of segments and from sparse indexes; a small log is sampled between them, too.

        Args:
            most: About so many.

        Returns:
            Milliseconds since the Unix epoch, in order of offsets; none if the log is empty.

        Raises:
            InvalidRequest: ``most`` is not a number from 1 to 100,000.
            CorruptBatch: A batch is damaged.
        """
        most = integer_within("most", most, 1, TIMES_MAX)
        log, end, start = self._files, self._committed(), self._files.start()
        if start >= end:
            return {}
        bases = [base for base in log.bases() if base < end]
        headers = {base: log.segment(base).batch_at(Position(HEAD_BYTES), base).header for base in _some(bases, most)}
        times = {base: header.commit_timestamp for base, header in headers.items()}
        for base in bases[-2:] if len(times) < most else []:
            entries = [each for each in log.segment(base).sparse_index() if start < each.offset < end]
            times |= {each.offset: each.timestamp for each in _some(entries, most)}
        if len(times) < most and log.bytes_between(start, end) <= PROBED_BYTES:
            for offset in np.unique(np.linspace(start, end - 1, most).astype(np.int64)).tolist():
                header = next(log.batches(Offset(offset), Offset(offset + 1))).header
                times[max(header.base_offset, start)] = header.commit_timestamp
        return dict(sorted(times.items()))

    def _within(self, start: int, end: int) -> tuple[Offset, Offset]:
        begin, stop = integer("start", start), integer("end", end)
        if stop < begin:
            raise InvalidRequest("`end` comes before `start`.", start=begin, end=stop)
        log_start, log_end = self._files.start(), self._handle.state().applied_offset
        if not log_start <= begin <= stop <= log_end:
            raise OffsetOutOfRange(
                "The log does not hold these offsets.", start=begin, end=stop, log_start=log_start, log_end=log_end
            )
        return Offset(begin), Offset(stop)

    def _committed(self) -> Offset:
        return self._handle.committed().applied_offset


def _some(given: Sequence[T], most: int) -> list[T]:
    if len(given) <= most:
        return list(given)
    return [given[int(number)] for number in np.linspace(0, len(given) - 1, most)]
