"""A vacuum that was stopped, one beside another, and writers that were too slow: the table is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvstore.errors import MissingVersion
from kvstore.shared.check import report_of
from kvstore.shared.snapshots import take_snapshots
from kvstore.shared.write import write_once
from logformat.replica import shared_table
from logformat.replica.shared_table import SharedEpoch
from tests.shared.hosts import Host, Ranges, created, read, upserts
from tests.support.shared_upkeep import HOUR_MS, SUM, Dated, epochs, vacuum


class Stopped(Exception):
    """The process stops."""


@pytest.fixture
def objects() -> Dated:
    return Dated()


@pytest.fixture
def host(objects: Dated, tmp_path: Path) -> Host:
    """A host with a table of 40 epochs, one an hour."""
    host = Host(created(objects, engine=SUM), tmp_path / "one")
    for number in range(40):
        objects.now += HOUR_MS
        host.write(upserts([1], 1 << number))
    return host


def is_full(host: Host, number: int) -> bool:
    found = host.table.stored(number)
    return found is not None and found.full is None


@pytest.mark.parametrize("deleted", [1, 10])
def test_a_vacuum_that_is_stopped_leaves_a_right_table(
    objects: Dated, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    left = deleted

    def delete(name: str) -> None:
        nonlocal left
        if "/epoch/" in name:
            left -= 1
            if left < 0:
                raise Stopped
        Dated.delete(objects, name)

    monkeypatch.setattr(objects, "delete", delete)
    with pytest.raises(Stopped):
        vacuum(host)
    monkeypatch.undo()
    assert min(epochs(objects)) == deleted
    assert not is_full(host, deleted), "it adds to one that is gone"
    report = report_of(host.table)
    assert report.findings == []
    found = vacuum(host, hours=24 * 365)
    assert found.epochs > 0, "what was left is of no use"
    assert is_full(host, min(epochs(objects)))
    assert report.epochs == len(epochs(objects))
    assert read(host.table, tmp_path)[0] == {1: 2**40 - 1}


@pytest.mark.parametrize("base", [0, 15, 30, 31, 38])
def test_an_epoch_that_was_too_late_is_passed_over(objects: Dated, host: Host, tmp_path: Path, base: int) -> None:
    old = host.table.epoch(base)
    assert old is not None
    ranges = Host(host.table, tmp_path / "fresh").ranges(old, upserts([1], 1 << 50))
    assert ranges
    first = vacuum(host, retain_last=1).first_epoch
    assert host.table.commit(old, ranges, None, 2_000_000) is None
    assert base + 1 >= first or base + 1 not in epochs(objects)
    # As if it had looked at the note before the others wrote.
    objects.held[shared_table.newest_name(old.table_id)] = str(base).encode()
    assert host.table.commit(old, ranges, None, 2_000_000) is None
    if base + 1 < first:
        assert base + 1 in epochs(objects)
    assert report_of(host.table).findings == []
    objects.now += 20 * HOUR_MS
    host.write(upserts([1], 1 << 40))
    for hours in (24 * 365, 1):
        vacuum(host, hours)
        assert min(epochs(objects)) >= first
    assert report_of(host.table).findings == []
    assert read(host.table, tmp_path)[0] == {1: 2**41 - 1}


def test_of_two_vacuums_at_once_both_succeed(objects: Dated, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one removes what this one has listed."""

    def get(name: str, *, bytes_max: int) -> memoryview:
        if "/epoch/" in name:
            monkeypatch.undo()
            vacuum(host)
        return Dated.get(objects, name, bytes_max=bytes_max)

    before = host.table.newest()
    monkeypatch.setattr(objects, "get", get)
    assert vacuum(host, retain_last=30).first_epoch == before.full
    assert report_of(host.table).findings == []


def test_a_vacuum_does_not_begin_again_for_what_is_lost(objects: Dated, host: Host) -> None:
    newest = host.table.newest()
    del objects.held[shared_table.epoch_name(newest.table_id, newest.full)]
    with pytest.raises(MissingVersion):
        vacuum(host)


@pytest.mark.parametrize("late", [False, True])
def test_a_request_that_was_repeated_when_the_epoch_before_was_gone(
    objects: Dated, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Whether a commit took place does not depend on which of two equal requests created its object."""
    tries = 0
    one = Host(host.table, tmp_path / "two")

    def others() -> None:
        for number in range(41, 47):
            host.write(upserts([2], 1 << number))
        take_snapshots(host.table, tmp_path / "snapshots", host.clock, again=True)
        objects.now += 24 * HOUR_MS
        vacuum(host)
        assert min(epochs(objects)) > 41

    def create(name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        if not name.endswith(f"/epoch/{41:020d}"):
            return Dated.create(objects, name, pieces)
        monkeypatch.undo()
        if not late:
            others()
        Dated.create(objects, name, pieces)  # its answer was lost, and the client sent it again
        if late:
            others()
        return Dated.create(objects, name, pieces)

    def apply(base: SharedEpoch, at_ms: int) -> Ranges | None:
        nonlocal tries
        tries += 1
        if tries == 1:
            monkeypatch.setattr(objects, "create", create)
        return one.ranges(base, upserts([1], 1 << 40), at_ms)

    written = write_once(host.table, None, apply, host.clock)
    assert read(host.table, tmp_path)[0][1] == 2**41 - 1
    assert tries == (1 if late else 2)
    assert not written.duplicated
