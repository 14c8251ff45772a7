"""A table that is followed in place: always what a reader that loads it now would find, for a few requests a poll."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import kvstore
from kvstore.checkpoint import recovery
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import MissingVersion, NoSuchTable, OffsetOutOfRange, Unavailable
from kvstore.options import StoreOptions
from kvstore.replica.read.reader import ReplicaReader
from kvstore.replica.read.table import ReplicaTable
from kvstore.replica.read.tail import ReplicaTail
from kvstore.replica.ship.merging import merge
from kvstore.store.store import Store
from logformat.catalog.replicas import CATALOG
from logformat.ids import Offset
from logformat.replica import manifest as replica_manifest
from logformat.replica.manifest import ReplicaManifest
from tests.replica.followers import Leader, store_id
from tests.replica.objects import SCHEMA, Faulty, Objects, replica_of
from tests.support.clocks import SetClock
from tests.support.replicas import Counting

BUCKETS = 3


class Shown:
    """A store that is written and shipped, and what a reader sees of it: not always the newest ends of all buckets."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random, self.clock, self.epoch = Random(seed), SetClock(), 0
        self.store = Store(path, StoreOptions(edits_per_journal=9), clock=self.clock)
        self.table = self.store.create_table("t", SCHEMA, "k", buckets=BUCKETS)
        self.objects = Objects()
        self.replica = replica_of(self.store, self.objects)
        self.ship()
        self.seen = self.manifest()
        self.client = Counting(dict(self.objects.held))

    def ship(self) -> None:
        self.store.flush()
        self.replica.ship()

    def manifest(self) -> ReplicaManifest:
        return replica_manifest.decode(self.objects.held["TOLD"], self.store.runtime.store_id)

    def step(self) -> None:
        self.clock.now += self.random.choice([100, 5_000, 50_000])
        what = self.random.random()
        if what < 0.6:
            rows = [("upsert", {**dict.fromkeys(self.table.schema.names), "k": k}) for k in range(100, 109)]
            self.table.apply_epoch(kvstore.Changes.of(rows, self.table.schema), "w", self.epoch, "r")
            self.epoch += 1
        elif what < 0.9:
            self.table.upsert([{"k": k, "v": k} for k in self.random.sample(range(40), 4)], columns=["k", "v"])
        elif len(self.table.schema) < 5:
            self.store.add_columns("t", [pa.field(f"c{self.clock.now}", pa.string())])

    def show(self) -> None:
        """Show what was shipped; of some buckets perhaps only what was seen before, as if more came meanwhile."""
        now, held = self.manifest(), dict(self.objects.held)
        if self.random.random() < 0.6:
            earlier = {each.stream: each.end for each in self.seen.shipped if each.stream != CATALOG}
            shipped = [
                msgspec.structs.replace(each, end=earlier.get(each.stream, each.end))
                if self.random.random() < 0.5
                else each
                for each in now.shipped
            ]
            now = msgspec.structs.replace(now, shipped=shipped, as_of_ms=self.seen.as_of_ms)
            held["TOLD"] = replica_manifest.encode(now)
        self.seen, self.client.held = now, held

    def ends(self) -> dict[int, int]:
        return {each.stream.bucket: each.end for each in self.seen.shipped if each.stream != CATALOG}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40))])
def test_a_followed_table_ends_where_one_that_is_loaded_now_does(tmp_path: Path, seed: int) -> None:
    shown = Shown(tmp_path / "s", seed)
    tail = ReplicaTail("", "t", shown.client)
    torn = 0
    for _ in range(20):
        for _ in range(shown.random.randrange(3)):
            shown.step()
        shown.ship()
        shown.show()
        before = tail.table.ends()
        found = tail.poll().ends()
        assert found == ReplicaTable.of("", "t", shown.client).ends()
        assert all(found[bucket] >= end for bucket, end in before.items())
        assert tail.table.definition.schema == shown.table.schema
        torn += found != shown.ends()
        tail.forget({bucket: Offset(end) for bucket, end in found.items()})
    assert torn, "no commit was in some buckets only"
    shown.store.close()


def changes_after(tail: ReplicaTail, client: Objects, before: dict[int, int]) -> list[dict[str, Any]]:
    """Changes after some offsets."""
    table = tail.table
    reader = ReplicaReader(client, table.store_id, table.definition)
    wanted = [table.changes(bucket, before[bucket], end) for bucket, end in table.ends().items()]
    return [row for each in wanted for part in reader.changes(each, ["k", "v"]) for row in part.to_pylist()]


