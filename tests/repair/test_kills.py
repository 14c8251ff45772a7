"""A repair that is killed before any call that changes a file is run again: nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstore.disk.files import Files
from kvstore.errors import StoreError
from logformat import paths
from tests.repair.conftest import Built
from tests.repair.damage import spoil
from tests.repair.worlds import OPTIONS, Store, World, goes_on, seen
from tests.support.repairs import Dying, Killed, from_the_same_start


def damage_derived(world: World) -> None:
    """Damage one file of each derived kind."""
    spoil(world.path / "tables/1/0/index/data.mdb", 0, 4096)
    spoil(world.path / f"tables/1/0/log/{0:020d}.index", 0, 40)
    spoil(world.path / f"tables/1/1/log/{16:020d}.writers", 0, 40)
    spoil(next((world.path / "tables/1/1/snapshots").glob("*/rows.parquet")), 100)
    spoil(next((world.path / "meta/image").glob("image.*")), 100)


def damage_segments(world: World) -> None:
    """Damage segments in the middle and at the end, and remove one."""
    spoil(world.path / f"tables/1/0/log/{16:020d}.log", 100)
    spoil(world.path / f"tables/1/1/log/{32:020d}.log", 100)
    (world.path / f"tables/2/0/log/{15:020d}.log").unlink()
    spoil(world.path / "tables/1/1/index/data.mdb", 0, 4096)


def damage_catalog(world: World) -> None:
    """Damage the journal and the file STORE."""
    spoil(world.path / "meta/journal/data.mdb", 0, 8192)
    spoil(world.path / "STORE", 0)


DAMAGES = [damage_derived, damage_segments, damage_catalog]


def seen_if_valid(path: Path) -> dict[str, Any] | None:
    """The content after opening the store for writing; None if an error or the check reports damage."""
    try:
        with Store(path, OPTIONS) as store:
            for name in store.list_tables():
                for handle in store.runtime.open_table(store.runtime.definition(name)).handles:
                    handle.write()
            if not store.check():
                return None
        return seen(path)
    except StoreError:
        return None


class Careful(Files):
    """The real disk; it fails if a file that is not durable is renamed, and records renames that are not durable."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}
        self._unsynced: set[Path] = set()
        self.unsynced_names: dict[Path, str] = {}
        self.renames = 0

    def open(self, path: Path, *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        super().write(descriptor, pieces, position)
        self._unsynced.add(self._paths[descriptor])

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self._unsynced.discard(self._paths[descriptor])

    def rename(self, old: Path, new: Path) -> None:
        assert old not in self._unsynced, f"{old} is not durable"
        super().rename(old, new)
        self.renames += 1
        if old.suffix != paths.TEMPORARY:
            self.unsynced_names[old.parent] = old.name
        self.unsynced_names[new.parent] = new.name

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.unsynced_names.pop(path, None)


@pytest.mark.parametrize("damage", DAMAGES)
def test_files_are_durable_before_they_are_renamed(
    damage: Callable[[World], None], built: Callable[..., Built], tmp_path: Path
) -> None:
    world = built((4, 9, 13))[0].copied(tmp_path / "store")
    damage(world)
    disk = Careful()
    assert world.repair(files=disk, accepts_loss=damage is damage_catalog)
    assert disk.renames > 3
    # LMDB's directories are moved, too; nothing is renamed inside them later.
    assert {path: name for path, name in disk.unsynced_names.items() if path.is_dir()} == {}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("every", [67, pytest.param(1, marks=pytest.mark.long)])
def test_a_repair_that_is_killed_anywhere_is_run_again(
    every: int, damage: Callable[[World], None], built: Callable[..., Built], tmp_path: Path
) -> None:
    original, truth = built((4, 9, 13))
    damaged = original.copied(tmp_path / "damaged")
    damage(damaged)
    calls, ends = 0, False
    while not ends:
        world = damaged.copied(tmp_path / "store")
        disk = Dying(calls)
        try:
            assert world.repair(files=disk, accepts_loss=damage is damage_catalog)
            ends = True
        except Killed:
            pass
        # A user who opens the store without another repair sees everything, or an error.
        opened = world.copied(tmp_path / "opened")
        assert seen_if_valid(opened.path) in (None, truth), calls
        assert world.repair(accepts_loss=damage is damage_catalog), calls
        assert seen(world.path) == truth, calls
        if ends or not calls % 5:
            goes_on(world.path)
        shutil.rmtree(world.path)
        shutil.rmtree(opened.path)
        calls += every
    assert calls > 20


def test_batches_that_only_a_damaged_segment_has_are_never_lost(built: Callable[..., Built], tmp_path: Path) -> None:
    """Valid batches after the end of the replica; the repair is killed before the new segment is renamed."""
    original, truth = built((4, 9))
    world = original.copied(tmp_path / "store")
    segment = world.path / f"tables/1/0/log/{16:020d}.log"
    spoil(segment, 100)

    class DyingThere(Files):
        def rename(self, old: Path, new: Path) -> None:
            if new == segment:
                raise Killed
            super().rename(old, new)

    with pytest.raises(Killed):
        world.repair(files=DyingThere())
    assert world.repair()
    assert seen(world.path) == truth


def segment(world: World, base: int) -> Path:
    return world.path / f"tables/1/0/log/{base:020d}.log"


def accept(world: World) -> Path:
    """Damage the log where the index has what it lost."""
    spoil(segment(world, 29), 1000)
    return segment(world, 29)


def cut(world: World) -> Path:
    """Damage the log and the index."""
    spoil(world.path / "tables/1/0/index/data.mdb", 0, 4096)
    return accept(world)


def begin_with_the_snapshot(world: World) -> Path:
    """Damage the index, and the log before the snapshot."""
    spoil(world.path / "tables/1/0/index/data.mdb", 0, 4096)
    spoil(segment(world, 0), 100)
    return segment(world, 0)


def end_after_the_snapshot(world: World) -> Path:
    """Damage the index, and the log before and after the snapshot."""
    begin_with_the_snapshot(world)
    return accept(world)


def begin_at_the_snapshot(world: World) -> Path:
    """Damage the index, and the log right before the snapshot, in the same segment."""
    spoil(world.path / "tables/1/0/index/data.mdb", 0, 4096)
    spoil(segment(world, 16), 100)
    return segment(world, 16)


@pytest.mark.parametrize(
    "damage", [accept, cut, begin_with_the_snapshot, end_after_the_snapshot, begin_at_the_snapshot]
)
@pytest.mark.parametrize("every", [61, pytest.param(1, marks=pytest.mark.long)])
def test_a_repair_that_is_killed_while_it_accepts_loss_is_run_again(
    every: int, damage: Callable[[World], Path], built: Callable[..., Built], tmp_path: Path
) -> None:
    """The next repair ends in the same state; the damaged files are never deleted."""
    original, truth = built((4, 9))
    replica = damage in (accept, cut)
    damaged = original.copied(tmp_path / "damaged")
    of = damage(damaged)
    spoiled = of.read_bytes()
    other = damaged.copied(tmp_path / "other")
    assert other.repair(replica=replica, accepts_loss=True)
    expected = seen(other.path)
    assert expected["t rows"] == truth["t rows"] or damage in (cut, end_after_the_snapshot)
    calls, ends = 0, False
    while not ends:
        world = damaged.copied(tmp_path / "store")
        try:
            assert world.repair(replica=replica, files=Dying(calls), accepts_loss=True)
            ends = True
        except Killed:
            pass
        if not segment(world, 0).exists():  # then not only the index has the rows
            assert list((world.path / "tables/1/0/snapshots").glob("*/manifest.json")), calls
        assert spoiled in [path.read_bytes() for path in world.path.rglob(of.name)], calls
        report = world.repair(replica=replica, accepts_loss=True)
        assert report, (calls, report.left)
        assert from_the_same_start(seen(world.path), expected) == expected, calls
        shutil.rmtree(world.path)
        calls += every
