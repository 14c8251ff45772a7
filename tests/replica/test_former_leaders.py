"""After a promotion one copy leads; what the new leader lacks is rolled back everywhere, within a limit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.checkpoint import recovery
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import Diverged, NotAStore, WriterFenced
from tests.replica.followers import Leader, contents, everything, follower, store_id, until_it_lives
from tests.replica.objects import SCHEMA, restored


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
    leader.upsert(leader.store.table("t"))
    with pytest.raises(WriterFenced, match="taken this store's place"):
        leader.ship()
    assert leader.objects.held == held
    lost = contents(leader.store.table("t"))
    for write in (leader.upsert, leader.delete, leader.apply_epoch, leader.create_table):
        with pytest.raises(WriterFenced, match="write there"):
            write(leader.store.table("t"))
    assert contents(leader.store.table("t")) == lost
    leader.store.close()
    with kvstore.open(tmp_path / "s") as again, pytest.raises(WriterFenced):  # it is known from then on
        again.table("t").delete([1])
    assert everything(tmp_path / "c") == before
    new = Leader(tmp_path / "c", 4, leader.objects)
    new.epochs = leader.epochs
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
    leader.apply_epoch(leader.store.table("t"))
    leader.ship()
    follower(leader.objects, tmp_path / "c").close()
    leader.upsert(leader.store.table("t"))
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


def lagging_and_ahead(tmp_path: Path, *, steps: int) -> tuple[Leader, Path]:
    """A leader whose copy took its place without what it shipped last; and a copy that has that."""
    leader = Leader(tmp_path / "s", 3)
    for _ in range(4):
        leader.step()
    leader.ship()
    leader.store.flush()
    shutil.copytree(tmp_path / "s", tmp_path / "new")
    for _ in range(steps):
        leader.upsert(leader.store.table("t"))
    leader.ship()
    follower(leader.objects, tmp_path / "c").close()
    leader.store.close()
    recovery.recover(tmp_path / "new", store_id(leader.objects), Files(), SystemClock(), write=True)
    new = Leader(tmp_path / "new", 6, leader.objects)
    new.epochs = leader.epochs
    new.ship()
    return new, tmp_path / "c"


@pytest.mark.parametrize("writes", [False, True])
def test_changes_that_a_new_leader_lacks_are_rolled_back_within_a_limit(tmp_path: Path, *, writes: bool) -> None:
    leader, path = lagging_and_ahead(tmp_path, steps=2)
    if writes:
        leader.upsert(leader.store.table("t"))
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
    leader, path = lagging_and_ahead(tmp_path, steps=0)
    leader.step()
    leader.ship()
    with follower(leader.objects, path, rollback_limit=0) as copy:
        assert copy.pull()
    assert everything(path) == everything(tmp_path / "new")
    leader.store.close()
