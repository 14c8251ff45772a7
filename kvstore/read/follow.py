"""Changes of one bucket: first the existing rows if requested, then the existing changes, then new ones.

* Like every read it ends at an ``applied_offset`` of the index: no change is visible before its row, or if a crash
  could undo it.
* A waiting reader causes no commits, so waiting in the writing process costs it nothing: the reader sees commits when
  they happen, as in other processes. Only the call itself commits everything, so that it starts at the right offset.
* A waiting reader holds no transaction, no lock and no file of the store. It looks after 1 ms, then less and less
  often, and at once when a log is written: the kernel says so (``kvstore/disk/watch.py``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from types import TracebackType
from typing import Self, SupportsIndex

import pyarrow as pa

from kvstore.bucket.reads import BucketReads, LogReads
from kvstore.disk.watch import Watch
from kvstore.errors import InvalidRequest, OffsetOutOfRange
from kvstore.log.segments import FoundBatch
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import (
    End,
    Selection,
    Start,
    changelog_schema,
    changes_between,
    inserts_of,
    milliseconds,
    offset_of,
    one_offset,
)
from kvstore.read.scan import rows_now
from logformat import paths
from logformat.ids import Offset
from logformat.log.index_state import IndexState

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.001, 0.02
"""Delay between looks; it doubles each time nothing is found."""
WATCHED_SECONDS_MAX = 5.0
"""The longest delay of a reader that a write wakes: it may be one that nothing says, on some network disks."""
_MISSED_MAX = 3
"""A reader that finds so many changes one after the other that have not woken it relies on looks alone."""


@dataclass(frozen=True, slots=True)
class Span:
    """The range of changes to read.

    Attributes:
        start: The first offset; commits before ``since`` (ms) are skipped, which matters if that time is in the future.
        end: The offset after the last one; None if there is no end, or it is not known yet:
        until: The first commit at or after this time (ms) ends the range.
    """

    start: Offset
    end: Offset | None
    since: int | None = None
    until: int | None = None

    def of(self, log: LogReads, start: Offset, end: Offset) -> Iterator[FoundBatch]:
        """Batches of the log that contain offsets from ``start`` to ``end`` and are within the range's times."""
        batches = log.batches(start, end)
        since, until = self.since, self.until
        # Commit timestamps never decrease within a log.
        if since is not None:
            batches = dropwhile(lambda each: each.header.commit_timestamp < since, batches)
        if until is not None:
            batches = takewhile(lambda each: each.header.commit_timestamp < until, batches)
        return batches


def range_between(start: Start, end: End, log: LogReads, now: Offset) -> tuple[Offset, Offset]:
    """The offsets from ``start`` to ``end`` (exclusive); the log has both already.

    Raises:
        InvalidRequest, OffsetOutOfRange: See :meth:`kvstore.Table.changelog`.
    """
    begin, stop = offset_of("start", start, log, now), offset_of("end", end, log, now)
    _check_order(begin, stop)
    return begin, stop


def span_from(start: Start, end: End, log: LogReads, now: Offset) -> Span:
    """Like :func:`range_between`, but for a reader that waits for changes: ``latest`` as an end means no end.

    Raises:
        InvalidRequest, OffsetOutOfRange: See :meth:`kvstore.Table.changelog`.
    """
    begin, since = offset_of("start", start, log, now), milliseconds(start) if isinstance(start, dt.datetime) else None
    if isinstance(end, (Mapping, SupportsIndex)):
        stop = one_offset("end", end)
    else:
        stop = offset_of("end", end, log, now)
        if stop == now:
            return Span(begin, None, since, milliseconds(end) if isinstance(end, dt.datetime) else None)
    _check_order(begin, stop)
    return Span(begin, stop, since)


def _check_order(begin: Offset, stop: Offset) -> None:
    if stop < begin:
        raise InvalidRequest(
            "The end of a changelog must not be before its start, which for `full` is now.", start=begin, end=stop
        )


