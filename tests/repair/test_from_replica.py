"""Lost batches are taken from a replica; what neither has is named exactly, and given up only if that is accepted."""

from __future__ import annotations

import re
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
from kvstore.commit.coordinator import Commits
from kvstore.errors import (
    InvalidRequest,
    MissingVersion,
    NotAStore,
    OutOfOrderSequence,
    UnsupportedVersion,
    WriterFenced,
)
from kvstore.files import Files
from kvstore.options import StoreOptions
from kvstore.store import Store
from logformat.checksum import crc32c
from logformat.replica.object_file import parse_name
from tests.repair.conftest import Built
from tests.repair.damage import KINDS, files_of, lose_a_row, spoil
from tests.repair.worlds import OPTIONS, SCHEMA, STEPS, World, build, goes_on, seen, write
from tests.support.tables import rows_of

LOG = "tables/1/0/log"


def segment(world: World, base: int) -> Path:
    return world.path / LOG / f"{base:020d}.log"


def segments(world: World) -> dict[str, bytes]:
    return {name: (world.path / name).read_bytes() for name in files_of(world.path) if name.endswith(".log")}


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


class TestLost:
    """The last segment is damaged after the end of the replica."""

    @pytest.fixture
    def damaged(self, ahead: Built) -> Built:
        spoil(segment(ahead[0], 29), 1000)
        return ahead

    def test_changes_are_named_and_no_file_is_touched(self, damaged: Built) -> None:
        world, _ = damaged
        before = segments(world)
        report = world.repair()
        assert not report
        assert report.left == [
            "t/0: the end of the log lacks offsets 32 to 36 at least: --accept-loss continues without them"
        ]
        assert (segments(world), report.quarantine, report.gone) == (before, None, [])

    def test_no_row_is_lost_if_the_index_has_it(self, damaged: Built) -> None:
        world, truth = damaged
        spoiled = segment(world, 29).read_bytes()
        report = world.repair(accepts_loss=True)
        assert report
        assert report.gone == [
            "t/0: offsets 32 to 36 at least",
            "t/0: the changelog before offset 37, where it begins now",
        ]
        assert report.quarantine is not None
        assert (report.quarantine / LOG / f"{29:020d}.log").read_bytes() == spoiled
        after = seen(world.path)
        assert after["t offsets"] == {**truth["t offsets"], 0: (37, 37)}
        changed = {name for name in truth if after[name] != truth[name]}
        assert changed == {"t changes", "t offsets"}
        goes_on(world.path)
        shutil.rmtree(world.path / "tables/1/0/index")
        goes_on(world.path, STEPS + 1)

    def test_the_log_is_truncated_if_the_index_lacks_them(self, damaged: Built) -> None:
        world, truth = damaged
        with Store(world.path, OPTIONS) as store:
            store.consumer("late").commit("t", {0: 36, 1: 40})
        spoil(world.path / "tables/1/0/index/data.mdb", 0, 4096)
        assert world.repair().left == [
            "t/0: the end of the log lacks offsets 32 to 36 at least: --accept-loss continues without them"
        ]
        report = world.repair(accepts_loss=True)
        assert report
        assert report.gone == [
            "t/0: offsets 32 to 36 at least",
            "t/0: everything from offset 32 on, to 36 at least, with its effect on rows; new changes get these offsets",
        ]
        after = seen(world.path)
        assert after["t offsets"] == {0: (0, 32), 1: truth["t offsets"][1]}
        kept = [row for row in truth["t changes"] if row["_bucket"] or row["_log_offset"] < 32]
        assert after["t changes"] == kept
        assert after["consumers"]["late"] == {"t": {0: 32, 1: 40}}
        with Store(world.path, OPTIONS) as store, pytest.raises(OutOfOrderSequence):
            write(store, STEPS)

    def test_a_log_without_a_key_keeps_the_larger_part(self, ahead: Built) -> None:
        world, truth = ahead
        spoil(world.path / f"tables/2/0/log/{30:020d}.log", 1000)
        report = world.repair(accepts_loss=True)
        assert report
        after = seen(world.path)
        start, end = after["events offsets"][0]
        assert (start, end) == (0, 33)
        assert after["events changes"] == [row for row in truth["events changes"] if row["_log_offset"] < end]


def test_lost_history_is_given_up_only_if_that_is_accepted(alone: Built) -> None:
    world, truth = alone
    spoil(segment(world, 16), 1000)
    assert not world.repair(replica=False)
    report = world.repair(replica=False, accepts_loss=True)
    assert report
    assert report.gone == [
        "t/0: offsets 18 to 19",
        "t/0: the changelog before offset 29, where it begins now",
    ]
    after = seen(world.path)
    assert after["t offsets"][0] == (29, 37)
    assert {name for name in truth if after[name] != truth[name]} == {"t changes", "t offsets"}
    goes_on(world.path)


