"""Ctrl-C while the main thread waits: signals as the system sends them."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk.files import Files
from kvstore.disk.lock import is_locked
from kvstore.options import StoreOptions
from kvstore.process import calls
from kvstore.store.store import Store
from logformat import paths
from logformat.ids import BucketId, TableId
from logformat.rows.changes import Changes
from tests.conftest import OpenStore
from tests.interrupts.moments import Moments
from tests.support.waiting import ends_or_waits, wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
SECONDS = 60.0
"""How long anything may take on a busy machine before it passes for a hang."""


class SlowFiles(Files):
    """A disk that syncs nothing until the test lets it."""

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.waiting = threading.Event()

    def sync(self, descriptor: int) -> None:
        if not self.may_sync.is_set():
            self.waiting.set()
            assert self.may_sync.wait(SECONDS)
        super().sync(descriptor)


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupted(
    when: Callable[[], bool], *, again: Callable[[], bool] | None = None, then: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Interrupt what is within once something is the case, and again once something else is; then have it go on."""
    over = threading.Event()

    def send() -> None:
        while not when() and not over.is_set():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        if again is not None:
            wait_until(again)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        then()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        over.set()
        thread.join()


def _bucket_is_locked(path: Path, table: int = 1) -> bool:
    return is_locked(paths.bucket_directory(path, TableId(table), BucketId(0)) / paths.LOCK_FILE)


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("kvstore")]


