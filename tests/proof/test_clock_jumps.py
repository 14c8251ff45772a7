"""Clocks that jump between commits and reopens: a second, ten days, to 1970, 2038 and 2262, and back.

Offsets never go back, nor do commit timestamps but after a reopen; a batch that is sent again is never there twice, no
writer is forgotten, what expires of the log is nothing a recovery needs, and rows as of a time are those there were.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections import Counter
from itertools import pairwise, takewhile
from pathlib import Path
from random import Random
from unittest.mock import patch

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket import recovery
from kvstore.bucket.maintenance import Maintenance
from kvstore.bucket.write_path import WritePath
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.crash.conftest import Tell
from tests.proof.budget import Run, budget
from tests.support.clocks import JumpingClock
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TODAY, SECOND, DAY = 1_780_000_000_000, 1000, 86_400_000
JUMPS = {
    "a second ahead": lambda now: now + SECOND,
    "a second back": lambda now: max(0, now - SECOND),
    "ten days ahead": lambda now: now + 10 * DAY,
    "ten days back": lambda now: max(0, now - 10 * DAY),
    "to 1970": lambda _: 0,
    "to 2038": lambda _: 2**31 * 1000 + 5,
    "to 2262": lambda _: 2**63 // 10**6 + 5,
    "to today": lambda _: TODAY,
}
STEPS = 40
OPTIONS = StoreOptions(segment_bytes_max=700, map_bytes=1 << 28)
KEPT, EXPIRING = "kept", "expiring"
Rows = dict[int, int]
Batch = tuple[int, int, int]
"""Writer, sequence, first offset."""


class Walk:
    """A store under a clock that jumps; a table whose log is kept and one whose log expires."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.random, self.clock = path, Random(seed), JumpingClock(TODAY)
        self.rows: Rows = {}
        self.moments: list[tuple[int, Rows]] = []
        self.done: Counter[str] = Counter()
        self.writer, self.sequence, self.value = 0, -1, 0
        self.last: list[Batch] = []
        self.reopened: set[int] = set()
        self._open()
        for name, retention in ((KEPT, None), (EXPIRING, dt.timedelta(hours=1))):
            self.store.create_table(name, SCHEMA, primary_key="k", retention=retention)
        self.write()
        self.write()

    def _open(self) -> None:
        self.store = Store(self.path, OPTIONS, clock=self.clock)
        self.reopened.add(len(self.moments))

    def step(self) -> None:
        what = self.random.choice(("write", "write", "jump", "jump", "retry", "reopen", "retain"))
        self.done[what] += 1
        getattr(self, what)()

    def jump(self) -> None:
        name = self.random.choice(list(JUMPS))
        self.done[name] += 1
        self.clock.now = JUMPS[name](self.clock.now)

    def write(self) -> None:
        self.value += 1
        new = {self.value % 7: self.value, 7 + self.value % 3: self.value}
        changes = kvstore.Changes.of([("upsert", {"k": k, "v": v}) for k, v in new.items()], SCHEMA)
        first = self._send(changes, self.sequence + 1)
        self.sequence += 1
        assert not self.last or first > self.last[-1][2], "offsets went back"
        self.last = [*self.last, (self.writer, self.sequence, first)][-5:]
        self.rows = self.rows | new
        self.moments.append((self._last_timestamp(), self.rows))

    def retry(self) -> None:
        end = self.store.table(KEPT).offsets()
        _, sequence, first = self.random.choice(self.last)
        assert self._send(kvstore.Changes.of([], SCHEMA), sequence, duplicated=True) == first
        assert self.store.table(KEPT).offsets() == end, "it is there twice"

    def _send(self, changes: kvstore.Changes, sequence: int, *, duplicated: bool = False) -> int:
        answers = [self.store.table(name).bucket(0).apply(changes, self.writer, sequence) for name in (EXPIRING, KEPT)]
        assert [each.duplicated for each in answers] == [duplicated] * 2
        return int(answers[1].first_offset)

    def _last_timestamp(self) -> int:
        return self._timestamps()[-1]

    def _timestamps(self) -> list[int]:
        found = [batch.column("_commit_timestamp") for batch in self.store.table(KEPT).changelog()]
        return [value // 1000 for column in found for value in column.cast(pa.int64()).to_pylist()]

    def reopen(self) -> None:
        self.store.close()
        self._open()
        self.verify()

    def retain(self) -> None:
        if self.random.random() < 0.3:
            self.store.table(EXPIRING).snapshot()
        self.store.table(EXPIRING).bucket(0).handle.retain()

    def verify(self) -> None:
        for name in (KEPT, EXPIRING):
            assert {row["k"]: row["v"] for row in rows_of(self.store.table(name))} == self.rows
        moments = [timestamp for timestamp, _ in self.moments]
        assert list(dict.fromkeys(self._timestamps())) == list(dict.fromkeys(moments))
        went_back = {place for place, (one, other) in enumerate(pairwise(moments), 1) if other < one}
        assert went_back <= self.reopened, "commit timestamps went back while a process wrote"
        for at, _ in self.random.sample(self.moments, min(3, len(self.moments))):
            # As of a time: before the first commit at or after it.
            expected = [rows for _, rows in takewhile(lambda moment, at=at: moment[0] < at, self.moments)]
            found = self.store.table(KEPT).scan(
                as_of=dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(0, 0, at * 1000)
            )
            assert {row["k"]: row["v"] for row in found.read_all().to_pylist()} == (expected[-1] if expected else {})

    def end(self) -> None:
        self.verify()
        assert self.store.check().ok
        self.store.close()
        for index in self.path.glob("tables/*/*/index"):
            shutil.rmtree(index)
        self._open()
        self.verify()
        assert self.store.check().ok
        self.store.close()


def walk(run: Run, seed: int, work: Path, tell: Tell) -> None:
    done: Counter[str] = Counter()
    with patch.object(Maintenance, "begin"):
        for number in range(budget("jumps", run)):
            each = Walk(work / str(number), seed + number)
            try:
                for _ in range(STEPS):
                    each.step()
                each.end()
            except BaseException as error:
                error.add_note(f"seed {seed + number}: {dict(each.done)}")
                raise
            done += each.done
            shutil.rmtree(each.path)
    tell(f"{dict(done)}")
    assert done["jump"]


def test_jumps(work: Path, tell: Tell) -> None:
    walk("quick", 1, work, tell)


@pytest.mark.long
def test_more_jumps(work: Path, tell: Tell) -> None:
    walk("long", 100, work, tell)


@pytest.mark.nightly
def test_many_jumps(work: Path, tell: Tell) -> None:
    walk("nightly", int.from_bytes(os.urandom(4)), work, tell)


def test_timestamps_that_follow_the_clock_back_are_found(
    work: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a batch gets whatever time it is."""

    class GoesBack(WritePath):
        def _now_ms(self) -> int:
            return self._clock.now_ms()

    monkeypatch.setattr(recovery, "WritePath", GoesBack)
    with pytest.raises(AssertionError):
        walk("long", 1, work, tell)
