"""After each round a copy is the store as it was at one moment, after crashes and under any leader."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

import kvstore
from kvstore.checkpoint import recovery
from kvstore.clock import SystemClock
from kvstore.errors import (
    Diverged,
    InvalidRequest,
    MissingVersion,
    NotAStore,
    ReplicaBehind,
    StoreLocked,
    Unavailable,
    UnsupportedOperation,
    WriterFenced,
)
from kvstore.files import Files
from kvstore.options import StoreOptions
from kvstore.replica.client import Client
from kvstore.replica.follow.creation import create
from kvstore.replica.follow.follower import Follower
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog.following_file import FollowingFile
from logformat.catalog.replicas import CATALOG, Shipped, Stream
from logformat.ids import BucketId, TableId
from logformat.replica import follower_status, manifest as replica_manifest
from tests.replica.objects import SCHEMA, Faulty, Objects, changes_of, replica_of, restored
from tests.support.clocks import SetClock
from tests.support.tables import rows_of

EPOCH_KEYS = range(100, 109)
"""Every epoch puts its number into all of them: two numbers in them are a commit that is torn."""


def follower(
    objects: Client, path: Path, *, files: Files | None = None, clock: SetClock | None = None, **given: Any
) -> Follower:
    """A follower of a replica in memory; creates the copy at the path if it does not exist."""
    named = ("journal_sync", "edits_per_journal", "segment_bytes_max")
    options = StoreOptions(**{key: given.pop(key) for key in named if key in given})
    files, clock = files or Files(), clock or SetClock()
    if not (path / paths.STORE_FILE).exists():
        following = FollowingFile(store_id=Source(objects).store.store_id, url="file:///nowhere", name="c")
        create(path, following, objects, files, clock)
    return Follower(path, options, files, clock, connect=lambda _: objects, **given)


def everything(path: Path) -> dict[str, tuple[list[Any], list[Any], dict[int, int]]]:
    """Rows, changes and ends of all tables, as a reader finds them."""
    with kvstore.open(path, read_only=True) as store:
        assert store.check()
        return {name: contents(store.table(name)) for name in store.list_tables()}


def contents(table: kvstore.Table) -> tuple[list[Any], list[Any], dict[int, int]]:
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    return sorted(map(str, rows_of(table))), sorted(map(str, changes_of(table))), ends


class Leader:
    """A store to which things happen, with a replica in memory."""

    def __init__(self, path: Path, seed: int, objects: Objects | None = None) -> None:
        self.objects = objects or Objects()
        self.random = Random(seed)
        self.store = kvstore.open(path, edits_per_journal=9)
        self.epoch = self.number = 0
        if "t" not in self.store.list_tables():
            self.store.create_table("t", SCHEMA, "k", buckets=3)
        self.replica = replica_of(self.store, self.objects)

    def step(self) -> None:
        """Something happens."""
        self.number += 1
        table = self.store.table("t")
        happens = self.random.choices(
            (self._epoch, self._upsert, self._delete, self._create, self._drop, self._widen, self._image),
            (4, 4, 2, 1, 1, 1, 1),
        )[0]
        happens(table)

    def ship(self) -> None:
        self.store.flush()
        self.replica.ship()

    def _epoch(self, table: kvstore.Table) -> None:
        rows = [("upsert", {**dict.fromkeys(table.schema.names), "k": k, "v": self.epoch}) for k in EPOCH_KEYS]
        table.apply_epoch(kvstore.Changes.of(rows, table.schema), "w", self.epoch, "r")
        self.epoch += 1

    def _upsert(self, table: kvstore.Table) -> None:
        rows = [
            {**dict.fromkeys(table.schema.names), "k": k, "v": self.number} for k in self.random.sample(range(40), 6)
        ]
        table.upsert(rows)

    def _delete(self, table: kvstore.Table) -> None:
        table.delete(self.random.sample(range(40), 4))

    def _create(self, _: kvstore.Table) -> None:
        name = f"u{self.number}"
        self.store.create_table(name, SCHEMA, "k").upsert([{"k": 1, "v": self.number}])

    def _drop(self, _: kvstore.Table) -> None:
        others = [name for name in self.store.list_tables() if name != "t"]
        if others:
            self.store.drop_table(self.random.choice(others))

    def _widen(self, table: kvstore.Table) -> None:
        if len(table.schema) < 5:
            self.store.add_columns("t", [pa.field(f"c{self.number}", pa.string())])

    def _image(self, _: kvstore.Table) -> None:
        self.store.consumer("reader").commit("t", dict.fromkeys(range(3), 0))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 60))])
def test_after_each_round_a_copy_equals_a_restore(tmp_path: Path, seed: int) -> None:
    leader = Leader(tmp_path / "s", seed)
    leader.step()
    leader.ship()
    faulty = Faulty(leader.objects, Random(seed), 0.02)
    copy = follower(leader.objects, tmp_path / "c", edits_per_journal=5)
    copy._client = faulty
    for round_ in range(6):
        for _ in range(leader.random.randrange(1, 6)):
            leader.step()
        leader.ship()
        if leader.random.random() < 0.3:
            copy.close()
            policy = leader.random.choice(("SYNC", "WRITE_NO_SYNC"))
            copy = follower(leader.objects, tmp_path / "c", journal_sync=policy)
            copy._client = faulty
        while True:
            try:
                copy.pull()
                break
            except Unavailable:
                assert everything(tmp_path / "c")
        restored(leader.objects, tmp_path / f"back{round_}")
        assert everything(tmp_path / "c") == everything(tmp_path / f"back{round_}")
    copy.close()
    leader.store.close()


class Dies(Exception):
    pass


class DyingFiles(Files):
    """Everything stops at the call of this number."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _call(self) -> None:
        if self.left == 0:
            raise Dies
        self.left -= 1

    def write(self, *given: Any) -> None:
        self._call()
        super().write(*given)

    def sync(self, *given: Any) -> None:
        self._call()
        super().sync(*given)

    def rename(self, *given: Any) -> None:
        self._call()
        super().rename(*given)

    def remove_tree(self, *given: Any) -> None:
        self._call()
        super().remove_tree(*given)

    def make_directory(self, *given: Any) -> None:
        self._call()
        super().make_directory(*given)


