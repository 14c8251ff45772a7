"""What may befall a copy that follows: another store's replica, a place that goes away, leaders that come twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

import kvstore
from kvstore.checkpoint import recovery
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import Diverged, NotAStore, OffsetOutOfRange, StoreLocked, Unavailable, WriterFenced
from kvstore.options import StoreOptions
from kvstore.replica.follow import creation, divergence, follower as following
from kvstore.replica.ship.shipper import Shipper
from logformat.catalog.replicas import CATALOG, Shipped, Stream
from logformat.ids import BucketId, Epoch, Offset, TableId, Txid
from logformat.replica.object_file import ObjectName, leader_name
from tests.replica.followers import Leader, everything, follower
from tests.replica.objects import SCHEMA, Objects, replica_of
from tests.support.waiting import wait_until


def test_a_copy_refuses_the_replica_of_another_store_at_the_same_url(tmp_path: Path) -> None:
    place: dict[str, bytes] = {}
    first = Leader(tmp_path / "s", 1, Objects(place))
    first.upsert(first.store.table("t"))
    first.ship()
    copy = follower(first.objects, tmp_path / "c")
    before = everything(tmp_path / "c")
    place.clear()
    other = Leader(tmp_path / "other", 2, first.objects)
    for number in range(9):  # it has overtaken the first one
        other.upsert(other.store.table("t"))
        other.store.create_table(f"x{number}", SCHEMA, "k")
    other.ship()
    with pytest.raises(NotAStore, match="another store"):
        copy.pull()
    with pytest.raises(NotAStore, match="another store"):
        copy.promote()
    assert leader_name(Epoch(1)) not in place, "a leader was fenced that has nothing to do with this copy"
    copy.close()
    assert everything(tmp_path / "c") == before
    other.store.close()
    first.store.close()


def test_a_promotion_moves_consumers_back_to_the_ends_of_the_buckets(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([{"k": 1, "v": 1}])
        store.consumer("c").commit("t", {0: 1})
        store.flush()
        objects = Objects()
        replica = replica_of(store, objects)
        replica.ship()
        listed = objects.list

        def late(prefix: str = "") -> Iterator[tuple[str, int]]:
            """Once the ends are noted, and before the catalog is shipped, a consumer goes on."""
            objects.list = listed  # type: ignore[method-assign]
            table.upsert([{"k": k, "v": 2} for k in range(5)])
            store.flush()
            store.consumer("c").commit("t", {0: table.offsets()[0][1]})
            return listed(prefix)

        store.create_table("u", SCHEMA, "k")
        objects.list = late  # type: ignore[method-assign]
        replica.ship()
        copy = follower(objects, tmp_path / "c")
        copy.promote()
    with kvstore.open(tmp_path / "c") as new:
        end = new.table("t").offsets()[0][1]
        assert end == 1
        new.table("t").upsert([{"k": 9, "v": 9}])
        assert new.consumers["c"]["t"][0] <= end, "what is written now would be passed over"


def test_a_fenced_promotion_fails_though_it_fenced_another_before(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 3)
    leader.ship()
    one = follower(leader.objects, tmp_path / "a")
    get = leader.objects.get

    def dies(name: str, *, bytes_max: int) -> memoryview:
        if leader_name(Epoch(1)) in leader.objects.held and name == "TOLD":
            raise Unavailable("no")
        return get(name, bytes_max=bytes_max)

    leader.objects.get = dies  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        one.promote()
    leader.objects.get = get  # type: ignore[method-assign]
    other = follower(leader.objects, tmp_path / "b")
    assert other.promote().leader_epoch == 2
    # Not 1, which is over before it has begun.
    assert one.promote().leader_epoch == 3
    leader.store.close()


def test_a_promotion_that_is_fenced_meanwhile_fails(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 3)
    leader.ship()
    one, other = (follower(leader.objects, tmp_path / name) for name in "ab")
    get, raced = leader.objects.get, list[kvstore.Promoted]()

    def race(name: str, *, bytes_max: int) -> memoryview:
        if leader_name(Epoch(1)) in leader.objects.held and name == "TOLD":
            leader.objects.get = get  # type: ignore[method-assign]
            raced.append(other.promote())
        return get(name, bytes_max=bytes_max)

    leader.objects.get = race  # type: ignore[method-assign]
    with pytest.raises(WriterFenced, match="Another copy"):
        one.promote()
    assert raced[0].leader_epoch == 2
    one.close()
    leader.store.close()


def test_a_follower_continues_after_its_directory_was_moved_away_and_back(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        replica = store.add_replica(str(tmp_path / "r"), "r")
        replica.ship()
        with kvstore.follow(str(tmp_path / "r"), tmp_path / "c") as copy:
            copy.pull()
            table.upsert([{"k": 1, "v": 1}])
            store.flush()
            replica.ship()
            shutil.move(tmp_path / "r", tmp_path / "away")
            for _ in range(2):
                with pytest.raises(Unavailable):
                    copy.pull()
            assert not (tmp_path / "r").exists()
            shutil.move(tmp_path / "away", tmp_path / "r")
            assert copy.pull().changes == 1


def test_a_batch_of_a_new_leader_may_end_after_the_copy(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as old:
        table = old.create_table("t", SCHEMA, "k")
        table.upsert([{"k": k, "v": 0} for k in range(3)])
        old.flush()
        replica_of(old, objects).ship()
        shutil.copytree(tmp_path / "s", tmp_path / "new")
        table.upsert([{"k": k, "v": 1} for k in range(100, 120)])
        old.flush()
        replica_of(old, objects).ship()
        store_id = old.runtime.store_id
    copy = follower(objects, tmp_path / "c", rollback_limit=19)
    recovery.recover(tmp_path / "new", store_id, Files(), SystemClock(), write=True)
    with kvstore.open(tmp_path / "new") as new:
        new.table("t").upsert([{"k": k, "v": 2} for k in range(200, 240)])
        new.flush()
        replica_of(new, objects).ship()
    with pytest.raises(Diverged) as caught:
        copy.pull()
    assert int(str(caught.value.where["lacking"])) >= 20, "all that it has after the first difference"
    copy.close()
    with follower(objects, tmp_path / "c", rollback_limit=30) as copy:
        assert copy.pull().rebuilt
    assert everything(tmp_path / "c") == everything(tmp_path / "new")


STREAM = Stream(TableId(1), BucketId(0))


@dataclass
class Expired:
    """What is left of a bucket, and what a new leader has, which began at 10: batches of five each."""

    mine: dict[int, bytes]
    theirs: dict[int, bytes]
    end: Offset = Offset(40)

    @property
    def log(self) -> Self:
        return self

    def bucket(self, _: Stream) -> Self:
        return self

    @property
    def state(self) -> Any:
        table = SimpleNamespace(id=TableId(1), buckets=1)
        return SimpleNamespace(txid=Txid(0), leader_epoch=Epoch(0), tables={table.id: table})

    @property
    def manifest(self) -> Any:
        return SimpleNamespace(shipped=[Shipped(stream=STREAM, start=0, end=50, snapshots=[])])

    def shipped(self, stream: Stream) -> Shipped:
        return Shipped(stream=stream, start=0, end=0, snapshots=[])

    def start(self) -> int:
        return min(self.mine)

    def objects(self, stream: Stream) -> list[ObjectName]:
        return [ObjectName(stream, "range", 10, 50, Epoch(1))] if stream == STREAM else []

    def path_from(self, *_: object) -> None:
        return None

    def batches(self, start: object, end: int) -> Any:
        if start is None:
            found = ((SimpleNamespace(base_offset=at, next_offset=at + 5), data) for at, data in self.theirs.items())
            return (each for each in found if each[0].next_offset <= end)
        if start < self.start():  # type: ignore[operator]
            raise OffsetOutOfRange("It has expired.")
        return (SimpleNamespace(data=data) for at, data in self.mine.items() if start <= at < end)  # type: ignore[operator]


@pytest.mark.parametrize(("same", "lacking"), [(True, 0), (False, 30)])
def test_expired_changes_of_a_copy_are_judged_by_the_changes_after_them(*, same: bool, lacking: int) -> None:
    theirs = {at: b"%d" % at for at in range(10, 50, 5)}
    mine = {at: b"%d" % at if same else b"-" for at in range(30, 40, 5)}
    found = Expired(mine, theirs)
    assert divergence.divergence_of(found, found) == lacking  # type: ignore[arg-type]


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Objects]:
    """A replica that starts after the end of the copy in ``c``."""
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([{"k": 1, "v": 1}])
        store.flush()
        replica_of(store, objects).ship()
        follower(objects, tmp_path / "c").close()
        table.upsert([{"k": 2, "v": 2}])
        table.snapshot()
        objects.held.clear()
        store.drop_replica("r")
        replica = replica_of(store, objects)
        objects.held.clear()
        shipper = Shipper(store.runtime, replica.name, objects)
        shipper.lead()
        end = shipper.ship_snapshot(STREAM)
        store.create_table("u", SCHEMA, "k")
        store.runtime.journal.flush()
        last = store.runtime.catalog().txid
        shipper.ship_range(CATALOG, 0, last)
        catalog = Shipped(stream=CATALOG, start=0, end=last, snapshots=[])
        shipper.report([catalog, Shipped(stream=STREAM, start=end, end=end, snapshots=[end])])
        yield objects


def test_a_copy_can_not_be_promoted_while_it_is_rebuilt(
    tmp_path: Path, restarted: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, tried = creation.create, list[str]()

    def meanwhile(*given: Any) -> Any:
        with pytest.raises(StoreLocked):
            follower(restarted, tmp_path / "c")
        tried.append("")
        return create(*given)

    monkeypatch.setattr(creation, "create", meanwhile)
    with follower(restarted, tmp_path / "c") as copy:
        assert copy.pull().rebuilt
    assert tried
    with kvstore.open(tmp_path / "c", read_only=True) as read:
        assert read.table("t").count() == 2


def test_rebuilding_a_copy_leaves_other_directories_alone(
    tmp_path: Path, restarted: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tmp_path / "c", tmp_path / "c.before")  # a backup by the user
    monkeypatch.chdir(tmp_path / "c")
    with follower(restarted, Path()) as copy:
        assert copy.pull().rebuilt
    assert sorted(each.name for each in tmp_path.glob("c*")) == ["c", "c.before"]
    assert everything(tmp_path / "c.before")


def test_a_follower_keeps_up_though_the_leader_ships_during_each_listing(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 1)
    leader.apply_epoch(leader.store.table("t"))
    leader.ship()
    copy = follower(leader.objects, tmp_path / "c")
    listed = leader.objects.list

    def meanwhile(prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        yield from listed(prefix, after)
        if not prefix:
            leader.objects.list = listed  # type: ignore[method-assign]
            leader.apply_epoch(leader.store.table("t"))
            leader.ship()
            leader.objects.list = meanwhile  # type: ignore[method-assign]

    leader.objects.list = meanwhile  # type: ignore[method-assign]
    assert not copy.pull()
    for _ in range(2):
        assert copy.pull().changes
    assert leader.epochs == 4, "it listed once each time"
    leader.objects.list = listed  # type: ignore[method-assign]
    copy.pull()
    copy.close()
    assert everything(tmp_path / "c") == everything(tmp_path / "s")
    leader.store.close()


def test_a_new_replica_may_have_the_name_of_a_refused_one(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "other") as other:
        other.add_replica(str(tmp_path / "taken")).ship()
    with kvstore.open(tmp_path / "s") as store, store.replicate(0.01) as shipping:
        store.add_replica(str(tmp_path / "taken"), "r")
        wait_until(lambda: isinstance(shipping.failures.get("r"), WriterFenced))
        store.drop_replica("r")
        wait_until(lambda: not shipping.failures)
        store.add_replica(str(tmp_path / "free"), "r")
        wait_until(lambda: store.replicas["r"].as_of_ms is not None)


def test_a_copy_whose_creation_died_can_not_be_promoted(tmp_path: Path, restarted: Objects) -> None:
    (tmp_path / "c" / "STORE").unlink()
    with pytest.raises(NotAStore, match="creation of this copy did not finish"):
        following.Follower(tmp_path / "c", StoreOptions(), Files(), SystemClock(), connect=lambda _: restarted)


def test_a_failed_fetch_leaves_the_copy_unchanged(tmp_path: Path) -> None:
    """What was planned can't be fetched: nothing of the round is taken, and no commit is in some buckets only."""
    leader = Leader(tmp_path / "s", 1)
    plain = leader.store.create_table("u", SCHEMA, "k", buckets=2)  # planning does not read its batches
    plain.upsert([{"k": k, "v": 0} for k in range(9)])
    leader.apply_epoch(leader.store.table("t"))
    leader.ship()
    asked: dict[str, int] = {}
    unreachable = ["nothing"]
    get = leader.objects.get

    def failing(name: str, *, bytes_max: int) -> memoryview:
        asked[name] = asked.get(name, 0) + 1
        if name.startswith(unreachable[-1]):
            raise Unavailable("gone for an hour")
        return get(name, bytes_max=bytes_max)

    with follower(leader.objects, tmp_path / "c") as copy:
        copy.pull()
        before = everything(tmp_path / "c")
        for _ in range(3):
            leader.apply_epoch(leader.store.table("t"))
            for _ in range(3):
                leader.upsert(leader.store.table("t"))
            plain.upsert([{"k": k, "v": 1} for k in range(9)])
            leader.ship()
        leader.objects.get = failing  # type: ignore[method-assign]
        for prefix in ("tables/1/2/", "tables/2/1/"):
            unreachable.append(prefix)
            with pytest.raises(Unavailable):
                copy.pull()
            assert everything(tmp_path / "c") == before
        unreachable.append("nothing")
        asked.clear()
        assert copy.pull()
        assert max(times for name, times in asked.items() if name.endswith(".range")) == 1
        assert not list((tmp_path / "c").glob("*.tmp"))
    assert everything(tmp_path / "c") == everything(tmp_path / "s")
    leader.store.close()