@pytest.mark.parametrize("shipments", [50, pytest.param(1_000, marks=pytest.mark.long)])
def test_a_poll_costs_the_same_after_many_shipments(tmp_path: Path, shipments: int) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = replica_of(store, objects := Objects())
        replica.ship()
        tail = ReplicaTail("", "t", client := Counting(objects.held))
        for number in range(2 * shipments):
            rows = [("upsert", {"k": k, "v": number}) for k in range(4)]
            table.apply_epoch(kvstore.Changes.of(rows, SCHEMA), "w", number, "r")
            if number % 2:
                store.flush()
                replica.ship()
                client.asked, client.listed, client.listings = [], [], 0
                before = tail.table.ends()
                tail.poll()
                # The manifest and the new objects of the catalog and of both buckets, which have an epoch.
                assert sorted(name.split("/")[0] for name in client.asked) == ["TOLD", "catalog", "tables", "tables"]
                assert client.listings == 3
                assert len(client.listed) == 3, "names that were known are not listed"
                assert len(changes_after(tail, objects, before)) == (12 if number == 1 else 16)
                tail.forget({bucket: Offset(end) for bucket, end in tail.table.ends().items()})
                client.asked, client.listings = [], 0
                assert tail.poll() is tail.table
                assert (client.asked, client.listings) == (["TOLD"], 0)
        assert len(objects.held) > 2 * shipments


def test_ranges_that_were_merged_while_nothing_was_polled(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        replica = replica_of(store, objects := Objects())
        tail, rows = None, 0
        for number in range(60):
            table.upsert({"k": number, "v": 0})
            store.flush()
            replica.ship()
            if number == 20:
                tail = ReplicaTail("", "t", client := Counting(objects.held))
                rows, before = 20, tail.table.ends()
                tail.forget({0: Offset(before[0])})
        assert tail is not None
        for later in (0, 10**15):
            merge(objects, store.runtime.store_id, store.runtime.catalog().replicas["r"], later)
        assert len([name for name in objects.names if name.stream != CATALOG]) == 1
        client.asked = []
        assert tail.poll().ends() == {0: 60}
        assert "STORE" not in client.asked, "it was loaded again"
        assert [row["k"] for row in changes_after(tail, objects, before)] == list(range(rows + 1, 60))


def test_a_hole_is_an_error_and_a_failed_request_is_tried_again(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = replica_of(store, objects := Objects())
        replica.ship()
        faulty = Faulty(objects, Random(3), 0)
        tail = ReplicaTail("", "t", faulty)
        for number in range(20):
            rows = [("upsert", {"k": k, "v": number}) for k in range(9)]
            table.apply_epoch(kvstore.Changes.of(rows, SCHEMA), "w", number, "r")
            store.flush()
            replica.ship()
            faulty.share = 0.3
            while True:
                try:
                    tail.poll()
                    break
                except Unavailable:
                    continue
            faulty.share = 0
            assert tail.table.ends() == ReplicaTable.of("", "t", objects).ends()
        table.upsert([{"k": k, "v": -1} for k in range(9)])
        store.flush()
        replica.ship()
        lost = max(name for name in objects.names if (name.stream.table_id, name.stream.bucket) == (1, 1))
        data = objects.held.pop(str(lost))
        for _ in range(2):
            with pytest.raises(MissingVersion, match="a hole in bucket 1"):
                tail.poll()
        objects.held[str(lost)] = data
        assert tail.poll().ends() == {bucket: end for bucket, (_, end) in table.offsets().items()}
        store.drop_table("t")
        replica.ship()
        for _ in range(2):
            with pytest.raises(NoSuchTable, match="dropped"):
                tail.poll()


@pytest.mark.parametrize("lacks", [False, True])
def test_another_leader_that_may_lack_what_was_read(tmp_path: Path, *, lacks: bool) -> None:
    leader = Leader(tmp_path / "s", 3)
    leader.apply_epoch(leader.store.table("t"))
    leader.ship()
    leader.store.flush()
    shutil.copytree(tmp_path / "s", tmp_path / "new")
    if lacks:
        leader.apply_epoch(leader.store.table("t"))
        leader.ship()
    tail = ReplicaTail("", "t", leader.objects)
    read, epoch = {bucket: Offset(end) for bucket, end in tail.table.ends().items()}, tail.leader_epoch
    leader.store.close()
    recovery.recover(tmp_path / "new", store_id(leader.objects), Files(), SystemClock(), write=True)
    new = Leader(tmp_path / "new", 6, leader.objects)
    new.epochs = 1
    for _ in range(2):
        new.apply_epoch(new.store.table("t"))
    new.ship()
    for followed in (tail, ReplicaTail("", "t", leader.objects)):
        assert followed.poll().ends() == ReplicaTable.of("", "t", leader.objects).ends()
        assert all(end >= read[bucket] for bucket, end in followed.table.ends().items())
        if lacks:
            with pytest.raises(OffsetOutOfRange, match="lacks changes that were read"):
                followed.check_leader(read, epoch)
        else:
            followed.check_leader(read, epoch)
    new.store.close()