def until_it_lives(work: Callable[[Files], Any]) -> int:
    """Do it again until it does not die, each time a call later; how often it died."""
    died = 0
    while True:
        try:
            work(DyingFiles(died))
            return died
        except Dies:
            died += 1


def test_a_copy_is_consistent_after_a_kill_at_every_step(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 5)

    def pull(files: Files) -> None:
        copy = follower(leader.objects, tmp_path / "c", files=files)
        try:
            copy.pull()
        finally:
            copy.close()

    died = 0
    for round_ in range(3):
        for _ in range(6):
            leader.step()
        leader._create(leader.store.table("t"))
        leader.ship()
        died += until_it_lives(pull)
        leader._drop(leader.store.table("t"))
        leader.ship()
        died += until_it_lives(pull)
        with kvstore.open(tmp_path / "c", read_only=True) as read:
            there = {int(directory.name) for directory in (tmp_path / "c" / paths.TABLES).iterdir()}
            assert there == set(read.runtime.catalog().tables)
        restored(leader.objects, tmp_path / f"back{round_}")
        assert everything(tmp_path / "c") == everything(tmp_path / f"back{round_}")
    assert died > 10
    leader.store.close()


def cut(objects: Objects, of: Callable[[Shipped], int]) -> Objects:
    """The replica with an earlier manifest, as after a leader that died during a round."""
    manifest = replica_manifest.decode(objects.held["TOLD"], store_id(objects))
    shipped = [msgspec.structs.replace(each, end=of(each)) for each in manifest.shipped]
    before = msgspec.structs.replace(manifest, shipped=shipped, as_of_ms=manifest.as_of_ms - 1)
    return Objects({**objects.held, "TOLD": replica_manifest.encode(before)})


