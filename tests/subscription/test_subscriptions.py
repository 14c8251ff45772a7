"""``with t.subscribe(name) as changes``: what is not acknowledged comes again, and nothing else does."""

from __future__ import annotations

import ast
import asyncio
import gc
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.commit.consumers import Consumers
from kvstore.disk.watch import Watch
from kvstore.errors import (
    InvalidRequest,
    NoSuchTable,
    OffsetOutOfRange,
    SchemaMismatch,
    StoreClosed,
    StoreFull,
    UnsupportedOperation,
)
from kvstore.read import follow as waiting
from kvstore.store.store import Store, StoreOptions
from kvstore.subscription import subscription
from tests.support.clocks import SetClock
from tests.support.processes import WITHOUT_PANDAS, Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import SECONDS_MAX, wait_until

SCHEMA = {"k": "int64", "v": "int64"}
Copy = dict[int, int]


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 3], ids=["one bucket", "three buckets"])
def table(request: pytest.FixtureRequest, store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=request.param)
    table.upsert([{"k": k, "v": 0} for k in range(9)])
    return table


def apply(batch: pa.RecordBatch, copy: Copy) -> None:
    for change in batch.to_pylist():
        if change["_change_type"] in ("insert", "update_postimage"):
            copy[change["k"]] = change["v"]
        elif change["_change_type"] == "delete":
            copy.pop(change["k"], None)


def copied(table: kvstore.Table, copy: Copy, name: str = "s", **how: Any) -> int:
    """Bring a copy up to date; the number of changes that were delivered."""
    count = 0
    with table.subscribe(name, follow=False, **how) as changes:
        for batch in changes:
            assert batch.num_rows
            apply(batch, copy)
            changes.ack(batch)
            count += batch.num_rows
    return count


def test_a_filter_that_has_lost_its_column_is_an_error(table: kvstore.Table, store: kvstore.Store) -> None:
    with table.subscribe("s", filter=pc.field("v") == 0) as changes:
        for _ in range(len(table.offsets())):
            changes.ack(next(changes))
        store.rename_columns("t", {"v": "w"})
        table = store.table("t")
        table.upsert({"k": 20, "w": 0})
        assert next(changes)["v"].to_pylist() == [0]
        store.drop_columns("t", "w")
        store.table("t").upsert({"k": 21})
        with pytest.raises(SchemaMismatch, match=r"read with another filter.*dropped=\['v'\]"):
            next(changes)


def test_another_filter_under_a_name_is_an_error_and_the_position_stays(
    table: kvstore.Table, store: kvstore.Store
) -> None:
    def many(last: int) -> pc.Expression:
        return pc.field("v").isin([*range(500), last])  # pyarrow's text of both has dots in the middle

    copied(table, {}, filter=many(500))
    table.upsert({"k": 20, "v": 0})
    known = dict(table.consumers["s"])
    for other in (None, many(501), pc.field("k") == 500, pc.field("v") == 1):
        with pytest.raises(InvalidRequest, match=r"had another filter.*another name.*drop_consumer.*former=.*is_in"):
            table.subscribe("s", filter=other)
    assert table.consumers["s"] == known
    assert copied(table, {}, filter=many(500)) == 1
    store.rename_columns("t", {"v": "w"})
    table = store.table("t")
    table.upsert({"k": 21, "w": 0})
    with table.subscribe("s", filter=pc.field("w").isin([*range(500), 500]), follow=False) as changes:
        assert [batch["k"].to_pylist() for batch in changes] == [[21]]
    store.drop_consumer("s")
    with table.subscribe("s", filter=pc.field("w") == 1, follow=False) as changes:
        assert not list(changes)  # nothing is acknowledged, and the name is free
    with table.subscribe("all", start="latest", follow=False):
        pass
    with pytest.raises(InvalidRequest, match="had another filter"):
        table.subscribe("all", filter=pc.field("w") == 0)


def test_a_position_that_was_set_by_hand_takes_a_filter_and_keeps_it(
    table: kvstore.Table, store: kvstore.Store
) -> None:
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    store.consumer("s").commit("t", ends)
    assert copied(table, {}, filter=pc.field("v") == 0) == 0
    table.upsert([{"k": 30, "v": 0}, {"k": 31, "v": 1}])
    assert copied(table, {}, filter=pc.field("v") == 0) == 1
    store.consumer("s").commit("t", ends)
    with pytest.raises(InvalidRequest, match="had another filter"):
        table.subscribe("s")
    assert copied(table, {}, filter=pc.field("v") == 0) == 1


