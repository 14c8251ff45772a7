"""What neither the store nor a replica has is named exactly, and given up only if that is accepted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import kvstore
from kvstore.errors import OutOfOrderSequence
from kvstore.store.store import Store
from tests.repair.conftest import Built
from tests.repair.damage import lose_a_row, spoil
from tests.repair.worlds import LOG, OPTIONS, SCHEMA, STEPS, World, goes_on, seen, segment, segments, write
from tests.support.tables import rows_of


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
