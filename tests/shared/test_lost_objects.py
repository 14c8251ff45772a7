"""Objects of a shared table that are gone: reads, writes and the check say so, and nothing takes their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import kvstore
from kvstore.errors import CorruptData, CorruptImage, MissingVersion
from kvstore.replica.client import ObjectStore
from kvstore.shared.check import report_of
from kvstore.shared.reading import SharedTail
from kvstore.shared.snapshots import take_snapshots
from kvstore.shared.table import SharedTable
from kvstore.shared.vacuum import remove_unneeded
from kvstore.shared.write import WriteSummary
from logformat.replica import shared_table
from tests.cli.commands import run
from tests.replica.objects import Objects
from tests.shared.hosts import Host, created, read, upserts
from tests.support.clocks import SetClock


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def host(objects: Objects, tmp_path: Path) -> Host:
    host = Host(created(objects), tmp_path / "one")
    for value in range(3):
        host.write(upserts([1], value))
    return host


def epoch(table: SharedTable, number: int) -> str:
    return shared_table.epoch_name(table.definition.id, number)


def test_a_newest_epoch_that_is_gone_is_reported_by_every_call(objects: Objects, host: Host, tmp_path: Path) -> None:
    table = host.table
    follows = SharedTail(table, SetClock())
    whole = objects.held.pop(lost := epoch(table, 3))
    before = dict(objects.held)
    calls: list[Callable[[], object]] = [
        table.newest,
        lambda: SharedTail(table, SetClock()),
        follows.poll,
        lambda: host.write(upserts([1], 9)),
        lambda: host.write(upserts([1], 9), "a name"),
        lambda: take_snapshots(table, tmp_path / "cache", SetClock(), again=True),
        lambda: remove_unneeded(table, older_than_ms=0, retain_last=1, dry_run=False),
    ]
    for call in calls:
        with pytest.raises(MissingVersion, match=rf"gone.*put its object back.*shared-tables\.md.*object={lost}"):
            call()
    assert objects.held == before, "nothing has taken the place of the lost epoch"
    (finding,) = report_of(table).findings
    assert (finding.kind, finding.object) == ("MISSING", lost)
    objects.held[lost] = whole
    assert report_of(table)
    follows.poll()
    assert host.write(upserts([1], 9)).epoch == 4
    assert read(table, tmp_path)[0] == {1: 9}


def test_a_follower_reports_an_epoch_that_is_lost_before_it_was_read(objects: Objects, host: Host) -> None:
    follows = SharedTail(host.table, SetClock())
    host.write(upserts([1], 4))
    del objects.held[lost := epoch(host.table, 4)]
    with pytest.raises(MissingVersion, match=lost):
        follows.poll()
    host.table.client.replace(shared_table.newest_name(host.table.definition.id), [b"3"])
    follows.poll()


def test_a_writer_that_began_before_a_lost_epoch_does_not_take_its_number(
    objects: Objects, host: Host, tmp_path: Path
) -> None:
    base = host.table.newest()
    ranges = host.ranges(base, upserts([1], 100))
    assert ranges is not None
    Host(host.table, tmp_path / "two").write(upserts([1], 4))
    del objects.held[lost := epoch(host.table, 4)]
    assert host.table.commit(base, ranges, None, 3_000_000) is None
    assert lost not in objects.held


def test_a_note_that_is_older_than_the_newest_epoch_is_no_loss(objects: Objects, host: Host, tmp_path: Path) -> None:
    """A writer died before it noted its epoch, or noted it late; also if a vacuum has removed what is noted."""
    noted = shared_table.newest_name(host.table.definition.id)
    for number in (b"2", b"1", b"0", None):
        if number is None:
            del objects.held[noted]
        else:
            objects.held[noted] = number
        follows = SharedTail(host.table, SetClock())
        assert host.table.newest().epoch == 3
        assert follows.poll().ends() == {0: host.table.newest().end(0)}
        assert report_of(host.table)
    host.write(upserts([1], 4))
    objects.held[noted] = b"1"
    summary = remove_unneeded(host.table, older_than_ms=-1, retain_last=1, dry_run=False)
    assert summary.epochs > 1
    assert epoch(host.table, 1) not in objects.held
    assert report_of(host.table)
    assert host.write(upserts([1], 5)) == WriteSummary(5)
    assert read(host.table, tmp_path)[0] == {1: 5}


def test_after_the_note_is_removed_the_table_goes_on_without_the_lost_epoch(
    objects: Objects, host: Host, tmp_path: Path
) -> None:
    two = Host(host.table, tmp_path / "two")
    del objects.held[epoch(host.table, 3)]
    del objects.held[shared_table.newest_name(host.table.definition.id)]
    assert read(host.table, tmp_path)[0] == {1: 1}
    assert host.write(upserts([2], 7)).epoch == 3
    assert two.write(upserts([3], 8)).epoch == 4
    assert read(host.table, tmp_path)[0] == {1: 1, 2: 7, 3: 8}
    assert report_of(host.table)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_store_object_that_is_gone_or_damaged_is_reported_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "place"
    client = ObjectStore(place.as_uri(), create=True)
    table = replace(created(client), url=place.as_uri())
    Host(table, tmp_path / "cache").write(upserts(range(6), 1))
    opened = kvstore.open(place, read_only=True)
    file = place / "STORE"
    whole = file.read_bytes()
    if is_gone:
        file.unlink()
    else:
        file.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:])
    for path in (place, place.as_uri()):
        with pytest.raises(MissingVersion if is_gone else CorruptImage, match=r"create a table .* object=STORE"):
            kvstore.open(path, read_only=True)
    done = run("shared", "check", place, "t")
    assert (done.code, "STORE" in done.out) == (1, True)
    (finding,) = report_of(table).findings
    assert (finding.kind, finding.object) == ("MISSING" if is_gone else "BAD", "STORE")
    (text,) = opened.check().catalog_findings
    assert "STORE" in text
    opened.close()
    if not is_gone:
        with pytest.raises(CorruptData, match="object=STORE"):
            created(client, "other")
        file.unlink()
    created(client, "other")
    assert report_of(table)
    with kvstore.open(place, read_only=True) as store:
        assert store.table("t").count() == 6
        assert store.check().ok


def test_a_store_object_of_another_store_is_reported(objects: Objects, host: Host) -> None:
    created(other := Objects())
    objects.held["STORE"] = other.held["STORE"]
    (finding,) = report_of(host.table).findings
    assert (finding.kind, finding.object) == ("BAD", "STORE")
