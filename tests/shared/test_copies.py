"""Copies of buckets on a machine: damage to one, or a history that it does not have, costs time only."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import kvstore
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.shared.room import IDLE_MS, make_room
from kvstore.shared.snapshots import take_snapshots
from tests.replica.objects import Objects
from tests.shared.hosts import Host, created, read, upserts
from tests.support.clocks import SetClock

Hosts = tuple[Host, Host]


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def hosts(objects: Objects, tmp_path: Path) -> Hosts:
    table = created(objects, engine=kvstore.Aggregate({"v": "sum"}))
    return Host(table, tmp_path / "one"), Host(table, tmp_path / "two")


def records(host: Host) -> list[Path]:
    return list(host.cache.rglob("APPLIED"))


@pytest.mark.parametrize("written_since", [1, 2, 3])
def test_a_copy_of_a_history_that_was_put_back_is_made_again(
    objects: Objects, hosts: Hosts, tmp_path: Path, written_since: int
) -> None:
    one, two = hosts
    one.write(upserts([1], 1))
    backup = dict(objects.held)
    for value in (10, 20):
        one.write(upserts([1], value))
    objects.held.clear()
    objects.held.update(backup)  # as after a power cut, or the restoration of a bucket
    for value in range(written_since - 1):
        two.write(upserts([1], 100 << value))
    one.write(upserts([1], 1000))
    assert read(one.table, tmp_path)[0] == {
        1: 1001 + (100 if written_since > 1 else 0) + (200 if written_since > 2 else 0)
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda record, _: record.unlink(),
        lambda record, _: record.write_bytes(record.read_bytes()[:-9] + b"12345678\n"),
        lambda record, old: shutil.copy(old / record.name, record),  # older than the copy
        lambda record, _: record.write_bytes(b""),
    ],
    ids=["gone", "damaged", "older", "empty"],
)
def test_a_copy_whose_record_is_wrong_is_made_again(
    hosts: Hosts, tmp_path: Path, damage: Callable[[Path, Path], object]
) -> None:
    one, two = hosts
    one.write(upserts([1], 1))
    two.write(upserts([1], 2))
    one.write(upserts([1], 4))
    (record,) = records(one)
    shutil.copy(record, tmp_path)
    two.write(upserts([1], 8))
    one.write(upserts([1], 16))
    damage(record, tmp_path)
    one.write(upserts([1], 32))
    assert read(one.table, tmp_path)[0] == {1: 63}
    assert records(one)


def test_a_copy_with_changes_after_its_record_is_made_again(objects: Objects, hosts: Hosts, tmp_path: Path) -> None:
    """Its record was put back from a backup with the table, and the copy was not."""
    one, two = hosts
    two.write(upserts([1], 1))
    one.write(upserts([1], 2))
    backup = dict(objects.held)
    (record,) = records(one)
    shutil.copy(record, tmp_path)
    for value in (4, 8):
        one.write(upserts([1], value))
    objects.held.clear()
    objects.held.update(backup)
    shutil.copy(tmp_path / record.name, record)
    one.write(upserts([1], 16))
    assert read(one.table, tmp_path)[0] == {1: 19}


@pytest.mark.parametrize("part", ["log", "index"])
def test_a_copy_that_lacks_a_part_is_made_again(hosts: Hosts, tmp_path: Path, part: str) -> None:
    one, two = hosts
    for value in (1, 2):
        two.write(upserts([1], value))
    one.write(upserts([1], 4))
    shutil.rmtree(next(one.cache.rglob(part)))
    one.write(upserts([1], 8))
    assert read(one.table, tmp_path)[0] == {1: 15}


def test_a_copy_that_is_right_is_kept(objects: Objects, hosts: Hosts, tmp_path: Path) -> None:
    """Each write fetches only what other machines have written since."""
    one, two = hosts
    for value in range(5):
        one.write(upserts([1], 1 << value))
    fetched: list[str] = []
    real = objects.get

    def counted(name: str, *, bytes_max: int) -> memoryview:
        fetched.append(name)
        return real(name, bytes_max=bytes_max)

    objects.get = counted  # type: ignore[method-assign]
    one.write(upserts([1], 32))
    assert [name for name in fetched if name.endswith(".range")] == []
    objects.get = real  # type: ignore[method-assign]
    two.write(upserts([1], 64))
    objects.get = counted  # type: ignore[method-assign]
    one.write(upserts([1], 128))
    assert len([name for name in fetched if name.endswith(".range")]) == 1
    assert read(one.table, tmp_path)[0] == {1: 255}


def test_a_copy_after_the_epoch_of_a_slow_task_is_left_as_it_is(hosts: Hosts) -> None:
    one, two = hosts
    one.write(upserts([1], 1))
    before = one.table.newest()
    two.write(upserts([1], 2))
    one.write(upserts([1], 4))
    (record,) = records(one)
    saved = record.read_bytes()
    assert one.ranges(before, upserts([1], 0)) is None
    assert record.read_bytes() == saved


def test_a_copy_whose_index_ends_before_its_log_begins_is_made_again(hosts: Hosts, tmp_path: Path) -> None:
    """Its log begins with a snapshot; the index was put back from a backup of before."""
    one, two = hosts
    one.write(upserts([1], 1))
    one.write(upserts([1], 2))
    shutil.copytree(next(one.cache.rglob("index")), tmp_path / "index")
    for value in (4, 8):
        two.write(upserts([1], value))
    take_snapshots(one.table, tmp_path / "taken", one.clock, again=False)
    shutil.rmtree(one.cache)
    for value in (16, 32):
        one.write(upserts([1], value))
    index = next(one.cache.rglob("index"))
    shutil.rmtree(index)
    shutil.copytree(tmp_path / "index", index)
    one.write(upserts([1], 64))
    assert read(one.table, tmp_path)[0] == {1: 127}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How much of a disk of 1,000 bytes is free; each copy that is removed frees 60."""
    free = {"bytes": 50}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1000, free=free["bytes"]))
    remove = Files.remove_tree

    def removed(self: Files, path: Path) -> None:
        remove(self, path)
        free["bytes"] += 60

    monkeypatch.setattr(Files, "remove_tree", removed)
    return free