def test_shipped_changes_are_not_given_up(ahead: Built) -> None:
    world, _ = ahead
    spoil(segment(world, 16), 1000)
    shutil.rmtree(world.path / "tables/1/0/index")
    before = segments(world)
    report = world.repair(replica=False, accepts_loss=True)
    assert "give the URL of a replica that has them by --from" in report.left[0]
    assert segments(world) == before
    assert world.repair()
    goes_on(world.path)


def test_the_catalog_knows_how_far_the_log_was_shipped(ahead: Built) -> None:
    """Nothing but the catalog shows that the log was longer."""
    world, truth = ahead
    shutil.rmtree(world.path / "tables/1/0/index")
    shutil.rmtree(world.path / "tables/1/0/snapshots")
    for path in (world.path / LOG).glob("*"):
        if int(path.stem):
            path.unlink()
    (left,) = world.repair(replica=False).left
    assert left.startswith("t/0: the end of the log lacks offsets 16 to 24 at least: give a replica by --from")
    assert world.repair()
    assert seen(world.path)["t offsets"][0] == (0, 25)
    assert truth["t offsets"][0] == (0, 37)


def test_a_sparse_index_shows_that_the_log_was_longer(ahead: Built) -> None:
    world, _ = ahead
    shutil.rmtree(world.path / "tables/1/0/index")
    segment(world, 29).unlink()
    assert "lacks offsets 29 to 29 at least" in world.repair().left[0]


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


def test_a_batch_after_the_damage_shows_that_the_log_was_longer(alone: Built) -> None:
    world, _ = alone
    shutil.rmtree(world.path / "tables/1/1/index")
    last = world.path / f"tables/1/1/log/{32:020d}.log"
    second = 64 + 12 + int.from_bytes(last.read_bytes()[72:76], "little")  # of the first its sparse index knows
    spoil(last, second + 100)
    (left,) = world.repair(replica=False).left
    assert re.search(r"t/1: the end of the log lacks offsets 3\d to \d+ at least", left)


def test_a_damaged_last_batch_is_not_taken_for_an_unfinished_one(alone: Built) -> None:
    world, truth = alone
    spoil(segment(world, 29), 1000)
    shutil.rmtree(world.path / "tables/1/0/index")
    damaged = segment(world, 29).read_bytes()
    assert "what was after offset 32, if there was anything" in world.repair(replica=False).left[0]
    assert segment(world, 29).read_bytes() == damaged
    report = world.repair(replica=False, accepts_loss=True)
    assert report
    assert report.gone == ["t/0: what was after offset 32, if there was anything"]
    assert report.quarantine is not None
    assert (report.quarantine / LOG / segment(world, 29).name).read_bytes() == damaged
    assert seen(world.path)["t offsets"] == {**truth["t offsets"], 0: (0, 32)}


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


@pytest.mark.parametrize("index", ["gone", "damaged", "without a row"])
def test_no_row_is_lost_if_a_snapshot_and_the_log_after_it_have_it(alone: Built, index: str) -> None:
    world, truth = alone
    spoil(segment(world, 0), 100)
    directory = world.path / "tables/1/0/index"
    if index == "gone":
        shutil.rmtree(directory)
    elif index == "damaged":
        spoil(directory / "data.mdb", 0, 4096)
    else:
        lose_a_row(directory)
    assert not world.repair(replica=False)
    report = world.repair(replica=False, accepts_loss=True)
    assert report
    assert report.gone == [
        "t/0: offsets 0 to 1",
        "t/0: the changelog before offset 16, where it begins now",
    ]
    after = seen(world.path)
    assert {name for name in truth if after[name] != truth[name]} == {"t changes", "t offsets"}
    assert after["t offsets"][0] == (16, 37)
    goes_on(world.path)


def test_a_second_hole_after_the_snapshot_truncates_the_log(alone: Built) -> None:
    world, truth = alone
    spoil(segment(world, 0), 100)
    spoil(segment(world, 29), 1000)
    lose_a_row(world.path / "tables/1/0/index")
    report = world.repair(replica=False, accepts_loss=True)
    assert report
    assert report.gone == [
        "t/0: offsets 0 to 1",
        "t/0: offsets 32 to 36 at least",
        "t/0: the changelog before offset 18, where it begins now",
        "t/0: offsets 32 to 36, with their effect on rows; new changes get these offsets",
    ]
    after = seen(world.path)
    assert after["t offsets"][0] == (18, 32)
    expected = [row for row in truth["t changes"] if row["_bucket"] or 18 <= row["_log_offset"] < 32]
    assert after["t changes"] == expected
    with Store(world.path, OPTIONS) as store:
        assert store.check()
        with pytest.raises(OutOfOrderSequence):
            write(store, STEPS)


