"""Retention of a shared table: changes that are old expire, rows stay, and what no manifest names is removed."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

import kvstore
from kvstore.errors import CorruptData, OffsetOutOfRange, Unavailable
from kvstore.replica.read.table import ReplicaTable
from kvstore.shared.check import report_of
from kvstore.shared.publish import publish
from kvstore.shared.snapshots import SnapshotSummary, take_snapshots
from kvstore.shared.table import SharedTable
from kvstore.shared.vacuum import UNNAMED_MS
from logformat import json_line
from logformat.replica import shared_table
from tests.replica.objects import Faulty
from tests.shared.dying import Dies, Dying
from tests.shared.hosts import SCHEMA, Host, created, read, upserts
from tests.support.clocks import SetClock
from tests.support.shared_upkeep import HOUR_MS, SUM, Dated, vacuum

DAY = dt.timedelta(days=1)
DAY_MS = 24 * HOUR_MS
KEYS = 9


@pytest.fixture
def objects() -> Dated:
    return Dated()


@pytest.fixture
def host(objects: Dated, tmp_path: Path) -> Host:
    """A host with a table that keeps its changes for two and a half days, and has five writes, one a day."""
    host = Host(created(objects, buckets=2, engine=SUM, retention=2.5 * DAY), tmp_path / "one")
    for number in range(5):
        write(objects, host, number)
    return host


def write(objects: Dated, host: Host, number: int) -> None:
    objects.now += DAY_MS
    host.clock.now += DAY_MS
    host.write(upserts(range(KEYS), 1 << number), f"w{number}")


def snapshot(host: Host, *, again: bool = False) -> SnapshotSummary:
    return take_snapshots(host.table, host.cache.with_name("snapshots"), host.clock, again=again)


def now(host: Host) -> ReplicaTable:
    return host.table.at(host.table.newest())


def sums(writes: int) -> dict[int, int]:
    return dict.fromkeys(range(KEYS), 2**writes - 1)


def test_old_changes_expire_and_rows_stay(objects: Dated, host: Host, tmp_path: Path) -> None:
    before = host.table.newest()
    summary, after = snapshot(host), now(host)
    kept = [ranges[2] for ranges in before.ranges]
    assert after.bounds() == {b: (each.start, before.end(b)) for b, each in enumerate(kept)}, "what is younger stays"
    assert summary.expired == {bucket: each.start for bucket, each in enumerate(kept)}
    rows, kinds = read(host.table, tmp_path)
    assert rows == sums(5)
    assert set(kinds) == {"update_preimage", "update_postimage"}
    with pytest.raises(OffsetOutOfRange, match="older changes have expired; begin at `earliest`"):
        after.offset_ranges({0: 0, 1: 0}, "latest")
    with pytest.raises(OffsetOutOfRange, match="have expired"):
        after.offsets_as_of({0: kept[0].start, 1: kept[1].start - 1})
    assert after.rows(0, kept[0].start).snapshot is not None, "rows are read as of every offset that is left"
    assert snapshot(host) == SnapshotSummary(6, [], 0), "nothing has changed"
    assert host.write(upserts([0], 0), "w0").duplicated, "names do not expire"
    assert report_of(host.table)


def test_every_machine_writes_on(objects: Dated, host: Host, tmp_path: Path) -> None:
    behind = Host(host.table, tmp_path / "two", host.clock)
    shutil.copytree(host.cache, behind.cache)
    old = host.table.newest()
    for number in range(5, 9):
        write(objects, host, number)
    snapshot(host)
    assert host.ranges(old, upserts(range(KEYS), 1)) is None, "its copy is newer than this epoch"
    write(objects, behind, 9)  # the changes that its copy lacks have expired
    write(objects, Host(host.table, tmp_path / "three", host.clock), 10)
    write(objects, host, 11)
    snapshot(host, again=True)
    assert read(host.table, tmp_path)[0] == sums(12)
    assert report_of(host.table)
    newest = host.table.newest()
    for bucket, taken in enumerate(newest.snapshots):
        assert [each.offset for each in taken] == [newest.start(bucket), newest.end(bucket)]
        for each in taken:
            objects.held.pop(next(name for name in objects.held if f"{each.attempt:020d}.snapshot" in name))
    with pytest.raises(CorruptData, match=r"snapshot"):
        Host(host.table, tmp_path / "four", host.clock).write(upserts(range(KEYS), 0))
    write(objects, host, 12)  # its copy has everything


def test_a_vacuum_removes_expired_changes_with_the_last_manifest_that_names_them(objects: Dated, host: Host) -> None:
    old = {name for name in objects.held if name.endswith(".range")}
    snapshot(host)
    objects.now += UNNAMED_MS
    vacuum(host, hours=24 * 20)
    assert old <= objects.held.keys(), "manifests of twenty days stay, and what they name"
    assert report_of(host.table).objects == len(old) + 4
    for name in sorted(old):
        whole = objects.held.pop(name)
        assert [each.object for each in report_of(host.table).findings] == [name]
        objects.held[name] = whole
    assert vacuum(host, hours=24).objects == 4
    assert len(old & objects.held.keys()) == len(old) - 4, "the first two writes of two buckets"
    assert report_of(host.table)


def test_clocks_that_are_ahead_let_nothing_expire_early(objects: Dated, host: Host, tmp_path: Path) -> None:
    ahead = SetClock(host.clock.now_ms() + 30 * DAY_MS)
    kept = [ranges[2].start for ranges in host.table.newest().ranges]

    def starts() -> list[int]:
        return [host.table.newest().start(bucket) for bucket in range(2)]

    for _ in range(2):  # the first one does not make the second believe it
        take_snapshots(host.table, tmp_path / "snapshots", ahead, again=True)
        assert starts() == kept
    Host(host.table, tmp_path / "two", ahead).write(upserts(range(KEYS), 1 << 5))
    snapshot(host)
    assert starts() == kept


def test_a_table_opened_in_place_reads_on_after_changes_have_expired(
    objects: Dated, host: Host, tmp_path: Path
) -> None:
    with kvstore.SharedTables("memory://x", client=objects, directory=tmp_path / "c", clock=host.clock) as opened:
        table = opened.table("t")
        assert table.get(1) == {"k": 1, "v": 2**5 - 1}
        for number in range(5, 9):
            write(objects, host, number)
        snapshot(host)
        assert table.get(1) == {"k": 1, "v": 2**9 - 1}
        start, end = table.offsets()[0]
        assert start > 0
        assert table.changelog(bucket=0).read_all()["_log_offset"].to_pylist() == list(range(start, end))
        with pytest.raises(OffsetOutOfRange, match=r"offsets\(\) returns its range"):
            table.changelog({0: 0, 1: 0}).read_all()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))])
def test_upkeep_and_writers_with_requests_that_fail(objects: Dated, tmp_path: Path, seed: int) -> None:
    random, clock = Random(seed), SetClock()
    real = created(objects, buckets=2, engine=SUM, retention=2 * DAY)
    table = SharedTable("memory://x", Faulty(objects, random, 0.03), real.described)
    hosts = [Host(table, tmp_path / name, clock) for name in ("one", "two")]
    done: list[int] = []
    while len(done) < 12:
        objects.now += DAY_MS // 2
        clock.now += DAY_MS // 2
        host = random.choice(hosts)
        try:
            match random.choice(["write", "write", "snapshot", "vacuum"]):
                case "write":
                    host.write(upserts(range(KEYS), 1 << len(done)), f"w{len(done)}")
                    done.append(1)
                case "snapshot":
                    take_snapshots(table, tmp_path / "snapshots", clock, again=random.random() < 0.2)
                case "vacuum":
                    vacuum(host, hours=random.choice([1, 100]), retain_last=random.choice([1, 3]))
        except Unavailable:
            continue
    take_snapshots(real, tmp_path / "snapshots", clock, again=False)
    assert read(real, tmp_path)[0] == sums(12)
    assert report_of(real)
    assert all(real.newest().start(bucket) for bucket in range(2))


def test_changes_that_have_expired_are_a_new_format(objects: Dated, host: Host) -> None:
    def stored() -> shared_table.EpochObject:
        found = host.table.stored(host.table.newest().epoch)
        assert found is not None
        return found

    assert stored().format == 2, "what has all changes is read by earlier versions"
    snapshot(host)
    found = stored()
    assert found.format == 3
    for wrong, message in (
        ({"format": 2}, "do not follow"),
        ({"snapshots": [each[-1:] for each in found.snapshots]}, "has no snapshot of the changes that have expired"),
    ):
        other = msgspec.structs.replace(found, **wrong)
        with pytest.raises(CorruptData, match=message):
            shared_table.epoch_of(other, other)
    assert json_line.decode(shared_table.encode(found), shared_table.EpochObject, 3, "x") == found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kvstore.Store]:
    with kvstore.open(tmp_path / "store") as found:
        found.create_table("u", SCHEMA, "k", buckets=2, retention=7 * DAY).upsert([{"k": k, "v": 1} for k in range(9)])
        yield found


def published(store: kvstore.Store, objects: Dated, clock: SetClock) -> SharedTable:
    return publish(store.runtime.open_table(store.runtime.definition("u")), "memory://x", objects, clock)


def test_what_was_uploaded_for_a_table_that_was_never_created_goes(
    objects: Dated, host: Host, store: kvstore.Store
) -> None:
    known = objects.held.keys() | {"tables/7/0/unknown"}
    objects.held["tables/7/0/unknown"] = b"of others"
    dying = Dying(objects.held, 3, after=True)  # of which the objects do not know the times: it was long ago
    with pytest.raises(Dies):
        published(store, dying, host.clock)  # type: ignore[arg-type]
    left = objects.held.keys() - known
    assert left
    objects.modified |= dict.fromkeys(left, objects.now)
    objects.now += UNNAMED_MS - 1
    assert vacuum(host, hours=999).objects == 0, "it may be under way"
    objects.now += 1
    assert vacuum(host, hours=999, dry_run=True).objects == vacuum(host, hours=999).objects == len(left)
    assert objects.held.keys() == known | {name for name in objects.held if "/newest" in name}
    found = published(store, objects, host.clock)
    assert found.definition.options.retention_ms == 7 * DAY_MS
    objects.now += 3 * UNNAMED_MS
    del objects.held[shared_table.definition_name("u")]
    assert vacuum(host, hours=999).objects == 0, "what was created and lost its definition stays"


def test_publishing_that_takes_too_long_is_not_done(
    objects: Dated, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vacuum may have removed its first objects."""
    clock, create = SetClock(), objects.create

    def slow(*about: object) -> bool:
        clock.now += 3 * DAY_MS
        return create(*about)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "create", slow)
    with pytest.raises(Unavailable, match="five days"):
        published(store, objects, clock)
    assert shared_table.definition_name("u") not in objects.held
