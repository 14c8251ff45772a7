"""A part of a log for a page: its batches and their changes, all of them or those of a kind, a writer or a key.

* The work of a page is limited (``OFFSETS_SHOWN``, ``WORK_MAX``), never its answer: the next page goes on where it
  ended.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field as default
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore import BucketLog, LoggedBatch
from kvstore.console.parts import error_facts
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition
from kvstore.console.table.difference import AFTER, BEFORE, WORDS, Version, versions_of
from kvstore.console.table.keys import bucket_of, key_of
from kvstore.errors import InvalidRequest, OffsetOutOfRange, StoreError
from logformat.log.batch import LAYOUTS, BatchHeader
from logformat.log.change import ChangeType

OFFSETS_SHOWN = 50
"""Offsets of a page without a filter, and changes of a page with one."""
OFFSETS_READ = 100_000
WORK_MAX = 2_000
"""A page with a filter ends after this work, and the next one goes on: a batch counts 1, or more if it is decoded."""
DECODING = 3
BYTES_OF_WORK = 1 << 14
GROUP = 64
"""Batches that are decoded together."""
STEP_OFFSETS = 500
STEP_BYTES = 8 << 20
"""How much of the log is read at first when the last changes are looked for, and at most at a time."""

_NUMBERS = {int(kind): WORDS[kind.word][0] for kind in ChangeType if kind.word in WORDS}


@dataclass
class Batch:
    """A batch of the log.

    Attributes:
        versions: Its changes between the offsets of the page that the filter takes.
    """

    logged: LoggedBatch
    versions: list[Version] = default(default_factory=list)

    @property
    def header(self) -> BatchHeader:
        """Its header."""
        return self.logged.header


@dataclass
class Stretch:
    """A part of a log.

    Attributes:
        start, stop: Its offsets; exclusive.
        ends: The ends of the logs of all buckets.
        error: Why it ends before ``stop``; None if it does not.
    """

    start: int
    stop: int
    log_start: int
    log_end: int
    ends: list[int]
    batches: list[Batch] = default(default_factory=list)
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Filter:
    """Which changes are shown; empty for all.

    Attributes:
        kinds: Words for change types, such as ``insert``.
        writer: Name or id of a writer.
        key: Texts of the key's columns.
        row: The key as a row.
    """

    kinds: tuple[str, ...] = ()
    writer: str | None = None
    key: tuple[str, ...] = ()
    row: pa.RecordBatch | None = None

    @classmethod
    def of(cls, definition: Definition, query: Query) -> Filter:
        """What a request asks for.

        Raises:
            InvalidRequest: A change type does not exist.
            StoreError: The key does not fit.
        """
        kinds = tuple(dict.fromkeys(query.all("kind")))
        words = [word for word, _ in WORDS.values()]
        if unknown := [each for each in kinds if each not in words]:
            raise InvalidRequest("There is no such kind of change.", given=repr(unknown[0][:100]), kinds=words)
        key = query.all("key")
        if not any(key):  # fields that were left empty
            return cls(kinds, query.text("writer"))
        return cls(kinds, query.text("writer"), tuple(key), key_of(key, definition))

    def __bool__(self) -> bool:
        return bool(self.kinds or self.key or self.writer is not None)

    @property
    def parameters(self) -> dict[str, Any]:
        """The filter as parameters of a request."""
        return {"kind": list(self.kinds) or None, "writer": self.writer, "key": list(self.key) or None}

    def bucket(self, definition: Definition) -> int | None:
        """The bucket that has all changes of the key; None without a key."""
        return None if self.row is None else bucket_of(self.row, definition)

    def takes(self, batch: LoggedBatch) -> bool:
        """Whether a batch is by the writer and has changes of the right kinds, without decoding it."""
        header, origin = batch.header, batch.origin
        if self.writer is not None and self.writer not in (origin.writer, str(origin.writer_id)):
            return False
        if not self.kinds or header.append_only:
            return not self.kinds or WORDS[ChangeType.APPEND.word][0] in self.kinds
        position = LAYOUTS[header.magic].size + header.statistics_length
        there = np.unique(np.frombuffer(batch.data, np.uint8, header.record_count, position))
        return any(int(kind) in _NUMBERS and _NUMBERS[int(kind)] in self.kinds for kind in there)

    def of_binlog(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """The changes that are shown, of a batch that is."""
        if self.kinds:
            types = [kind for kind, (word, _) in WORDS.items() if word in self.kinds]
            changes = changes.filter(pc.is_in(changes.column("_change_type"), pa.array(types)))
        if self.row is not None:
            for field, value in zip(self.row.schema, self.row.columns, strict=True):
                after, before = (pc.struct_field(changes.column(side), field.name) for side in (AFTER, BEFORE))
                changes = changes.filter(pc.equal(pc.coalesce(after, before), value[0]))
        return changes


def read_stretch(definition: Definition, bucket: int, names: list[str], filter: Filter, query: Query) -> Stretch:
    """A page of changes: from ``start`` of the query on, an offset or a time; else the latest, those before ``end``.

    Raises:
        StoreError: The log does not have the place, or can't be read there.
    """
    table = definition.table
    ends = [int(end) for end, _ in table.committed().values()]
    log, log_end = table.bucket(bucket).log, ends[bucket]
    log_start = log.start()
    last = _bound("end", query, log, log_start, log_end, log_end)
    most = OFFSETS_READ if filter else OFFSETS_SHOWN
    start = _bound("start", query, log, log_start, log_end, max(log_start, last - most))
    if start > last:
        raise InvalidRequest("`end` comes before `start`.", start=start, end=last)
    stretch = Stretch(start, min(start + most, last), log_start, log_end, ends)
    reader = Reader(definition, bucket, names, filter)
    if filter and query.text("start") is None:
        reader.backward(stretch)
    else:
        reader.forward(stretch)
    return stretch


def _bound(name: str, query: Query, log: BucketLog, log_start: int, log_end: int, default: int) -> int:
    bound = query.bound(name)
    if bound is None:
        return default
    if not isinstance(bound, int):
        return min(log.offset_at(bound), log_end)
    if not log_start <= bound <= log_end:
        raise OffsetOutOfRange("The log does not hold this offset.", offset=bound, log_start=log_start, log_end=log_end)
    return bound


class Reader:
    """Reads changes of a log that a filter takes, and stops after some work.

    Args:
        names: Columns that are shown.
    """

    def __init__(self, definition: Definition, bucket: int, names: list[str], filter: Filter) -> None:
        self._definition = definition
        self._log = definition.table.bucket(bucket).log
        self._names = names
        self._filter = filter
        self._work = 0

    def forward(self, stretch: Stretch) -> None:
        """Fill a stretch from its start on; with a filter, it ends after as many changes as a page shows."""
        most = OFFSETS_SHOWN if self._filter else None
        stretch.batches, stretch.stop, stretch.error = self._read(stretch.start, stretch.stop, most, WORK_MAX)

    def backward(self, stretch: Stretch) -> None:
        """Fill a stretch with the last changes that the filter takes; it begins at the first one of many."""
        floor, at, step, count = stretch.start, stretch.stop, STEP_OFFSETS, 0
        stretch.start = at
        while at > floor and count < OFFSETS_SHOWN and self._work < WORK_MAX and stretch.error is None:
            start = max(floor, at - step)
            while at - start > OFFSETS_SHOWN and self._log.bytes_between(start, at) > STEP_BYTES:
                start = (start + at) // 2
            batches, _, stretch.error = self._read(start, at, None, None)
            if batches and stretch.batches and batches[-1].header.base_offset == stretch.batches[0].header.base_offset:
                stretch.batches[0].versions[:0] = batches.pop().versions
            stretch.batches[:0] = batches
            at = stretch.start = start
            count = sum(len(each.versions) for each in stretch.batches)
            step *= 2
        if count > OFFSETS_SHOWN:
            _trim(stretch.batches, count - OFFSETS_SHOWN)
            stretch.start = stretch.batches[0].versions[0].offset

    def _read(
        self, start: int, stop: int, most: int | None, work_max: int | None
    ) -> tuple[list[Batch], int, dict[str, Any] | None]:
        """Batches with changes, where reading ended, and why, if an error did that."""
        shown: list[Batch] = []
        group: list[Batch] = []
        count = size = 0
        within, error = (start, stop), None

        def flush() -> bool:
            """Decode the batches that wait; whether there are more changes than asked for."""
            nonlocal count, size, stop
            left = None if most is None else most - count
            count += self._fill(group, within, None if left is None else left + 1)
            only = bool(self._filter.kinds or self._filter.key)
            shown.extend(batch for batch in group if batch.versions or not only)
            group.clear()
            size = 0
            if most is None or count <= most:
                return False
            while shown and not shown[-1].versions:
                shown.pop()
            shown[-1].versions.pop()
            while shown and not shown[-1].versions:
                shown.pop()
            stop = shown[-1].versions[-1].offset + 1
            return True

        try:
            for each in self._log.batches(*within):
                if self._filter and work_max is not None and self._work >= work_max:
                    stop = each.header.base_offset
                    break
                self._work += 1
                if not self._filter.takes(each):
                    continue
                self._work += DECODING + each.header.size // BYTES_OF_WORK
                group.append(Batch(each))
                size += each.header.size
                if (len(group) == GROUP or size >= STEP_BYTES) and flush():
                    return shown, stop, None
        except StoreError as raised:
            error = error_facts(raised)
        try:
            flush()
        except StoreError as raised:
            error = error_facts(raised)
        return shown, stop, error

    def _fill(self, group: list[Batch], within: tuple[int, int], most: int | None) -> int:
        """Read the changes of some batches, at most so many; returns their number."""
        changes = self._log.binlog([each.logged for each in group], *within, self._names)
        if not (shown := list(map(self._filter.of_binlog, changes))):
            return 0
        versions = versions_of(pa.Table.from_batches(shown).slice(0, most), self._definition)
        places = {batch.header.base_offset: batch for batch in group}
        bases = sorted(places)
        for version in versions:
            places[bases[bisect_right(bases, version.offset) - 1]].versions.append(version)
        return len(versions)


def _trim(batches: list[Batch], extra: int) -> None:
    """Remove the first changes, and batches that have none left."""
    while extra:
        gone = batches[0].versions[:extra]
        del batches[0].versions[:extra]
        extra -= len(gone)
        if not batches[0].versions:
            del batches[0]