def contents(table: kvstore.Table) -> Copy:
    return {row["k"]: row["v"] for row in rows_of(table)}


def test_it_begins_with_the_rows_and_goes_on_after_what_was_acknowledged(table: kvstore.Table) -> None:
    copy: Copy = {}
    assert copied(table, copy) == 9
    assert copy == contents(table)
    assert copied(table, copy) == 0
    table.upsert([{"k": 1, "v": 1}, {"k": 10, "v": 1}])
    table.delete(2)
    assert copied(table, copy) == 4
    assert copy == contents(table)
    assert table.consumers["s"] == {bucket: end for bucket, (_, end) in table.offsets().items()}


@pytest.mark.parametrize("start", ["full", "earliest"])
def test_what_is_not_acknowledged_comes_again(table: kvstore.Table, start: Any) -> None:
    def first(acknowledges: bool) -> list[Any]:
        with table.subscribe("s", start, follow=False, columns=["k", "v"]) as changes:
            found = [batch for batch in [next(changes, None)] if batch is not None]
            if acknowledges:
                changes.ack(found[0])
            return sorted(row["k"] for each in (*found, *changes) for row in each.to_pylist())

    everything = first(acknowledges=False)
    assert everything == list(range(9))
    assert first(acknowledges=True) == everything
    rest = first(acknowledges=False)
    # Of current rows all come again, or none once the last of them is acknowledged.
    assert rest == everything if start == "full" and table.buckets > 1 else set(rest) < set(everything)
    if table.buckets == 1:
        assert rest == []


def test_an_acknowledgement_is_of_all_before_it(table: kvstore.Table) -> None:
    with table.subscribe("s", follow=False) as changes:
        *_, last = changes
        changes.ack(last)
        with pytest.raises(InvalidRequest, match="only once"):
            changes.ack(last)
    assert copied(table, {}) == 0
    table.upsert([{"k": k, "v": 5} for k in range(9)])
    with table.subscribe("s", follow=False) as changes:
        assert sum(batch.num_rows for batch in changes) == 18
        changes.ack()
        changes.ack()
    assert copied(table, {}) == 0


def test_batches_that_are_not_acknowledged_are_not_kept(table: kvstore.Table) -> None:
    with table.subscribe("s", follow=False) as changes:
        held = weakref.ref(next(changes))
        list(changes)
        gc.collect()
        assert held() is None
        changes.ack()
    assert copied(table, {}) == 0


def test_a_batch_of_another_is_refused(table: kvstore.Table) -> None:
    with table.subscribe("a", follow=False) as one, table.subscribe("b", follow=False) as other:
        batch = next(one)
        next(other)
        with pytest.raises(InvalidRequest, match="has delivered"):
            other.ack(batch)
        other.ack()
    assert "a" not in table.consumers


def test_names_are_independent_and_start_counts_once(table: kvstore.Table) -> None:
    assert copied(table, {}, "late", start="latest") == 0
    table.upsert({"k": 1, "v": 1})
    assert copied(table, {}, "late", start="earliest") == 2
    assert copied(table, {}, "early", start="earliest") == 11
    assert copied(table, {}, "full") == 9
    assert set(table.consumers) == {"late", "early", "full"}


def test_a_filter_moves_the_position_over_what_it_leaves_out(table: kvstore.Table) -> None:
    copy: Copy = {}
    assert copied(table, copy, filter=pc.field("v") > 0) == 0
    for value in (1, 0):
        table.upsert([{"k": k, "v": value} for k in range(9)])
        copied(table, copy, filter=pc.field("v") > 0)
        assert copy == {row["k"]: row["v"] for row in table.scan(filter=pc.field("v") > 0).read_all().to_pylist()}
    table.upsert([{"k": k, "v": -1} for k in range(9)])
    assert copied(table, copy, filter=pc.field("v") > 0) == 0
    assert table.consumers["s"] == {bucket: end for bucket, (_, end) in table.offsets().items()}


