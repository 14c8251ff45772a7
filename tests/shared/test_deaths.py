"""A process dies at any of its puts and removals: what it did takes place once and whole, when it is done again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore.shared.check import report_of
from kvstore.shared.snapshots import take_snapshots
from kvstore.shared.table import SharedTable
from kvstore.shared.vacuum import remove_unneeded
from tests.replica.objects import Objects
from tests.shared.dying import Dies, Dying
from tests.shared.hosts import Host, created, read, upserts
from tests.support.clocks import SetClock

HOUR_MS = 3_600_000


class Old(Dying):
    """All is old, but for what is put to know the time."""

    def modified_ms(self, name: str) -> int:
        return 2 * HOUR_MS if name.startswith("staging") else 0


def write(table: SharedTable, cache: Path) -> None:
    Host(table, cache).write(upserts(range(6), 100), "w")


def snapshot(table: SharedTable, cache: Path) -> None:
    take_snapshots(table, cache, SetClock(), again=False)


def vacuum(table: SharedTable, _: Path) -> None:
    remove_unneeded(table, older_than_ms=HOUR_MS, retain_last=1, dry_run=False)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("act", "adds", "steps"), [(write, 100, 4), (snapshot, 0, 4), (vacuum, 0, 4)])
def test_a_process_that_dies_at_any_change(
    tmp_path: Path, act: Callable[[SharedTable, Path], None], adds: int, steps: int, after: bool
) -> None:
    objects = Objects()
    table = created(objects, buckets=2, engine=kvstore.Aggregate({"v": "sum"}))
    host = Host(table, tmp_path / "before")
    for number in range(5):
        host.write(upserts(range(6), 1))
        if number == 2:
            take_snapshots(table, tmp_path / "before", SetClock(), again=False)
    before = read(table, tmp_path)[0]
    wanted = {key: value + adds for key, value in before.items()}
    died, number = True, 0
    while died:
        number += 1
        held, died = dict(objects.held), False
        try:
            act(SharedTable("memory://x", Old(held, number, after=after), table.described), tmp_path / f"a{number}")
        except Dies:
            died = True
        others = SharedTable("memory://x", Old(held, 10**6, after=True), table.described)
        assert report_of(others)
        assert read(others, tmp_path)[0] in ((before, wanted) if died else (wanted,))
        act(others, tmp_path / f"a{number}")
        assert report_of(others)
        assert read(others, tmp_path)[0] == wanted
    assert number > steps, "it was killed at every step"
