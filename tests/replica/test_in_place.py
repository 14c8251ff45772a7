"""A replica that is opened in its place is read as the store that ships to it, from any machine."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.checkpoint import recovery
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import (
    CorruptData,
    ForkedStore,
    InvalidRequest,
    MissingVersion,
    NoSuchTable,
    NotAStore,
    OffsetOutOfRange,
    ReplicaBehind,
    StoreClosed,
    Unavailable,
    UnsupportedOperation,
)
from kvstore.process import this_process
from kvstore.replica.in_place.followed import REFRESH_SECONDS
from kvstore.replica.read.table import ReplicaTable
from logformat.replica import manifest as replica_manifest
from tests.replica.followers import Leader, store_id
from tests.replica.objects import SCHEMA, Faulty
from tests.support.clocks import SetClock
from tests.support.replicas import Counting
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

TEXT = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])


class StillClock(SetClock):
    """Time passes only when it is set, however busy the machine is."""

    def monotonic(self) -> float:
        return self.now / 1000


class Opened:
    """A store with a replica in memory, which is opened in place."""

    def __init__(self, path: Path, seed: int = 1) -> None:
        self.leader = Leader(path / "s", seed)
        self.leader.ship()
        self.clock = StillClock()
        self.client = Counting(self.leader.objects.held)
        self.cache = path / "cache"
        self.store = self.open()

    def open(self, cache_bytes_max: int = 1 << 24) -> kvstore.StoreInReplica:
        return kvstore.StoreInReplica(
            "memory://x", cache_bytes_max, client=self.client, directory=self.cache, clock=self.clock
        )

    def ship(self) -> None:
        """Ship, and let so much time pass that it is looked for."""
        self.leader.ship()
        self.clock.now += int(1000 * REFRESH_SECONDS)

    def fetched(self) -> list[str]:
        """Names of the ranges and snapshots that were fetched since the last call."""
        found = [name for name in self.client.asked if "/" in name]
        self.client.asked = []
        return found


@contextmanager
def forked(path: Path) -> Iterator[tuple[Opened, Callable[[], None]]]:
    """A store that ships, and what promotes a copy that lacks its last commits, and commits as much."""
    opened = Opened(path)
    leader = opened.leader
    leader.apply_epoch(leader.store.table("t"))
    opened.ship()
    shutil.copytree(path / "s", path / "new")
    leader.store.table("t").upsert([{"k": k, "v": 7} for k in range(9)])
    opened.ship()

    def promoted() -> None:
        leader.store.close()
        recovery.recover(path / "new", store_id(leader.objects), Files(), SystemClock(), write=True)
        opened.leader = Leader(path / "new", 6, leader.objects)
        for epoch in (1, 2):
            opened.leader.epochs = epoch
            opened.leader.apply_epoch(opened.leader.store.table("t"))
        opened.ship()

    yield opened, promoted
    opened.store.close()
    opened.leader.store.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    found = Opened(tmp_path)
    yield found
    found.store.close()
    found.leader.store.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_opened_by_its_url_and_reads_as_its_leader(tmp_path: Path, cache: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        ours = store.create_table("t", TEXT, "k", buckets=2)
        log = store.create_table("log", TEXT)
        replica = store.add_replica(str(tmp_path / "r"), "r")
        for step in range(4):
            ours.upsert([{"k": k, "s": f"{step}"} for k in range(step * 10, 100)])
            ours.delete([step, 50 + step])
            log.upsert({"k": step, "s": "x"})
            store.flush()
            replica.ship()
        for place in ((tmp_path / "r").as_uri(), tmp_path / "r", str(tmp_path / "r")):
            with kvstore.open(place, read_only=True) as found:
                assert isinstance(found, kvstore.StoreInReplica)
                assert found.list_tables() == list(found) == ["log", "t"]
                assert "t" in found
                assert found["t"].get(7) == ours.get(7)
        with kvstore.open((tmp_path / "r").as_uri(), read_only=True) as found:
            theirs = found.table("t")
            assert (theirs.schema, theirs.primary_key, theirs.buckets) == (ours.schema, ("k",), 2)
            assert theirs.identity == ours.identity
            assert theirs.get(1) is None
            assert theirs[9] == {"k": 9, "s": "0"}
            assert theirs.lookup([9, 1, 60]) == ours.lookup([9, 1, 60])
            assert theirs.prefix_lookup([60]) == ours.prefix_lookup([60])
            late = pc.field("k") > 70
            for options in ({}, {"columns": ["s"]}, {"filter": late}, {"limit": 5}, {"filter": late, "limit": 3}):
                for of_keys in ({}, {"start": 20, "stop": 80}, {"reverse": True}, {"prefix": 60}):
                    assert theirs.scan(**options, **of_keys).read_all() == ours.scan(**options, **of_keys).read_all()
            middle = {bucket: end // 2 for bucket, (_, end) in ours.offsets().items()}
            for as_of in (middle, dt.datetime.fromtimestamp(1, dt.UTC)):
                assert theirs.scan(as_of=as_of).read_all() == ours.scan(as_of=as_of).read_all()
            assert theirs.offsets() == ours.offsets()
            assert theirs.count() == len(theirs) == ours.count()
            for start in ("earliest", "latest", middle):
                assert theirs.changelog(start).read_all() == ours.changelog(start).read_all()
                assert theirs.binlog(start).read_all() == ours.binlog(start).read_all()
            assert theirs.changelog("full").read_all() == ours.changelog("full").read_all()
            for key in (9, 1, 60, 1000):
                assert theirs.history(key) == ours.history(key)
                assert theirs.history(key, middle) == ours.history(key, middle)
            for query in ("SELECT * FROM t ORDER BY k", "SELECT count(*) FROM changes('t', 'earliest', 'latest')"):
                assert found.sql(query).read_all() == store.sql(query).read_all()
            assert pa.table(theirs) == pa.table(ours)
            assert found["log"].count() == 4
            assert found["log"].changelog().read_all() == log.changelog().read_all()
            assert found.check()
        assert sorted(each.name for each in cache.glob("*/*")) == [str(store.runtime.store_id)]


def test_every_call_sees_what_was_shipped_a_second_before(opened: Opened) -> None:
    table = opened.store.table("t")
    for _ in range(25):
        opened.leader.step()
        opened.ship()
        ours = opened.leader.store.table("t")
        assert opened.store.list_tables() == opened.leader.store.list_tables()
        assert table.schema == ours.schema
        assert rows_of(table) == rows_of(ours)
        assert table.changelog().read_all() == ours.changelog().read_all()
        assert table.get(100) == ours.get(100)
    opened.leader.upsert(ours)
    opened.leader.ship()
    before = table.offsets()
    opened.client.asked, opened.client.listings = [], 0
    table.get(1)
    table.get(2)
    assert (table.offsets(), opened.client.asked, opened.client.listings) == (before, [], 0)
    opened.clock.now += int(1000 * REFRESH_SECONDS)
    assert table.offsets() == ours.offsets() != before


def test_only_what_is_read_is_fetched_and_only_once(opened: Opened) -> None:
    for _ in range(6):
        opened.leader.upsert(opened.leader.store.table("t"))
        opened.leader.create_table(opened.leader.store.table("t"))
        opened.leader.number += 1
        opened.ship()
    opened.fetched()
    opened.store.table("t").get(100)
    places = {name.rpartition("/")[0] for name in opened.fetched()}
    assert len(places - {"catalog"}) == 1, "the bucket of the key"
    rows_of(opened.store.table("t"))
    opened.fetched()
    other = opened.open()
    assert rows_of(other.table("t")) == rows_of(opened.leader.store.table("t"))
    assert opened.fetched() == [], "all is in files"
    other.close()


def test_the_cache_is_verified_and_bounded(opened: Opened) -> None:
    table = opened.leader.store.table("t")
    for number in range(40):
        table.upsert([{"k": k, "v": number * k} for k in range(200)])
        opened.ship()
    expected = rows_of(table)
    assert rows_of(opened.store.table("t")) == expected
    files = sorted(path for path in opened.cache.glob("*/*/*"))
    for path in files[::3]:
        path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    opened.fetched()
    other = opened.open()
    assert rows_of(other.table("t")) == expected
    assert len(opened.fetched()) == len(files[::3])
    assert rows_of(opened.open().table("t")) == expected
    assert opened.fetched() == []
    size = sum(path.stat().st_size for path in files)
    small = opened.open(size)
    assert rows_of(small.table("t")) == expected
    table.upsert([{"k": k, "v": 1} for k in range(200)])
    opened.ship()
    assert rows_of(small.table("t")) == rows_of(table)
    assert 0 < sum(path.stat().st_size for path in opened.cache.glob("*/*/*")) <= size // 2
    opened.fetched()
    for _ in range(2):
        assert rows_of(opened.open(0).table("t")) == rows_of(table)
        assert opened.fetched()
    assert {path.stat().st_mode & 0o777 for path in opened.cache.glob("*/*")} == {0o700}


def test_no_file_of_another_program_is_removed_from_the_directory_of_the_cache(opened: Opened) -> None:
    of_objects = Path(next(iter(opened.cache.rglob("*.range"))).parent)
    others = [
        *(opened.cache / name for name in ("photos/a.jpg", "a/b.txt", f"{of_objects.name}/catalog-1.range")),
        *(of_objects.parent / name for name in ("photos/a.jpg", f"{UUID(int=7)}/a.jpg", f"{UUID(int=7)}/b.jpg/c")),
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100_000))
        os.utime(path, (0, 0))
    unfinished = of_objects / f"{next(iter(of_objects.glob('*.range'))).name}.{'0' * 32}.tmp"
    unfinished.write_bytes(bytes(100_000))  # of a process that was killed
    os.utime(unfinished, (0, 0))
    table = opened.leader.store.table("t")
    store = opened.open(1 << 17)
    for number in range(4):
        table.upsert([{"k": k, "v": number * k} for k in range(100)])
        opened.ship()
        rows_of(store.table("t"))
    assert not unfinished.exists()
    assert all(path.exists() for path in others)
    assert 0 < sum(path.stat().st_size for path in of_objects.glob("*")) <= 1 << 16
    store.close()


def test_requests_that_fail_leave_nothing_half_read(opened: Opened) -> None:
    faulty = Faulty(opened.client, Random(5), 0)
    store = kvstore.StoreInReplica("memory://x", client=faulty, directory=opened.cache, clock=opened.clock)
    table = store.table("t")
    for _ in range(6):
        for _ in range(3):
            opened.leader.upsert(opened.leader.store.table("t"))
            opened.leader.delete(opened.leader.store.table("t"))
        opened.ship()
        faulty.share = 0.1
        while True:
            try:
                found = rows_of(table)
                break
            except Unavailable:
                continue
        faulty.share = 0
        assert found == rows_of(opened.leader.store.table("t"))
    store.close()


def test_a_replica_that_was_not_closed_keeps_no_files_open(opened: Opened) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def read() -> None:
        rows_of(opened.open().table("t"))

    read()
    gc.collect()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "kvstore-call"])
    before = count()
    for _ in range(3):
        read()
    gc.collect()
    wait_until(lambda: count() <= before)


def test_handles_of_a_table_share_an_index_to_which_changes_are_added(opened: Opened) -> None:
    ours = opened.leader.store.table("t")
    store = opened.open(0)  # only the last index stays, and no object
    fetched: list[str] = []
    for number in range(8):
        ours.upsert({"k": 1, "v": number})
        ours.upsert({"k": 2, "v": number})
        opened.ship()
        if number == 4:
            opened.leader.store.alter_table("t", compression="zstd")
            opened.leader.store.rename_table("t", "other")
            opened.ship()
        name = "t" if number < 4 else "other"
        for table in (store.table(name), store.table(name)):
            assert table.get(1) == {"k": 1, "v": number}
        fetched += [each for each in opened.fetched() if each.startswith("tables/")]
    assert len(fetched) == len(set(fetched)) == 8
    store.close()


def test_rows_of_a_former_leader_are_gone_if_the_new_one_lacks_them(tmp_path: Path) -> None:
    with forked(tmp_path) as (opened, promoted):
        table = opened.store.table("t")
        assert {row["v"] for row in rows_of(table)} == {0, 7}
        promoted()
        assert {row["v"] for row in rows_of(table)} == {2}


class ShipsAtEachLook(Counting):
    """Whenever the manifest is read, one more commit over all buckets has just been shipped."""

    def __init__(self, ship: Callable[[], None], held: dict[str, bytes]) -> None:
        super().__init__(held)
        self._ship = ship

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        if name == replica_manifest.NAME:
            self._ship()
        return super().get(name, bytes_max=bytes_max)


class FastClock(SystemClock):
    """Between two looks at it the time comes to look at the replica."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.looks * REFRESH_SECONDS


