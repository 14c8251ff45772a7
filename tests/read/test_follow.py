"""Following: from any start, everything once and in order, during writes; and what waiting costs."""

from __future__ import annotations

import datetime as dt
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk.environment import Environment
from kvstore.disk.watch import Watch
from kvstore.errors import LogFailed, NoSuchTable, OffsetOutOfRange, StoreClosed
from kvstore.options import StoreOptions
from kvstore.read.follow import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, WATCHED_SECONDS_MAX
from kvstore.store.store import Store
from logformat.catalog.edits import AddSchema
from logformat.ids import SchemaId
from logformat.rows import schema as schemas
from tests.conftest import OpenStore
from tests.support.clocks import SetClock
from tests.support.committers import environment_of
from tests.support.disks import FailingDisk, failing
from tests.support.following import Following, Polls, changes

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
NEVER = {"commit_wait_ms": 600_000, "commit_idle_ms": 600_000}


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", SCHEMA, primary_key="k")


def write_some(table: kvstore.Table, seed: int, batches: int = 25) -> None:
    choose = random.Random(seed)
    for step in range(batches):
        if choose.random() < 0.3:
            table.delete(choose.sample(range(10), 3))
        else:
            table.upsert([{"k": key, "v": step} for key in choose.sample(range(10), choose.randrange(1, 5))])
        if choose.random() < 0.3:
            table.flush()  # what comes after it is in another commit of the index