def test_a_follower_that_sees_nothing_lets_the_log_go(table: kvstore.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "QUIET_SECONDS", 0)
    copied(table, {}, filter=pc.field("v") > 8)

    async def follow() -> None:
        async for _ in table.subscribe("s", filter=pc.field("v") > 8):
            break

    async def main() -> None:
        following = asyncio.create_task(follow())
        for value in range(3):
            await asyncio.to_thread(table.upsert, [{"k": k, "v": value} for k in range(9)])
        ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
        await asyncio.to_thread(wait_until, lambda: table.consumers["s"] == ends)
        await asyncio.to_thread(table.upsert, {"k": 1, "v": 9})
        await following

    asyncio.run(main())
    assert copied(table, {}, filter=pc.field("v") > 8) == 1


def test_async_for(table: kvstore.Table) -> None:
    async def read() -> Copy:
        copy: Copy = {}
        with table.subscribe("s", follow=False) as changes:
            async for batch in changes:
                apply(batch, copy)
                changes.ack(batch)
        return copy

    assert asyncio.run(read()) == contents(table)
    assert asyncio.run(read()) == {}


@pytest.mark.parametrize("acknowledges", ["each", "all"])
def test_a_wait_that_is_cancelled_loses_no_batch(table: kvstore.Table, acknowledges: str) -> None:
    table.upsert([{"k": k, "v": 1} for k in range(9, 20)])

    async def read() -> Copy:
        copy: Copy = {}
        with table.subscribe("s", follow=False) as changes:
            while True:
                for turns in range(3):
                    cancelled = asyncio.ensure_future(anext(changes, None))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    cancelled.cancel()
                    with suppress(asyncio.CancelledError):
                        await cancelled
                    if acknowledges == "all":
                        changes.ack()
                if (batch := await anext(changes, None)) is None:
                    return copy
                apply(batch, copy)
                changes.ack(batch if acknowledges == "each" else None)

    assert asyncio.run(read()) == contents(table)
    assert copied(table, {}) == 0


def test_a_read_that_fails_is_no_end(table: kvstore.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(table, {})
    table.upsert([{"k": k, "v": 3} for k in range(9)])

    def fails(*_: object, **__: object) -> None:
        raise OSError("the disk is gone")

    with table.subscribe("s", follow=False) as changes:
        with monkeypatch.context() as patch:
            patch.setattr(subscription, "changes_between", fails)
            with pytest.raises(OSError, match="the disk is gone"):
                next(changes)
        with pytest.raises(InvalidRequest, match=r"subscribe again.*the disk is gone"):
            next(changes)
        changes.ack()
    copy: Copy = {}
    copied(table, copy)
    assert copy == dict.fromkeys(range(9), 3)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_fails_loses_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    clock = SetClock()

    def full(*_: object, **__: object) -> None:
        raise StoreFull("The disk is full.")

    async def following(changes: kvstore.Subscription) -> pa.RecordBatch | None:
        return await anext(changes, None) if is_async else next(changes, None)

    with Store(tmp_path / "store", StoreOptions(), clock=clock) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=3)
        copied(table, {})
        table.upsert([{"k": k, "v": 7} for k in range(9)])
        copy: Copy = {}
        failed = 0
        with table.subscribe("s", follow=False, ack_ms=1_000_000) as changes:
            while True:
                try:
                    with monkeypatch.context() as patch:
                        patch.setattr(Consumers, "move", full)
                        batch = asyncio.run(following(changes))
                except StoreFull:
                    failed += 1
                    changes.ack()  # of all that were delivered, so not of the one that was not
                    batch = asyncio.run(following(changes))
                if batch is None:
                    break
                apply(batch, copy)
                changes.ack(batch)
                clock.now += 2_000_000  # it is due
        assert failed > 1
        assert copy == dict.fromkeys(range(9), 7)
        assert copied(table, {}) == 0


def test_a_second_task_is_refused_and_the_first_goes_on(table: kvstore.Table) -> None:
    async def read() -> list[int]:
        with table.subscribe("s", start="latest") as changes:
            waiting = asyncio.ensure_future(anext(aiter(changes)))
            await asyncio.sleep(0)
            with pytest.raises(InvalidRequest, match="Another thread or task"):
                await anext(aiter(changes))
            table.upsert({"k": 77, "v": 1})
            return (await waiting).column("k").to_pylist()

    assert asyncio.run(read()) == [77]


def read_all(changes: kvstore.Subscription, is_async: bool) -> list[int]:
    """Keys of the changes up to the end, each batch acknowledged."""

    def acknowledged(batch: pa.RecordBatch) -> list[int]:
        changes.ack(batch)
        return batch.column("k").to_pylist()

    async def each() -> list[int]:
        return [k async for batch in changes for k in acknowledged(batch)]

    return asyncio.run(each()) if is_async else [k for batch in changes for k in acknowledged(batch)]