def test_a_call_sees_one_moment_whatever_is_shipped_meanwhile(opened: Opened) -> None:
    schema = pa.schema([pa.field(name, pa.int64(), name == "v") for name in ("p", "k", "v")])
    ours = opened.leader.store.create_table("pairs", schema, ("p", "k"), buckets=3)
    epochs = 0

    def ship() -> None:
        nonlocal epochs
        rows = [("upsert", {"p": 1, "k": k, "v": epochs}) for k in range(9)]
        ours.apply_epoch(kvstore.Changes.of(rows, schema), "w", epochs, "r")
        epochs += 1
        opened.leader.ship()

    ship()
    client = ShipsAtEachLook(ship, opened.client.held)
    store = kvstore.StoreInReplica("memory://x", client=client, directory=opened.cache, clock=FastClock())
    table, keys = store.table("pairs"), [(1, k) for k in range(9)]
    for _ in range(2):
        for rows in (table.prefix_lookup([1]), table.lookup(keys), table.scan().read_all()):
            assert len(rows) == 9
            assert len(set(rows["v"].to_pylist())) == 1
        assert table.count() == 9
        assert set(Counter(table.changelog().read_all()["v"].to_pylist()).values()) <= {9, 18}
    store.close()


def test_changes_are_not_followed_into_the_history_of_a_leader_that_lacks_some(tmp_path: Path) -> None:
    with forked(tmp_path) as (opened, promoted):
        table = opened.store.table("t")
        followed = [table.changelog(start, follow=True) for start in ("earliest", "full", "latest")]
        late = opened.leader.store.table("t").offsets()
        read = [[next(changes) for _ in range(3)] for changes in followed[:2]]
        assert all(sum(map(len, each)) for each in read)
        promoted()
        assert opened.leader.store.table("t").offsets() != late
        for changes in followed:
            with pytest.raises(OffsetOutOfRange, match="lacks changes that were read"):
                next(changes)
        assert table.changelog().read_all() == opened.leader.store.table("t").changelog().read_all()


