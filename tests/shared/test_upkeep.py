"""Upkeep of shared tables: what a vacuum removes and leaves, beside writers; what a check finds."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

import kvstore
import kvstore.shared
from kvstore.errors import InvalidRequest, MissingVersion, NoSuchTable, Unavailable
from kvstore.replica.client import ObjectStore
from kvstore.shared.check import report_of
from kvstore.shared.snapshots import take_snapshots
from logformat.replica import shared_table
from tests.replica.objects import Faulty
from tests.shared.hosts import Host, created, read, upserts
from tests.support.clocks import SetClock
from tests.support.shared_upkeep import HOUR_MS, SUM, WEEK_MS, Dated, epochs, vacuum


@pytest.fixture
def objects() -> Dated:
    return Dated()


@pytest.fixture
def host(objects: Dated, tmp_path: Path) -> Host:
    """A host with a table of 10 epochs, one an hour, of which the fifth has snapshots."""
    host = Host(created(objects, buckets=2, engine=SUM), tmp_path / "one")
    for number in range(1, 11):
        objects.now += HOUR_MS
        if number == 5:
            take_snapshots(host.table, tmp_path / "two", host.clock, again=False)
        else:
            host.write(upserts(range(9), 1 << number), f"w{number}")
    return host


SUMS = dict.fromkeys(range(9), 2**11 - 2 - 2**5)


@pytest.mark.parametrize(("hours", "retain_last", "needed"), [(3.5, 1, 7), (0.5, 1, 10), (0.5, 6, 5), (99, 1, 0)])
def test_manifests_stay_that_are_young_or_among_the_last(
    objects: Dated, host: Host, tmp_path: Path, hours: float, retain_last: int, needed: int
) -> None:
    full = host.table.epoch(needed)
    assert full is not None
    before = dict(objects.held)
    planned = vacuum(host, hours, retain_last, dry_run=True)
    assert objects.held == before
    assert vacuum(host, hours, retain_last) == planned
    assert epochs(objects) == list(range(full.full, 11)), "those that they add to stay, too"
    assert (planned.epochs, planned.first_epoch) == (full.full, full.full)
    assert read(host.table, tmp_path)[0] == SUMS
    assert report_of(host.table)
    assert host.write(upserts([0], 0), "w7").duplicated
    assert host.write(upserts([0], 0)).epoch == 11


def test_a_snapshot_goes_with_the_last_manifest_that_names_it(objects: Dated, host: Host, tmp_path: Path) -> None:
    (old,) = {name for name in objects.held if name.endswith(".snapshot") and "/0/" in name}
    take_snapshots(host.table, tmp_path / "two", host.clock, again=True)
    objects.now += WEEK_MS - HOUR_MS
    host.write(upserts(range(9), 1 << 11))
    assert vacuum(host, 9 * 24).objects == 0, "manifests of more than a week stay, and so do their snapshots"
    assert old in objects.held
    assert vacuum(host, 1).objects == 1 + 1
    assert old not in objects.held
    Host(host.table, tmp_path / "three").write(upserts(range(9), 1 << 12))
    assert report_of(host.table)


def test_what_was_never_committed_goes_after_a_week(objects: Dated, host: Host, tmp_path: Path) -> None:
    under_way = host.ranges(host.table.newest(), upserts(range(9), 1 << 12))
    assert under_way
    base = host.table.newest()
    objects.replace("staging/a/b", [b"rows"])
    objects.held["tables/7/0/unknown"] = b"of others"
    objects.now += WEEK_MS - HOUR_MS
    assert vacuum(host, 24 * 60).objects == 0
    made = host.table.commit(base, under_way, None, base.committed_ms + 1)
    assert made is not None
    host.ranges(made, upserts(range(9), 1 << 13))
    objects.now += WEEK_MS - HOUR_MS
    assert vacuum(host, 24 * 60).objects == 1, "what was staged"
    assert "staging/a/b" not in objects.held
    objects.now += HOUR_MS
    assert vacuum(host, 24 * 60).objects == 2
    assert "tables/7/0/unknown" in objects.held
    assert read(host.table, tmp_path)[0] == {k: v + (1 << 12) for k, v in SUMS.items()}
    assert report_of(host.table)
    assert not [name for name in objects.held if name.startswith("staging/")]


def test_a_driver_whose_epoch_was_removed_writes_once_more(objects: Dated, host: Host, tmp_path: Path) -> None:
    """The name of the next epoch is free then, but what is there is no epoch of the table."""
    old = host.table.epoch(3)
    assert old is not None
    fresh = Host(host.table, tmp_path / "fresh")
    ranges = fresh.ranges(old, upserts(range(9), 1 << 12))
    assert ranges
    vacuum(host, 0.5)
    assert host.table.commit(old, ranges, "late", 2_000_000) is None
    assert host.table.commit(old, {}, "empty", 2_000_000) is None
    assert host.write(upserts(range(9), 1 << 12), "late").epoch == 11
    assert read(host.table, tmp_path)[0] == {k: v + (1 << 12) for k, v in SUMS.items()}
    vacuum(host, 0.5)
    assert report_of(host.table), "the manifest that is none of the table is gone"


def test_a_commit_is_known_though_a_vacuum_removes_its_base_at_once(objects: Dated, host: Host) -> None:
    real = objects.create

    def create(name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        made = real(name, pieces)
        if name.endswith(f"/epoch/{11:020d}"):
            objects.create = real  # type: ignore[method-assign]
            for _ in range(20):
                host.write(upserts([0], 0))
            objects.now += WEEK_MS
            vacuum(host)
        return made

    objects.create = create  # type: ignore[method-assign]
    base = host.table.newest()
    ranges = host.ranges(base, upserts(range(9), 1))
    assert ranges
    made = host.table.commit(base, ranges, "w", base.committed_ms + 1)
    assert made is not None
    assert made.epoch == 11
    assert 10 not in epochs(objects)


def test_a_check_names_what_is_missing_or_bad(objects: Dated, host: Host) -> None:
    report = report_of(host.table)
    assert (report.epochs, report.objects) == (11, 2 * 9 + 2)
    names = sorted(objects.held)
    ranges = [name for name in names if name.endswith(".range")]
    (taken, *_) = [name for name in names if name.endswith(".snapshot")]
    manifests = [name for name in names if "/epoch/" in name]
    whole = dict(objects.held)
    newest = host.table.newest()
    for damaged, kind in ((ranges[3], "BAD"), (taken, "BAD"), (manifests[2], "BAD"), (ranges[5], "MISSING")):
        if kind == "BAD":
            objects.held[damaged] = whole[damaged][:-3] + b"xyz"
        else:
            del objects.held[damaged]
        found = report_of(host.table)
        assert not found
        assert [(each.kind, each.object) for each in found.findings] == [(kind, damaged)]
        objects.held[damaged] = whole[damaged]
    del objects.held[manifests[3]]
    assert [(each.kind, each.object) for each in report_of(host.table).findings] == [("MISSING", manifests[3])]
    objects.held |= whole
    del objects.held[shared_table.epoch_name(newest.table_id, newest.epoch)]
    (finding,) = report_of(host.table).findings
    assert (finding.kind, finding.object) == ("MISSING", manifests[-1])
    objects.held[manifests[8]] = whole[manifests[7]]
    assert {each.object for each in report_of(host.table).findings} == {manifests[8], manifests[-1]}
    for name in manifests:
        objects.held.pop(name, None)
    with pytest.raises(MissingVersion, match="are gone"):
        report_of(host.table)


def test_a_check_beside_a_vacuum_finds_nothing_wrong(objects: Dated, host: Host) -> None:
    real = objects.get

    def get(name: str, *, bytes_max: int) -> memoryview:
        if name.endswith(f"/epoch/{4:020d}"):
            objects.get = real  # type: ignore[method-assign]
            vacuum(host, 0.5)
        return real(name, bytes_max=bytes_max)

    objects.get = get  # type: ignore[method-assign]
    assert report_of(host.table)
    assert min(epochs(objects)) > 4


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))])
def test_upkeep_beside_writers_with_requests_that_fail(objects: Dated, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    real = created(objects, buckets=2, engine=SUM)
    faulty = Faulty(objects, random, 0.05)
    table = type(real)("memory://x", faulty, real.described)
    hosts = [Host(table, tmp_path / name, SetClock()) for name in ("one", "two")]
    number = 0
    while number < 15:
        objects.now += random.choice([HOUR_MS, 30 * HOUR_MS])
        try:
            match random.randrange(6):
                case 0:
                    take_snapshots(table, tmp_path / "upkeep", hosts[0].clock, again=random.random() < 0.3)
                case 1:
                    vacuum(Host(table, tmp_path), random.choice([1, 24]), random.choice([1, 3]))
                case 2:
                    hosts[1].ranges(table.newest(), upserts(range(6), 1))  # its driver dies
                case _:
                    random.choice(hosts).write(upserts(range(6), 1 << number), f"write {number}")
                    number += 1
        except Unavailable:
            continue
    objects.now += 2 * WEEK_MS
    vacuum(Host(real, tmp_path))
    assert report_of(real)
    assert read(real, tmp_path)[0] == dict.fromkeys(range(6), 2**15 - 1)
    newest = real.newest()
    named = {str(name) for bucket in (0, 1) for name in newest.sizes(shared_table.BucketId(bucket))}
    assert {name for name in objects.held if name.endswith((".range", ".snapshot"))} == named


def test_the_functions_take_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    url = (tmp_path / "place").as_uri()
    table = created(ObjectStore(url, create=True))
    host = Host(table, tmp_path / "cache")
    for value in range(3):
        host.write(upserts([1], value))
    host.ranges(table.newest(), upserts([1], 7))
    assert kvstore.shared.snapshot(url, "t").epoch == 4
    for path in (tmp_path / "place/tables").rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    report = kvstore.shared.check(url, "t")
    assert report
    assert (report.epochs, report.objects) == (5, 4)
    found = kvstore.shared.vacuum(url, "t", retain_last=2)
    assert (found.epochs, found.objects) == (2, 1), "epoch 3 adds to epoch 2"
    assert kvstore.shared.check(url, "t")
    for call in (kvstore.shared.snapshot, kvstore.shared.vacuum, kvstore.shared.check):
        with pytest.raises(NoSuchTable):
            call(url, "u")
        with pytest.raises(InvalidRequest, match="credentials"):
            call("s3://key:secret@bucket/x", "t")
    with pytest.raises(InvalidRequest, match="an hour or more"):
        kvstore.shared.vacuum(url, "t", older_than=dt.timedelta(minutes=1))
    with pytest.raises(InvalidRequest, match="retain_last"):
        kvstore.shared.vacuum(url, "t", retain_last=0)