IS_ASYNC = pytest.mark.parametrize("is_async", [False, True], ids=["thread", "asyncio"])


@IS_ASYNC
def test_another_thread_closes_one_that_reads(
    table: kvstore.Table, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    is_reading, may_read, changes_between = threading.Event(), threading.Event(), subscription.changes_between

    def slow(*given: Any, **how: Any) -> Any:
        is_reading.set()
        assert may_read.wait(SECONDS_MAX)
        return changes_between(*given, **how)

    changes = table.subscribe("s", start="latest", ack_ms=60_000)
    monkeypatch.setattr(subscription, "changes_between", slow)
    table.upsert({"k": 77, "v": 1})
    found = ThreadPoolExecutor(1).submit(read_all, changes, is_async)
    assert is_reading.wait(SECONDS_MAX)
    try:
        changes.close()
        table.upsert([{"k": k, "v": 1} for k in range(90, 99)])  # what goes on coming is no reason to go on
    finally:
        may_read.set()
    assert found.result(SECONDS_MAX) == [77]
    assert list(changes) == []
    assert copied(table, {}) > 0  # what was acknowledged has moved the position, and nothing else has


@IS_ASYNC
def test_another_thread_closes_one_that_waits(
    table: kvstore.Table, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    for name in ("PAUSE_SECONDS_MIN", "PAUSE_SECONDS_MAX", "WATCHED_SECONDS_MAX"):
        monkeypatch.setattr(waiting, name, 3600.0)  # it is woken, or never looks again
    is_waiting, opened = threading.Event(), Watch.open

    def noted(watch: Watch) -> bool:
        try:
            return opened(watch)
        finally:
            is_waiting.set()

    monkeypatch.setattr(Watch, "open", noted)
    changes = table.subscribe("s", start="latest")
    found = ThreadPoolExecutor(1).submit(read_all, changes, is_async)
    assert is_waiting.wait(SECONDS_MAX)
    time.sleep(0.05)  # it waits by now, probably; the test holds if it does not
    changes.close()
    assert found.result(SECONDS_MAX) == []


def test_an_empty_table_has_a_position_at_once(store: kvstore.Store) -> None:
    table = store.create_table("empty", SCHEMA, primary_key="k", buckets=2)
    assert copied(table, {}) == 0
    assert table.consumers["s"] == {0: 0, 1: 0}


def test_a_log_table_begins_with_its_log(store: kvstore.Store) -> None:
    log = store.create_table("log", {"v": "int64"})
    log.upsert([{"v": 1}, {"v": 2}])
    with pytest.raises(UnsupportedOperation):
        log.subscribe("s")
    with log.subscribe("s", "earliest", follow=False) as changes:
        assert [row["v"] for batch in changes for row in batch.to_pylist()] == [1, 2]
        changes.ack()
    assert log.consumers == {"s": {0: 2}}


def test_the_log_is_kept_while_rows_are_read_and_no_longer(open_store: Callable[..., kvstore.Store]) -> None:
    table = open_store(log_bytes_max=1, segment_bytes_max=4096).create_table("t", SCHEMA, primary_key="k")
    table.upsert({"k": 0, "v": 0})

    def log_start() -> int:
        table.bucket(0).handle.retain()
        return table.offsets()[0][0]

    with table.subscribe("s", follow=False) as changes:
        for k in range(1, 200):
            table.upsert({"k": k, "v": 0})
        assert log_start() == 0
        *_, last = changes
        changes.ack(last)
        assert log_start() > 0


@pytest.mark.parametrize("is_async", [False, True])
def test_acknowledgements_of_a_while_are_one_edit(table: kvstore.Table, store: kvstore.Store, is_async: bool) -> None:
    copied(table, {})
    position = table.consumers["s"]
    for value in range(20):
        table.upsert([{"k": k, "v": value} for k in range(9)])

    async def each(changes: kvstore.Subscription) -> None:
        if is_async:
            async for batch in changes:
                changes.ack(batch)
        else:
            for batch in changes:
                changes.ack(batch)
                assert table.consumers["s"] == position

    before = store.runtime.catalog().txid
    with table.subscribe("s", follow=False, ack_ms=10**9) as changes:
        asyncio.run(each(changes))
        assert table.consumers["s"] == {bucket: end for bucket, (_, end) in table.offsets().items()}
    assert store.runtime.catalog().txid == before + 1


def test_what_was_acknowledged_since_the_last_edit_comes_again_after_a_kill(table: kvstore.Table) -> None:
    copied(table, {})
    for value in range(3):
        table.upsert([{"k": k, "v": value} for k in range(9)])
    killed = table.subscribe("s", follow=False, ack_ms=10**9)
    batch = next(killed)
    killed.ack(batch)
    copy: Copy = {}
    assert copied(table, copy) > batch.num_rows / 2
    assert copy == contents(table)
    killed.close()  # a second reader under the name has moved on; the log is kept from the lower position
    assert copied(table, copy) >= 0
    assert copy == contents(table)


def test_acknowledgements_are_durable_before_a_reader_waits_and_once_it_is_closed(table: kvstore.Table) -> None:
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}

    def follow() -> None:
        with table.subscribe("s", ack_ms=10**9) as changes:
            for batch in changes:
                changes.ack(batch)
                if 99 in batch.column("k").to_pylist():
                    return

    reading = threading.Thread(target=follow, daemon=True)
    reading.start()
    wait_until(lambda: table.consumers.get("s") == ends)
    table.upsert({"k": 99, "v": 1})
    reading.join(60)
    assert copied(table, {}) == 0


WRONG: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "name": (InvalidRequest, {"name": ""}),
    "start": (InvalidRequest, {"start": "now"}),
    "filter": (InvalidRequest, {"filter": "v > 1"}),
    "columns": (SchemaMismatch, {"columns": ["nope"]}),
    "follow": (InvalidRequest, {"follow": "yes"}),
    "ack_ms": (InvalidRequest, {"ack_ms": -1}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_possible_registers_nothing(table: kvstore.Table, wrong: str) -> None:
    error, given = WRONG[wrong]
    with pytest.raises(error):
        table.subscribe(**{"name": "s", **given})
    assert table.consumers == {}


def test_a_store_that_is_only_read_has_none(table: kvstore.Table, store_path: Path) -> None:
    with kvstore.open(store_path, read_only=True) as reader, pytest.raises(UnsupportedOperation):
        reader["t"].subscribe("s")


def test_the_end_of_the_table_and_of_the_store(store: kvstore.Store, table: kvstore.Table) -> None:
    with table.subscribe("s", "latest") as changes:
        store.drop_table("t")
        with pytest.raises(NoSuchTable):
            next(changes)
    other = store.create_table("other", SCHEMA, primary_key="k")
    other.upsert({"k": 1, "v": 1})
    with other.subscribe("s") as changes:
        batch = next(changes)
        store.close()
        with pytest.raises(StoreClosed):
            changes.ack(batch)


# Readers that die

steps = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=4)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 4), max_size=3)),
        st.tuples(st.just("read"), st.integers(0, 3)),
    ),
    max_size=10,
)