def test_no_row_is_lost_of_a_log_of_one_segment(tmp_path: Path) -> None:
    """The log begins at the offset of the snapshot afterwards."""
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", compression=None)
        for step in range(9):
            table.upsert([{"k": k + step, "v": step, "s": f"{k}" * 60} for k in range(200)])
        table.snapshot()
        table.upsert([{"k": k, "v": 3, "s": "c" * 60} for k in range(3)])
        rows, end = rows_of(table), table.offsets()[0][1]
    world = World(tmp_path / "s", tmp_path)
    spoil(segment(world, 0), 300)
    spoil(world.path / "tables/1/0/index/data.mdb", 0, 4096)
    assert world.repair(replica=False, accepts_loss=True)
    with kvstore.open(tmp_path / "s") as store:
        assert rows_of(store.table("t")) == rows
        assert store.table("t").offsets() == {0: (end - 6, end)}
        store.table("t").upsert({"k": 1, "v": 4, "s": "d"})
        assert store.check()


def test_no_row_is_lost_if_the_log_is_damaged_right_before_the_snapshot(alone: Built) -> None:
    world, truth = alone
    spoil(segment(world, 16), 100)
    shutil.rmtree(world.path / "tables/1/0/index")
    report = world.repair(replica=False, accepts_loss=True)
    assert report
    assert report.gone == [
        "t/0: offsets 16 to 17",
        "t/0: the changelog before offset 18, where it begins now",
    ]
    after = seen(world.path)
    assert {name for name in truth if after[name] != truth[name]} == {"t changes", "t offsets"}
    goes_on(world.path)


@pytest.mark.parametrize("second", [16, 29])
def test_a_second_hole_after_the_only_snapshot(alone: Built, second: int) -> None:
    """The log begins after the first hole, and is truncated at the second one."""
    world, truth = alone
    with Store(world.path, OPTIONS) as store:
        end = store.table("t").offsets()[0][1]
    spoil(segment(world, 0), 100)
    spoil(segment(world, second), segment(world, second).stat().st_size - 20)
    shutil.rmtree(world.path / "tables/1/0/index")
    report = world.repair(replica=False, accepts_loss=True)
    assert report
    start, now = seen(world.path)["t offsets"][0]
    assert 16 <= now < end
    kept = [row for row in truth["t changes"] if row["_bucket"] == 0 and start <= row["_log_offset"] < now]
    assert [row for row in seen(world.path)["t changes"] if row["_bucket"] == 0] == kept
    with Store(world.path, OPTIONS) as store:
        assert store.check()


class TestAfterACrash:
    """The process died: the index ends at offset 37, the log later."""

    @pytest.fixture
    def crashed(self, alone: Built, tmp_path: Path) -> Built:
        world, _ = alone
        with Store(world.path, OPTIONS) as store:
            for step in range(STEPS, STEPS + 3):
                write(store, step)
            copy = world.copied(tmp_path / "crashed")
        return copy, seen(world.path)

    @staticmethod
    def assert_log_is(crashed: Built, start: int, end: int) -> None:
        """The log has the changes between two offsets, and the table can be written."""
        world, truth = crashed
        after = seen(world.path)
        assert after["t offsets"] == {**truth["t offsets"], 0: (start, end)}
        kept = [row for row in truth["t changes"] if row["_bucket"] or start <= row["_log_offset"] < end]
        assert after["t changes"] == kept
        with Store(world.path, OPTIONS) as store:
            assert store.check()
            store.table("t").upsert({"k": 1, "v": -1, "s": ""})
            assert store.check()

    def test_with_a_hole_after_the_end_of_the_index(self, crashed: Built) -> None:
        spoil(segment(crashed[0], 29), 2000)
        assert not crashed[0].repair(replica=False)
        report = crashed[0].repair(replica=False, accepts_loss=True)
        assert report
        assert report.gone == [
            "t/0: offsets 37 to 40",
            "t/0: everything from offset 37 on, to 44 at least, with its effect on rows; new changes get these offsets",
        ]
        self.assert_log_is(crashed, 0, 37)

    def test_with_a_hole_around_the_end_of_the_index(self, crashed: Built) -> None:
        """The index has the first part of the hole, and nothing has the second."""
        spoil(segment(crashed[0], 29), 900, 1500)
        report = crashed[0].repair(replica=False, accepts_loss=True)
        assert report
        assert report.gone == [
            "t/0: offsets 32 to 40",
            "t/0: the changelog before offset 37, where it begins now",
            "t/0: offsets 37 to 44, with their effect on rows; new changes get these offsets",
        ]
        self.assert_log_is(crashed, 37, 37)


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
                replica.ship()
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
            patch.setattr(Commits, "_end", lambda *_: None)
            table.apply_epoch(kvstore.Changes.of([("upsert", row) for row in rows], SCHEMA), "w", 0, "r")
    assert list((path / "staging").iterdir())
    shutil.rmtree(path / "tables/1/0/index")
    assert kvstore.repair(path)
    assert not list((path / "staging").iterdir())
    with kvstore.open(path) as store:
        assert sorted(rows_of(store.table("t")), key=itemgetter("k")) == rows
        assert store.table("t").is_applied("w", 0)