def test_a_full_disk_loses_copies_that_are_used_no_more(objects: Objects, tmp_path: Path, free: dict[str, int]) -> None:
    tables = [created(objects, name) for name in ("idle", "idle longer", "in use")]
    hosts = [Host(table, tmp_path / "cache") for table in tables]
    for host in hosts:
        host.write(upserts([1], 1))
        host.write(upserts([1], 2))
    copies = [path.parent for host in hosts for path in records(host) if f"/{host.table.definition.id}/" in str(path)]
    now_ms = time.time_ns() // 1_000_000
    for copy, idle_ms in zip(copies, (2 * IDLE_MS, 3 * IDLE_MS, 0), strict=True):
        at = now_ms - idle_ms
        os.utime(copy.with_name(f"{copy.name}.LOCK"), ns=(at * 1_000_000, at * 1_000_000))
    free["bytes"] = 100
    make_room(tmp_path / "cache", SetClock(now_ms))
    assert [copy.exists() for copy in copies] == [True, True, True], "a tenth is free"
    free["bytes"] = 50
    make_room(tmp_path / "cache", SetClock(now_ms))
    assert [copy.exists() for copy in copies] == [True, False, True], "one is enough, that of the longest time"
    free["bytes"] = 0
    locked = copies[0].with_name(f"{copies[0].name}.LOCK")
    lock = ProcessLock(locked, Files())
    assert lock.try_acquire()
    os.utime(locked, ns=(0, 0))
    make_room(tmp_path / "cache", SetClock(now_ms))
    assert copies[0].exists(), "another process uses it"
    lock.release()
    make_room(tmp_path / "cache", SetClock(now_ms))
    assert [copy.exists() for copy in copies] == [False, False, True]
    for host in hosts:
        host.write(upserts([1], 3))
        assert read(host.table, tmp_path)[0] == {1: 3}
