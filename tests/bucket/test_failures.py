"""Failing disks and damaged rows: acknowledged rows stay, others are absent, and the table continues."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket import handle as handles
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import CorruptData, LogFailed, OutOfAddressSpace, StoreError, StoreFull
from kvstore.index.index import Index
from kvstore.kernel import library
from kvstore.log import segments
from kvstore.log.segment_writer import SegmentWriter
from kvstore.memtable.memtable import Memtable
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.log.index_state import IndexState
from tests.crash.bugs import planted
from tests.support.clocks import SetClock
from tests.support.committers import committer_of
from tests.support.disks import FailingDisk, failing
from tests.support.tables import changes_of, rows_of
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def table(store_path: Path, disk: FailingDisk) -> Iterator[kvstore.Table]:
    with Store(store_path, StoreOptions(commit_wait_ms=60_000, commit_idle_ms=60_000), files=disk) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
        yield table
        disk.fail = lambda _: 0
    with kvstore.open(store_path) as store:
        assert store.check().ok


def test_a_full_disk_writes_nothing_to_the_log_and_the_table_continues(table: kvstore.Table, disk: FailingDisk) -> None:
    disk.fail, disk.short = failing("write", errno.ENOSPC), 77
    with pytest.raises(StoreFull, match="free some"):
        table.upsert([{"k": 1, "v": 2}, {"k": 3, "v": 2}])
    assert rows_of(table) == [{"k": 1, "v": 1}, {"k": 2, "v": 1}]
    assert table.count() == 2
    table.upsert({"k": 3, "v": 3})
    assert [change[0] for change in changes_of(table)] == [0, 1, 2]


def test_a_log_that_can_t_begin_a_segment_for_want_of_descriptors_goes_on_later(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(store_path, segment_bytes_max=400) as store:
        table = store.create_table("t", SCHEMA, "k")
        begin = SegmentWriter.begin

        def refuse(*_: object) -> SegmentWriter:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(SegmentWriter, "begin", refuse)
        with pytest.raises(LogFailed, match="Too many files are open"):
            list(map(table.upsert, ([{"k": k, "v": k}] for k in range(50))))
        written = table.count()
        monkeypatch.setattr(SegmentWriter, "begin", begin)
        table.upsert([{"k": 99, "v": 99}])
        assert table.count() == written + 1
        assert store.check()


def test_a_check_for_want_of_descriptors_finds_nothing_but_fails(
    table: kvstore.Table, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert([{"k": 1, "v": 1}])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(BucketHandle, "verify_pages", refuse)
    with kvstore.open(store_path, read_only=True) as store, pytest.raises(LogFailed, match="Too many"):
        store.check()


def test_a_sync_that_fails_once_loses_nothing(table: kvstore.Table, disk: FailingDisk) -> None:
    disk.fail = failing("sync")
    table.upsert({"k": 1, "v": 2})
    disk.fail = lambda _: 0
    table.upsert({"k": 2, "v": 2})
    assert rows_of(table) == [{"k": 1, "v": 2}, {"k": 2, "v": 2}]
    assert [change[0] for change in changes_of(table)] == [0, 1, 2, 3, 4, 5]


def test_a_permanent_disk_failure_is_reported_and_acknowledged_rows_survive_a_reopen(
    store_path: Path, disk: FailingDisk
) -> None:
    with Store(store_path, StoreOptions(), files=disk) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert({"k": 1, "v": 1})
        disk.fail = failing("sync", times=1000)
        with pytest.raises(LogFailed, match="reopen"):
            table.upsert({"k": 1, "v": 2})
        disk.fail = lambda _: 0
        with pytest.raises(LogFailed):
            table.upsert({"k": 1, "v": 3})
    with kvstore.open(store_path) as store:
        table = store.table("t")
        assert table.get(1) in ({"k": 1, "v": 1}, {"k": 1, "v": 2})
        table.upsert({"k": 1, "v": 4})
        assert store.check().ok


def test_an_index_that_could_not_be_committed_is_recovered_by_the_next_open(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same process too: close gives the lock back whatever happens, and what is in the log is no error."""

    def refuse(index: Index, state: IndexState) -> None:
        raise lmdb.DiskError("no space")

    store = Store(store_path, StoreOptions(commit_wait_ms=60_000, commit_idle_ms=60_000))
    table = store.create_table("t", SCHEMA, primary_key="k")
    table.upsert({"k": 1, "v": 1})
    monkeypatch.setattr(Index, "commit", refuse)
    store.close()
    monkeypatch.undo()
    with kvstore.open(store_path) as store:
        assert store.table("t").get(1) == {"k": 1, "v": 1}
        assert store.check().ok


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        (MemoryError(), OutOfAddressSpace),
        (lmdb.CorruptedError("Located page was wrong type"), CorruptData),
        (lmdb.PageNotFoundError("Requested page not found"), CorruptData),
        (lmdb.DiskError("no space"), StoreFull),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Exception) else given.__name__,
)
def test_a_merge_that_is_due_and_fails_is_tried_again(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, named: type[StoreError]
) -> None:
    """What is acknowledged is read and kept meanwhile, and the bucket goes on once the cause is gone."""
    tried: list[IndexState] = []

    def refuse(index: Index, state: IndexState) -> None:
        tried.append(state)
        raise failure

    with kvstore.open(store_path, commit_wait_ms=1, commit_idle_ms=1) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        with monkeypatch.context() as broken:
            broken.setattr(Index, "commit", refuse)
            table.upsert({"k": 1, "v": 1})
            wait_until(lambda: len(tried) > 1)
            assert table.get(1) == {"k": 1, "v": 1}
            with pytest.raises(named):
                store.flush()
        table.upsert({"k": 2, "v": 2})
        store.flush()
        assert rows_of(table) == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]
    with kvstore.open(store_path) as store:
        assert store.check().ok


