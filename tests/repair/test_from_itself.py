"""Derived files are rebuilt and nothing is deleted; what can't be repaired is reported and left as it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kvstore
from kvstore.disk.lock import ProcessLock
from kvstore.errors import NotAStore, StoreLocked, UnsupportedOperation
from logformat import paths
from logformat.log.segment import HEAD_BYTES, decode_head, encode_head
from tests.repair.conftest import Built
from tests.repair.damage import KINDS, files_of, lose_a_row, spoil
from tests.repair.worlds import OPTIONS, SCHEMA, Store, World, goes_on, seen
from tests.store.helpers import Program

DERIVED = [
    "tables/1/0/index/data.mdb",
    "tables/1/1/log/00000000000000000016.index",
    "tables/1/1/log/00000000000000000016.writers",
    "tables/1/0/snapshots/00000000000000000018/rows.parquet",
    "tables/1/0/snapshots/00000000000000000018/writers.json",
    "tables/1/0/snapshots/00000000000000000018/manifest.json",
    "meta/image/image.*",
]


def contents(store: Path) -> dict[str, bytes]:
    return {name: (store / name).read_bytes() for name in files_of(store)}


@pytest.mark.parametrize("name", DERIVED)
def test_derived_files_are_rebuilt(alone: Built, name: str) -> None:
    world, truth = alone
    (path,) = world.path.glob(name)
    name = str(path.relative_to(world.path))
    spoil(path, 0, 4096)
    damaged = (world.path / name).read_bytes()
    report = world.repair(replica=False)
    assert report
    assert len(report.repaired) == 1
    assert report.quarantine is not None
    assert (report.quarantine / name).read_bytes() == damaged
    assert seen(world.path) == truth
    goes_on(world.path)
    again = world.repair(replica=False)
    assert (bool(again), again.repaired, again.quarantine) == (True, [], None)


def test_an_intact_store_is_left_as_it_is(alone: Built) -> None:
    world, truth = alone
    before = contents(world.path)
    report = world.repair(replica=False)
    assert (bool(report), report.repaired, report.gone, report.quarantine) == (True, [], [], None)
    assert sum(bucket.batches for bucket in report.buckets) == 42
    after = contents(world.path)
    assert {name for name in before if before[name] != after[name]} == set()
    assert seen(world.path) == truth


@pytest.mark.parametrize("base", [0, 16, 29])
def test_lost_changes_are_named_and_no_file_is_touched(alone: Built, base: int) -> None:
    world, _ = alone
    segment = world.path / f"tables/1/0/log/{base:020d}.log"
    spoil(segment, 100)
    before = contents(world.path)
    report = world.repair(replica=False)
    assert not report
    assert report.repaired == report.gone == []
    (left,) = report.left
    assert f"lacks offsets {base} to " in left
    assert "--from" in left
    assert contents(world.path) == before
    assert report.quarantine is None


def test_segments_with_swapped_names_get_their_own(alone: Built) -> None:
    world, truth = alone
    log = world.path / "tables/1/1/log"
    one, other = log / f"{0:020d}.log", log / f"{16:020d}.log"
    right = one.read_bytes(), other.read_bytes()
    one.write_bytes(right[1])
    other.write_bytes(right[0])
    assert world.repair(replica=False)
    assert (one.read_bytes(), other.read_bytes()) == right
    assert seen(world.path) == truth


def test_a_damaged_head_is_rebuilt_from_the_segment_before(alone: Built) -> None:
    world, truth = alone
    before = contents(world.path)
    for base in (0, 16, 29):
        spoil(world.path / f"tables/1/0/log/{base:020d}.log", 0, 64)
    assert world.repair(replica=False)
    assert {name: data for name, data in contents(world.path).items() if name.endswith(".log")} == {
        name: data for name, data in before.items() if name.endswith(".log")
    }
    assert seen(world.path) == truth


class TestWithoutHistory:
    """The log does not begin at offset 0: an index is rebuilt from a snapshot."""

    @pytest.fixture
    def expired(self, built: Callable[..., Built], tmp_path: Path) -> Built:
        world, truth = built((4, 9, 13), 4000)
        assert all(start for start, _ in truth["t offsets"].values())
        return world.copied(tmp_path / "store"), truth

    @staticmethod
    def spoil_snapshots(world: World) -> None:
        for rows in (world.path / "tables/1/0/snapshots").glob("*/rows.parquet"):
            spoil(rows, 10)

    def test_an_index_is_rebuilt_from_a_snapshot(self, expired: Built) -> None:
        world, truth = expired
        shutil.rmtree(world.path / "tables/1/0/index")
        assert world.repair(replica=False)
        assert seen(world.path) == truth
        goes_on(world.path)

    def test_a_snapshot_that_is_needed_is_taken_of_the_index(self, expired: Built) -> None:
        world, truth = expired
        self.spoil_snapshots(world)
        assert world.repair(replica=False)
        shutil.rmtree(world.path / "tables/1/0/index")
        assert world.repair(replica=False)
        assert seen(world.path) == truth
        goes_on(world.path)

    @pytest.mark.parametrize("damaged", ["index", "rows", "index and log"])
    def test_without_snapshot_and_index_nothing_is_moved(self, expired: Built, damaged: str) -> None:
        world, truth = expired
        self.spoil_snapshots(world)
        index = world.path / "tables/1/0/index"
        if damaged == "rows":
            lose_a_row(index)
        else:
            spoil(index / "data.mdb", 0, 4096)
        if damaged == "index and log":
            spoil(max((world.path / "tables/1/0/log").glob("*.log")), 100)
        before = contents(world.path)
        for accepts_loss in (False, True):
            report = world.repair(replica=False, accepts_loss=accepts_loss)
            assert "--from" in report.left[0]
            assert contents(world.path) == before
        # The replica still has what had expired.
        assert world.repair()
        after = seen(world.path)
        assert after["t rows"] == truth["t rows"]
        assert after["t offsets"][0] == (0, truth["t offsets"][0][1])
        goes_on(world.path)


def test_an_index_that_disagrees_with_the_log_is_rebuilt(alone: Built) -> None:
    """Every page and checksum is valid, but a row is missing."""
    world, truth = alone
    lose_a_row(world.path / "tables/1/0/index")
    report = world.repair(replica=False)
    assert report
    assert report.repaired == ["t/0: the index did not agree with the log: rebuilt"]
    assert seen(world.path) == truth


def test_a_store_that_another_process_writes_is_refused(alone: Built) -> None:
    world, _ = alone
    spoil(world.path / DERIVED[1], 0, 100)
    (image,) = (world.path / "meta/image").glob("image.*")
    spoil(image, 0, 100)
    before = contents(world.path)
    holder = """
    store = kvstore.open(path)
    store.table("t").upsert([{"k": 1, "v": 1, "s": "x"}, {"k": 2, "v": 1, "s": "x"}])
    print("there"); input()
    """
    with Store(world.path, OPTIONS) as store:
        store.table("events").upsert({"k": 1, "v": 1, "s": "x"})
        with pytest.raises(StoreLocked):
            world.repair(replica=False)
    with Program(world.path, holder) as program:
        program.line()
        with pytest.raises(StoreLocked):
            world.repair(replica=False)
    after = contents(world.path)
    for name in (DERIVED[1], str(image.relative_to(world.path))):
        assert after[name] == before[name]


def test_a_copy_that_follows_is_refused(alone: Built) -> None:
    world, _ = alone
    (world.path / paths.FOLLOWING).write_bytes(b"")
    with pytest.raises(UnsupportedOperation, match="follow with a new copy"):
        world.repair(replica=False)


def test_a_directory_without_a_store_is_left_as_it_is(tmp_path: Path) -> None:
    for place in (tmp_path / "nothing", tmp_path):
        with pytest.raises(NotAStore):
            kvstore.repair(place)
    assert not list(tmp_path.iterdir())


def test_progress_names_each_part(alone: Built) -> None:
    world, _ = alone
    names: list[str] = []
    assert kvstore.repair(world.path, progress=names.append)
    assert names == ["catalog", "events/0", "t/0", "t/1"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_replica_a_damaged_catalog_is_left_to_meta_recover(alone: Built, kind: str) -> None:
    world, _ = alone
    for image in (world.path / "meta/image").glob("image.*"):
        image.unlink()
    journal: Any = world.path / "meta/journal/data.mdb"
    if kind in ("flip", "blank"):
        spoil(journal, 0, 8192)
    else:
        KINDS[kind](journal, Random(1))
    report = world.repair(replica=False)
    assert "meta recover" in report.left[0]
    assert not report.repaired


def test_a_segment_of_another_bucket_is_ignored(shipped: Built) -> None:
    world, truth = shipped
    log, other = world.path / "tables/1/0/log", world.path / "tables/1/1/log"
    name = f"{16:020d}.log"
    right = (log / name).read_bytes()
    (log / name).write_bytes((other / name).read_bytes())
    (left,) = world.repair(replica=False).left
    assert left.startswith("t/0: the log lacks offsets 16 to 28: ")
    assert world.repair()
    assert (log / name).read_bytes() == right
    assert seen(world.path) == truth


@pytest.mark.parametrize(
    ("base", "other"), [(29, {"previous_base": 0}), (29, {"previous_end": 4096}), (16, {"previous_end": 4096})]
)
def test_a_segment_of_another_history_is_reported(alone: Built, base: int, other: dict[str, Any]) -> None:
    """Each segment is valid, but one is from another copy: nothing says which of them is right."""
    world, _ = alone
    path = world.path / f"tables/1/0/log/{base:020d}.log"
    data = path.read_bytes()
    path.write_bytes(encode_head(replace(decode_head(data[:HEAD_BYTES]), **other)) + data[HEAD_BYTES:])
    before = contents(world.path)
    for accepts_loss in (False, True):
        (left,) = world.repair(replica=False, accepts_loss=accepts_loss).left
        assert "restore the log from a copy" in left
        assert contents(world.path) == before


def test_an_image_is_not_repaired_while_another_process_writes_one(alone: Built) -> None:
    world, truth = alone
    (image,) = (world.path / "meta/image").glob("image.*")
    spoil(image, 0, 100)
    before = contents(world.path)
    lock = ProcessLock(world.path / "meta/image/LOCK")
    assert lock.try_acquire()
    with pytest.raises(StoreLocked, match="writes an image"):
        world.repair(replica=False)
    assert contents(world.path) == before
    lock.release()
    assert world.repair(replica=False)
    assert seen(world.path) == truth


def test_a_snapshot_that_disagrees_with_the_log_is_quarantined(alone: Built, tmp_path: Path) -> None:
    """It is a valid snapshot of a copy with another history, so an index that is rebuilt from it is wrong."""
    world, _ = alone
    other = world.copied(tmp_path / "other")
    for value, each in enumerate((world, other)):
        with Store(each.path, OPTIONS) as store:
            store.table("t").bucket(0).apply(kvstore.Changes.of([("upsert", {"k": 0, "v": value, "s": ""})], SCHEMA))
            store.flush()
            store.runtime.open_table(store.runtime.definition("t")).handles[0].take_snapshot()
    truth = seen(world.path)
    name = f"tables/1/0/snapshots/{truth['t offsets'][0][1]:020d}"
    shutil.rmtree(world.path / name)
    shutil.copytree(other.path / name, world.path / name)
    shutil.rmtree(world.path / "tables/1/0/index")
    report = world.repair(replica=False)
    assert report
    assert report.repaired[-1] == "t/0: index and snapshots did not agree with the log: rebuilt"
    assert report.quarantine is not None
    assert (report.quarantine / name / "manifest.json").exists()
    assert seen(world.path) == truth


@pytest.mark.parametrize("what", ["zeros", "text", "a valid batch"])
def test_bytes_after_the_end_of_a_full_segment_are_found_and_removed(alone: Built, what: str) -> None:
    world, truth = alone
    path = world.path / f"tables/1/0/log/{16:020d}.log"
    right = path.read_bytes()
    added = {"zeros": bytes(640), "text": b"appended", "a valid batch": right[HEAD_BYTES:]}[what]
    path.write_bytes(right + added)
    with Store(world.path, OPTIONS) as store:
        (finding,) = store.check().findings
    assert finding.startswith("t/0: ")
    assert path.name in finding
    assert f"{len(added)} bytes" in finding
    report = world.repair(replica=False)
    assert report
    assert len(report.repaired) == 1
    assert path.read_bytes() == right
    assert report.quarantine is not None
    assert (report.quarantine / path.relative_to(world.path)).read_bytes() == right + added
    assert seen(world.path) == truth
    goes_on(world.path)
