"""A caller that finds its bucket idle writes in its own thread: nothing else about a write changes."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import LogFailed, StoreFull
from kvstore.log.log import Log
from kvstore.memtable.memtable import Memtable
from kvstore.meta.journal import Journal
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.support.clocks import SetClock
from tests.support.committers import committer_of
from tests.support.disks import FailingDisk, failing
from tests.support.tables import changes_of, rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("usual_handlers")
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
SECONDS = 60.0


class Disk(FailingDisk):
    """Notes which threads sync, and syncs only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.may_sync = threading.Event()
        self.may_sync.set()

    def sync(self, descriptor: int) -> None:
        self.threads.append(threading.get_ident())
        assert self.may_sync.wait(SECONDS)
        super().sync(descriptor)

    def here(self) -> bool:
        """Whether the last sync was of this thread."""
        return self.threads[-1] == threading.get_ident()


@pytest.fixture
def disk() -> Disk:
    return Disk()


def opened(path: Path, disk: Disk, **options: Any) -> Store:
    return Store(path, StoreOptions(**{"commit_wait_ms": 600_000, "commit_idle_ms": 600_000} | options), files=disk)


@pytest.fixture
def table(store_path: Path, disk: Disk) -> Iterator[kvstore.Table]:
    """Has one row, which is not merged into the index."""
    with opened(store_path, disk) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert({"k": 0, "v": 0})
        yield table
        disk.fail = lambda _: 0
        disk.may_sync.set()
    with kvstore.open(store_path) as store:
        assert store.check().ok


def test_a_caller_writes_in_its_own_thread(table: kvstore.Table, disk: Disk) -> None:
    assert not disk.here(), "before the first write the committer looks at the catalog"
    writes = [
        lambda: table.upsert({"k": 1, "v": 1}),
        lambda: table.upsert([{"k": 2, "v": 1}, {"k": 1, "v": 2}]),
        lambda: table.delete(2),
        lambda: table.put_if({"k": 1, "v": 3}, {"k": 1, "v": 2}),
    ]
    for write in writes:
        disk.threads.clear()
        write()
        assert disk.here()
    assert not table.put_if({"k": 1, "v": 9}, {"k": 1, "v": 2})
    assert rows_of(table) == [{"k": 0, "v": 0}, {"k": 1, "v": 3}]
    table.flush()
    table.upsert({"k": 5, "v": 5})
    assert disk.here()
    table.upsert(pa.Table.from_pylist([{"k": k, "v": 6} for k in range(100)]))
    assert disk.here(), "however many rows"


def test_rows_of_several_buckets_are_written_at_once(store_path: Path, disk: Disk) -> None:
    with opened(store_path, disk) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        rows = [{"k": k, "v": 0} for k in range(20)]
        table.upsert(rows)
        disk.threads.clear()
        table.upsert(rows)
        assert threading.get_ident() not in disk.threads
        assert len(set(disk.threads)) == 2


def test_others_wait_for_the_callers_turn_and_then_write_together(table: kvstore.Table, disk: Disk) -> None:
    committer = committer_of(table)
    with ThreadPoolExecutor() as threads:
        disk.may_sync.clear()
        disk.threads.clear()
        first = threads.submit(table.upsert, {"k": 1, "v": 1})
        wait_until(lambda: bool(disk.threads))
        others = [threads.submit(table.upsert, {"k": k, "v": 1}) for k in (2, 3, 4)]
        wait_until(lambda: committer.waiting == 4)
        read = threads.submit(table.get, 1)
        assert read.result(SECONDS) is None, "nothing is seen before it is durable"
        assert not any(each.done() for each in (first, *others))
        disk.may_sync.set()
        found = sorted(each.result(SECONDS).by_bucket[0].first_offset for each in (first, *others))
    assert found == [1, 2, 3, 4]
    assert len(set(disk.threads)) == 2
    assert len(disk.threads) <= 3, "those that waited were synced together"


def test_after_a_group_callers_come_together_again(table: kvstore.Table, disk: Disk) -> None:
    committer = committer_of(table)
    with ThreadPoolExecutor() as threads, committer.turn.taken():
        threads.submit(table.upsert, {"k": 1, "v": 0})
        wait_until(lambda: (committer.waiting, committer.queued) == (1, 0))
        for k in (2, 3):
            threads.submit(table.upsert, {"k": k, "v": 0})
        wait_until(lambda: committer.queued == 2)
    table.upsert({"k": 4, "v": 0})
    assert not disk.here()
    table.upsert({"k": 5, "v": 0})
    assert disk.here()