def _comes(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def test_an_interrupted_close_can_be_finished(store_path: Path) -> None:
    files = SlowFiles()
    store = Store(store_path, StoreOptions("none"), files=files)
    store.create_table("t", SCHEMA, primary_key="k").upsert({"k": 1, "v": 1})
    files.may_sync.clear()
    with _interrupted(files.waiting.is_set, then=files.may_sync.set):
        store.close()
    store.close()
    assert not _bucket_is_locked(store_path)
    assert _comes(lambda: not _threads())
    with kvstore.open(store_path) as again:
        assert again.table("t").get(1) == {"k": 1, "v": 1}
        assert again.check().ok


def test_a_second_interrupt_does_not_wait_and_close_does(store_path: Path) -> None:
    files = SlowFiles()
    store = Store(store_path, StoreOptions("none"), files=files)
    store.create_table("t", SCHEMA, primary_key="k").upsert({"k": 1, "v": 1})
    files.may_sync.clear()
    raised: list[int] = []

    def interrupt(number: int, _: object) -> None:
        raised.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    with _interrupted(files.waiting.is_set, again=lambda: bool(raised)):  # two at once would be one
        store.close()
    assert len(raised) == 2
    assert _bucket_is_locked(store_path)
    threading.Timer(0.05, files.may_sync.set).start()
    store.close()
    assert not _bucket_is_locked(store_path)
    assert _comes(lambda: not _threads())


def test_an_upsert_that_is_interrupted_while_the_disk_is_slow_is_done_or_not(store_path: Path) -> None:
    files = SlowFiles()
    with Store(store_path, StoreOptions(), files=files) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
        table.upsert([{"k": k, "v": 0} for k in range(10)])
        files.may_sync.clear()
        with _interrupted(files.waiting.is_set, then=files.may_sync.set):
            table.upsert([{"k": k, "v": 1} for k in range(10)])
        table.upsert({"k": 100, "v": 1})
        # The other bucket may still have the disk to wait for; reads wait for no write.
        assert _comes(lambda: {row["v"] for row in table.scan().read_all().to_pylist()} == {1})


@contextmanager
def _held_by_another_thread(context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with context():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(600)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_the_wait_for_another_commit_ends(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
        rows = Changes.upserts(pa.RecordBatch.from_pylist([{"k": 1, "v": 1}], SCHEMA))
        commits = store.runtime.open_table(store.runtime.definition("t")).commits
        with _held_by_another_thread(commits.turn):
            began = threading.Event()
            beginning = commits.turn

            @contextmanager
            def turn() -> Iterator[None]:
                began.set()
                with beginning():
                    yield

            commits.turn = turn  # type: ignore[method-assign]
            with _interrupted(began.is_set):
                table.apply_epoch(rows, "w", 0)
            commits.turn = beginning  # type: ignore[method-assign]
        assert not store.table("t").writers
        table.apply_epoch(rows, "w", 0)
        assert table.get(1) == {"k": 1, "v": 1}


def test_a_follower_of_changes_is_interrupted_while_it_waits(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert({"k": 1, "v": 1})
        found = []
        with _interrupted(lambda: bool(found)):
            found.extend(table.changelog("earliest", follow=True))


def test_an_unreferenced_store_gives_its_locks_back(store_path: Path) -> None:
    store = kvstore.open(store_path)
    store.create_table("t", SCHEMA, primary_key="k").upsert({"k": 1, "v": 1})
    assert _bucket_is_locked(store_path)
    del store
    gc.collect()
    assert _comes(lambda: not _bucket_is_locked(store_path))
    assert _comes(lambda: not _threads())


def test_a_table_keeps_its_store(store_path: Path) -> None:
    table = kvstore.open(store_path).create_table("t", SCHEMA, primary_key="k")
    gc.collect()
    table.upsert({"k": 1, "v": 1})
    assert table.get(1) == {"k": 1, "v": 1}
    with kvstore.open(store_path):
        del table


def test_a_writer_that_is_interrupted_while_it_closes_sends_on_and_can_be_closed(store_path: Path) -> None:
    files = SlowFiles()
    with Store(store_path, StoreOptions(), files=files) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert({"k": 0, "v": 0})
        writer = table.writer()
        files.may_sync.clear()
        writer.upsert({"k": 1, "v": 1})
        with _interrupted(files.waiting.is_set):
            writer.close()
        files.may_sync.set()
        writer.close()
        assert table.get(1) == {"k": 1, "v": 1}


class TestCalls:
    def test_the_result_and_the_error_come_to_the_caller(self) -> None:
        assert calls.uninterrupted(lambda: 7)() == 7
        with pytest.raises(LookupError, match="none"):
            calls.uninterrupted(_fail)()

    def test_in_the_main_thread_it_is_another_thread_and_elsewhere_the_same(self) -> None:
        where = calls.uninterrupted(threading.get_ident)
        assert where() != threading.get_ident()
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(where() == threading.get_ident()))
        thread.start()
        thread.join()
        assert found == [True]

    def test_without_another_thread_it_is_done_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def start(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        where = calls.uninterrupted(threading.get_ident)
        monkeypatch.setattr(threading.Thread, "start", start)
        assert where() != threading.get_ident()  # it was begun in a thread that `threading` does not know
        monkeypatch.setattr(_thread, "start_new_thread", start)
        assert where() == threading.get_ident()

    @pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
    def test_a_call_within_one_does_not_wait_for_ever_without_another_thread(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def start(*_: object) -> None:
            raise error

        within = calls.uninterrupted(lambda: 7)
        monkeypatch.setattr(_thread, "start_new_thread", start)
        assert calls.uninterrupted(lambda: within() + within())() == 14
        with pytest.raises(LookupError, match="none"):
            calls.uninterrupted(lambda: calls.uninterrupted(_fail)())()

    def test_a_thread_that_can_not_begin_another_for_want_of_memory_does_the_work(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr(threading.Thread, "__init__", start)
        assert calls.uninterrupted(lambda: 7)() == 7

    def test_a_store_works_without_another_thread_for_its_calls(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        with open_store() as store:
            table = store.create_table("t", SCHEMA, "k")
            monkeypatch.setattr(_thread, "start_new_thread", start)
            table.upsert({"k": 1, "v": 1})
            assert table.get(1) == {"k": 1, "v": 1}

    def test_a_call_that_looks_for_its_caller_ends_early(self) -> None:
        began, ended = threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            try:
                while True:
                    calls.check_caller()
            finally:
                ended.set()

        with _interrupted(began.is_set):
            calls.uninterrupted(work)()
        assert ended.is_set()
        calls.check_caller()  # elsewhere there is no caller


def _fail() -> None:
    raise LookupError("none")


def _answer_comes_after_an_interrupt(make: Callable[[], Future[int]], moment: int) -> bool:
    future = make()
    Moments().interrupt(future.done, moment)
    thread = threading.Thread(target=lambda: future.set_result(7), daemon=True)
    thread.start()
    came = ends_or_waits(thread, seconds=SECONDS)
    while thread.is_alive():  # an interrupt has left its lock locked, and it is this thread's
        future._condition.release()  # type: ignore[attr-defined]  # so that nothing waits for ever
        thread.join(0.1)
    return came


def test_an_interrupted_wait_for_an_answer_does_not_stop_the_thread_that_gives_it() -> None:
    moments = range(Moments().of(calls.Answer[int]().done))
    assert moments
    assert all(_answer_comes_after_an_interrupt(calls.Answer, moment) for moment in moments)


def test_a_future_of_python_is_stopped_so() -> None:
    """Planted: so the test above tries what it says."""
    moments = range(Moments().of(Future[int]().done))
    assert not all(_answer_comes_after_an_interrupt(Future, moment) for moment in moments)


NO_MEMORY = """
from kvstore.process import calls
calls.BEGIN_SECONDS = 0.01
calls._begin = lambda work: None  # as if the thread had no memory for its first frame
import sys, kvstore
with kvstore.open(sys.argv[1]) as store:
    table = store.create_table("t", {"k": "int64"}, "k")
    table.upsert({"k": 1})
    print(table.count())
"""


def test_a_call_whose_thread_can_not_run_is_made_by_its_caller(tmp_path: Path) -> None:
    run = [sys.executable, "-c", NO_MEMORY, str(tmp_path / "s")]
    assert subprocess.run(run, capture_output=True, text=True, check=True, timeout=300).stdout == "1\n"
