"""Shared tables that are opened in place are read as the tables of a store."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.errors import (
    CorruptData,
    ForkedStore,
    NoSuchTable,
    OffsetOutOfRange,
    ReplicaBehind,
    StoreClosed,
    UnsupportedOperation,
)
from kvstore.process import this_process
from kvstore.replica.client import ObjectStore
from kvstore.replica.in_place.followed import REFRESH_SECONDS
from kvstore.shared.snapshots import take_snapshots
from tests.cli.commands import fine, run
from tests.shared.hosts import SCHEMA, Host, created, upserts
from tests.support.clocks import SetClock
from tests.support.counted_objects import Counted
from tests.support.tables import rows_of


class StillClock(SetClock):
    """Time passes only when it is set, however busy the machine is."""

    def monotonic(self) -> float:
        return self.now / 1000


class Opened:
    """A shared table in memory that a machine writes, opened in place, and a table of a store with the same changes."""

    def __init__(self, path: Path) -> None:
        self.objects = Counted()
        self.host = Host(created(self.objects, buckets=2), path / "host")
        self.clock = StillClock()
        self.cache = path / "cache"
        self.store = self.open()
        self.local_store = kvstore.open(path / "local")
        self.local = self.local_store.create_table("t", SCHEMA, "k", buckets=2)
        self.writes = 0

    def open(self, cache_bytes_max: int = 1 << 24) -> kvstore.SharedTables:
        return kvstore.SharedTables(
            "memory://x", cache_bytes_max, client=self.objects, directory=self.cache, clock=self.clock
        )

    def write(self, changes: kvstore.Changes) -> None:
        """Write both tables, and let so much time pass that this is looked for."""
        self.host.clock.now += 1000
        self.host.write(changes)
        self.local.apply(changes)
        self.clock.now = self.host.clock.now + 1000 + self.writes * int(1000 * REFRESH_SECONDS)
        self.writes += 1


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    found = Opened(tmp_path)
    yield found
    found.store.close()
    found.local_store.close()


def without_times(table: pa.Table) -> pa.Table:
    return table.drop_columns(["_commit_timestamp"]).sort_by([("_bucket", "ascending"), ("_log_offset", "ascending")])


def test_reads_are_those_of_a_store(opened: Opened) -> None:
    table, local = opened.store.table("t"), opened.local
    assert (opened.store.list_tables(), table.count(), rows_of(table)) == (["t"], 0, [])
    for number in range(4):
        opened.write(upserts(range(number, 9), number))
        opened.write(kvstore.Changes.of([("delete", {"k": number}), ("upsert", {"k": 20, "v": number})], SCHEMA))
        assert sorted(map(str, rows_of(table))) == sorted(map(str, rows_of(local)))
        assert (table.count(), table.offsets()) == (local.count(), local.offsets())
        assert [table.get(k) for k in range(22)] == [local.get(k) for k in range(22)]
        assert table.lookup([1, 8, 99]).to_pylist() == local.lookup([1, 8, 99]).to_pylist()
    assert without_times(table.changelog().read_all()) == without_times(local.changelog().read_all())
    assert table.binlog().read_all().num_rows == local.binlog().read_all().num_rows
    for key in (0, 8, 99):
        versions = table.history(key).drop_columns(["_commit_timestamp"])
        assert versions == local.history(key).drop_columns(["_commit_timestamp"])
    assert (
        opened.store.sql("SELECT sum(v) FROM t").read_all() == opened.local_store.sql("SELECT sum(v) FROM t").read_all()
    )
    half = {bucket: end // 2 for bucket, (_, end) in local.offsets().items()}
    for read in (
        lambda of: of.scan(as_of=half),
        lambda of: of.scan(filter=pc.field("v") > 2),
        lambda of: of.to_arrow(),
        lambda of: of.to_arrow(start=3, limit=2),
        lambda of: of.to_arrow(stop=8, reverse=True, limit=3, as_of=half),
    ):
        found, expected = (
            pa.table(read(each)) if isinstance(each, pa.Table) else read(each) for each in (table, local)
        )
        assert sorted(map(str, _list(found))) == sorted(map(str, _list(expected)))
    assert opened.store.check().ok


def _list(read: pa.RecordBatchReader | pa.Table) -> list[dict[str, object]]:
    return (read if isinstance(read, pa.Table) else read.read_all()).to_pylist()


def test_a_read_as_of_a_time(opened: Opened) -> None:
    table = opened.store.table("t")
    for number in range(3):
        opened.write(upserts(range(6), number))
    times = sorted(set(table.changelog().read_all()["_commit_timestamp"].to_pylist()))
    assert {row["v"] for row in _list(table.scan(as_of=times[-1]))} == {1}
    now = dt.datetime.fromtimestamp(opened.clock.now / 1000, dt.UTC)
    assert {row["v"] for row in _list(table.scan(as_of=now))} == {2}
    opened.clock.now += 10  # so little that nothing is looked for by itself
    later = now + dt.timedelta(milliseconds=10.3)  # a part of a millisecond after it is the next one
    assert {row["v"] for row in _list(table.scan(as_of=later))} == {2}
    with pytest.raises(ReplicaBehind, match="shared table ends before this time"):
        table.scan(as_of=later + dt.timedelta(milliseconds=2))
    with pytest.raises(OffsetOutOfRange):
        table.changelog({0: 10**6, 1: 0})


def test_a_call_fetches_what_is_new_only(opened: Opened) -> None:
    table = opened.store.table("t")
    for number in range(5):
        opened.write(upserts(range(6), number))
    assert table.count() == 6
    opened.objects.asked.clear()
    opened.write(upserts(range(6), 9))
    opened.objects.asked.clear()
    assert table[1]["v"] == 9
    assert opened.objects.asked.count("get") <= 4, "the note, the epoch, the one that it may add to, and the range"
    opened.objects.asked.clear()
    assert table[1]["v"] == 9
    assert not opened.objects.asked, "a look is made once a second"
    again = opened.open()
    opened.objects.asked.clear()
    assert again.table("t").count() == 6
    assert opened.objects.asked.count("get") < 9, "ranges are in the cache"
    again.close()


def test_tables_that_are_new_are_listed(opened: Opened) -> None:
    with pytest.raises(NoSuchTable, match="no shared table of that name"):
        opened.store.table("a b")
    created(opened.objects, "a b")
    assert opened.store.list_tables() == ["a b", "t"]
    assert opened.store.table("a b").count() == 0


def test_damage_is_reported(opened: Opened) -> None:
    opened.write(upserts(range(6), 1))
    take_snapshots(opened.host.table, opened.cache, opened.host.clock, again=False)
    opened.clock.now += int(1000 * REFRESH_SECONDS)
    for kind, fails in (
        (".range", lambda table: table.changelog().read_all()),
        (".snapshot", lambda table: table.count()),
    ):
        name = next(name for name in opened.objects.held if name.endswith(kind))
        whole = opened.objects.held[name]
        opened.objects.held[name] = whole[:-1] + b"x"
        with pytest.raises(CorruptData, match=name):
            fails(opened.store.table("t"))
        (finding,) = opened.store.check().findings
        assert name in finding
        opened.objects.held[name] = whole
        fails(opened.store.table("t"))
    assert opened.store.check().ok
    shutil.rmtree(opened.cache)
    name = next(name for name in opened.objects.held if name.endswith(".range"))
    whole = opened.objects.held.pop(name)
    with pytest.raises(ReplicaBehind, match=rf"gone.*kvstore shared check.*{name}"):
        opened.store.table("t").changelog().read_all()
    (finding,) = opened.store.check().findings
    assert f"MISSING {name}" in finding
    opened.objects.held[name] = whole
    assert opened.store.table("t").changelog().read_all().num_rows == 6
    name = min(name for name in opened.objects.held if "/epoch/" in name)
    opened.objects.held[name] += b"x"
    (finding,) = opened.store.check().catalog_findings
    assert name in finding


def test_what_does_not_read_is_refused(opened: Opened) -> None:
    store, table = opened.store, opened.store.table("t")
    for call in (
        lambda: store.create_table("x", SCHEMA),
        lambda: store.flush(),
        lambda: store.path,
        lambda: table.upsert({"k": 1, "v": 1}),
        lambda: table.delete([1]),
        lambda: table.__setitem__(1, {"v": 1}),
        lambda: table.snapshot(),
        lambda: table.undo(0),
        lambda: table.writers,
    ):
        with pytest.raises(UnsupportedOperation, match=r"shared table.*reads.*only.*kvstore\.spark\.write"):
            call()
    with patch.object(this_process, "pid", -1):  # as in a child of a fork
        for inherited in (lambda: table.get(1), store.list_tables, lambda: store.table("t"), store.check):
            with pytest.raises(ForkedStore, match="open it again in this process"):
                inherited()
    store.close()
    for closed in (lambda: table.get(1), store.list_tables, lambda: store.table("t"), store.check, table.offsets):
        with pytest.raises(StoreClosed):
            closed()


def test_a_directory_or_url_with_shared_tables_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "place"
    host = Host(replace(created(ObjectStore(place.as_uri(), create=True)), url=place.as_uri()), tmp_path / "cache")
    host.write(upserts(range(6), 1))
    for path in (place, str(place), place.as_uri()):
        with kvstore.open(path, read_only=True) as store:
            assert isinstance(store, kvstore.SharedTables)
            assert store.table("t").count() == 6
        with pytest.raises(UnsupportedOperation, match=r"read_only=True.*kvstore\.spark\.write"):
            kvstore.open(path)
    assert [line["k"] for line in fine("scan", place, "t", "--json").lines] == list(range(6))
    assert [line["k"] for line in fine("scan", place.as_uri(), "t", "--json").lines] == list(range(6))
    assert fine("check", place.as_uri(), "--json").lines[0]["ok"]
    assert "shared table" in run("upsert", place, "t").err