def store_id(objects: Objects) -> UUID:
    return Source(objects).store.store_id


def test_a_copy_has_a_commit_in_all_buckets_or_in_none(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 1)
    table = leader.store.table("t")
    leader._epoch(table)
    leader.ship()
    first = dict(leader.objects.held)
    begun = {b: end for b, (_, end) in table.offsets().items()}
    for _ in range(4):
        leader._epoch(table)
        leader._upsert(table)
    leader.ship()
    copy = follower(Objects(first), tmp_path / "c")
    copy.close()
    ends = {b: end for b, (_, end) in table.offsets().items()}
    torn = 0
    for bucket in range(3):
        # One bucket has everything; the others have less and less.
        objects = cut(
            leader.objects,
            lambda each, all_of=bucket: (
                each.end
                if each.stream in (CATALOG, Stream(TableId(1), BucketId(all_of)))
                else begun[each.stream.bucket] + (ends[each.stream.bucket] - begun[each.stream.bucket]) // (4 - all_of)
            ),
        )
        copy = follower(objects, tmp_path / "c")
        copy.pull()
        copy.close()
        with kvstore.open(tmp_path / "c", read_only=True) as read:
            there = {row["v"] for row in rows_of(read.table("t")) if row["k"] in EPOCH_KEYS}
            assert len(there) == 1
            has = {b: end for b, (_, end) in read.table("t").offsets().items()}
            torn += has[bucket] < ends[bucket]
    assert torn == 3, "no commit would have been torn, so this shows nothing"
    copy = follower(leader.objects, tmp_path / "c")
    copy.pull()
    copy.close()
    assert everything(tmp_path / "c") == everything(tmp_path / "s")
    leader.store.close()


