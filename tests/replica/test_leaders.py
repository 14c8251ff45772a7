"""Copies of a store that ship to one place: what one of them shipped is never taken for another's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import kvstore
from kvstore.checkpoint import recovery
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData, StoreLocked, WriterFenced
from logformat import paths
from logformat.catalog.replicas import CATALOG
from logformat.replica.object_file import leader_name, parse_name
from tests.replica.objects import SCHEMA, Objects, changes_of, replica_of, restored
from tests.support.tables import rows_of


def copied(store: Path, to: Path) -> Path:
    """A copy of a store that goes on in its place."""
    shutil.copytree(store, to)
    with kvstore.open(to, read_only=True) as copy:
        store_id = copy.runtime.store_id
    recovery.recover(to, store_id, Files(), SystemClock(), write=True)
    return to


def write(store: kvstore.Store, objects: Objects, value: int, times: int) -> None:
    """And ship each time."""
    for k in range(times):
        store.table("t").upsert([{"k": k, "v": value}, {"k": 100 + value, "v": k}])
        store.flush()
        replica_of(store, objects).ship()


def assert_is(objects: Objects, store: kvstore.Store, to: Path) -> None:
    """A restore is that store, and the replica says it is whole."""
    assert replica_of(store, objects).check()
    restored(objects, to)
    with kvstore.open(to) as back:
        assert rows_of(back.table("t")) == rows_of(store.table("t"))
        assert changes_of(back.table("t")) == changes_of(store.table("t"))
        assert back.check()


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("after", [1, 5])
def test_objects_of_a_former_leader_end_where_the_new_one_starts(tmp_path: Path, before: int, after: int) -> None:
    """The original ships on after the copy was made, and then the copy takes its place."""
    objects = Objects()
    with kvstore.open(tmp_path / "old") as old:
        old.create_table("t", SCHEMA, "k")
        write(old, objects, 1, before)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    with kvstore.open(tmp_path / "old") as old:
        write(old, objects, 2, 4)
        with kvstore.open(copied(tmp_path / "copy", tmp_path / "new")) as new:
            write(new, objects, 3, after)
            assert_is(objects, new, tmp_path / "back")
            old.table("t").upsert([{"k": 1, "v": 9}])
            old.flush()
            with pytest.raises(WriterFenced):
                replica_of(old, objects).ship()
            write(new, objects, 4, 9)
            assert_is(objects, new, tmp_path / "again")
            for name in objects.names[::3]:
                objects.held[str(name)] += b"?"
            assert replica_of(new, objects).repair()
            assert_is(objects, new, tmp_path / "repaired")


def test_a_restored_store_does_not_take_the_place_of_its_replica(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        write(store, objects, 1, 2)
        restored(objects, tmp_path / "back")
        held = dict(objects.held)
        with kvstore.open(tmp_path / "back") as back, pytest.raises(WriterFenced, match="choose an empty place"):
            replica_of(back, objects).ship()
        assert objects.held == held
        write(store, objects, 2, 2)
        assert_is(objects, store, tmp_path / "again")


def test_only_one_of_two_copies_takes_the_place(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        write(store, objects, 1, 2)
    with kvstore.open(copied(tmp_path / "s", tmp_path / "a")) as one:
        write(one, objects, 2, 2)
        with kvstore.open(copied(tmp_path / "s", tmp_path / "b")) as other:
            assert one.runtime.catalog().leader_epoch == other.runtime.catalog().leader_epoch
            other.table("t").upsert([{"k": 1, "v": 3}])
            other.flush()
            with pytest.raises(WriterFenced):
                replica_of(other, objects).ship()
        write(one, objects, 4, 2)
        assert_is(objects, one, tmp_path / "back")


def test_an_empty_leader_object_stops_shipping(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        write(store, objects, 1, 2)
    with kvstore.open(copied(tmp_path / "s", tmp_path / "a")) as one:
        write(one, objects, 2, 2)
        name = leader_name(one.runtime.catalog().leader_epoch)
        objects.held[name] = b""
        with pytest.raises(CorruptData, match=f"Remove it.*{name}"):
            write(one, objects, 3, 1)
        objects.delete(name)
        write(one, objects, 4, 1)
        assert_is(objects, one, tmp_path / "back")


class Overtaken(Objects):
    """The same objects; once changes of a bucket were shipped, another leader takes its place."""

    def __init__(self, objects: Objects, takes_over: Callable[[], None]) -> None:
        super().__init__(objects.held)
        self._takes_over = takes_over
        self.is_over = False

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        created = super().create(name, pieces)
        found = parse_name(name)
        if found is not None and found.stream != CATALOG and not self.is_over:
            self.is_over = True
            self._takes_over()
        return created


def test_a_leader_replaced_during_a_round_reports_nothing(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        write(store, objects, 1, 2)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    with kvstore.open(tmp_path / "s") as old, kvstore.open(copied(tmp_path / "copy", tmp_path / "new")) as new:
        old.table("t").upsert([{"k": k, "v": 2} for k in range(50)])
        old.flush()
        overtaken = Overtaken(objects, lambda: write(new, objects, 3, 3))
        with pytest.raises(WriterFenced):
            replica_of(old, overtaken).ship()
        assert overtaken.is_over
        assert_is(objects, new, tmp_path / "back")


def test_only_one_process_ships_at_a_time(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        replica = replica_of(store, Objects())
        lock = ProcessLock(tmp_path / "s" / paths.SHIPPING)
        assert lock.try_acquire()
        for what in (replica.ship, replica.check, replica.repair):
            with pytest.raises(StoreLocked, match="try again"):
                what()
        lock.release()
        replica.ship()


def test_reports_about_one_replica_are_not_shipped_to_the_other(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        replicas = [replica_of(store, Objects(), name) for name in "ab"]
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        store.flush()
        for replica in replicas:
            replica.ship()
        txid = store.runtime.catalog().txid
        for replica in replicas * 3:
            assert replica.ship().objects == 0
        assert store.runtime.catalog().txid == txid
