"""Ranges of versions and of times, as ``CHANGES FROM … TO …`` gives them: they select whole commits.

The version of a commit is its first offset in its bucket. Of a table with several buckets a version is JSON, with an
offset for each of them.
"""

from __future__ import annotations

import datetime as dt
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvstore.clock import SystemClock
from kvstore.errors import InvalidRequest, OffsetOutOfRange
from kvstore.spark.options import EPOCH
from kvstore.table.table import Table
from logformat.ids import OFFSET_MAX, Offset

EARLIEST: Literal["earliest"] = "earliest"
_TIME_MAX = dt.datetime.max.replace(tzinfo=dt.UTC)


@dataclass(frozen=True)
class Bound:
    """One end of a range.

    Attributes:
        place: A version as text, a time in microseconds since the Unix epoch, or None for the end of the log.
    """

    place: str | int | None
    inclusive: bool = True


def ranges_of(table: Table, start: Bound, end: Bound) -> dict[int, tuple[int, int]]:
    """For each bucket, the offsets of the commits in a range: from (inclusive) and to (exclusive).

    A range may end, or lie, after the last commit.

    Raises:
        InvalidRequest: A bound is no version of this table.
        OffsetOutOfRange: Commits at the start of the range have expired.
    """
    firsts = offsets_of(table, start, is_start=True)
    ranges = {}
    lasts = offsets_of(table, end, is_start=False)
    for bucket, (_, now) in table.offset_ranges().items():
        log_start = table.offsets()[bucket][0]
        if firsts[bucket] < log_start:
            raise OffsetOutOfRange(
                f"Commits at the start of this range have expired; begin at the version of a later one, or at "
                f"'{EARLIEST}'.",
                bucket=int(bucket),
                version=firsts[bucket],
                log_start=log_start,
            )
        first = _commit_at_or_after(table, bucket, firsts[bucket], log_start, now)
        last = _commit_at_or_after(table, bucket, lasts[bucket], log_start, now)
        ranges[int(bucket)] = (first, max(first, last))
    return ranges


def offsets_of(table: Table, bound: Bound, *, is_start: bool) -> dict[int, int]:
    """For each bucket an offset: a range begins, or ends, with the first commit at or after it.

    Raises:
        InvalidRequest: See :func:`ranges_of`.
    """
    # A range without its first version begins after it, and one with its last version ends after it.
    skips = bound.inclusive != is_start
    if bound.place is None:
        return dict.fromkeys(range(table.buckets), OFFSET_MAX)
    if isinstance(bound.place, int):
        milliseconds, rest = divmod(bound.place, 1000)
        moment = _time(milliseconds + (1 if skips or rest else 0))
        ranges = table.offset_ranges(moment) if is_start else table.offset_ranges(EARLIEST, moment)
        return {int(bucket): int(each[0 if is_start else 1]) for bucket, each in ranges.items()}
    if bound.place.strip().lower() == EARLIEST and is_start:
        return {int(bucket): int(log_start) for bucket, (log_start, _) in table.offsets().items()}
    versions = _versions(bound.place, table.buckets)
    return {bucket: min(version + skips, OFFSET_MAX) for bucket, version in versions.items()}


def is_ahead(table: Table, start: Bound, begins: Mapping[int, int]) -> bool:
    """Whether a start is later than the end of the log in a bucket.

    Args:
        begins: What :func:`offsets_of` has of it.
    """
    if isinstance(start.place, int):
        return start.place > SystemClock().now_ms() * 1000
    return any(begins[int(bucket)] > end for bucket, (_, end) in table.offset_ranges().items())


def _versions(text: str, buckets: int) -> dict[int, int]:
    try:
        given = json.loads(text)
        versions = given if isinstance(given, Mapping) else {0: given}
        version_of = {int(bucket): _index(version) for bucket, version in versions.items()}
    except (ValueError, TypeError, RecursionError):
        version_of = {}
    if version_of == {0: 0}:
        return dict.fromkeys(range(buckets), 0)  # where each log begins
    if version_of.keys() != set(range(buckets)) or min(version_of.values()) < 0:
        example = "17" if buckets == 1 else json.dumps({str(bucket): 17 for bucket in range(min(buckets, 2))})
        more = "" if buckets < 3 else " and so on"
        raise InvalidRequest(
            f"A version of this table is the first offset of a commit, for each bucket: '{example}'{more}; or "
            f"'{EARLIEST}'.",
            given=text,
            buckets=buckets,
        )
    return version_of


def _index(version: Any) -> int:
    if isinstance(version, bool):
        raise TypeError
    return operator.index(version)


def _time(milliseconds: int) -> dt.datetime:
    try:
        return EPOCH + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return EPOCH if milliseconds < 0 else _TIME_MAX


def _commit_at_or_after(table: Table, bucket: int, offset: int, log_start: int, now: Offset) -> int:
    if offset >= now:
        return now
    if offset <= log_start:
        return log_start
    log = table.parts.of_bucket(bucket).log
    end = log.commit_end(Offset(log_start), now, offset - log_start)
    return end if end >= offset else log.commit_end(end, now, 1)