def test_writes_of_one_thread_take_effect_in_order(table: kvstore.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread has submitted without waiting comes before the row that it stores next."""
    committer = committer_of(table)
    taken, may_go_on, check = threading.Event(), threading.Event(), Journal.check_leads

    def slow(journal: Journal) -> None:
        if threading.current_thread().name == "kvstore-committer":
            taken.set()  # it has the first write in hand, and does not have its turn yet
            assert may_go_on.wait(SECONDS)
        check(journal)

    def write() -> None:
        first = kvstore.Changes.upserts(pa.RecordBatch.from_pylist([{"k": 1, "v": 1}], SCHEMA))
        answer = table.bucket(0).submit(first)
        assert taken.wait(SECONDS)
        table.upsert({"k": 1, "v": 2})
        answer.result(SECONDS)

    monkeypatch.setattr(Journal, "check_leads", slow)
    with ThreadPoolExecutor() as threads:
        written = threads.submit(write)
        try:
            wait_until(lambda: written.done() or committer.waiting == 2)
        finally:
            may_go_on.set()
        written.result(SECONDS)
    assert table.get(1) == {"k": 1, "v": 2}


def test_a_caller_leaves_a_write_to_the_committer_when_a_commit_is_due(store_path: Path, disk: Disk) -> None:
    clock = SetClock()
    with Store(
        store_path, StoreOptions(commit_wait_ms=600_000, commit_idle_ms=600_000), files=disk, clock=clock
    ) as store:
        table = store.create_table("t", SCHEMA, "k")
        for number in range(3):
            table.upsert({"k": number, "v": 0})
        index = committer_of(table).memtable.index
        assert (disk.here(), index.committed_state().applied_offset) == (True, 0)
        clock.now += 700_000  # and the committer, which waits in real time, sleeps on, or has not yet begun to sleep
        table.upsert({"k": 3, "v": 0})
        assert not disk.here()
        wait_until(lambda: index.committed_state().applied_offset >= 3)


def test_a_full_disk_refuses_the_write_and_the_next_one_goes_on(table: kvstore.Table, disk: Disk) -> None:
    disk.fail, disk.short = failing("write", errno.ENOSPC), 77
    with pytest.raises(StoreFull, match="free some"):
        table.upsert({"k": 0, "v": 1})
    assert table.get(0) == {"k": 0, "v": 0}
    table.upsert({"k": 0, "v": 2})
    assert [change[0] for change in changes_of(table)] == [0, 1, 2]


def test_a_map_that_is_full_grows(store_path: Path, disk: Disk) -> None:
    with opened(store_path, disk, map_bytes=1 << 20, durability="none") as store:
        table = store.create_table("t", SCHEMA.append(pa.field("s", pa.string())), "k")
        table.upsert({"k": 0, "v": 0, "s": ""})
        for number in range(3000):
            table.upsert({"k": number, "v": 0, "s": "x" * 1000})
        assert table.count() == 3000
        table.flush()
        assert (store_path / "tables/1/0/index/data.mdb").stat().st_size > 1 << 20
    with kvstore.open(store_path) as store:
        assert store.check().ok


def test_an_error_from_outside_before_the_log_has_the_write_undoes_it(
    table: kvstore.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an exception that another thread raises in the caller's, or one for want of memory."""
    with monkeypatch.context() as patched:

        def fail(memtable: Memtable, rows: dict[bytes, bytes]) -> None:
            put(memtable, rows)
            raise ZeroDivisionError

        put = Memtable.put
        patched.setattr(Memtable, "put", fail)
        with pytest.raises(ZeroDivisionError):
            table.upsert({"k": 0, "v": 1})
    assert table.get(0) == {"k": 0, "v": 0}
    table.upsert({"k": 0, "v": 2})
    assert rows_of(table) == [{"k": 0, "v": 2}]


def test_a_caller_deep_in_recursion_writes_or_fails_and_the_bucket_goes_on(table: kvstore.Table) -> None:
    written = 0

    def deeper(depth: int) -> None:
        nonlocal written
        with suppress(RecursionError):
            table.upsert({"k": 0, "v": depth})
            written = depth
        deeper(depth + 1)

    with suppress(RecursionError):
        deeper(1)
    assert written > 100
    assert table.get(0) == {"k": 0, "v": written}
    table.upsert({"k": 0, "v": -1})
    assert table.get(0) == {"k": 0, "v": -1}


def test_an_error_from_outside_ends_the_bucket_and_loses_nothing(
    store_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may have a part of the write."""
    with opened(store_path, disk) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert({"k": 0, "v": 0})
        with monkeypatch.context() as patched:

            def fail(*_: object, **__: object) -> None:
                raise ZeroDivisionError

            patched.setattr(Log, "append", fail)
            with pytest.raises(ZeroDivisionError):
                table.upsert({"k": 0, "v": 1})
        with pytest.raises(LogFailed, match="reopen"):
            table.upsert({"k": 0, "v": 2})
        with pytest.raises(LogFailed, match="reopen"):
            table.get(0)
        with suppress(LogFailed):
            store.close()
    with kvstore.open(store_path) as store:
        assert rows_of(store.table("t")) == [{"k": 0, "v": 0}]
        assert store.check().ok


@pytest.mark.parametrize(
    ("number", "handler", "here"),
    [
        (signal.SIGINT, signal.default_int_handler, True),
        (signal.SIGINT, signal.SIG_IGN, True),  # what a shell starts in the background
        (signal.SIGINT, signal.SIG_DFL, True),
        (signal.SIGINT, lambda *_: None, False),
        (signal.SIGTERM, lambda *_: None, False),
    ],
)
def test_a_main_thread_whose_program_has_handlers_of_its_own_leaves_its_rows_to_the_committer(
    table: kvstore.Table, disk: Disk, number: signal.Signals, handler: Any, here: bool
) -> None:
    before = signal.signal(number, handler)
    try:
        table.upsert({"k": 1, "v": 1})
        assert disk.here() is here
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_ctrl_c_comes_when_the_row_is_written(table: kvstore.Table, disk: Disk) -> None:
    disk.may_sync.clear()
    disk.threads.clear()

    def interrupt() -> None:
        wait_until(lambda: bool(disk.threads))
        os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.05, disk.may_sync.set).start()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        table.upsert({"k": 0, "v": 1})
    thread.join()
    assert disk.here()
    assert table.get(0) == {"k": 0, "v": 1}