def test_a_table_ends_at_the_manifest_before_and_after_it_is_in_it(opened: Opened) -> None:
    opened.leader.store.create_table("u", SCHEMA, "k", buckets=2).upsert([{"k": k, "v": 1} for k in range(9)])
    opened.ship()
    whole, found = dict(opened.client.held), opened.store.table("u")
    ends = found.offsets()
    manifest = replica_manifest.decode(whole["TOLD"], store_id(opened.leader.objects))
    others = [each for each in manifest.shipped if each.stream.table_id != 2]
    unnamed = replica_manifest.encode(msgspec.structs.replace(manifest, shipped=others))
    # It was created after the ends were noted, and a part of the next round was shipped.
    opened.client.held = {name: data for name, data in whole.items() if not name.startswith("tables/2/1")}
    opened.client.held["TOLD"] = unnamed
    early = opened.open()
    assert rows_of(early.table("u")) == []
    assert ReplicaTable.of("", "u", opened.client).ends() == {0: 0, 1: 0}
    # It was dropped after the catalog was shipped, which has it still.
    opened.client.held = whole | {"TOLD": unnamed}
    opened.clock.now += int(1000 * REFRESH_SECONDS)
    assert found.offsets() == ends
    opened.client.held = whole
    opened.clock.now += int(1000 * REFRESH_SECONDS)
    assert len(rows_of(early.table("u"))) == len(rows_of(found)) == 9
    early.close()


