"""Copies of two replicas of one leader are promoted: one of them leads, whatever the other was about to do."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import kvstore
from kvstore.errors import WriterFenced
from kvstore.replica import leadership
from kvstore.replica.client import ObjectStore
from logformat.ids import Epoch
from logformat.replica.object_file import claimed_by, leader_name
from tests.cli.commands import fine
from tests.replica.objects import SCHEMA
from tests.support.replicas import append_until_fenced
from tests.support.tables import rows_of

FIRST = leader_name(Epoch(1))


@pytest.fixture
def leader(tmp_path: Path) -> Path:
    """Ships to replicas ``a`` and ``b``; copies ``ca`` and ``cb`` follow them."""
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        for name in "ab":
            store.add_replica(str(tmp_path / name), name)
        for _ in range(2):  # each then knows the other
            for name in "ab":
                store.replica(name).ship()
    for name in "ab":
        kvstore.follow(str(tmp_path / name), tmp_path / f"c{name}").close()
    return tmp_path / "s"


def appends(path: Path) -> bool:
    """Whether a store takes a write, in a handle that is opened for it."""
    with kvstore.open(path) as store:
        try:
            store.table("t").upsert([{"k": 7, "v": 7}])
        except WriterFenced:
            return False
    return True


def test_a_promotion_during_the_wait_of_another(tmp_path: Path, leader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, promoted = leadership.wait_for_lease_end, list[kvstore.Promoted]()

    def meanwhile() -> None:
        monkeypatch.setattr(leadership, "wait_for_lease_end", waits)
        promoted.append(kvstore.promote(tmp_path / "cb"))

    monkeypatch.setattr(leadership, "wait_for_lease_end", meanwhile)
    with pytest.raises(WriterFenced, match="Another copy"):
        kvstore.promote(tmp_path / "ca")
    check_that_cb_leads(tmp_path, promoted)


def test_a_promotion_after_another_has_listed_the_leaders(
    tmp_path: Path, leader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So both choose the same epoch."""
    create, promoted = ObjectStore.create, list[kvstore.Promoted]()

    def meanwhile(self: ObjectStore, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        monkeypatch.setattr(ObjectStore, "create", create)
        promoted.append(kvstore.promote(tmp_path / "cb"))
        return create(self, name, pieces)

    monkeypatch.setattr(ObjectStore, "create", meanwhile)
    with pytest.raises(WriterFenced, match="Another copy"):
        kvstore.promote(tmp_path / "ca")
    assert promoted[0].leader_epoch == 1
    check_that_cb_leads(tmp_path, promoted)


def check_that_cb_leads(tmp_path: Path, promoted: list[kvstore.Promoted]) -> None:
    assert not promoted[0].unreached
    assert not appends(tmp_path / "s")
    with kvstore.open(tmp_path / "cb") as store:
        store.table("t").upsert([{"k": 2, "v": 2}])
        for name in "ab":
            store.replica(name).ship()
            assert store.replica(name).check()
        rows = rows_of(store.table("t"))
    with kvstore.follow(str(tmp_path / "a"), tmp_path / "ca") as copy:
        copy.pull()
    with kvstore.open(tmp_path / "ca", read_only=True) as store:
        assert rows_of(store.table("t")) == rows, "the loser follows the winner"
    assert kvstore.promote(tmp_path / "ca").leader_epoch == promoted[0].leader_epoch + 1
    assert appends(tmp_path / "ca")
    assert not appends(tmp_path / "cb")


def test_an_unreachable_replica_is_reported_and_claimed_later(tmp_path: Path, leader: Path) -> None:
    with kvstore.open(leader) as store:
        shutil.move(tmp_path / "b", tmp_path / "away")
        promoted = kvstore.promote(tmp_path / "ca")
        assert list(promoted.unreached) == ["b"]
        assert "no such directory" in promoted.unreached["b"]
        shutil.move(tmp_path / "away", tmp_path / "b")
        shutil.move(tmp_path / "a", tmp_path / "away")
        store.table("t").upsert([{"k": 8, "v": 8}])  # it reaches only the one that the promotion did not
        shutil.move(tmp_path / "away", tmp_path / "a")
        with kvstore.open(tmp_path / "ca") as new:
            new.replica("b").ship()
            assert new.replica("b").check()
        with pytest.raises(WriterFenced):
            append_until_fenced(store.table("t"))


def test_the_command_names_unreachable_replicas(tmp_path: Path, leader: Path) -> None:
    shutil.move(tmp_path / "a", tmp_path / "away")
    output = fine("replica", "promote", tmp_path / "cb").out
    assert "replica a could not be reached" in output
    assert "no such directory" in output


def test_a_promotion_that_loses_leaves_no_claim(tmp_path: Path, leader: Path) -> None:
    """Another, which does not reach the first replica, has the second."""
    (tmp_path / "b" / FIRST).write_bytes(claimed_by("other"))
    held = sorted(path.name for path in (tmp_path / "a" / "leader").iterdir())
    create = ObjectStore.create

    def late(self: ObjectStore, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        if name == leader_name(Epoch(2)) and self.url.endswith("/b"):
            create(self, name, [claimed_by("other")])
        return create(self, name, pieces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectStore, "create", late)
        with pytest.raises(WriterFenced, match="Another copy"):
            kvstore.promote(tmp_path / "ca")
    assert sorted(path.name for path in (tmp_path / "a" / "leader").iterdir()) == held
    assert kvstore.promote(tmp_path / "ca").leader_epoch == 3
    assert appends(tmp_path / "ca")


@pytest.mark.parametrize("notices", ["append", "ship", "glance"])
def test_a_leader_whose_object_was_replaced_by_anothers_is_fenced_permanently(tmp_path: Path, notices: str) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        store.add_replica(str(tmp_path / "r"), "r").ship()
    for name in ("one", "other"):
        kvstore.follow(str(tmp_path / "r"), tmp_path / name).close()
    assert kvstore.promote(tmp_path / "one").leader_epoch == 1
    with kvstore.open(tmp_path / "one") as one:
        replica = one.replica("r")
        if notices == "glance":
            replica.ship()
            replica.ship()
        (tmp_path / "r" / FIRST).unlink()
        if notices == "glance":
            (tmp_path / "r" / FIRST).write_bytes(b"other")
        else:
            assert kvstore.promote(tmp_path / "other").leader_epoch == 1
        with pytest.raises(WriterFenced):
            append_until_fenced(one.table("t")) if notices == "append" else replica.ship()
        shutil.move(tmp_path / "r", tmp_path / "away")  # it is not asked any more
        with pytest.raises(WriterFenced):
            one.table("t").upsert([{"k": 1, "v": 1}])
    assert not appends(tmp_path / "one")


def test_a_shipment_creates_a_deleted_leader_object_again(tmp_path: Path, leader: Path) -> None:
    kvstore.promote(tmp_path / "ca")
    with kvstore.open(tmp_path / "ca") as store:
        (tmp_path / "b" / FIRST).unlink()
        store.replica("b").ship()
        assert (tmp_path / "b" / FIRST).read_bytes() == (tmp_path / "a" / FIRST).read_bytes()


def test_a_recovered_copy_that_ships_nothing_takes_no_place(tmp_path: Path, leader: Path) -> None:
    """It may be a drill."""
    shutil.copytree(leader, tmp_path / "drill")
    fine("meta", "recover", tmp_path / "drill", "--metadata-failure-recovery")
    assert appends(tmp_path / "drill")
    assert appends(leader)