def test_a_disk_that_disappears_is_reported_and_ends_no_thread_silently(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut of the disk alone: the index can't be committed, nor the log read; rows in memory are."""

    def refuse(*_: object) -> None:
        raise lmdb.Error("Input/output error")

    def refuse_to_open(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with kvstore.open(store_path, commit_wait_ms=60_000, commit_idle_ms=60_000) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert({"k": 1, "v": 1})
        with monkeypatch.context() as gone:
            gone.setattr(Index, "commit", refuse)
            gone.setattr(segments, "open_file", refuse_to_open)
            with pytest.raises(StoreFull, match="repair the disk"):
                store.flush()
            assert table.get(1) == {"k": 1, "v": 1}
    with kvstore.open(store_path) as store:
        assert rows_of(store.table("t")) == [{"k": 1, "v": 1}]
        assert store.check().ok


def test_only_the_request_at_fault_fails(store_path: Path, disk: FailingDisk) -> None:
    """Requests that wait together are one group; a damaged row fails the group, but not its other requests."""
    with Store(store_path, StoreOptions(), files=disk) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert([{"k": key, "v": 0} for key in range(20)])
    with lmdb.open(str(store_path / "tables/1/0/index")) as environment, environment.begin(write=True) as transaction:
        key = b"\x02\x80" + bytes(6) + b"\x05"
        value = transaction.get(key)
        assert isinstance(value, bytes)
        transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    with Store(store_path, StoreOptions(), files=disk) as store:
        table = store.table("t")
        table.upsert({"k": 99, "v": 0})
        answers: dict[int, StoreError | None] = {}
        committer = committer_of(table)
        gathered = threading.Event()

        def slow(call: str) -> int:
            if not gathered.is_set():  # the first group waits here, so that the others queue after it
                wait_until(lambda: committer.waiting >= 10)
                gathered.set()
            return 0

        def write(key: int) -> None:
            try:
                table.upsert({"k": key, "v": 1})
                answers[key] = None
            except StoreError as error:
                answers[key] = error

        disk.fail = slow
        workers = [threading.Thread(target=write, args=(key,)) for key in range(10)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        disk.fail = lambda _: 0
        assert isinstance(answers.pop(5), CorruptData)
        assert set(answers.values()) == {None}
        found = table.lookup([key for key in range(10) if key != 5]).to_pylist()
        assert all(row["v"] == 1 for row in found)
        with pytest.raises(CorruptData):
            table.get(5)
        assert not store.check().ok


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("change", ["put_one", "put_many", "delete_one", "delete_many", "add_many"])
def test_a_row_whose_stored_size_became_zero_is_damaged_and_not_new(
    store_path: Path, change: str, native: bool
) -> None:
    with kvstore.open(store_path) as store:
        engine = kvstore.Aggregate({"v": "sum"}) if change == "add_many" else "last_row"
        table = store.create_table("t", SCHEMA, primary_key="k", merge_engine=engine)
        table.upsert([{"k": key, "v": 0} for key in range(200)])
    with lmdb.open(str(store_path / "tables/1/0/index")) as environment, environment.begin(write=True) as transaction:
        assert transaction.put(b"\x02\x80" + bytes(6) + b"\x05", b"")
    many = [{"k": key, "v": 1} for key in range(100)]
    with nullcontext() if native else library.switched_off(), kvstore.open(store_path) as store:
        table = store.table("t")
        changes = {
            "put_one": lambda: table.upsert({"k": 5, "v": 1}),
            "put_many": lambda: table.upsert(pa.Table.from_pylist(many)),
            "delete_one": lambda: table.delete({"k": 5}),
            "delete_many": lambda: table.delete(pa.table({"k": range(100)})),
            "add_many": lambda: table.upsert(pa.Table.from_pylist(many)),
        }
        with pytest.raises(CorruptData, match="kvstore check"):
            changes[change]()
        with pytest.raises(CorruptData):
            table.get(5)
        assert (table.count(), table.changelog().read_all().num_rows) == (200, 200)
        table.upsert({"k": 6, "v": 1})
        assert table.get(6) == {"k": 6, "v": 1}
        assert not store.check().ok


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_relaxed_durability_is_durable_after_a_flush(store_path: Path, durability: str, disk: FailingDisk) -> None:
    options = StoreOptions(durability, commit_wait_ms=60_000, commit_idle_ms=60_000, sync_interval_ms=60_000)
    with Store(store_path, options, files=disk) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert({"k": 0, "v": 0})
        disk.calls.clear()
        for key in range(1, 5):
            table.upsert({"k": key, "v": 0})
        assert "sync" not in disk.calls
        assert table.count() == 5
        table.flush()
        assert "sync" in disk.calls
    with kvstore.open(store_path) as store:
        assert store.table("t").count() == 5
        assert store.check().ok


def test_a_clock_that_jumps_in_a_merge_ends_no_thread(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, merge_slice = SetClock(), Memtable.merge_slice

    def jump(memtable: Memtable, share: float) -> bool:
        is_whole = merge_slice(memtable, share)
        clock.now += 10**18
        return is_whole

    with Store(store_path, StoreOptions(), clock=clock) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        monkeypatch.setattr(Memtable, "merge_slice", jump)
        for value in range(2):
            table.upsert({"k": 0, "v": value})
            flushing = threading.Thread(target=table.flush, daemon=True)
            flushing.start()
            flushing.join(60)
            assert not flushing.is_alive()
            table.upsert({"k": 1, "v": value})


HOUR_MS = 3_600_000
NEVER_DUE = {"commit_wait_ms": 99 * HOUR_MS, "commit_idle_ms": 99 * HOUR_MS}


def synced_in(store_path: Path, disk: FailingDisk, *, slow: bool) -> tuple[bool, bool]:
    """Whether changes are on the disk before the sync interval is over, and after it.

    Commits of the index are due much later: as set, or because commits are ``slow``.
    """
    clock = SetClock()
    options = StoreOptions("interval", sync_interval_ms=HOUR_MS, **{} if slow else NEVER_DUE)
    with Store(store_path, options, files=disk, clock=clock) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")

        def take_long(call: str) -> int:
            clock.now += 99 * HOUR_MS if call == "sync" else 0
            return 0

        disk.fail = take_long if slow else disk.fail
        table.upsert({"k": 0, "v": 0})
        table.flush()
        disk.fail = lambda _: 0
        disk.calls.clear()
        # The committer looks at its clock after each group, so it has looked once the next group is answered.
        for key in (1, 2):
            table.upsert({"k": key, "v": 0})
        clock.now += HOUR_MS // 2
        for key in (3, 4):
            table.upsert({"k": key, "v": 0})
        assert "write" in disk.calls
        before = "sync" in disk.calls
        clock.now += HOUR_MS // 2
        for key in (5, 6):
            table.upsert({"k": key, "v": 0})
        return before, "sync" in disk.calls


@pytest.mark.parametrize("slow", [False, True], ids=["quick commits", "slow commits"])
def test_durability_interval_syncs_after_the_interval_and_not_before(
    store_path: Path, disk: FailingDisk, slow: bool
) -> None:
    assert synced_in(store_path, disk, slow=slow) == (False, True)


@pytest.mark.parametrize("slow", [False, True], ids=["quick commits", "slow commits"])
def test_a_sync_interval_that_is_ignored_is_found(store_path: Path, disk: FailingDisk, slow: bool) -> None:
    with planted("sync_interval_is_ignored"):
        assert synced_in(store_path, disk, slow=slow) == (False, False)


def test_durability_interval_syncs_without_another_request(store_path: Path, disk: FailingDisk) -> None:
    options = StoreOptions("interval", sync_interval_ms=1, **NEVER_DUE)
    with Store(store_path, options, files=disk) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert({"k": 0, "v": 0})
        table.flush()
        disk.calls.clear()
        table.upsert({"k": 1, "v": 0})
        wait_until(lambda: "sync" in disk.calls)


def test_durability_sync_syncs_before_every_answer(table: kvstore.Table, disk: FailingDisk) -> None:
    for key in range(5):
        disk.calls.clear()
        table.upsert({"k": key, "v": 0})
        assert disk.calls.index("write") < disk.calls.index("sync")


def test_a_scan_of_many_newer_rows_needs_no_room_for_the_index(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"k": key, "v": 1} for key in range(handles.OVERLAID_ROWS_MAX + 1)]

    def refuse(*_: object) -> None:
        raise StoreFull("There is no room.")

    with kvstore.open(store_path, **NEVER_DUE) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert(rows)
        with monkeypatch.context() as full:
            full.setattr(Index, "commit", refuse)
            assert rows_of(table) == rows
            assert table.get(7) == rows[7]
            with pytest.raises(StoreFull, match="no room"):
                store.flush()
        assert rows_of(table) == rows


def test_writes_go_on_beside_a_scan_that_keeps_the_index_from_growing_until_memory_is_used_up(store_path: Path) -> None:
    with kvstore.open(store_path, map_bytes=1 << 20, memtable_bytes=4 << 20) as store:
        table = store.create_table("t", {"k": "int64", "s": "string"}, primary_key="k")
        table.upsert({"k": -1, "s": ""})
        scan = table.scan()
        scan.read_next_batch()
        acknowledged, refused = 0, ""
        while not refused:
            try:
                table.upsert([{"k": acknowledged + n, "s": "x" * 1000} for n in range(100)])
                acknowledged += 100
            except StoreFull as error:
                refused = str(error)
        assert "a scan of this process is open" in refused
        assert 2_000 < acknowledged < 6_000
        found = [key for key in range(0, acknowledged, 50) if table.get(key) is None]
        assert (found, table.count()) == ([], acknowledged + 1)
        del scan
        table.upsert({"k": acknowledged, "s": ""})
        assert [row["k"] for row in rows_of(table)] == list(range(-1, acknowledged + 1))
    with kvstore.open(store_path) as store:
        assert store.check().ok


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_what_a_scan_has_read_is_durable(store_path: Path, durability: Any) -> None:
    """So Spark's tasks, which other processes run, find what their driver has seen."""
    options = StoreOptions(durability, commit_wait_ms=60_000, commit_idle_ms=60_000, sync_interval_ms=60_000)
    with Store(store_path, options) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert({"k": 1, "v": 1})
        assert table.get(1) == {"k": 1, "v": 1}
        assert table.bucket(0).handle.committed().applied_offset == (1 if durability == "sync" else 0)
        assert rows_of(table) == [{"k": 1, "v": 1}]
        assert table.bucket(0).handle.committed().applied_offset == 1
