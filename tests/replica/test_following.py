"""After each round, and after crashes, a copy is the store as it was at one moment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import kvstore
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import (
    InvalidRequest,
    MissingVersion,
    NotAStore,
    ReplicaBehind,
    StoreLocked,
    Unavailable,
    UnsupportedOperation,
    WriterFenced,
)
from logformat import paths
from logformat.catalog.replicas import CATALOG, Stream
from logformat.ids import BucketId, TableId
from logformat.replica import follower_status
from tests.replica.followers import EPOCH_KEYS, Leader, cut, everything, follower, until_it_lives
from tests.replica.objects import SCHEMA, Faulty, Objects, replica_of, restored
from tests.support.clocks import SetClock
from tests.support.tables import rows_of


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 60))])
def test_after_each_round_a_copy_equals_a_restore(tmp_path: Path, seed: int) -> None:
    leader = Leader(tmp_path / "s", seed)
    leader.step()
    leader.ship()
    faulty = Faulty(leader.objects, Random(seed), 0.0)
    copy = follower(faulty, tmp_path / "c", edits_per_journal=5)
    faulty.share = 0.02
    for round_ in range(6):
        for _ in range(leader.random.randrange(1, 6)):
            leader.step()
        leader.ship()
        if leader.random.random() < 0.3:
            copy.close()
            policy = leader.random.choice(("SYNC", "WRITE_NO_SYNC"))
            faulty.share = 0.0
            copy = follower(faulty, tmp_path / "c", journal_sync=policy)
            faulty.share = 0.02
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


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_copy_is_consistent_after_a_kill_at_every_step(tmp_path: Path, rounds: int) -> None:
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
        leader.create_table(leader.store.table("t"))
        leader.ship()
        died += until_it_lives(pull)
        leader.drop_table(leader.store.table("t"))
        leader.ship()
        died += until_it_lives(pull)
        with kvstore.open(tmp_path / "c", read_only=True) as read:
            there = {int(directory.name) for directory in (tmp_path / "c" / paths.TABLES).iterdir()}
            assert there == set(read.runtime.catalog().tables)
        restored(leader.objects, tmp_path / f"back{round_}")
        assert everything(tmp_path / "c") == everything(tmp_path / f"back{round_}")
    assert died > 10
    leader.store.close()


def test_a_copy_has_a_commit_in_all_buckets_or_in_none(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 1)
    table = leader.store.table("t")
    leader.apply_epoch(table)
    leader.ship()
    first = dict(leader.objects.held)
    begun = {b: end for b, (_, end) in table.offsets().items()}
    for _ in range(4):
        leader.apply_epoch(table)
        leader.upsert(table)
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
        table.bucket(0).handle.retain()
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
            leader.upsert(leader.store.table("t"))
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
    leader.upsert(leader.store.table("t"))
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


def test_a_copy_leaves_what_an_old_leader_asked_it_for_alone(tmp_path: Path) -> None:
    """Version 0.1.0 asked copies for images of the catalog, by these objects."""
    leader = Leader(tmp_path / "s", 3)
    leader.ship()
    asked = {f"{kind}/c": b"{}" for kind in ("task", "answer", "image")}
    leader.objects.held.update(asked)
    with follower(leader.objects, tmp_path / "c") as copy:
        copy.pull()
    assert leader.replica.check()
    assert leader.replica.repair()
    assert asked.items() <= leader.objects.held.items()
    leader.store.close()


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
        assert (said.txid, said.leader_epoch) == (copy.report().txid, 0)
        assert said.obstacle is not None  # a leader of version 0.1.0 would ask it for an image of the catalog
    leader.store.close()
