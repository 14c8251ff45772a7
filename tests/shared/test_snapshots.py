"""Snapshots of a shared table: where cold copies and reads begin, beside writers, and damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import kvstore
from kvstore.errors import CorruptData, Unavailable
from kvstore.shared.snapshots import take_snapshots
from tests.replica.objects import Objects
from tests.shared.hosts import Host, created, read, upserts
from tests.support.clocks import SetClock


class Counting(Objects):
    """Objects that note what was fetched, and call a function before one is created."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.before: Callable[[str], None] = lambda _: None

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        self.fetched.append(name)
        return super().get(name, bytes_max=bytes_max)

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        self.before(name)
        return super().create(name, pieces)


@pytest.fixture
def objects() -> Counting:
    return Counting()


@pytest.fixture
def host(objects: Counting, tmp_path: Path) -> Host:
    host = Host(created(objects, buckets=2, engine=kvstore.Aggregate({"v": "sum"})), tmp_path / "one")
    for value in range(6):
        host.write(upserts(range(9), 1 << value))
    return host


def test_a_cold_copy_begins_with_the_newest_snapshot(objects: Counting, host: Host, tmp_path: Path) -> None:
    summary = take_snapshots(host.table, tmp_path / "two", host.clock, again=False)
    assert (summary.epoch, summary.buckets) == (7, [0, 1])
    assert take_snapshots(host.table, tmp_path / "two", host.clock, again=False).buckets == []
    host.write(upserts(range(9), 64))
    objects.fetched.clear()
    cold = Host(host.table, tmp_path / "two")
    cold.write(upserts(range(9), 128))
    fetched = [name for name in objects.fetched if name.endswith((".range", ".snapshot"))]
    assert len(fetched) == 4, "of each bucket the snapshot, and the range after it"
    objects.fetched.clear()
    cold.write(upserts(range(9), 256))
    assert len([name for name in objects.fetched if name.endswith((".range", ".snapshot"))]) == 0, "the copy was kept"
    rows, kinds = read(host.table, tmp_path)
    assert rows == dict.fromkeys(range(9), 511)
    assert kinds.count("insert") == 9
    assert kinds.count("update_postimage") == 8 * 9, "all changes stay"
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["shared"]


def test_a_snapshot_beside_writers_is_committed_with_what_they_write(
    objects: Counting, host: Host, tmp_path: Path
) -> None:
    values = iter([64, 128, 256])

    def write(name: str) -> None:
        if name.endswith((".snapshot", f"epoch/{9:020d}")):
            before, objects.before = objects.before, lambda _: None
            host.write(upserts(range(9), next(values)))
            objects.before = before

    objects.before = write
    summary = take_snapshots(host.table, tmp_path / "two", host.clock, again=False)
    objects.before = lambda _: None
    assert next(values, None) is None
    assert summary.epoch == 10
    newest = host.table.newest()
    assert [[each.offset for each in taken] for taken in newest.snapshots] == [
        [newest.ranges[bucket][5].end] for bucket in range(2)
    ]
    for taken, ranges in zip(newest.snapshots, newest.ranges, strict=True):
        assert taken[0].attempt < min(each.attempt for each in ranges), "else it would end ranges before it"
    Host(host.table, tmp_path / "two").write(upserts(range(9), 512))
    assert read(host.table, tmp_path)[0] == dict.fromkeys(range(9), 1023)


def test_a_snapshot_that_is_damaged_or_gone_costs_writers_time_only(
    objects: Counting, host: Host, tmp_path: Path
) -> None:
    for number in range(2):
        take_snapshots(host.table, tmp_path / "two", host.clock, again=False)
        host.write(upserts(range(9), 64 << number))
    newest = host.table.newest()
    assert [len(taken) for taken in newest.snapshots] == [2, 2]
    snapshots = sorted(name for name in objects.held if name.endswith(".snapshot"))
    for name in snapshots[1], snapshots[3]:
        objects.held[name] = objects.held[name][:-9] + bytes(9)
    del objects.held[snapshots[0]]
    Host(host.table, tmp_path / "two").write(upserts(range(9), 256))
    with pytest.raises(CorruptData, match=r"object=.*\.snapshot"):
        read(host.table, tmp_path)
    assert take_snapshots(host.table, tmp_path / "two", host.clock, again=True).buckets == [0, 1]
    assert [len(taken) for taken in host.table.newest().snapshots] == [1, 1]
    assert read(host.table, tmp_path)[0] == dict.fromkeys(range(9), 511)


def test_what_took_too_long_is_not_committed(objects: Counting, host: Host, tmp_path: Path) -> None:
    """A vacuum may have removed what was uploaded first."""
    clock = SetClock()
    host.clock = clock
    names: list[str] = []

    def slow(name: str) -> None:
        names.append(name)
        clock.now += 6 * 86_400_000

    objects.before = slow
    with pytest.raises(Unavailable, match="five days"):
        host.write(upserts(range(9), 64))
    with pytest.raises(Unavailable, match="five days"):
        take_snapshots(host.table, tmp_path / "two", clock, again=False)
    assert not any("/epoch/" in name for name in names)