def test_a_task_ends_in_a_copy_only_with_its_rows(tmp_path: Path) -> None:
    landing = tmp_path / "in"
    landing.mkdir()
    leader = Leader(tmp_path / "s", 1)
    job = leader.store.create_job("j", source=str(landing), format="csv", table="t")
    leader.ship()
    copy = follower(leader.objects, tmp_path / "c")
    copy.close()
    before = {b: end for b, (_, end) in leader.store.table("t").offsets().items()}
    for number in range(3):
        (landing / f"{number}.csv").write_text("k,v\n" + "".join(f"{k},{number}\n" for k in range(9)))
        job.run()
    leader.store.create_table("u", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    leader.ship()
    lagging = cut(
        leader.objects,
        lambda each: before[each.stream.bucket] if each.stream.table_id == 1 and each.stream.bucket == 2 else each.end,
    )
    copy = follower(lagging, tmp_path / "c")
    assert copy.pull()
    assert not copy.pull()
    with kvstore.open(tmp_path / "c", read_only=True) as read:
        assert read.list_tables() == ["t"], "edits after the one that is left out are left out too"
        assert read.job("j").show().statistics.succeeded_tasks == 0
        assert rows_of(read.table("t")) == []
    copy.close()
    copy = follower(leader.objects, tmp_path / "c")
    copy.pull()
    copy.close()
    with kvstore.open(tmp_path / "c", read_only=True) as read:
        assert read.job("j").show().statistics.succeeded_tasks == 3
    assert everything(tmp_path / "c") == everything(tmp_path / "s")
    leader.store.close()


def test_the_former_leader_neither_writes_nor_ships(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 3)
    for _ in range(5):
        leader.step()
    leader.ship()
    other = follower(leader.objects, tmp_path / "other")
    copy = follower(leader.objects, tmp_path / "c")
    leader.step()
    leader.ship()
    before = everything(tmp_path / "s")
    done = copy.promote()
    assert done.leader_epoch == 1
    assert {name: ends for name, (_, _, ends) in before.items()} == done.ends
    held = dict(leader.objects.held)
    leader._upsert(leader.store.table("t"))
    with pytest.raises(WriterFenced, match="taken this store's place"):
        leader.ship()
    assert leader.objects.held == held
    lost = contents(leader.store.table("t"))
    for write in (leader._upsert, leader._delete, leader._epoch, leader._create):
        with pytest.raises(WriterFenced, match="write there"):
            write(leader.store.table("t"))
    assert contents(leader.store.table("t")) == lost
    leader.store.close()
    with kvstore.open(tmp_path / "s") as again, pytest.raises(WriterFenced):  # it is known from then on
        again.table("t").delete([1])
    assert everything(tmp_path / "c") == before
    new = Leader(tmp_path / "c", 4, leader.objects)
    new.epoch = leader.epoch
    for _ in range(12):
        new.step()
    new.ship()
    assert new.replica.check()
    assert other.pull()
    other.close()
    restored(leader.objects, tmp_path / "back")
    assert everything(tmp_path / "other") == everything(tmp_path / "back") == everything(tmp_path / "c")
    # A recovery of the catalog makes it a store.
    recovery.recover(tmp_path / "s", store_id(leader.objects), Files(), SystemClock(), write=True)
    with kvstore.open(tmp_path / "s") as again:
        again.create_table("mine", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    new.store.close()


def test_a_promotion_that_died_can_be_repeated(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 3)
    leader._epoch(leader.store.table("t"))
    leader.ship()
    follower(leader.objects, tmp_path / "c").close()
    leader._upsert(leader.store.table("t"))
    leader.ship()

    def promote(files: Files) -> int:
        with follower(leader.objects, tmp_path / "c", files=files) as copy:
            return copy.promote().leader_epoch

    assert until_it_lives(promote) > 2
    assert [name for name in leader.objects.held if name.startswith("leader/")] == [
        f"leader/{n:020d}" for n in range(2)
    ]
    assert everything(tmp_path / "c") == everything(tmp_path / "s")
    with pytest.raises(NotAStore, match="not a copy"):
        kvstore.promote(tmp_path / "c")
    with kvstore.open(tmp_path / "c") as new:
        new.table("t").upsert([{"k": 1, "v": 1}])
    leader.store.close()


def test_of_two_promoted_copies_one_leads(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 3)
    leader.ship()
    one, other = (follower(leader.objects, tmp_path / name) for name in "ab")
    create, raced = leader.objects.create, list[kvstore.Promoted]()

    def race(name: str, pieces: Any) -> bool:
        if name.startswith("leader/"):
            leader.objects.create = create  # type: ignore[method-assign]
            raced.append(one.promote())
        return create(name, pieces)

    leader.objects.create = race  # type: ignore[method-assign]
    with pytest.raises(WriterFenced, match="Another copy"):
        other.promote()
    assert raced[0].leader_epoch == 1
    other.close()
    leader.store.close()


def behind_and_ahead(tmp_path: Path, *, steps: int) -> tuple[Leader, Path]:
    """A leader whose copy took its place without what it shipped last; and a copy that has that."""
    leader = Leader(tmp_path / "s", 3)
    for _ in range(4):
        leader.step()
    leader.ship()
    leader.store.flush()
    shutil.copytree(tmp_path / "s", tmp_path / "new")
    for _ in range(steps):
        leader._upsert(leader.store.table("t"))
    leader.ship()
    follower(leader.objects, tmp_path / "c").close()
    leader.store.close()
    recovery.recover(tmp_path / "new", store_id(leader.objects), Files(), SystemClock(), write=True)
    new = Leader(tmp_path / "new", 6, leader.objects)
    new.epoch = leader.epoch
    new.ship()
    return new, tmp_path / "c"


@pytest.mark.parametrize("writes", [False, True])
def test_changes_that_a_new_leader_lacks_are_rolled_back_within_a_limit(tmp_path: Path, *, writes: bool) -> None:
    leader, path = behind_and_ahead(tmp_path, steps=2)
    if writes:
        leader._upsert(leader.store.table("t"))
        leader.ship()
    before = everything(path)
    with follower(leader.objects, path, rollback_limit=3) as copy:
        with pytest.raises(Diverged) as caught:
            copy.pull()
        assert everything(path) == before
    lacking = int(str(caught.value.where["lacking"]))
    assert lacking >= 12
    with follower(leader.objects, path, rollback_limit=lacking) as copy:
        pulled = copy.pull()
        assert pulled.rebuilt
        assert not copy.pull()
    restored(leader.objects, tmp_path / "back")
    assert everything(path) == everything(tmp_path / "back") == everything(tmp_path / "new")
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith("c")) == ["c"]
    leader.store.close()


@pytest.mark.parametrize("how", ["recovered", "promoted"])
def test_edits_that_a_new_leader_lacks_are_rolled_back(tmp_path: Path, how: str) -> None:
    old = Leader(tmp_path / "s", 3)
    old.store.checkpoint()
    old.ship()
    copy, new = (follower(old.objects, tmp_path / name) for name in ("c", "new"))
    for number in range(3):  # so that their journals have edits after the last shipment they know of
        old.store.create_table(f"both{number}", SCHEMA, "k")
        old.ship()
        copy.pull()
        new.pull()
    new.close()
    before = dict(old.objects.held)
    if how == "recovered":
        shutil.rmtree(tmp_path / "new")
        shutil.copytree(tmp_path / "s", tmp_path / "new")
    for number in range(3):
        old.store.create_table(f"lost{number}", SCHEMA, "k")
    old.ship()
    copy.pull()
    copy.close()
    if how == "recovered":
        recovery.recover(tmp_path / "new", store_id(old.objects), Files(), SystemClock(), write=True)
    else:
        # It does not know of the last shipment: the manifest that has it is missing.
        manifest = old.objects.held["TOLD"]
        old.objects.held["TOLD"] = before["TOLD"]
        with follower(old.objects, tmp_path / "new") as new:
            new.promote()
        old.objects.held["TOLD"] = manifest
    leader = Leader(tmp_path / "new", 6, old.objects)
    for number in range(5):  # edits of the same numbers
        leader.store.create_table(f"new{number}", SCHEMA, "k")
    leader.ship()
    with follower(leader.objects, tmp_path / "c", rollback_limit=2) as copy, pytest.raises(Diverged) as caught:
        copy.pull()
    with follower(leader.objects, tmp_path / "c", rollback_limit=int(str(caught.value.where["lacking"]))) as copy:
        assert copy.pull().rebuilt
    assert everything(tmp_path / "c") == everything(tmp_path / "new")
    leader.store.close()
    old.store.close()


def test_a_new_leader_that_has_everything_causes_no_rollback(tmp_path: Path) -> None:
    leader, path = behind_and_ahead(tmp_path, steps=0)
    leader.step()
    leader.ship()
    with follower(leader.objects, path, rollback_limit=0) as copy:
        assert copy.pull()
    assert everything(path) == everything(tmp_path / "new")
    leader.store.close()


def test_a_copy_is_rebuilt_if_the_replica_starts_after_its_end(tmp_path: Path) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s", segment_bytes_max=2000, log_bytes_max=2000) as store:
        table = store.create_table("t", SCHEMA, "k")
        replica = replica_of(store, objects)
        table.upsert([{"k": 1, "v": 1}])
        store.flush()
        replica.ship()
        follower(objects, tmp_path / "c").close()
        for step in range(60):
            table.upsert([{"k": k, "v": step} for k in range(40)])
        table.snapshot()
        table._handles[0].retain()
        assert table.offsets()[0][0] > 1
        store.flush()
        replica.ship()
    with follower(objects, tmp_path / "c") as copy:
        assert copy.pull().rebuilt
    assert everything(tmp_path / "c")["t"][0] == everything(tmp_path / "s")["t"][0]


def test_a_follower_never_crosses_a_hole(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 3)
    leader.ship()
    with follower(leader.objects, tmp_path / "c") as copy:
        for _ in range(3):
            leader._upsert(leader.store.table("t"))
            leader.ship()
        gone = next(name for name in leader.objects.names if name.stream == Stream(TableId(1), BucketId(0)))
        data = leader.objects.held.pop(str(gone))
        before = everything(tmp_path / "c")
        with pytest.raises(MissingVersion, match="hole"):
            copy.pull()
        assert everything(tmp_path / "c") == before
        leader.objects.held[str(gone)] = data
        assert copy.pull()
    assert everything(tmp_path / "c") == everything(tmp_path / "s")
    leader.store.close()


def test_a_copy_refuses_writes_and_a_second_follower(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 3)
    leader._upsert(leader.store.table("t"))
    with pytest.raises(NotAStore, match="no replica"):
        follower(leader.objects, tmp_path / "c")
    leader.ship()
    with follower(leader.objects, tmp_path / "c"):
        with pytest.raises(StoreLocked):
            follower(leader.objects, tmp_path / "c")
        with pytest.raises(UnsupportedOperation, match="promote"):
            kvstore.open(tmp_path / "c")
        with kvstore.open(tmp_path / "c", read_only=True) as read:
            for write in (
                lambda: read.consumer("x").commit("t", {0: 0}),
                lambda: read.table("t").upsert([{"k": 1, "v": 1}]),
                lambda: read.add_replica(str(tmp_path / "elsewhere")),
                read.checkpoint,
                read.replica("r").ship,
                read.replica("r").check,
            ):
                with pytest.raises(UnsupportedOperation, match=r"follows a replica"):
                    write()
            assert read.check()
    with pytest.raises(NotAStore, match="not a copy"):
        kvstore.follow(str(tmp_path / "r"), tmp_path / "s")
    leader.store.close()


def test_following_by_urls(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        replica = store.add_replica(str(tmp_path / "r"), "r")
        with pytest.raises((NotAStore, ReplicaBehind)):
            kvstore.follow(str(tmp_path / "r"), tmp_path / "c")
        replica.ship()
        with kvstore.follow(str(tmp_path / "r"), tmp_path / "c") as copy:
            table.upsert([{"k": 1, "v": 1}])
            store.flush()
            replica.ship()
            assert copy.pull().changes == 1
            assert copy.report()
        (tmp_path / "empty").mkdir()
        with pytest.raises(InvalidRequest, match="follows another"):
            kvstore.follow(str(tmp_path / "empty"), tmp_path / "c")
        done = kvstore.promote(tmp_path / "c")
        assert done.ends == {"t": {0: 1}}
        with pytest.raises(WriterFenced):
            replica.ship()
    with kvstore.open(tmp_path / "c") as new:
        new.table("t").upsert([{"k": 2, "v": 2}])
        new.flush()
        new.replica("r").ship()
        assert new.replica("r").check()


def test_a_follower_warns_of_lag_and_of_wrong_clocks(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 3)
    leader.ship()
    clock = SetClock(SystemClock().now_ms())
    with follower(leader.objects, tmp_path / "c", clock=clock) as copy:
        assert copy.report()
        copy.pull()
        assert copy.report().warnings == []
        clock.now += 200_000
        assert "shipped nothing for 2" in copy.report().warnings[0]
        clock.now -= 260_000
        assert "clock is" in copy.report().warnings[0]
        said = follower_status.decode(leader.objects.held["follower/c"])
        assert (said.txid, said.leader_epoch, said.obstacle) == (copy.report().txid, 0, None)
    leader.store.close()
