"""Interrupted shipping leaves a complete replica in the end; a replaced leader does not ship."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from msgspec.structs import replace

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.checkpoint import recovery
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import CorruptData, InvalidRequest, StoreFull, Unavailable, UnsupportedVersion, WriterFenced
from kvstore.meta.state import TableDefinition
from kvstore.options import Durability
from kvstore.replica.client import ObjectStore
from kvstore.replica.replica import Replica
from kvstore.replica.ship.background import Shipping
from kvstore.request.partition import spread
from kvstore.store.store import new_table
from logformat import json_line
from logformat.catalog.replicas import CATALOG
from logformat.ids import BucketId
from logformat.log.index_state import IndexState
from logformat.replica.manifest import ReplicaManifest
from logformat.replica.object_file import parse_name
from logformat.rows.changes import Changes
from tests.repair.damage import spoil
from tests.replica.objects import SCHEMA, Faulty, Objects, changes_of, replica_of, restored
from tests.store.helpers import run
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import wait_until


@pytest.mark.parametrize("seed", range(6))
def test_shipping_to_a_place_that_fails_at_random(tmp_path: Path, seed: int) -> None:
    """Requests that never came, that were carried out and answered with an error, lists that break off."""
    random, objects = Random(seed), Objects()
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = replica_of(store, Faulty(objects, random))
        whole = replica_of(store, objects)
        acknowledged: set[str] = set()
        failed = 0
        for step in range(25):
            table.upsert([{"k": k, "v": step} for k in range(5)])
            store.flush()
            try:
                replica.ship()
                acknowledged |= set(objects.held)
            except Unavailable:
                failed += 1
            assert acknowledged <= set(objects.held), "an object that was reported is gone"
            if step % 5 == 4 and objects.names:
                objects.held[str(random.choice(objects.names))] += b"?"
                try:
                    replica.repair()
                except Unavailable:
                    failed += 1
        assert failed > 5
        whole.repair()
        whole.ship()
        assert whole.check()
        restored(objects, tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert (rows_of(back.table("t")), changes_of(back.table("t"))) == (rows_of(table), changes_of(table))


PUBLISHES_ONLY_WHEN_TOLD = {"commit_idle_ms": 3_600_000, "commit_wait_ms": 3_600_000}


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_everything_acknowledged_here_is_shipped(tmp_path: Path, durability: Durability) -> None:
    settings = PUBLISHES_ONLY_WHEN_TOLD | {"sync_interval_ms": 3_600_000}
    with kvstore.open(tmp_path / "s", durability=durability, **settings) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = store.add_replica(str(tmp_path / "r"), "r")
        for number in range(10):
            table.upsert([{"k": number, "v": number}])
            assert sum(replica.report().behind.values()) == 1
            assert replica.ship().behind == 1
            assert not any(replica.report().behind.values())
        kvstore.restore(str(tmp_path / "r"), tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert rows_of(back.table("t")) == rows_of(table)


def test_everything_acknowledged_here_is_shipped_in_the_background(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", **PUBLISHES_ONLY_WHEN_TOLD) as store:
        table = store.create_table("t", SCHEMA, "k")
        store.add_replica(str(tmp_path / "r"), "r")
        with store.replicate(0.01) as shipping:
            for number in range(3):
                table.upsert([{"k": number, "v": number}])
                wait_until(lambda: not any(store.replicas["r"].behind.values()))
            assert not shipping.failures
        kvstore.restore(str(tmp_path / "r"), tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert rows_of(back.table("t")) == rows_of(table)


def test_writes_of_another_process_count_as_lag_and_are_shipped_before_its_index_has_them(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        store.add_replica(str(tmp_path / "r"), "r").ship()
    with Child(append_on_request, tmp_path / "s") as child:
        child.say(3)
        assert child.hear() == 3
        with kvstore.open(tmp_path / "s", read_only=True) as store:
            replica = store.replica("r")
            assert replica.report().behind == {"t": 3}
            replica.ship()
            assert replica.report().behind == {"t": 0}
            child.say(2)
            assert child.hear() == 5
            assert store.replicas["r"].behind == {"t": 2}
            assert replica.check().behind == {"t": 2}
            child.say(0)
            assert child.join() == 0
            replica.ship()
            assert replica.report().behind == {"t": 0}


def append_on_request(pipe: Pipe, path: Path) -> None:
    """In segments of one batch each."""
    with kvstore.open(path, segment_bytes_max=1, **PUBLISHES_ONLY_WHEN_TOLD) as store:
        acknowledged = 0
        while rows := pipe.recv():
            for _ in range(rows):
                store.table("t").upsert([{"k": acknowledged, "v": 0}])
                acknowledged += 1
            pipe.send(acknowledged)


def test_a_table_that_is_replaced_while_it_is_shipped_has_all_its_rows_in_the_replica(tmp_path: Path) -> None:
    class Beside(Objects):
        """Has tables replaced after their ends were read: before the catalog is shipped, and each time it is."""

        before: Callable[[], None] | None = None
        beside: list[Callable[[], None]]

        def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
            if self.before is not None:
                call, self.before = self.before, None
                call()
            parsed = parse_name(name)
            if self.beside and parsed is not None and parsed.stream == CATALOG:
                self.beside.pop()()
            return super().create(name, pieces)

    objects = Beside()
    objects.beside = []
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = replica_of(store, objects)
        for round in range(3):
            table.upsert([{"k": k, "v": round} for k in range(round + 1)])
            objects.before = replacement(store, [{"k": k, "v": 10 + round} for k in range(10)])
            objects.beside = [
                replacement(store, [{"k": k, "v": -k} for k in range(rows)]) for rows in range(1, round + 1)
            ]
            replica.ship()
            assert (objects.before, objects.beside) == (None, [])
            table = store.table("t")
            restored(objects, tmp_path / f"back {round}")
            with kvstore.open(tmp_path / f"back {round}") as back:
                assert (rows_of(back.table("t")), changes_of(back.table("t"))) == (rows_of(table), changes_of(table))


def replacement(store: kvstore.Store, rows: list[dict[str, int]]) -> Callable[[], None]:
    """A call that replaces the table ``t`` by one with other rows."""

    def replace() -> None:
        old = store.runtime.definition("t")
        seen = {int(bucket): int(end) for bucket, (_, end) in store.table("t").offset_ranges("latest").items()}

        def parts(definition: TableDefinition) -> Iterator[tuple[BucketId, Changes]]:
            batch = pa.RecordBatch.from_pylist(rows, schema=definition.schema)
            yield from spread(definition, Changes.upserts(batch), BucketId(0))

        store.runtime.replace_table(old, seen, new_table("t", SCHEMA, "k"), parts)

    return replace


def test_a_replaced_leader_does_not_ship(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "old") as store:
        replica_of(store, objects).ship()
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    with kvstore.open(tmp_path / "old") as old:
        store_id = old.runtime.store_id
        recovery.recover(tmp_path / "new", store_id, Files(), SystemClock(), write=True)
        with kvstore.open(tmp_path / "new") as new:
            new.table("t").upsert([{"k": 2, "v": 2}])
            new.flush()
            replica_of(new, objects).ship()
            held = dict(objects.held)
            old.table("t").upsert([{"k": 3, "v": 3}])
            old.flush()
            with pytest.raises(WriterFenced, match="taken this store's place"):
                replica_of(old, objects).ship()
            assert objects.held == held
            rows = rows_of(new.table("t"))
            assert replica_of(new, objects).check()
    restored(objects, tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert rows_of(back.table("t")) == rows


def test_shipping_to_the_replica_of_another_store_is_refused(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "a") as one, kvstore.open(tmp_path / "b") as other:
        replica_of(one, objects).ship()
        held = dict(objects.held)
        with pytest.raises(WriterFenced, match="belongs to another store"):
            replica_of(other, objects).ship()
        assert objects.held == held


@pytest.mark.parametrize("shipments", [1, 20])
@pytest.mark.parametrize("rows_since", [0, 3, 60])
def test_an_older_copy_in_the_place_of_its_store_ships_nothing(tmp_path: Path, rows_since: int, shipments: int) -> None:
    """Of 20 shipments their ranges are merged."""
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        replica_of(store, objects).ship()
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    with kvstore.open(tmp_path / "s") as store:
        for k in range(2, 2 + shipments):
            store.table("t").upsert([{"k": k, "v": k}])
            replica_of(store, objects).ship()
        changes = changes_of(store.table("t"))
    held = dict(objects.held)
    with kvstore.open(tmp_path / "old") as store:
        for k in range(rows_since):
            store.table("t").upsert([{"k": -k, "v": k}])
        for call in ("ship", "check", "repair"):
            with pytest.raises(WriterFenced, match="older copy"):
                getattr(replica_of(store, objects), call)()
        store.table("t").upsert([{"k": 100, "v": 100}])  # the store itself goes on
    assert objects.held == held
    restored(objects, tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert changes_of(back.table("t")) == changes
    with kvstore.open(tmp_path / "s") as store:
        assert replica_of(store, objects).check()
        store_id = store.runtime.store_id
    recovery.recover(tmp_path / "old", store_id, Files(), SystemClock(), write=True)  # to go on with the copy
    with kvstore.open(tmp_path / "old") as store:
        replica_of(store, objects).ship()
        assert replica_of(store, objects).check()
        changes = changes_of(store.table("t"))
    restored(objects, tmp_path / "back of the copy")
    with kvstore.open(tmp_path / "back of the copy") as back:
        assert changes_of(back.table("t")) == changes


@pytest.mark.parametrize("creates", [False, True])
def test_an_older_copy_that_lacks_only_a_table_ships_nothing(tmp_path: Path, *, creates: bool) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        replica_of(store, objects).ship()
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("u", SCHEMA, "k", buckets=2).upsert([{"k": k, "v": k} for k in range(9)])
        replica_of(store, objects).ship()
    held = dict(objects.held)
    with kvstore.open(tmp_path / "old") as store:
        if creates:  # perhaps with more edits than the store had
            for name in ("v", "w"):
                store.create_table(name, SCHEMA, "k").upsert([{"k": 1, "v": 1}])
            store.drop_table("w")
        for _ in range(2):
            with pytest.raises(WriterFenced, match="older copy"):
                replica_of(store, objects).ship()
    assert objects.held == held


@pytest.mark.parametrize("rows_since", [0, 20])
def test_a_store_that_lost_what_it_has_reported_ships_nothing(tmp_path: Path, rows_since: int) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([{"k": 1, "v": 1}])
    shutil.copytree(tmp_path / "s" / "tables", tmp_path / "older")
    with kvstore.open(tmp_path / "s") as store:
        for k in range(2, 30):
            store.table("t").upsert([{"k": k, "v": k}])
        replica_of(store, objects).ship()
    shutil.rmtree(tmp_path / "s" / "tables")
    shutil.move(tmp_path / "older", tmp_path / "s" / "tables")
    with kvstore.open(tmp_path / "s") as store:
        store.table("t").upsert([{"k": -k, "v": k} for k in range(rows_since)])
        replica = replica_of(store, objects)
        for _ in range(2):
            with pytest.raises(WriterFenced, match="has lost them"):
                replica.ship()


def test_damage_is_not_taken_for_an_older_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        replica_of(store, objects).ship()
        table.upsert([{"k": k, "v": 0} for k in range(9)])
        store.flush()
        with monkeypatch.context() as patch:
            patch.setattr(type(store.runtime.journal), "append", full)
            with pytest.raises(StoreFull):
                replica_of(store, objects).ship()
    (segment,) = (tmp_path / "s/tables/1/0/log").glob("*.log")
    spoil(segment, segment.stat().st_size - 16)
    with kvstore.open(tmp_path / "s") as store, pytest.raises(CorruptData):
        replica_of(store, objects).ship()


def test_the_manifest_of_a_newer_version_is_not_replaced(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        replica_of(store, objects).ship()
        manifest = objects.held["TOLD"]
        newer = replace(json_line.decode(manifest, ReplicaManifest, 1, "TOLD"), format=2)
        objects.held["TOLD"] = json_line.encode(newer)
        with pytest.raises(UnsupportedVersion):
            replica_of(store, objects).ship()


def full(*_: object, **__: object) -> None:
    raise StoreFull("planted")


@pytest.mark.parametrize("drops", [False, True])
def test_a_shipper_that_died_before_its_report_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, drops: bool
) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica_of(store, objects).ship()
        table.upsert([{"k": k, "v": 0} for k in range(9)])
        store.flush()
        names = len(objects.names)
        with monkeypatch.context() as patch:
            patch.setattr(type(store.runtime.journal), "append", full)
            with pytest.raises(StoreFull):
                replica_of(store, objects).ship()
        assert len(objects.names) > names
    with kvstore.open(tmp_path / "s") as store:
        store.table("t").upsert([{"k": 2, "v": 2}])
        if drops:
            store.drop_table("t")
        store.create_table("u", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        replica_of(store, objects).ship()
        assert replica_of(store, objects).check()


def test_names_and_urls_of_replicas_are_checked(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.add_replica(tmp_path.as_uri() + "/r", "r")
        with pytest.raises(InvalidRequest, match="replica of that name"):
            store.add_replica(str(tmp_path / "q"), "r")
        for wrong in ("memory:///", str(tmp_path), str(tmp_path / "s"), str(tmp_path / "s" / "tables")):
            with pytest.raises(InvalidRequest, match=r"its store's directory|Memory can't hold"):
                store.add_replica(wrong)
        with pytest.raises(InvalidRequest, match="can't be at this URL"):
            store.add_replica("nonsense://x/y")
        assert list(store.replicas) == ["r"]
        replica = store.replica("r")
        store.drop_replica("r")
        with pytest.raises(InvalidRequest, match="no such replica"):
            replica.ship()
        with pytest.raises(InvalidRequest, match="no such replica"):
            store.replica("r")


def ship_for_ever(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path, read_only=True) as store:
        replica = store.replica("r")
        pipe.send("ready")
        while True:
            replica.ship()


def killed(tmp_path: Path, times: int) -> None:
    random = Random(times)
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = store.add_replica(str(tmp_path / "r"), "r")
        step = 0
        for _ in range(times):
            with Child(ship_for_ever, tmp_path / "s") as child:
                child.hear()
                for _ in range(random.randrange(1, 12)):
                    table.upsert([{"k": k, "v": step} for k in range(step % 3, 9)])
                    step += 1
                    if random.random() < 0.5:
                        store.flush()
                child.kill()
            assert not replica.check().findings
        store.flush()
        replica.ship()
        assert replica.check()
        rows, changes = rows_of(table), changes_of(table)
    kvstore.restore(str(tmp_path / "r"), tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert (rows_of(back.table("t")), changes_of(back.table("t"))) == (rows, changes)


def test_a_killed_shipper_leaves_a_complete_replica(tmp_path: Path) -> None:
    killed(tmp_path, 5)


@pytest.mark.long
def test_a_shipper_killed_a_hundred_times_leaves_a_complete_replica(tmp_path: Path) -> None:
    killed(tmp_path, 100)


def test_a_replica_in_a_directory(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no such directory"):
        ObjectStore(str(tmp_path / "r ü"))
    place = ObjectStore(str(tmp_path / "r ü"), create=True)
    assert list(ObjectStore((tmp_path / "r ü").as_uri()).list()) == []
    assert place.create("tables/1/a", [b"x", memoryview(b"y")])
    assert not place.create("tables/1/a", [b"z"])
    assert bytes(place.get("tables/1/a", bytes_max=2)) == b"xy"
    assert bytes(place.get_first("tables/1/a", 1)) == b"x"
    with pytest.raises(CorruptData, match=r"larger than its limit.* bytes=2 bytes_max=1"):
        place.get("tables/1/a", bytes_max=1)
    place.replace("tables/1/a", [b"z"])
    place.replace("b", [b""])
    assert sorted(place.list()) == [("b", 0), ("tables/1/a", 1)]
    assert list(place.list("tables/")) == [("tables/1/a", 1)]
    place.delete("b")
    place.delete("b")
    with pytest.raises(FileNotFoundError):
        place.get("b", bytes_max=9)
    with pytest.raises(FileNotFoundError):
        place.get_first("b", 1)


def test_shipping_in_the_background(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        with store.replicate(0.01) as shipping:
            store.add_replica(str(tmp_path / "r"), "r")
            table.upsert([{"k": 1, "v": 1}])
            store.flush()
            wait_until(lambda: store.replicas["r"].as_of_ms is not None and not store.replicas["r"].behind["t"])
            shutil.move(tmp_path / "r", tmp_path / "away")
            wait_until(lambda: "r" in shipping.failures)
            assert isinstance(shipping.failures["r"], Unavailable)
            shutil.move(tmp_path / "away", tmp_path / "r")
            wait_until(lambda: not shipping.failures)
            kvstore.follow(str(tmp_path / "r"), tmp_path / "c").close()
            kvstore.promote(tmp_path / "c")
            wait_until(lambda: isinstance(shipping.failures.get("r"), WriterFenced))
            with pytest.raises(WriterFenced, match="write there"):
                table.upsert([{"k": 2, "v": 2}])
        for wrong in (0, -1, float("nan"), 1e9):
            with pytest.raises(InvalidRequest, match="number of seconds"):
                store.replicate(wrong)
        shipping = store.replicate(0.01)
    wait_until(lambda: "kvstore-shipping" not in {thread.name for thread in threading.enumerate()})


def test_shipping_in_the_background_survives_an_unreadable_catalog(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        replica = store.add_replica(str(tmp_path / "r"), "r")
        damaged = CorruptData("damaged")
        answers: list[bool] = []

        def replicas() -> dict[str, Replica]:
            answers.append(len(answers) in (0, 5))
            if answers[-1]:
                return {"r": replica}
            raise damaged

        with Shipping(replicas, 0.01).begin() as shipping:
            for rounds in (4, 8):
                wait_until(lambda: len(answers) >= rounds and not answers[-1])  # noqa: B023
                assert shipping.failures == {"r": damaged}, "the error stays until the catalog can be read again"


def test_a_table_that_another_process_drops_meanwhile_is_not_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, dropped = Objects(), []
    with kvstore.open(tmp_path / "s") as store:
        for name in ("dropped", "kept"):
            store.create_table(name, SCHEMA, "k")
        replica = replica_of(store, objects)
        committed = BucketHandle.committed

        def after_a_drop(self: BucketHandle) -> IndexState:
            if not dropped:
                dropped.append(run(tmp_path / "s", "kvstore.open(path).drop_table('dropped')"))
            return committed(self)

        monkeypatch.setattr(BucketHandle, "committed", after_a_drop)
        replica.ship()
    restored(objects, tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert dropped
        assert back.list_tables() == ["kept"]
