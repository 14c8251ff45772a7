"""Readers that wait are woken by a write, by every way to wait; where nothing wakes them, they look."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kvstore
from kvstore.disk import watch
from kvstore.disk.watch import Watch, wake_all
from kvstore.errors import NoSuchTable, StoreClosed
from kvstore.read import follow
from tests.conftest import OpenStore
from tests.support.following import Following
from tests.support.processes import Child, Pipe
from tests.support.waiting import wait_until

FAR_SECONDS = 300.0
FILE = "PUBLISHED"


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "kvstore-watch"]


def instances() -> int:
    """The inotify instances of this process."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify"
        except FileNotFoundError:
            continue
    return count


@pytest.fixture(autouse=True)
def _ends_with_the_last_reader() -> Iterator[None]:
    gc.collect()
    wait_until(lambda: not threads())
    yield
    gc.collect()
    wait_until(lambda: not threads() and not instances())


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k", buckets=2)


@pytest.fixture
def only_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers look again in a few minutes; earlier only if they are woken."""
    monkeypatch.setattr(follow, "PAUSE_SECONDS_MIN", FAR_SECONDS)
    monkeypatch.setattr(follow, "WATCHED_SECONDS_MAX", FAR_SECONDS)


def changelog(table: kvstore.Table) -> Iterator[int]:
    for batch in table.changelog("latest", follow=True, columns=["k"]):
        yield from batch.column("k").to_pylist()


def subscription(table: kvstore.Table) -> Iterator[int]:
    with table.subscribe("s", start="latest", columns=["k"]) as changes:
        for batch in changes:
            yield from batch.column("k").to_pylist()


def _in_asyncio(batches: Callable[[kvstore.Table], object]) -> Callable[[kvstore.Table], Iterator[int]]:
    def found(table: kvstore.Table) -> Iterator[int]:
        changes = batches(table)

        async def one() -> list[int]:
            batch = await anext(aiter(changes))  # type: ignore[call-overload]
            return list(batch.column("k").to_pylist())

        while True:
            yield from asyncio.run(one())

    return found


WAYS = {
    "changelog": changelog,
    "subscription": subscription,
    "follow": _in_asyncio(lambda table: table.follow("latest", columns=["k"])),
    "subscription in asyncio": _in_asyncio(lambda table: table.subscribe("s", start="latest", columns=["k"])),
}


class Reading(threading.Thread):
    """Takes some keys in its own thread, and ends."""

    def __init__(self, keys: Iterator[int], count: int) -> None:
        super().__init__(daemon=True)
        self._keys, self._count = keys, count
        self.found: list[int] = []
        self.start()

    def run(self) -> None:
        for _ in range(self._count):
            self.found.append(next(self._keys))
        self._keys.close()  # type: ignore[attr-defined]


def written_by_another_process(path: Path, key: int) -> None:
    with Child(write, path, key) as child:
        assert child.join() == 0


def write(_: Pipe, path: Path, key: int) -> None:
    with kvstore.open(path) as store:
        store.table("t").upsert({"k": key, "v": key})


@pytest.mark.usefixtures("only_woken")
class TestWoken:
    @pytest.mark.parametrize("way", WAYS)
    def test_a_write_of_another_process_wakes_a_reader(self, table: kvstore.Table, store_path: Path, way: str) -> None:
        reading = Reading(WAYS[way](table), 1)
        wait_until(lambda: bool(threads()))
        written_by_another_process(store_path, 7)
        reading.join(60)
        assert reading.found == [7]

    def test_closing_the_store_wakes_readers(self, open_store: OpenStore) -> None:
        store = open_store()
        table = store.create_table("t", {"k": "int64"}, primary_key="k")
        following = [Following(table.changelog(follow=True)) for _ in range(3)]
        wait_until(lambda: bool(threads()))
        store.close()
        for each in following:
            with pytest.raises(StoreClosed):
                each.ended()

    def test_dropping_the_table_wakes_readers(self, store: kvstore.Store, table: kvstore.Table) -> None:
        table.upsert({"k": 1, "v": 1})
        following = Following(table.changelog(follow=True))
        following.wait_for(1)
        wait_until(lambda: bool(threads()))
        store.drop_table("t")
        with pytest.raises(NoSuchTable):
            following.ended()

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
    def test_a_reader_is_woken_after_a_fork_and_a_child_has_none_of_its_watches(
        self, table: kvstore.Table, store_path: Path
    ) -> None:
        reading = Reading(changelog(table), 1)
        wait_until(lambda: bool(threads()))
        pid = os.fork()
        if not pid:
            os._exit(0 if _child_watches_for_itself(store_path.parent / "of the child") else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        written_by_another_process(store_path, 7)
        reading.join(60)
        assert reading.found == [7]


def _child_watches_for_itself(directory: Path) -> bool:
    """Whether a forked child has no inotify instance, and one that wakes it once it watches."""
    had = instances()
    directory.mkdir()
    watching = Watch([directory], FILE)
    if had or not watching.open() or instances() != 1:
        return False
    (directory / FILE).touch()
    return watching.wait(60)


class TestNothingWakes:
    def test_a_process_without_an_instance_looks(
        self, table: kvstore.Table, store_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(follow, "WATCHED_SECONDS_MAX", FAR_SECONDS)

        def none_is_left(name: str, *_: object) -> int:
            raise OSError(errno.EMFILE, name)

        monkeypatch.setattr(watch, "called", none_is_left)
        reading = Reading(changelog(table), 2)
        for key in range(2):
            written_by_another_process(store_path, key)
        reading.join(60)
        assert reading.found == [0, 1]
        assert not threads()

    def test_a_process_without_another_thread_looks(
        self, table: kvstore.Table, store_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = threading.Thread.start

        def refused(thread: threading.Thread) -> None:
            if thread.name == "kvstore-watch":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refused)
        reading = Reading(changelog(table), 1)
        written_by_another_process(store_path, 7)
        reading.join(60)
        assert reading.found == [7]
        assert not instances()


class TestWatch:
    def test_it_wakes_for_its_file_of_any_of_its_directories(self, tmp_path: Path) -> None:
        places = [tmp_path / name for name in "ab"]
        for each in places:
            each.mkdir()
        watching, other = Watch(places, FILE), Watch(places[:1], "another file")
        assert watching.open()
        assert other.open()
        assert len(threads()) == instances() == 1
        for each in (*places, *places):
            (each / FILE).write_bytes(b"x")
            assert watching.wait(60)
            while watching.wait(0.05):
                pass  # it was created, and then written
        assert not other.wait(0)
        (places[0] / "another file").touch()
        assert other.wait(60)
        assert not watching.wait(0)

    def test_a_watch_that_is_closed_leaves_the_others(self, tmp_path: Path) -> None:
        first, second = (Watch([tmp_path], FILE) for _ in range(2))
        assert first.open()
        assert second.open()
        first.close()
        first.close()
        for _ in range(2):
            (tmp_path / FILE).write_bytes(b"x")
            assert second.wait(60)
        assert first.open()
        (tmp_path / FILE).write_bytes(b"y")
        assert first.wait(60)

    def test_it_goes_on_where_the_path_leads_once_its_directory_was_moved(self, tmp_path: Path) -> None:
        path = tmp_path / "here"
        path.mkdir()
        watching = Watch([path], FILE)
        assert watching.open()
        path.rename(tmp_path / "away")
        assert watching.wait(60)
        assert not watching.open()
        path.mkdir()
        assert watching.open()
        (path / FILE).touch()
        assert watching.wait(60)

    def test_what_comes_between_two_waits_ends_the_next(self, tmp_path: Path) -> None:
        watching = Watch([tmp_path], FILE)
        assert watching.open()
        wake_all()
        assert watching.wait(0)
        assert not watching.wait(0)
        wake_all()
        assert asyncio.run(watching.wait_async(60))
        assert not asyncio.run(watching.wait_async(0))

    def test_one_that_nothing_refers_to_is_closed(self, tmp_path: Path) -> None:
        watching = Watch([tmp_path], FILE)
        assert watching.open()
        del watching
        gc.collect()
        wait_until(lambda: not threads())

    def test_watches_come_and_go_in_many_threads(self, tmp_path: Path) -> None:
        def come_and_go() -> bool:
            for _ in range(100):
                watching = Watch([tmp_path], FILE)
                if not watching.open():
                    return False
                (tmp_path / FILE).write_bytes(b"x")
                if not watching.wait(60):
                    return False
                watching.close()
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(each.result() for each in [pool.submit(come_and_go) for _ in range(4)])
