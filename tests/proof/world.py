"""A store that one process works with, and what is true of it whatever happens beside what.

* Table ``t`` has one bucket and a new segment for every batch; each write gives its number to key 0 and to another one.
  So what a reader may see is what the table was after some write, one that was not acknowledged later than it began.
* Table ``e`` has two buckets; every epoch gives its number to all keys. So no bucket shows halves of an epoch.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import kvstore
from kvstore.errors import StoreLocked
from kvstore.table.open_table import OpenTable
from tests.support.image_workers import Here
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
WRITTEN, COMMITTED = "t", "e"
KEYS = range(6)
SETTINGS: dict[str, Any] = {
    "segment_bytes_max": 1,
    "log_bytes_max": 1,
    "commit_idle_ms": 60_000,
    "commit_wait_ms": 60_000,
    "map_bytes": 1 << 28,
    "edits_per_journal": 8,
}
Rows = dict[int, int]


def rows_written(number: int) -> Rows:
    """What a write puts into ``t``."""
    return {0: number, 1 + number % 5: number}


def changes_of(rows: Rows) -> kvstore.Changes:
    return kvstore.Changes.of([("upsert", {"k": k, "v": v}) for k, v in rows.items()], SCHEMA)


def epoch_of(number: int) -> kvstore.Changes:
    """What an epoch puts into ``e``."""
    return changes_of(dict.fromkeys(KEYS, number))


@dataclass(frozen=True, slots=True)
class Written:
    """An acknowledged write: its offsets, ``end`` exclusive."""

    start: int
    end: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader of ``t`` got of some keys, and the end of what was acknowledged before it began."""

    acknowledged: int
    rows: Rows
    keys: frozenset[int] = frozenset(KEYS)


@dataclass
class World:
    """The store in this process, and what was acknowledged in any.

    Attributes:
        writes: Of ``t``, in order.
        epochs: Numbers that any bucket of ``e`` may show.
        given: Ids the catalog gave.
    """

    path: Path
    writes: list[Written] = field(default_factory=list)
    epochs: set[int] = field(default_factory=set)
    given: list[int] = field(default_factory=list)
    _number: int = 0
    _base: Rows = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        self.store = kvstore.open(self.path, **SETTINGS)
        self.store.runtime.checkpoints.start = Here
        for name, buckets in ((WRITTEN, 1), (COMMITTED, 2)):
            if name not in self.store.list_tables():
                self.store.create_table(name, SCHEMA, primary_key="k", buckets=buckets)
        self.written, self.committed = self.store.table(WRITTEN), self.store.table(COMMITTED)

    def close(self) -> None:
        self.store.close()

    def parts(self, name: str) -> OpenTable:
        core = self.store.runtime
        parts: OpenTable = core.open_table(core.definition(name))
        return parts

    def next(self) -> int:
        """A number that was never used."""
        with self._mutex:
            self._number += 1
            return self._number

    @property
    def acknowledged(self) -> int:
        """Where ``t`` ends at least, by now."""
        with self._mutex:
            return max((each.end for each in self.writes), default=0)

    def acknowledge(self, answer: kvstore.WriteResult, rows: Rows) -> None:
        result = answer.by_bucket[0]
        self.acknowledge_write(Written(result.first_offset, result.last_offset + 1, rows))

    def acknowledge_write(self, written: Written) -> None:
        with self._mutex:
            self.writes.append(written)

    def begin_epoch(self) -> int:
        number = self.next()
        with self._mutex:
            self.epochs.add(number)
        return number

    def begin_pair(self) -> None:
        """Something is written and not committed to the index, by this process."""
        if not self.parts(COMMITTED).handles[0].writes or not self.epochs:
            number = self.begin_epoch()
            self.committed.apply_epoch(epoch_of(number), f"w{number}", 0)
        number = self.next()
        self.acknowledge(self.written.upsert(changes_of(rows_written(number)).rows), rows_written(number))

    def edit(self, count: int) -> None:
        """Add edits to the catalog."""
        self.given += [self.store.new_writer_id() for _ in range(count)]

    def verify(self, seen: list[Seen]) -> None:
        """All that is acknowledged is there, in the order of its offsets, and readers saw it as it was at some time."""
        self.writes.sort(key=lambda each: each.start)
        states = {self.writes[0].start: self._base}
        for before, after in zip(self.writes, [*self.writes[1:], None], strict=True):
            assert after is None or before.end == after.start, f"a hole in the log, or a write twice: {self.writes}"
            states[before.end] = states[before.start] | before.rows
        end = self.writes[-1].end
        for each in seen:
            allowed = [
                {k: v for k, v in rows.items() if k in each.keys}
                for offset, rows in states.items()
                if offset >= each.acknowledged
            ]
            assert each.rows in allowed, f"a reader saw {each}, which is none of {states}"
        assert self.written.offsets()[0][1] == end, "the log ends elsewhere than the last write that was acknowledged"
        assert as_rows(rows_of(self.written)) == states[end]
        shown = [row for batch in self.written.changelog(self.writes[-1].start) for row in batch.to_pylist()]
        after = {row["k"]: row["v"] for row in shown if row["_change_type"] in ("insert", "update_postimage")}
        assert after == self.writes[-1].rows, shown
        epochs = {row["v"] for row in rows_of(self.committed)}
        assert len(epochs) <= 1 or not self.epochs, f"halves of epochs: {epochs}"
        assert epochs <= self.epochs
        assert len(set(self.given)) == len(self.given), "an id was given twice"
        self._base, self.writes, self.epochs = states[end], [Written(end, end, {})], epochs

    def verify_all(self) -> None:
        """The store's own check, and that of a replica; all of it again with rebuilt indexes."""
        self._check()
        self.close()
        for index in self.path.glob("tables/*/*/index"):
            shutil.rmtree(index)
        self.open()
        self.verify([])
        self._check()
        self.store.replica("r").ship()
        assert not self.store.replica("r").check().findings

    def _check(self) -> None:
        report = self.store.check()
        assert report.ok, report.findings


def as_rows(rows: list[dict[str, Any]]) -> Rows:
    return {row["k"]: row["v"] for row in rows}


def refused(error: BaseException) -> bool:
    """Whether a write was refused as it may be: another process writes."""
    return isinstance(error, StoreLocked)
