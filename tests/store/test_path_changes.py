"""A store whose path changes while it is open: it is moved, removed, replaced, restored, or a part of it is.

No byte goes into what is at its path then, a second later nothing is acknowledged, and what happened is said.
"""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.disk.files import Files
from kvstore.disk.held_directory import HeldDirectory
from kvstore.errors import StoreError, StoreReplaced, WriterRejected
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.support.path_changes import CHANGES, SCHEMA, WHOLE, Change, Paths, make_stores, tree
from tests.support.tables import rows_of

OPTIONS = StoreOptions(segment_bytes_max=600, map_bytes=1 << 28)


class LeapingClock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class World:
    def __init__(self, paths: Paths) -> None:
        self.paths, self.clock = paths, LeapingClock()
        self.store = Store(self.paths.data, OPTIONS, clock=self.clock)
        self.table = self.store.table("t")
        self.table.upsert([{"k": 100, "v": 1}])

    def wait(self) -> None:
        self.clock.ahead += 1.0

    def writes(self) -> dict[str, Callable[[], object]]:
        store, table = self.store, self.table
        return {
            "upsert": lambda: table.upsert([{"k": 101, "v": 2}]),
            "create_table": lambda: store.create_table("new", SCHEMA, "k"),
            "add_columns": lambda: store.add_columns("t", [SCHEMA.field("v").with_name("w")]),
            "alter_table": lambda: store.alter_table("t", compression=None),
            "rename_table": lambda: store.rename_table("t", "u"),
            "new_writer_id": store.new_writer_id,
            "flush": store.flush,
            "snapshot": table.snapshot,
            "checkpoint": store.checkpoint,
            "commit": lambda: store.consumer("c").commit("t", {0: 1}),
            "drop_table": lambda: store.drop_table("t"),
        }

    def reads(self) -> dict[str, Callable[[], object]]:
        table = self.table
        return {
            "get": lambda: table.get(1),
            "scan": lambda: table.scan().read_all(),
            "changelog": lambda: list(table.changelog("earliest")),
            "check": self.store.check,
        }


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores")
    make_stores(path)
    return path


@pytest.fixture
def paths(stores: Path, tmp_path: Path) -> Paths:
    made = Paths(tmp_path)
    made.begin(stores)
    return made


@pytest.fixture
def world(paths: Paths) -> Iterator[World]:
    made = World(paths)
    yield made
    made.store.close()


every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
every_whole_change = pytest.mark.parametrize("change", WHOLE.values(), ids=WHOLE.keys())


def test_a_bucket_that_was_replaced_before_it_is_written_is_refused(paths: Paths) -> None:
    with Store(paths.data, OPTIONS) as store:
        table = store.table("t")
        CHANGES["bucket linked"](paths)
        before = paths.foreign()
        with pytest.raises(StoreReplaced, match="since the store was opened"):
            table.upsert([{"k": 1, "v": 7}])
    assert paths.foreign() == before


@every_change
def test_nothing_is_acknowledged_a_second_later(world: World, change: Change) -> None:
    there = change(world.paths)
    before = {path: tree(path) for path in there}, world.paths.foreign()
    world.wait()
    for name, work in {**world.writes(), **world.reads()}.items():
        with pytest.raises(StoreReplaced, match="open what is there now"):
            pytest.fail(f"{name} answered {work()}")
    world.store.close()
    assert ({path: tree(path) for path in there}, world.paths.foreign()) == before


@every_change
def test_no_byte_goes_into_what_took_its_place(world: World, change: Change) -> None:
    there = change(world.paths)
    before = {path: tree(path) for path in there}, world.paths.foreign()
    for name, work in world.writes().items():
        with suppress(StoreError):
            for _ in range(20 if name == "upsert" else 1):  # the log gets new segments
                work()
    with suppress(StoreError):
        world.store.close()
    assert ({path: tree(path) for path in there}, world.paths.foreign()) == before


@every_change
def test_a_bucket_that_was_not_open_is_not_written_elsewhere(paths: Paths, change: Change) -> None:
    clock = LeapingClock()
    store = Store(paths.data, OPTIONS, clock=clock)
    there = change(paths)
    before = {path: tree(path) for path in there if path == paths.data}, paths.foreign()
    clock.ahead += 1.0
    with suppress(StoreError):
        store.table("t").upsert([{"k": 1, "v": 2}])
    store.close()
    if paths.data in there:
        assert ({path: tree(path) for path in before[0]}, paths.foreign()) == before


@every_whole_change
def test_after_it_was_closed_the_path_is_what_is_there_now(world: World, change: Change) -> None:
    change(world.paths)
    world.wait()
    with pytest.raises(StoreReplaced):
        world.table.upsert([{"k": 1, "v": 7}])
    world.store.close()
    if (world.paths.data / "STORE").exists():
        with kvstore.open(world.paths.data) as store:
            assert rows_of(store.table("t")) == [{"k": k, "v": 0} for k in range(20)]
            store.table("t").upsert([{"k": 1, "v": 7}])
            assert store.check()