@dataclass(frozen=True)
class ChangeReader:
    """Reads the changelog of one bucket.

    Attributes:
        current: Returns the table's current entry in the catalog; raises if it was dropped or the store was closed.
        columns: Columns to return, in this order; later columns of the table are not added.
        whole_updates, selection: See :func:`kvstore.read.changelog.changes_between`.
    """

    bucket: BucketReads
    current: Callable[[], TableDefinition]
    columns: Sequence[str]
    whole_updates: bool = False
    selection: Selection | None = None

    def read(self, start: Start, end: End, *, follow: bool) -> Iterator[pa.RecordBatch | None]:
        """Changes from ``start`` to ``end``, both evaluated at the call; None where the reader waits for more.

        Args:
            follow: Whether to wait for new changes.

        Raises:
            InvalidRequest, OffsetOutOfRange: See :meth:`kvstore.Table.changelog`.
        """
        batches = self._read(start, end, follow)
        next(batches)  # evaluates start and end, and opens the view of the rows if they are needed
        return batches

    def _read(self, start: Start, end: End, follow: bool) -> Iterator[pa.RecordBatch | None]:
        full = isinstance(start, str) and start == "full"
        with self.bucket.snapshot() if full else nullcontext() as view:
            state = self.bucket.shown() if view is None else view.state()
            now, log = state.applied_offset, self.bucket.log
            begin = now if full else start
            span = span_from(begin, end, log, now) if follow else Span(*range_between(begin, end, log, now))
            if view is not None:
                yield None
                definition = self.current()
                known = set(definition.schema.names)
                columns = self.columns if self.selection is None else changelog_schema(definition).names
                names = [name for name in columns if name in known] or definition.primary_key
                rows = rows_now(view, definition, names)
                inserts = inserts_of(rows, definition, state.bucket_id, now, state.last_timestamp, columns)
                yield from inserts if self.selection is None else self.selection.rows(inserts, self.columns)
        if not full:
            yield None
        yield from self._changes(span, state, log)

    def _changes(self, span: Span, state: IndexState, log: LogReads) -> Iterator[pa.RecordBatch | None]:
        reached = span.start
        while True:
            now = state.applied_offset
            end = now if span.end is None else min(now, span.end)
            definition = self.current()  # read after `now`, so that it has the schemas of all committed changes
            if reached < end:
                batches = span.of(log, reached, end)
                yield from changes_between(
                    *(batches, definition, state.bucket_id, reached, end, self.columns),
                    whole_updates=self.whole_updates,
                    selection=self.selection,
                )
            if end == span.end or (span.until is not None and state.last_timestamp >= span.until):
                return
            reached = end
            log.rest()
            yield None  # other readers may take their turn
            state = self.bucket.committed()
            if state.applied_offset < reached:
                raise OffsetOutOfRange(
                    "The log ends before an offset that was already read; was an older copy restored?",
                    offset=reached,
                    log_end=state.applied_offset,
                )


def together(readers: Sequence[Iterator[pa.RecordBatch | None]], waits: Waits) -> Iterator[pa.RecordBatch]:
    """Batches of several readers, one after another; readers that wait are asked in turn."""
    with waits:
        for batch in polled(readers):
            if batch is None:
                waits.wait()
            else:
                waits.found()
                yield batch
            if waits.is_over:
                return


class Waits:
    """Waits of a reader that finds nothing, until it looks again; for one thread or task, and to be closed.

    Args:
        buckets: Those it reads.

    Attributes:
        is_over: Whether the reader is to end.
    """

    def __init__(self, buckets: Iterable[BucketReads]) -> None:
        watched = [each.watched for each in buckets]
        known = [each for each in watched if each is not None]
        self._watch = Watch(known, paths.PUBLISHED_FILE)
        self._is_to_watch = len(known) == len(watched)
        self._next = PAUSE_SECONDS_MIN
        self._slept = 0.0
        """How long the last wait was, if nothing has ended it."""
        self._missed = 0
        self.is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def found(self) -> None:
        """A look has found something."""
        if self._slept > PAUSE_SECONDS_MAX:
            self._missed += 1
            self._watch.close()  # the directory may be another one by now
            self._is_to_watch &= self._missed < _MISSED_MAX
        self._slept, self._next = 0.0, PAUSE_SECONDS_MIN

    def wait(self) -> None:
        """Wait until something was written, for a while at most, or until the reader is to end."""
        pause = self._pause()
        if not self.is_over:
            self._ended(pause, woken=self._watch.wait(pause))

    async def wait_async(self) -> None:
        """:meth:`wait` for asyncio."""
        pause = self._pause()
        if not self.is_over:
            self._ended(pause, woken=await self._watch.wait_async(pause))

    def end(self) -> None:
        """Have the reader end, also if it waits in another thread."""
        self.is_over = True
        self._watch.wake()

    def close(self) -> None:
        """Watch no more; a second call does nothing."""
        self._watch.close()

    def _pause(self) -> float:
        is_watched = self._is_to_watch and self._watch.open()
        return min(self._next, WATCHED_SECONDS_MAX if is_watched else PAUSE_SECONDS_MAX)

    def _ended(self, pause: float, *, woken: bool) -> None:
        if woken:
            # The writing process may show the change only a moment after it is published.
            self._slept, self._missed, self._next = 0.0, 0, PAUSE_SECONDS_MIN
        else:
            self._slept, self._next = pause, 2 * pause


def polled(readers: Sequence[Iterator[pa.RecordBatch | None]]) -> Iterator[pa.RecordBatch | None]:
    """Batches of several readers, one after another; None after each round in which all of them wait."""
    asked = list(readers)
    while asked:
        any_came = False
        for reader in list(asked):
            for batch in reader:
                if batch is None:
                    break
                any_came = True
                yield batch
            else:
                asked.remove(reader)
        if asked and not any_came:
            yield None