@given(steps, st.sampled_from([None, 1, 2]), st.sampled_from([1, 2]))
def test_a_copy_is_exact_whenever_its_reader_ends(
    history: list[tuple[str, Any]], limit: int | None, buckets: int
) -> None:
    """Each time a reader ends after some batches: the last was applied, or not, but is not acknowledged."""
    filter = None if limit is None else pc.field("v") >= limit
    copy: Copy = {}
    with tempfile.TemporaryDirectory() as directory, kvstore.open(Path(directory) / "s") as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=buckets)
        for kind, given_rows in history:
            if kind == "upsert":
                table.upsert([{"k": k, "v": v} for k, v in given_rows])
            elif kind == "delete":
                table.delete(given_rows)
            else:
                with table.subscribe("s", filter=filter, follow=False) as changes:
                    for _, batch in zip(range(given_rows), changes, strict=False):
                        if not table.consumers and table.buckets == 1:
                            copy = {}
                        apply(batch, copy)
                        changes.ack(batch)
                    for batch in changes:
                        apply(batch, copy)
                        break
        had_position = bool(table.consumers)
        with table.subscribe("s", filter=filter, follow=False) as changes:
            if not had_position:
                copy = {}
            for batch in changes:
                apply(batch, copy)
                changes.ack(batch)
        expected = table.scan(filter=filter).read_all().to_pylist()
        assert copy == {row["k"]: row["v"] for row in expected}


def follow(pipe: Pipe, path: Path) -> None:
    """Deliver batches, and acknowledge each once it was heard."""
    with kvstore.open(path) as store, store["t"].subscribe("s") as changes:
        for batch in changes:
            pipe.send(batch.to_pylist())
            pipe.recv()
            changes.ack(batch)
            pipe.send("acknowledged")


