"""Clocks that are wrong by up to ten years: no batch is applied twice, and no writer is forgotten."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, strategies as st

import kvstore
from kvstore.bucket.maintenance import Maintenance
from kvstore.clock import SystemClock
from kvstore.errors import OutOfOrderSequence
from kvstore.log.writer_state import STEP_MS_MAX
from kvstore.options import StoreOptions
from kvstore.read.changelog import CHANGE_FIELDS
from kvstore.store.store import Store
from tests.support.clocks import JumpingClock, SetClock
from tests.support.examples import slow

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
OPTIONS = StoreOptions(segment_bytes_max=900, commit_idle_ms=60_000, commit_wait_ms=60_000, map_bytes=1 << 27)
TODAY, DAY, YEARS = 1_780_000_000_000, 86_400_000, 10 * 365 * 86_400_000
SLACK_MS = 3_600_000
"""What a slow machine may need for a test."""
FIELDS = pa.schema([*CHANGE_FIELDS, *SCHEMA])
BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TIMES = st.sampled_from([0, 1, STEP_MS_MAX, 10 * DAY, YEARS]) | st.integers(0, YEARS)
STEPS = st.lists(
    st.one_of(
        *(st.tuples(st.just("write"), st.integers(0, 2)), st.tuples(st.just("again"), st.integers(0, 14))),
        *(st.tuples(st.just("set"), TIMES), st.tuples(st.just("set"), TIMES.map(lambda time: -time))),
        *(st.tuples(st.just(what), st.just(0)) for what in ("reopen", "reopen", "lose", "snapshot", "own")),
    ),
    max_size=25,
)


def at(time_ms: int) -> dt.datetime:
    return BEGIN + dt.timedelta(milliseconds=time_ms)


class World:
    """A store under a clock that the test sets, and writers without names."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.opened = path, JumpingClock(TODAY), TODAY
        self.store = Store(path, OPTIONS, clock=self.clock)
        self.store.create_table("t", SCHEMA, "k")
        self.sent: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.times: list[int] = []
        self.is_new = True

    @property
    def table(self) -> kvstore.Table:
        return self.store.table("t")

    def write(self, writer: int) -> None:
        """The next batch of a writer; and never is it one that was there before."""
        answer = self.apply(writer, len(self.sent[writer]))
        assert not answer.duplicated
        assert answer.first_offset == len(self.times)
        self.sent[writer].append(answer.first_offset)
        self.note(answer.timestamp_ms)

    def own(self, _: int) -> None:
        """A batch without a writer: it ages all the others."""
        self.note(self.table.upsert({"k": len(self.times), "v": 0}).timestamp_ms)

    def note(self, timestamp: int) -> None:
        now = min(self.clock.now, self.opened)
        if self.is_new:
            assert now <= timestamp <= now + STEP_MS_MAX + SLACK_MS, "after a restart the wall clock is taken"
        else:
            assert self.times[-1] <= timestamp <= max(self.times[-1], self.opened + SLACK_MS), "a clock was followed"
        self.times.append(timestamp)
        self.is_new = False

    def again(self, number: int) -> None:
        """One of the last five batches of a writer, sent again."""
        writer, back = number % 3, number // 3 + 1
        if back <= len(self.sent[writer]):
            answer = self.apply(writer, len(self.sent[writer]) - back)
            assert answer.duplicated, "a batch is applied twice"
            assert answer.first_offset == self.sent[writer][-back]

    def apply(self, writer: int, sequence: int) -> Any:
        row = {"k": len(self.times), "v": writer}
        return self.table.bucket(0).apply(kvstore.Changes.of([("upsert", row)], SCHEMA), 100 + writer, sequence)

    def set(self, time: int) -> None:
        self.clock.now = TODAY + time

    def snapshot(self, _: int) -> None:
        self.table.snapshot()

    def reopen(self, _: int, *, loses: bool = False) -> None:
        self.store.close()
        if loses:
            shutil.rmtree(self.path / "tables/1/0/index", ignore_errors=True)
        self.store = Store(self.path, OPTIONS, clock=self.clock)
        self.opened, self.is_new = self.clock.now, True

    def lose(self, _: int) -> None:
        """The index: it is made of a snapshot, if there is one, and of the log."""
        self.reopen(0, loses=True)

    def verify(self) -> None:
        table = self.table
        assert self.store.check().findings == []
        found = [row for batch in table.changelog() for row in batch.to_pylist()]
        assert {row["_commit_version"]: row["_commit_timestamp"] for row in found} == {
            offset: at(time) for offset, time in enumerate(self.times)
        }
        for time in {*self.times, TODAY}:
            first = next((offset for offset, each in enumerate(self.times) if each >= time), len(self.times))
            assert table.offsets_as_of(at(time)) == {0: first}
            moment = pa.scalar(at(time), pa.timestamp("us", "UTC"))
            passing = {offset for offset, each in enumerate(self.times) if each >= time}
            ranges = table.shares(0).offsets_where(FIELDS, pc.field("_commit_timestamp") >= moment, 0, len(self.times))
            assert passing <= {offset for first, last in ranges for offset in range(first, last)}