@pytest.mark.parametrize("seed", range(3))
def test_every_start_gets_everything_once_while_a_thread_writes(
    open_store: OpenStore, seed: int, store_path: Path
) -> None:
    store = open_store(segment_bytes_max=4096, commit_idle_ms=5)
    table = store.create_table("t", SCHEMA, "k")
    write_some(table, seed)
    middle = table.offsets()[0][1]
    now = dt.datetime.now(dt.UTC)
    beginnings: dict[Any, dict[str, Any]] = {
        "earliest": {"start": "earliest"},
        "offset": {"start": middle // 2},
        "offsets": {"start": {0: middle // 3}, "bucket": 0},
        "time": {"start": now},
        "columns": {"start": 1, "columns": ["v", "_log_offset"]},
    }
    ends = {"end": middle + 150}
    followers = {name: Following(table.changelog(**ends, follow=True, **given)) for name, given in beginnings.items()}
    binlog = Following(table.binlog(2, **ends, follow=True))
    full = Following(table.changelog("full", **ends, follow=True))
    reading = kvstore.open(store_path, read_only=True)
    other = Following(reading.table("t").changelog(follow=True, **ends))
    latest = Following(table.changelog("latest", follow=True, **ends))
    while table.offsets()[0][1] < middle + 150:
        write_some(table, seed + 100, 5)
    for name, follower in followers.items():
        assert follower.ended() == changes(table.changelog(**ends, **beginnings[name])), name
    assert latest.ended() == changes(table.changelog(middle, **ends))
    assert other.ended() == followers["earliest"].taken
    assert binlog.ended() == changes(table.binlog(2, **ends))
    rows = [change for change in full.ended() if change["_log_offset"] < middle]
    assert rows == [
        {"_bucket": 0, "_log_offset": middle - 1, "_change_type": "insert", "_commit_version": middle - 1,
         "_commit_timestamp": rows[0]["_commit_timestamp"], **row}
        for row in table.scan(as_of=middle).read_all().to_pylist()
    ]  # fmt: skip
    assert full.taken[len(rows) :] == changes(table.changelog(middle, **ends))
    reading.close()


def test_a_writer_may_follow_in_the_same_thread(table: kvstore.Table) -> None:
    following = table.changelog("latest", follow=True, columns=["v"])
    for step in range(5):
        table.upsert({"k": 1, "v": step})
        assert next(following).column("v").to_pylist()[-1] == step


def test_full_begins_at_the_call_and_holds_its_view_only_for_the_rows(table: kvstore.Table) -> None:
    table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
    following = table.changelog("full", follow=True, columns=["_log_offset", "_change_type", "k", "v"])
    table.upsert({"k": 2, "v": 2})
    table.delete(1)
    assert [row["v"] for row in next(following).to_pylist()] == [1, 1]
    found = next(following).to_pylist()
    while len(found) < 3:
        found += next(following).to_pylist()
    assert [(row["_log_offset"], row["_change_type"]) for row in found] == [
        (2, "update_preimage"), (3, "update_postimage"), (4, "delete")
    ]  # fmt: skip


class TestEnds:
    def test_an_existing_or_future_offset(self, table: kvstore.Table) -> None:
        table.upsert([{"k": key, "v": 0} for key in range(4)])
        for end in range(5):
            assert len(changes(table.changelog(0, end, follow=True))) == end
        assert changes(table.changelog("latest", 4, follow=True)) == []
        assert len(changes(table.changelog("full", 4, follow=True))) == 4
        following = Following(table.changelog(2, {0: 6}, follow=True))
        table.upsert([{"k": key, "v": 0} for key in range(4, 9)])
        assert [change["_log_offset"] for change in following.ended()] == [2, 3, 4, 5]

    def test_past_and_future_times(self, store_path: Path) -> None:
        clock = SetClock(1_000)

        def at(ms: int) -> dt.datetime:
            return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)

        with Store(store_path, StoreOptions(commit_idle_ms=1), clock=clock) as store:
            table = store.create_table("t", SCHEMA, "k")
            for clock.now in (1_000, 2_000, 3_000):
                table.upsert({"k": clock.now, "v": 0})
            assert [row["k"] for row in changes(table.changelog(0, at(3_000), follow=True))] == [1_000, 2_000]
            ended = Following(table.changelog(at(2_000), at(5_000), follow=True))
            begun = Following(table.changelog(at(4_500), at(5_500), follow=True))
            full = Following(table.changelog("full", at(5_000), follow=True, columns=["k"]))
            for clock.now in (4_000, 4_500, 5_000, 5_000, 5_500):
                table.upsert({"k": clock.now, "v": 1})
                table.flush()
            assert [row["k"] for row in ended.ended()] == [2_000, 3_000, 4_000, 4_500]
            assert [row["k"] for row in begun.ended()] == [4_500, 5_000, 5_000, 5_000]
            assert [row["k"] for row in full.ended()] == [1_000, 2_000, 3_000, 4_000, 4_500]

    def test_several_commits_seen_at_once_end_where_one_would(self, store_path: Path) -> None:
        clock = SetClock(1_000)
        with Store(store_path, StoreOptions(**NEVER), clock=clock) as store:
            table = store.create_table("t", SCHEMA, "k")
            time_to_come = dt.datetime.fromtimestamp(2, dt.UTC)
            ended = Following(table.changelog(0, time_to_come, follow=True))
            begun = Following(table.changelog(time_to_come, 4, follow=True))
            for clock.now in (1_500, 1_999, 2_000, 3_000):
                table.upsert({"k": clock.now, "v": 1})
            table.flush()
            assert [row["k"] for row in ended.ended()] == [1_500, 1_999]
            assert [row["k"] for row in begun.ended()] == [2_000, 3_000]


class TestWaiting:
    def test_a_waiting_reader_causes_no_commits(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
        polls = Polls(monkeypatch)
        table = open_store(**NEVER).create_table("t", SCHEMA, "k")
        following = Following(table.changelog(follow=True, end=3))
        table.upsert({"k": 1, "v": 1})
        committed = environment_of(table).last_committed()
        table.upsert({"k": 2, "v": 1})
        following.wait_for(2)
        polls.wait_for_more(following)
        table.upsert({"k": 3, "v": 1})
        assert len(following.ended()) == 3
        assert environment_of(table).last_committed() == committed

    def test_a_waiting_reader_holds_no_transaction_and_no_file(
        self, table: kvstore.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        polls = Polls(monkeypatch)
        table.upsert({"k": 1, "v": 1})
        table.flush()
        files = len(os.listdir("/proc/self/fd"))
        environment = environment_of(table)
        followers = [Following(table.changelog(start, follow=True)) for start in ("earliest", "full") for _ in range(3)]
        for follower in followers:
            follower.wait_for(1)
        polls.wait_for_more(*followers)
        seen = [(environment.is_read, len(os.listdir("/proc/self/fd"))) for _ in range(100)]
        assert max(reading for reading, _ in seen) == 0
        assert max(open_files for _, open_files in seen) <= files + 1  # the listing's own

    @pytest.mark.parametrize("is_watched", [False, True])
    def test_a_look_finds_earlier_commits_and_looks_become_less_frequent(
        self, table: kvstore.Table, is_watched: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses: list[float] = []

        def wait(_: Watch, seconds: float) -> bool:
            pauses.append(seconds)
            if len(pauses) % 8 == 0:
                table.upsert({"k": 1, "v": len(pauses)})
                table.flush()
            return len(pauses) % 8 == 0 and is_watched

        monkeypatch.setattr(Watch, "open", lambda _: is_watched)
        monkeypatch.setattr(Watch, "wait", wait)
        following = table.changelog("latest", follow=True, columns=["v"])
        assert next(following).column("v").to_pylist() == [8]
        assert next(following).column("v").to_pylist() == [8, 16]
        longest = WATCHED_SECONDS_MAX if is_watched else PAUSE_SECONDS_MAX
        assert pauses == [min(PAUSE_SECONDS_MIN * 2**n, longest) for n in range(8)] * 2
        assert PAUSE_SECONDS_MAX <= 0.02

    def test_a_reader_that_writes_do_not_wake_looks_as_often_as_one_that_watches_nothing(
        self, table: kvstore.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses: list[float] = []

        def wait(_: Watch, seconds: float) -> bool:
            pauses.append(seconds)
            if len(pauses) % 10 == 0:
                table.upsert({"k": 1, "v": len(pauses)})
                table.flush()
            return False

        monkeypatch.setattr(Watch, "wait", wait)
        following = table.changelog("latest", follow=True, columns=["v"])
        for _ in range(5):
            next(following)
        assert max(pauses[:30]) > PAUSE_SECONDS_MAX
        assert max(pauses[30:]) == PAUSE_SECONDS_MAX


class TestOver:
    def test_closing_the_store_ends_it(self, open_store: OpenStore) -> None:
        for _ in range(15):
            store = open_store()
            table = store.table("t") if "t" in store.list_tables() else store.create_table("t", SCHEMA, "k")
            table.upsert({"k": 1, "v": 1})
            following = [Following(table.changelog(start, follow=True)) for start in ("latest", "full") for _ in "ab"]
            for follower in following[2:]:
                follower.wait_for(1)
            store.close()
            for follower in following:
                with pytest.raises(StoreClosed):
                    follower.ended()

    def test_dropping_the_table_ends_it(self, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        polls = Polls(monkeypatch)
        for step in range(8):
            table = store.create_table("t", SCHEMA, "k")
            if step % 2:
                table.upsert({"k": 1, "v": 1})
            following = [Following(table.changelog(start, follow=True)) for start in ("latest", "full") for _ in "ab"]
            if step & 2:
                polls.wait_for_more(*following)
            store.drop_table("t")
            store.create_table("t", SCHEMA, "k").upsert({"k": 2, "v": 2})
            for follower in following:
                with pytest.raises(NoSuchTable):
                    follower.ended()
            store.drop_table("t")

    def test_a_failed_writer_ends_it(self, store_path: Path) -> None:
        disk = FailingDisk()
        store = Store(store_path, StoreOptions("none"), files=disk)
        table = store.create_table("t", SCHEMA, "k")
        table.upsert({"k": 1, "v": 1})
        following = Following(table.changelog(follow=True))
        following.wait_for(1)
        disk.fail = failing("sync", times=1000)
        table.upsert({"k": 1, "v": 2})
        with pytest.raises(LogFailed):
            table.flush()
        with pytest.raises(LogFailed):
            following.ended()
        disk.fail = lambda _: 0
        with pytest.raises(LogFailed):
            store.close()

    def test_a_log_shorter_than_what_was_read_is_an_error(
        self, table: kvstore.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
        following = table.changelog(follow=True)
        next(following)
        shorter = table.bucket(0).handle.committed()
        monkeypatch.setattr(
            table.bucket(0).handle,
            "committed",
            lambda: type(shorter)(shorter.table_id, shorter.bucket_id, applied_offset=1),
        )
        with pytest.raises(OffsetOutOfRange, match="older copy"):
            next(following)


def test_columns_stay_the_same_when_the_table_gains_some(store_path: Path) -> None:
    store = kvstore.open(store_path)
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": 1, "v": 1})
    following, binlog = table.changelog(follow=True), table.binlog(follow=True)
    names = next(following).schema.names
    kind = next(binlog).schema
    more = pa.schema([*SCHEMA, pa.field("w", pa.string())])
    store.runtime.journal.append(
        lambda _: AddSchema(
            table_id=table.identity[1], schema_id=SchemaId(2), columns=schemas.to_json(schemas.normalise(more, ["k"]))
        )
    )
    table.upsert({"k": 1, "v": 2, "w": "x"})
    later = next(following)
    assert later.schema.names == names
    assert later.column("v").to_pylist() == [1, 2]
    assert next(binlog).schema.equals(kind)
    assert next(iter(table.changelog())).column("w").to_pylist() == [None, None, "x"]
    store.close()


def test_a_commit_is_seen_by_a_reader_that_asked_while_it_was_being_synced(
    table: kvstore.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB publishes the number of a transaction a moment before its content."""
    last_committed = Environment.last_committed
    table.upsert({"k": 1, "v": 1})
    table.flush()
    with monkeypatch.context() as early:
        early.setattr(Environment, "last_committed", lambda self: last_committed(self) + 1)
        assert table.bucket(0).handle.committed().applied_offset == 1
    table.upsert({"k": 2, "v": 1})
    table.flush()
    assert table.bucket(0).handle.committed().applied_offset == 2
