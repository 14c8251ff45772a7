"""Changes of one bucket: first the existing rows if requested, then the existing changes, then new ones.

* Like every read it ends at an ``applied_offset`` of the index: no change is visible before its row, or if a crash
  could undo it.
* A waiting reader causes no commits, so waiting in the writing process costs it nothing: the reader sees commits when
  they happen, as in other processes. Only the call itself commits everything, so that it starts at the right offset.
* A waiting reader holds no transaction, no lock and no file. It polls after 1 ms, then less and less often.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import SupportsIndex

import pyarrow as pa

from kvstore.bucket.reads import BucketReads, LogReads
from kvstore.errors import InvalidRequest, OffsetOutOfRange
from kvstore.log.segments import FoundBatch
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import (
    End,
    Start,
    changes_between,
    inserts_of,
    milliseconds,
    offset_of,
    one_offset,
)
from kvstore.read.scan import rows_now
from logformat.ids import Offset
from logformat.log.index_state import IndexState

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.001, 0.02
"""Delay between polls; it doubles each time nothing is found."""


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
        found = log.batches(start, end)
        since, until = self.since, self.until
        # Commit timestamps never decrease within a log.
        if since is not None:
            found = dropwhile(lambda each: each.header.commit_timestamp < since, found)
        if until is not None:
            found = takewhile(lambda each: each.header.commit_timestamp < until, found)
        return found


def range_between(start: Start, end: End, log: LogReads, now: Offset) -> tuple[Offset, Offset]:
    """The offsets from ``start`` to ``end`` (exclusive); the log has both already.

    Raises:
        InvalidRequest, OffsetOutOfRange: See :meth:`kvstore.Table.changelog`.
    """
    first, last = offset_of("start", start, log, now), offset_of("end", end, log, now)
    _check_order(first, last)
    return first, last


def span_from(start: Start, end: End, log: LogReads, now: Offset) -> Span:
    """Like :func:`range_between`, but for a reader that waits for changes: ``latest`` as an end means no end.

    Raises:
        InvalidRequest, OffsetOutOfRange: See :meth:`kvstore.Table.changelog`.
    """
    first, since = offset_of("start", start, log, now), milliseconds(start) if isinstance(start, dt.datetime) else None
    if isinstance(end, (Mapping, SupportsIndex)):
        last = one_offset("end", end)
    else:
        last = offset_of("end", end, log, now)
        if last == now:
            return Span(first, None, since, milliseconds(end) if isinstance(end, dt.datetime) else None)
    _check_order(first, last)
    return Span(first, last, since)


def _check_order(first: Offset, last: Offset) -> None:
    if last < first:
        raise InvalidRequest(
            "The end of a changelog must not be before its start, which for `full` is now.", start=first, end=last
        )


@dataclass(frozen=True)
class ChangeReader:
    """Reads the changelog of one bucket.

    Attributes:
        current: Returns the table's current entry in the catalog; raises if it was dropped or the store was closed.
        columns: Columns to return, in this order; later columns of the table are not added.
        whole_updates: See :func:`kvstore.read.changelog.changes_between`.
    """

    bucket: BucketReads
    current: Callable[[], TableDefinition]
    columns: Sequence[str]
    whole_updates: bool = False

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
            first = now if full else start
            span = span_from(first, end, log, now) if follow else Span(*range_between(first, end, log, now))
            if view is not None:
                yield None
                definition = self.current()
                known = set(definition.schema.names)
                names = [name for name in self.columns if name in known] or definition.primary_key
                rows = rows_now(view, definition, names)
                yield from inserts_of(rows, definition, state.bucket_id, now, state.last_timestamp, self.columns)
        if not full:
            yield None
        yield from self._changes(span, state)

    def _changes(self, span: Span, state: IndexState) -> Iterator[pa.RecordBatch | None]:
        place = span.start
        while True:
            now = state.applied_offset
            end = now if span.end is None else min(now, span.end)
            definition = self.current()  # read after `now`, so that it has the schemas of all committed changes
            if place < end:
                found = span.of(self.bucket.log, place, end)
                yield from changes_between(
                    found, definition, state.bucket_id, place, end, self.columns, whole_updates=self.whole_updates
                )
            if end == span.end or (span.until is not None and state.last_timestamp >= span.until):
                return
            place = end
            yield None  # other readers may take their turn
            state = self.bucket.committed()
            if state.applied_offset < place:
                raise OffsetOutOfRange(
                    "The log ends before an offset that was already read; was an older copy restored?",
                    offset=place,
                    log_end=state.applied_offset,
                )


def together(
    readers: Sequence[Iterator[pa.RecordBatch | None]], sleep: Callable[[float], None] = time.sleep
) -> Iterator[pa.RecordBatch]:
    """Batches of several readers, one after another; readers that wait are polled in turn.

    Args:
        sleep: Waits for this many seconds.
    """
    pauses = Pauses()
    for batch in polled(readers):
        if batch is None:
            sleep(pauses.next())
        else:
            pauses = Pauses()
            yield batch


class Pauses:
    """Delays between polls that find nothing, in seconds."""

    def __init__(self) -> None:
        self._next = PAUSE_SECONDS_MIN

    def next(self) -> float:
        """The next delay; it doubles each time."""
        pause, self._next = self._next, min(2 * self._next, PAUSE_SECONDS_MAX)
        return pause


def polled(readers: Sequence[Iterator[pa.RecordBatch | None]]) -> Iterator[pa.RecordBatch | None]:
    """Batches of several readers, one after another; None after each round in which all of them wait."""
    asked = list(readers)
    while asked:
        found = False
        for reader in list(asked):
            for batch in reader:
                if batch is None:
                    break
                found = True
                yield batch
            else:
                asked.remove(reader)
        if asked and not found:
            yield None