@slow(40)
@given(steps=STEPS)
@example(steps=[("write", 0), ("reopen", 0), ("set", 10 * DAY), ("reopen", 0), ("own", 0), ("set", 0), ("again", 0)])
@example(steps=[("write", 0), ("set", YEARS), ("own", 0), ("again", 0), ("lose", 0), ("again", 0), ("write", 0)])
@example(steps=[("set", YEARS), ("reopen", 0), ("own", 0), ("set", 0), ("reopen", 0), ("own", 0), ("own", 0)])
@example(steps=[("set", -YEARS), ("reopen", 0), ("write", 1), ("set", YEARS), ("reopen", 0), ("write", 1), ("lose", 0)])
def test_no_batch_is_applied_twice_whatever_the_clock_says(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("stores") / "store")
    world.write(0)
    for step, argument in steps:
        getattr(world, step)(argument)
    world.verify()
    for _ in range(2):  # of what the index says, and of what the log and its snapshots do
        for number in range(15):
            world.again(number)
        world.lose(0)
    world.verify()
    world.store.close()


def test_a_writer_that_rests_is_forgotten_after_seven_days(tmp_path: Path) -> None:
    """Days in which the table is written at least every hour."""
    clock = SetClock(TODAY)
    with Store(tmp_path / "store", OPTIONS, clock=clock) as store:
        bucket, nothing = store.create_table("t", SCHEMA, "k").bucket(0), kvstore.Changes.of([], SCHEMA)
        bucket.apply(nothing, 5, 0)
        for _ in range(7 * 24 - 1):
            clock.now += STEP_MS_MAX
            bucket.apply(nothing)
        assert bucket.apply(nothing, 5, 0).duplicated
        assert bucket.last_sequence(5) == 0
        assert bucket.remembered_from() == 0
        clock.now += 30 * DAY  # nothing was written: an hour of that counts
        assert bucket.last_sequence(5) is None
        assert bucket.remembered_from() == 1
        bucket.apply(nothing)
        with pytest.raises(OutOfOrderSequence):
            bucket.apply(nothing, 5, 1)
        assert not bucket.apply(nothing, 5, 0).duplicated
        assert store.check().findings == []


def test_a_clock_that_is_set_ahead_moves_no_timestamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of a commit, nor that of a lease, nor what retention takes for now."""
    now = SystemClock().now_ms()
    with kvstore.open(tmp_path / "store", segment_bytes_max=900) as store:
        table = store.create_table("t", SCHEMA, "k", retention=dt.timedelta(days=7))
        bucket, nothing = table.bucket(0), kvstore.Changes.of([], SCHEMA)
        first = bucket.apply(nothing, 5, 0)
        for k in range(12):
            table.upsert({"k": k, "v": k})
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: now + 10 * DAY)
        later = bucket.apply(nothing)
        assert first.timestamp_ms <= later.timestamp_ms < now + DAY
        assert bucket.apply(nothing, 5, 0).duplicated
        table.snapshot()
        table.bucket(0).handle.retain()
        assert table.offsets()[0][0] == 0


def test_what_is_stamped_ahead_expires_with_what_comes_after_it(tmp_path: Path) -> None:
    clock = JumpingClock(TODAY)

    def opened(now: int) -> Store:
        clock.now = now
        return Store(tmp_path / "store", OPTIONS, clock=clock)

    def fill(store: Store) -> int:
        for k in range(12):
            store.table("t").upsert({"k": k, "v": k})
        return store.table("t").offsets()[0][1]

    with opened(TODAY) as store:
        store.create_table("t", SCHEMA, "k", retention=dt.timedelta(days=7))
        fill(store)
    with patch.object(Maintenance, "begin"), opened(TODAY + YEARS) as store:
        ahead = fill(store)
    with opened(TODAY + DAY) as store:
        fill(store)
        store.table("t").bucket(0).handle.retain()
        assert store.table("t").offsets()[0][0] == 0, "nothing is old enough"
    with opened(TODAY + 9 * DAY) as store:
        fill(store)
        store.table("t").snapshot()
        store.table("t").bucket(0).handle.retain()
        assert store.table("t").offsets()[0][0] > ahead, "ten years ahead hold nothing back"
        assert store.check().findings == []