def test_changes_are_followed(opened: Opened) -> None:
    table, ours = opened.store.table("t"), opened.leader.store.table("t")
    changes = table.changelog("latest", follow=True)
    expected: list[dict[str, Any]] = []

    def write() -> None:
        before = {bucket: end for bucket, (_, end) in ours.offsets().items()}
        opened.leader.apply_epoch(ours)
        expected.extend(row for batch in ours.changelog(before) for row in batch.to_pylist())

    write()
    opened.ship()
    found = [row for batch in (next(changes) for _ in range(3)) for row in batch.to_pylist()]
    assert sorted(map(str, found)) == sorted(map(str, expected))

    thread = threading.Thread(target=lambda: (write(), opened.ship()))

    async def first() -> pa.RecordBatch:
        following = table.follow("latest")
        thread.start()  # so that what it writes comes later
        async for batch in following:
            return batch
        raise AssertionError

    assert asyncio.run(first()).num_rows
    thread.join()


def test_what_does_not_read_is_refused(opened: Opened) -> None:
    store, table = opened.store, opened.store.table("t")
    changes = kvstore.Changes.of([("upsert", {"k": 1, "v": 1})], SCHEMA)
    for call in (
        lambda: store.create_table("x", SCHEMA),
        lambda: store.drop_table("t"),
        lambda: store.add_columns("t", {"x": "int64"}),
        lambda: store.rename_table("t", "x"),
        lambda: store.consumer("c"),
        lambda: store.consumers,
        lambda: store.add_replica("x"),
        lambda: store.replicas,
        lambda: store.checkpoint(),
        lambda: store.flush(),
        lambda: store.health(),
        lambda: store.metrics(),
        lambda: store.path,
        lambda: store.runtime,
        lambda: table.upsert({"k": 1, "v": 1}),
        lambda: table.delete([1]),
        lambda: table.apply(changes),
        lambda: table.apply_epoch(changes, "w", 0),
        lambda: table.update_where(pc.field("k") > 1, {"v": 1}),
        lambda: table.put_if({"k": 1, "v": 1}, None),
        lambda: table.__setitem__(1, {"v": 1}),
        lambda: table.__delitem__(1),
        lambda: table.writer(),
        lambda: table.bucket(0),
        lambda: table.snapshot(),
        lambda: table.undo(0),
        lambda: table.parts,
        lambda: table.writers,
        lambda: table.to_spark(None),
    ):
        with pytest.raises(UnsupportedOperation, match=r"only read.*ships to it.*kvstore\.follow"):
            call()
    with pytest.raises(InvalidRequest):
        table.get({"x": 1})
    with pytest.raises(NoSuchTable, match="no such table"):
        store.table("nope")
    with pytest.raises(OffsetOutOfRange, match="does not hold this offset"):
        table.changelog(dict.fromkeys(range(3), 10**6))
    late = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    for read in (lambda: table.scan(as_of=late), lambda: table.changelog(late), lambda: table.changelog(end=late)):
        with pytest.raises(ReplicaBehind, match="ends before this time"):
            read()
    with patch.object(this_process, "pid", -1):  # as in a child of a fork
        for inherited in (lambda: table.get(1), store.list_tables, lambda: store.table("t"), store.check):
            with pytest.raises(ForkedStore, match="open it again in this process"):
                inherited()
    store.close()
    store.close()
    for closed in (lambda: table.get(1), store.list_tables, lambda: store.table("t"), store.check, table.offsets):
        with pytest.raises(StoreClosed):
            closed()


