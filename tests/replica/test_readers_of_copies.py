"""Readers that have a copy open while its follower rebuilds it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.store.session
from kvstore.disk.held_directory import LOOK_SECONDS
from kvstore.errors import NoSuchTable, StoreClosed, StoreReplaced
from kvstore.options import StoreOptions
from kvstore.store.runtime import StoreRuntime
from kvstore.store.store import Store
from kvstore.table import read_table
from tests.replica.followers import Leader, follower
from tests.support.clocks import SetClock
from tests.support.replicas import rebuilds
from tests.support.tables import rows_of


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path / "s", 11)
    for _ in range(8):
        made.step()
        made.ship()
    yield made
    made.store.close()


def looks(clock: SetClock) -> None:
    """Let the time pass after which a process looks at the path of its store."""
    clock.now += int(2000 * LOOK_SECONDS)


def test_readers_of_a_copy_see_the_one_that_replaces_it(leader: Leader, tmp_path: Path) -> None:
    copy, clock = rebuilds(leader, tmp_path / "c"), SetClock()
    with Store(tmp_path / "c", StoreOptions(), read_only=True, clock=clock) as reader:
        table, before = reader.table("t"), rows_of(reader.table("t"))
        begun = table.scan()
        assert copy.pull().rebuilt
        expected = rows_of(leader.store.table("t"))
        assert expected != before
        assert rows_of(table) == expected
        assert table.get(expected[0]["k"]) == expected[0]
        assert reader.list_tables() == leader.store.list_tables()
        assert table.schema == leader.store.table("t").schema
        assert rows_of(reader.table("t")) == expected
        assert begun.read_all().num_rows == len(before), "a scan that had begun ends in the copy in which it began"
        for _ in range(9):
            leader.step()
            leader.ship()
            copy.pull()
            looks(clock)
            assert rows_of(table) == rows_of(leader.store.table("t"))
            assert reader.list_tables() == leader.store.list_tables()
        assert reader.check()
    copy.close()


def test_a_get_that_is_timed_sees_the_copy_that_replaces_it(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_table, "GETS_TIMED", 1)
    copy, clock = rebuilds(leader, tmp_path / "c"), SetClock()
    with Store(tmp_path / "c", StoreOptions(), read_only=True, clock=clock) as reader:
        table = reader.table("t")
        rows_of(table)
        assert copy.pull().rebuilt
        looks(clock)
        expected = rows_of(leader.store.table("t"))[0]
        assert table.get(expected["k"]) == expected
    copy.close()


def test_what_was_made_of_a_table_before_reads_the_copy_that_replaces_it(leader: Leader, tmp_path: Path) -> None:
    copy, clock = rebuilds(leader, tmp_path / "c"), SetClock()
    with Store(tmp_path / "c", StoreOptions(), read_only=True, clock=clock) as reader:
        fixed, dataset = reader.table("t").with_fixed_columns(), reader.table("t").dataset()
        parts, table = reader.table("t").parts, reader.table("t")
        before = rows_of(fixed)
        assert copy.pull().rebuilt
        looks(clock)
        expected, ends = rows_of(leader.store.table("t")), leader.store.table("t").offsets()
        assert expected != before
        assert table.bucket(0).status().log_end == ends[0][1]
        for bucket in range(table.buckets):
            assert sum(batch.num_rows for batch in parts.of_bucket(bucket).rows(as_of=ends[bucket][1])) > 0
        assert rows_of(fixed) == expected
        assert dataset.to_table().to_pylist() == expected
    copy.close()


def test_a_table_that_the_rebuilt_copy_lacks_is_gone(leader: Leader, tmp_path: Path) -> None:
    leader.store.create_table("dropped", leader.store.table("t").schema, "k").upsert(
        [dict.fromkeys(leader.store.table("t").schema.names) | {"k": 1}]
    )
    leader.ship()
    follower(leader.objects, tmp_path / "c").close()
    clock = SetClock()
    with Store(tmp_path / "c", StoreOptions(), read_only=True, clock=clock) as reader:
        table = reader.table("dropped")
        leader.store.drop_table("dropped")
        copy = rebuilds(leader, tmp_path / "c")
        assert copy.pull().rebuilt
        looks(clock)
        assert "dropped" not in reader.list_tables()
        with pytest.raises(NoSuchTable):
            reader.table("dropped")
        with pytest.raises(NoSuchTable):
            rows_of(table)
    copy.close()


def test_a_copy_of_another_store_is_not_taken(leader: Leader, tmp_path: Path) -> None:
    follower(leader.objects, tmp_path / "c").close()
    kvstore.open(tmp_path / "other").close()
    clock = SetClock()
    with Store(tmp_path / "c", StoreOptions(), read_only=True, clock=clock) as reader:
        (tmp_path / "c").rename(tmp_path / "moved")
        looks(clock)
        with pytest.raises((StoreReplaced, kvstore.errors.NotAStore)):
            reader.list_tables()
        (tmp_path / "other").rename(tmp_path / "c")
        looks(clock)
        with pytest.raises(StoreReplaced):
            reader.list_tables()


def test_a_store_that_is_closed_while_a_thread_takes_the_replacement_is_closed(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, goes_on, is_open = rebuilds(leader, tmp_path / "c"), threading.Event(), threading.Event()
    open_runtime = kvstore.store.session.shared_runtime

    def slow(*args: Any) -> StoreRuntime:
        runtime = open_runtime(*args)
        if is_slow:
            is_open.set()
            goes_on.wait(60)
        return runtime

    is_slow = False
    monkeypatch.setattr(kvstore.store.session, "shared_runtime", slow)
    reader = Store(tmp_path / "c", StoreOptions(), read_only=True, clock=SetClock())
    table = reader.table("t")
    assert copy.pull().rebuilt
    copy.close()
    is_slow = True
    with ThreadPoolExecutor(3) as pool:
        reads = [pool.submit(rows_of, table) for _ in range(2)]
        assert is_open.wait(60)
        closing = pool.submit(reader.close)
        wait([closing], 0.2)  # it waits for the others; one that did not would have ended by now
        goes_on.set()
        closing.result(60)
        for each in reads:
            with suppress(StoreClosed):
                assert each.result(60) == rows_of(leader.store.table("t"))
    gc.collect()
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # other threads close theirs
            files.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    assert [each for each in files if each.startswith(f"{tmp_path / 'c'}/")] == []