def test_readers_that_are_killed(table: kvstore.Table, store_path: Path) -> None:
    dice, copy, acknowledged = Random(5), dict[int, int](), False
    for turn in range(6):
        with Child(follow, store_path) as child:
            if not acknowledged:
                copy = {}
            for _ in range(dice.randint(1, 3)):
                table.upsert([{"k": dice.randint(0, 12), "v": turn} for _ in range(4)])
                apply(pa.RecordBatch.from_pylist(child.hear()), copy)
                if dice.random() < 0.4:
                    break  # it is killed before it acknowledges
                child.say("go on")
                assert child.hear() == "acknowledged"
                acknowledged = bool(table.consumers)
    copied(table, copy)
    assert copy == contents(table)


FINE = """
import pyarrow as pa, pyarrow.compute as pc
from kvstore.indexing.filters import digest_of
types = [pa.time64("ns"), pa.timestamp("ns"), pa.duration("ns"), pa.timestamp("us"), pa.date32(), pa.int64()]
values = [pa.scalar(number, kind) for kind in types for number in (1, 2, 2**31 - 1)]
values += [pa.scalar(2**62, pa.timestamp("us")), pa.scalar("x"), pa.scalar(b"x")]
filters = [pc.field("a") == value for value in values]
filters += [pc.field("a").isin(pa.array([1, each], pa.timestamp("ns"))) for each in (2, 3, None)]
print([digest_of(filter, ["a"]) for filter in filters])
"""


def test_filters_are_told_apart_by_what_is_stored_with_and_without_pandas() -> None:
    """Python's values have no nanoseconds and no years after 9999; pandas has values of its own."""
    printed = [
        subprocess.run([sys.executable, "-c", before + FINE], check=True, capture_output=True, text=True).stdout
        for before in ("import pandas", WITHOUT_PANDAS)
    ]
    assert printed[0] == printed[1]
    digests = ast.literal_eval(printed[0])
    assert len(set(digests)) == len(digests)


EXPIRES = {"segment_bytes_max": 1, "log_bytes_max": 1}


def expire(store: kvstore.Store, table: kvstore.Table) -> None:
    for k in range(3):
        table.upsert({"k": 1000 + k, "v": 0})
        store.checkpoint()


def test_an_ack_never_passes_changes_that_expired_before_they_were_delivered(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store", **EXPIRES, consumer_log_bytes_max=100) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert({"k": 1, "v": 1})
        reader = table.subscribe("c", start="earliest", follow=False)
        batch = next(reader)
        for k in range(2, 9):
            table.upsert({"k": k, "v": 1})
        expire(store, table)
        assert table.bucket(0).handle.log.start() > 1, "or nothing has expired"
        reader.ack(batch)
        reader.close()
        with table.subscribe("c", follow=False) as again, pytest.raises(OffsetOutOfRange, match="drop_consumer"):
            next(again)
        store.drop_consumer("c")
        copy: Copy = {}
        copied(table, copy, "c")
        assert copy == contents(table)


def test_a_first_copy_that_takes_long_keeps_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvstore.open(tmp_path / "store", **EXPIRES) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([{"k": k, "v": 0} for k in range(100)])
        with table.subscribe("c", follow=False) as reader:
            monkeypatch.setattr(subscription, "LEASE_SECONDS", 0)
            (before,) = store.leases.values()
            batch = next(reader)
            (after,) = store.leases.values()
            assert after != before, "delivering rows renews it"
            reader.ack(batch)


def test_an_ack_after_the_name_was_given_up_is_refused(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert({"k": 1, "v": 1})
        with table.subscribe("c", start="earliest", follow=False) as reader:
            batch = next(reader)
            store.drop_consumer("c")
            with pytest.raises(InvalidRequest, match="given up"):
                reader.ack(batch)
            assert store.consumers == {}


def test_a_lease_does_not_end_the_position_of_another_reader_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(tmp_path / "store", **EXPIRES) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert({"k": 1, "v": 0})
        with table.subscribe("c", follow=False) as slow, table.subscribe("c", follow=False) as fast:
            fast.ack(next(fast))
            position = store.consumers["c"]
            monkeypatch.setattr(subscription, "LEASE_SECONDS", 0)
            next(slow)
            assert store.consumers["c"] == position