def test_calls_that_open_no_replica(tmp_path: Path, cache: Path) -> None:
    kvstore.open(tmp_path / "s").close()
    (tmp_path / "empty").mkdir()
    for place, options, error, words in (
        ((tmp_path / "s").as_uri(), {}, InvalidRequest, "give its directory"),
        ((tmp_path / "none").as_uri(), {}, Unavailable, "no such directory"),
        ((tmp_path / "empty").as_uri(), {}, NotAStore, "no replica here"),
        ((tmp_path / "empty").as_uri(), {"read_only": False}, InvalidRequest, "not its URL"),
        ((tmp_path / "empty").as_uri(), {"map_bytes": 1}, InvalidRequest, "one setting"),
        ((tmp_path / "empty").as_uri(), {"cache_bytes_max": -1}, InvalidRequest, "cache_bytes_max"),
        ("s3://key:secret@bucket/x", {}, InvalidRequest, "credentials"),
        ("nonsense://x", {}, InvalidRequest, "can't be at this URL"),
    ):
        with pytest.raises(error, match=words):
            kvstore.open(place, **({"read_only": True} | options))
    assert not cache.exists()


def test_damage_is_an_error_and_leaves_nothing_half_read(opened: Opened) -> None:
    table, ours = opened.store.table("t"), opened.leader.store.table("t")
    opened.leader.upsert(ours)
    opened.ship()
    rows_of(table)
    opened.leader.apply_epoch(ours)
    opened.ship()
    newest = max(name for name in opened.client.held if name.startswith("tables/1/1/"))
    data = opened.client.held[newest]
    opened.client.held[newest] = data[:-1] + bytes([data[-1] ^ 1])
    for _ in range(2):
        with pytest.raises(CorruptData, match=f"object={newest}"):
            rows_of(table)
    assert f"BAD {newest}" in str(opened.store.check().findings)
    del opened.client.held[newest]
    other = opened.open()
    with pytest.raises(MissingVersion, match="a hole in bucket 1"):
        other.table("t")
    assert any("MISSING_VERSION" in each for each in other.check().findings)
    opened.client.held[newest] = data
    assert rows_of(table) == rows_of(ours) == rows_of(other.table("t"))
    assert other.check()
    opened.leader.store.drop_table("t")
    opened.ship()
    with pytest.raises(NoSuchTable, match="dropped"):
        table.get(1)


def test_indexes_are_bounded_and_shared_by_threads(opened: Opened) -> None:
    ours = opened.leader.store.table("t")
    for number in range(12):
        name = f"u{number}"
        opened.leader.store.create_table(name, TEXT, "k").upsert([{"k": k, "s": name * 20} for k in range(2_000)])
    opened.ship()
    store = opened.open(4 << 20)
    names = store.list_tables()
    failed: list[BaseException] = []

    def read(names: list[str]) -> None:
        try:
            for name in names:
                expected = rows_of(opened.leader.store.table(name))
                assert rows_of(store.table(name)) == expected
                batches = store.table(name).scan()  # read after other indexes have taken the place of its own
                for other in names[:3]:
                    store.table(other).get(1)
                assert batches.read_all().num_rows == len(expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(names[turn:] + names[:turn],)) for turn in (0, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert rows_of(store.table("t")) == rows_of(ours)
    store.close()
