"""Lost batches, the catalog and the store file are taken from a replica, if it is the right one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from random import Random

import pytest

import kvstore
from kvstore.checkpoint import recovery
from kvstore.cli.arguments import store_id_of
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest, MissingVersion, NotAStore, UnsupportedVersion, WriterFenced
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.checksum import crc32c
from logformat.replica.object_file import parse_name
from tests.repair.conftest import Built
from tests.repair.damage import KINDS, spoil
from tests.repair.worlds import LOG, OPTIONS, SCHEMA, STEPS, World, build, goes_on, seen, segment, segments, write
from tests.support.commits import refuse_ends_of_commits
from tests.support.tables import rows_of


@pytest.mark.parametrize("base", [0, 16, 29])
@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_is_restored_byte_for_byte(shipped: Built, base: int, kind: str) -> None:
    world, truth = shipped
    before = segments(world)
    KINDS[kind](segment(world, base), Random(base))
    damaged = segment(world, base).read_bytes() if kind != "delete" else None
    report = world.repair()
    assert report
    assert segments(world) == before
    assert seen(world.path) == truth
    if damaged is not None:
        assert report.quarantine is not None
        assert (report.quarantine / LOG / segment(world, base).name).read_bytes() == damaged


@pytest.mark.parametrize("lost", ["tables/1/0/log", "tables/1/0", "tables/1", "tables"])
def test_lost_directories_are_restored(shipped: Built, lost: str) -> None:
    world, truth = shipped
    shutil.rmtree(world.path / lost)
    report = world.repair()
    if lost == "tables/1/0/log":
        assert report  # the index knows where it ended
    else:
        assert all("if there was anything" in each for each in report.left)
        report = world.repair(accepts_loss=True)
        assert report
        assert all("if there was anything" in each for each in report.gone)
    assert seen(world.path) == truth
    goes_on(world.path)


def test_valid_batches_after_the_end_of_the_replica_are_kept(ahead: Built) -> None:
    world, truth = ahead
    before = segments(world)
    spoil(segment(world, 16), 100)  # the replica ends at offset 25
    assert world.repair()
    assert segments(world) == before
    assert seen(world.path) == truth
    goes_on(world.path)


class TestRefused:
    def test_a_replica_of_another_store(self, shipped: Built, tmp_path: Path, built: Callable[..., Built]) -> None:
        world, _ = shipped
        spoil(segment(world, 16), 100)
        before = segments(world)
        with pytest.raises(InvalidRequest, match="another store"):
            world.repair(replica=built((4, 9))[0].replica)
        (tmp_path / "empty").mkdir()
        with pytest.raises(NotAStore):
            world.repair(replica=tmp_path / "empty")
        assert segments(world) == before

    def test_files_of_a_newer_version(self, shipped: Built) -> None:
        world, _ = shipped
        found = {
            "STORE": (world.path / "STORE").read_bytes(),
            f"{LOG}/{16:020d}.log": segment(world, 16).read_bytes(),
            "tables/1/0/snapshots/*/manifest.json": b"",
        }
        for name in found:
            (path,) = world.path.glob(name)
            right = path.read_bytes()
            path.write_bytes(newer(right))
            with pytest.raises(UnsupportedVersion):
                world.repair()
            assert path.read_bytes() == newer(right)
            path.write_bytes(right)
        assert not (world.path / "lost").exists()

    def test_a_replica_that_another_leader_ships_to(self, tmp_path: Path) -> None:
        (tmp_path / "w").mkdir()
        world = build(tmp_path / "w", shipped_after=(4, STEPS - 1))
        old, copy = world.copied(tmp_path / "old"), world.copied(tmp_path / "copy")
        recovery.recover(copy.path, store_id_of(copy.path), Files(), SystemClock(), write=True)
        unshipped = copy.copied(tmp_path / "unshipped")
        with Store(copy.path, OPTIONS) as store:
            write(store, STEPS)
            store.flush()
            store.replica("r").ship()
        for each in (old, unshipped, copy):
            spoil(segment(each, 16), 100)
        before = segments(old)
        with pytest.raises(WriterFenced, match="Another leader"):
            old.repair()
        assert segments(old) == before
        # Another leader with the same epoch.
        twin = world.copied(tmp_path / "twin")
        recovery.recover(twin.path, store_id_of(twin.path), Files(), SystemClock(), write=True)
        with pytest.raises(WriterFenced):
            twin.repair()
        assert copy.repair()
        goes_on(copy.path, STEPS + 1)

    @pytest.mark.long
    def test_changes_that_another_copy_shipped_later(self, tmp_path: Path) -> None:
        """They are another history, although the copy that is used now has shipped nothing yet."""
        (tmp_path / "w").mkdir()
        world = build(tmp_path / "w", shipped_after=(4, STEPS - 1))
        truth = seen(world.path)
        copy = world.copied(tmp_path / "copy")
        recovery.recover(copy.path, store_id_of(copy.path), Files(), SystemClock(), write=True)
        with Store(world.path, OPTIONS) as store:  # the original continues
            for step in range(STEPS, STEPS + 4):
                write(store, step)
            store.flush()
            store.replica("r").ship()
        spoil(segment(copy, 29), 100)
        assert copy.repair()
        assert seen(copy.path) == truth
        goes_on(copy.path)

    @pytest.mark.long
    def test_other_changes_at_the_same_offsets(self, tmp_path: Path) -> None:
        """Two copies of one epoch: neither was promoted."""
        (tmp_path / "w").mkdir()
        world = build(tmp_path / "w", shipped_after=(4,))
        copy = world.copied(tmp_path / "copy")
        for number, each in enumerate((world, copy)):
            with Store(each.path, OPTIONS) as store:
                store.table("t").bucket(0).apply(
                    kvstore.Changes.of([("upsert", {"k": key_of(store), "v": number, "s": ""})], SCHEMA)
                )
                for step in range(STEPS, STEPS + 2):
                    write(store, step)
        with Store(world.path, OPTIONS) as store:
            store.flush()
            store.replica("r").ship()
        last = max(int(path.stem) for path in (copy.path / LOG).glob("*.log"))
        spoil(segment(copy, last), 100)
        before = segments(copy)
        report = copy.repair(accepts_loss=True)
        assert "another history" in report.left[0]
        assert segments(copy) == before


def newer(data: bytes) -> bytes:
    """The same file of a newer version, with a valid checksum."""
    if data.startswith(b"KVLG"):
        body = data[:4] + (9).to_bytes(2, "little") + data[6:60]
        return body + crc32c(body).to_bytes(4, "little") + data[64:]
    body = data[: data.rindex(b',"crc32c"')].replace(b'"format":1', b'"format":9') + b"}"
    return body[:-1] + b',"crc32c":%d}\n' % crc32c(body)


def key_of(store: kvstore.Store) -> int:
    """A key of the first bucket."""
    return next(key for key in range(9) if store.table("t").buckets_of([key]) == [0])


def test_bad_objects_are_skipped_and_reported(ahead: Built, tmp_path: Path) -> None:
    world, truth = ahead
    replica = tmp_path / "replica"
    shutil.copytree(world.replica, replica)
    ranges = [path for path in (replica / "tables/1/0").iterdir() if parse_name(f"tables/1/0/{path.name}") is not None]
    for path in ranges:
        spoil(path, 200)
    spoil(segment(world, 16), 100)
    before = segments(world)
    report = world.repair(replica=replica)
    assert not report
    assert any("lacks offsets 16 to" in each for each in report.left)
    assert any("replica repair" in each for each in report.left)
    assert segments(world) == before
    assert world.repair()
    assert seen(world.path) == truth


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_file_is_restored(shipped: Built, kind: str) -> None:
    world, truth = shipped
    before = (world.path / "STORE").read_bytes()
    KINDS[kind](world.path / "STORE", Random(3))
    assert "--from" in world.repair(replica=False).left[0]
    assert world.repair()
    assert (world.path / "STORE").read_bytes() == before
    assert seen(world.path) == truth


@pytest.mark.parametrize("kind", ["spoil", "delete"])
def test_the_catalog_continues_from_the_replica(shipped: Built, kind: str) -> None:
    world, truth = shipped
    journal = world.path / "meta/journal/data.mdb"
    for image in (world.path / "meta/image").glob("image.*"):
        image.unlink()
    if kind == "delete":
        journal.unlink()
    else:
        spoil(journal, 0, 8192)
    spoil(segment(world, 16), 100)
    report = world.repair()
    assert "if there were any" in report.left[0]
    report = world.repair(accepts_loss=True)
    assert report
    assert len(report.gone) == 1
    assert seen(world.path) == truth
    goes_on(world.path)
    with Store(world.path, OPTIONS) as store:  # shipping continues to the same replica
        store.flush()
        assert store.replica("r").report().behind["t"] < 10


class TestCatalogOfAReplica:
    """The journal and every image are lost; the replica has the catalog as of its last shipped edit."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> World:
        return build(tmp_path)

    @staticmethod
    def lose_the_catalog(world: World) -> None:
        shutil.rmtree(world.path / "meta/journal")
        for image in (world.path / "meta/image").glob("image.*"):
            image.unlink()

    def test_that_begins_with_an_image(self, tmp_path: Path) -> None:
        world = World(tmp_path / "s", tmp_path / "r")
        with Store(world.path, StoreOptions(edits_per_journal=4)) as store:
            table = store.create_table("t", SCHEMA, "k")
            table.upsert({"k": 1, "v": 1, "s": ""})
            replica = store.add_replica(str(world.replica), "r")
            for number in range(20):
                store.create_table(f"t{number}", SCHEMA, "k")
                if number % 2:
                    replica.ship()  # so seldom that nothing is merged
            store.checkpoint()
            store.checkpoint()
            min((world.replica / "catalog").glob("*.range")).unlink()
            assert replica.repair()
            table.upsert({"k": 2, "v": 2, "s": ""})
            store.flush()
            replica.ship()
        truth = seen(world.path)
        assert list((world.replica / "catalog").glob("*.snapshot"))
        self.lose_the_catalog(world)
        assert world.repair(accepts_loss=True)
        assert seen(world.path) == truth

    def test_that_has_a_hole(self, world: World) -> None:
        min((world.replica / "catalog").glob("*.range")).unlink()
        self.lose_the_catalog(world)
        before = segments(world)
        with pytest.raises(MissingVersion, match="repair the replica"):
            world.repair(accepts_loss=True)
        assert segments(world) == before


def test_an_open_commit_over_several_buckets_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process died before the EndCommit edit; a repair completes it like the next writer."""
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        rows = [{"k": k, "v": 1, "s": ""} for k in range(9)]
        with monkeypatch.context() as patch:
            refuse_ends_of_commits(patch)
            table.apply_epoch(kvstore.Changes.of([("upsert", row) for row in rows], SCHEMA), "w", 0, "r")
    assert list((path / "staging").iterdir())
    shutil.rmtree(path / "tables/1/0/index")
    assert kvstore.repair(path)
    assert not list((path / "staging").iterdir())
    with kvstore.open(path) as store:
        assert sorted(rows_of(store.table("t")), key=itemgetter("k")) == rows
        assert store.table("t").is_applied("w", 0)