@every_whole_change
def test_another_store_at_the_path_is_opened_beside_the_one_that_was_there(world: World, change: Change) -> None:
    change(world.paths)
    if world.paths.data.parent.exists():
        with kvstore.open(world.paths.data) as store:
            if "t" in store.list_tables():
                assert store.table("t").get(100) is None
                store.table("t").upsert([{"k": 1, "v": 7}])
            else:
                store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 7}])
            assert store.check()
        world.wait()
        with pytest.raises(StoreReplaced):
            world.table.upsert([{"k": 1, "v": 8}])
        with kvstore.open(world.paths.data) as store:
            assert store.table("t").get(1) == {"k": 1, "v": 7}


def test_what_was_acknowledged_is_in_the_directory_that_was_moved(world: World) -> None:
    away = world.paths.away()
    world.paths.data.rename(away)
    world.table.upsert([{"k": 101, "v": 1}])  # within the second
    world.wait()
    with pytest.raises(StoreReplaced):
        world.table.upsert([{"k": 102, "v": 1}])
    world.store.close()
    with kvstore.open(away) as store:
        assert store.table("t").get(100) == {"k": 100, "v": 1}
        assert store.table("t").get(101) == {"k": 101, "v": 1}
        assert store.table("t").get(102) is None
        assert store.check()


def test_a_moved_store_is_not_opened_twice_in_a_process(world: World) -> None:
    away = world.paths.away()
    world.paths.data.rename(away)
    with pytest.raises(StoreError, match="close it there first"):
        kvstore.open(away)
    world.store.close()
    kvstore.open(away).close()


def test_what_was_acknowledged_without_a_sync_is_in_the_directory_that_was_moved(paths: Paths) -> None:
    clock = LeapingClock()
    store = Store(paths.data, StoreOptions("none"), clock=clock)
    store.table("t").upsert([{"k": 100, "v": 1}])
    away = paths.away()
    paths.data.rename(away)
    clock.ahead += 1.0
    with pytest.raises(StoreReplaced):
        store.table("t").upsert([{"k": 101, "v": 1}])
    store.close()
    with kvstore.open(away) as found:
        assert found.table("t").get(100) == {"k": 100, "v": 1}


def test_a_write_that_takes_long_is_not_acknowledged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = Files.sync
    moved: list[Path] = []

    def slow(self: Files, descriptor: int) -> None:
        if not moved:
            moved.append(world.paths.away())
            world.paths.data.rename(moved[0])
            world.wait()
        sync(self, descriptor)

    monkeypatch.setattr(Files, "sync", slow)
    with pytest.raises(StoreReplaced, match="moved away"):
        world.table.upsert([{"k": 101, "v": 1}])


MESSAGES = {
    "moved": "was moved away",
    "removed": "was removed",
    "moved_and_restored": "was replaced",
    "swapped_by_a_link": "through a link",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_error_says_what_happened(world: World, name: str) -> None:
    CHANGES[name](world.paths)
    world.wait()
    with pytest.raises(StoreReplaced, match=MESSAGES[name]) as found:
        world.table.upsert([{"k": 1, "v": 7}])
    assert found.value.where["path"] == world.paths.data


def test_a_recovered_catalog_is_named_as_such(world: World) -> None:
    journal = world.paths.data / "meta/journal"
    journal.rename(world.paths.away())
    shutil.copytree(world.paths.copy / "meta/journal", journal)
    before = tree(journal)
    world.wait()
    with pytest.raises(WriterRejected, match="recovered by another process"):
        world.table.upsert([{"k": 1, "v": 7}])
    world.store.close()
    assert tree(journal) == before


@pytest.mark.parametrize("change", ["moved", "removed", "moved_and_restored", "bucket restored", "catalog restored"])
def test_closing_gives_everything_back(paths: Paths, change: str) -> None:
    def cycle() -> None:
        clock = LeapingClock()
        store = Store(paths.data, OPTIONS, clock=clock)
        store.table("t").upsert([{"k": 1, "v": 1}])
        CHANGES[change](paths)
        clock.ahead += 1.0
        with pytest.raises(StoreReplaced):
            store.table("t").upsert([{"k": 1, "v": 1}])
        store.close()
        store.close()

    gc.collect()  # of tests before
    before = len(os.listdir("/dev/fd")), threading.active_count()
    cycle()
    assert (len(os.listdir("/dev/fd")), threading.active_count()) == before


def test_a_table_that_another_process_may_drop_is_no_change(world: World) -> None:
    """What this process does not write any more may go."""
    world.table.bucket(0).handle.stop_writing()
    shutil.rmtree(world.paths.data / "tables/1")
    world.wait()
    world.store.new_writer_id()


def test_a_store_that_is_at_its_path_is_written_as_before(world: World) -> None:
    for k in range(200, 220):
        world.wait()
        world.table.upsert([{"k": k, "v": 1}])
    assert world.table.count() == 41
    assert world.store.check()


# Planted


def without_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldDirectory, "check", lambda _: 0)
    monkeypatch.setattr(HeldDirectory, "verify", lambda *_: None)


def by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldDirectory, "below", lambda *_: None)


@pytest.mark.parametrize("bug", [without_looking, by_path])
def test_without_it_the_other_store_is_written(paths: Paths, monkeypatch: pytest.MonkeyPatch, bug: Any) -> None:
    """Planted bugs: the path is never checked, or files are opened by their paths."""
    bug(monkeypatch)
    test = (
        test_nothing_is_acknowledged_a_second_later
        if bug is without_looking
        else test_no_byte_goes_into_what_took_its_place
    )
    world = World(paths)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(world, CHANGES["moved_and_restored"])
    with suppress(StoreError):
        world.store.close()
