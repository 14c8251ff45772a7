"""Following what other processes write: all of it, whatever happens to them."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.bucket_lock import BucketLock
from kvstore.clock import SystemClock
from kvstore.disk.held_directory import HeldDirectory
from kvstore.errors import NoSuchTable
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.store.helpers import Program, run
from tests.support.following import Following, Polls, changes
from tests.support.tables import changes_of
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])

WRITER = """
import random
store = kvstore.open(path, segment_bytes_max=8000)
table = store.table("t")
choose = random.Random(7)
print("ready")
sys.stdin.readline()
for step in range(200):
    table.upsert([{"k": key, "v": step} for key in choose.sample(range(20), 4)])
    if step % 3 == 0:
        table.delete(choose.sample(range(20), 2))
    if step % 20 == 0:
        table.flush()
print(table.offsets()[0][1])
sys.stdin.readline()
"""

LAZY = """
store = kvstore.open(path, commit_wait_ms=60_000, commit_idle_ms=60_000)
table = store.table("t")
table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
print("written")
sys.stdin.readline()
"""


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", SCHEMA, primary_key="k")


def test_everything_another_process_writes_comes_once_and_in_order(store: kvstore.Store, table: kvstore.Table) -> None:
    with Program(store.path, WRITER) as other:
        assert other.line() == "ready"
        reading = kvstore.open(store.path, read_only=True)
        whole = Following(table.changelog(follow=True))
        late = Following(reading.table("t").changelog("latest", follow=True, columns=["_log_offset"]))
        full = Following(table.binlog("full", follow=True))
        other.go_on()
        end = int(other.line())
        wait_until(lambda: table.offsets()[0][1] == end)
        expected, binlog = changes(table.changelog()), changes(table.binlog())
        for follower, count in ((whole, len(expected)), (late, len(expected)), (full, len(binlog))):
            follower.wait_for(count)
        assert whole.taken == expected
        assert [change["_log_offset"] for change in late.taken] == [change["_log_offset"] for change in expected]
        assert full.taken == binlog
        reading.close()


def test_what_a_writer_acknowledged_comes_and_then_what_the_next_one_writes(
    store: kvstore.Store, table: kvstore.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = Polls(monkeypatch)
    with Program(store.path, LAZY) as other:
        following = Following(table.changelog(follow=True, end=3))
        assert other.line() == "written"
        following.wait_for(2)
        other.kill()
    polls.wait_for_more(following)
    run(store.path, "kvstore.open(path).table('t').upsert({'k': 3, 'v': 3})")
    assert following.ended() == changes(table.changelog())


class StandingClock(SystemClock):
    """The real clock, whose monotonic time stands still while it is held."""

    held: float | None = None

    def monotonic(self) -> float:
        return super().monotonic() if self.held is None else self.held


def test_a_follower_notices_a_rebuilt_index(store_path: Path) -> None:
    clock = StandingClock()
    store = Store(store_path, StoreOptions(), clock=clock)
    table = store.create_table("t", SCHEMA, "k")
    run(store_path, "kvstore.open(path).table('t').upsert({'k': 1, 'v': 1})")
    clock.held = clock.monotonic()
    following = Following(table.changelog(follow=True, end=2))
    following.wait_for(1)
    table.bucket(0).handle.committed()
    # For a moment there is no index, and the follower does not look: the process has looked once, and no time passes.
    shutil.rmtree(store_path / "tables/1/0/index")
    run(store_path, "kvstore.open(path).table('t').upsert({'k': 2, 'v': 2})")
    clock.held = None
    assert following.ended() == changes(table.changelog())
    assert [offset for offset, *_ in changes_of(table)] == [0, 1]
    store.close()


DROPPER = """
from kvstore.table.creation import TableDirectories

store = kvstore.open(path)
remove = TableDirectories.remove

def removed(self, table):
    print("dropped")
    sys.stdin.readline()
    remove(self, table)

TableDirectories.remove = removed
print("ready")
sys.stdin.readline()
store.drop_table("a")
print("removed")
sys.stdin.readline()
"""


def test_a_lock_that_is_taken_while_its_table_is_removed_is_no_fault_of_the_store(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread verifies the directories of the store just then."""
    table = store.create_table("a", SCHEMA, "k")
    store.create_table("b", SCHEMA, "k").upsert({"k": 1})
    try_acquire, hold = BucketLock.try_acquire, HeldDirectory.hold
    with Program(store.path, DROPPER) as other:
        assert other.line() == "ready"

        def acquired_after_the_drop(lock: BucketLock) -> bool:
            monkeypatch.undo()
            other.go_on()
            assert other.line() == "dropped"
            monkeypatch.setattr(HeldDirectory, "hold", held_before_the_removal)
            return try_acquire(lock)

        def held_before_the_removal(place: HeldDirectory, directory: Path) -> None:
            monkeypatch.undo()
            hold(place, directory)
            other.go_on()
            assert other.line() == "removed"
            with ThreadPoolExecutor(1) as another:
                another.submit(place.verify).result()

        monkeypatch.setattr(BucketLock, "try_acquire", acquired_after_the_drop)
        with pytest.raises(NoSuchTable):
            table.upsert({"k": 1})
    assert store["b"].get(1) is not None
    store["b"].upsert({"k": 2})
    with pytest.raises(NoSuchTable):
        table.get(1)


def test_a_table_is_dropped_although_a_reader_opens_it_at_that_moment(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = store.path / "tables" / "1" / "0"
    store.create_table("a", SCHEMA, "k")
    assert bucket.is_dir()
    remove, calls = os.rmdir, 0

    def opened_meanwhile(path: str, *, dir_fd: int | None = None) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (bucket / "lock.mdb").touch()
        remove(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", opened_meanwhile)
    store.drop_table("a")
    assert calls > 1
    assert not bucket.parent.exists()


def test_a_table_dropped_by_another_process_ends_it(store: kvstore.Store) -> None:
    program = """
    store = kvstore.open(path)
    for name in ("a", "b", "c", "d"):
        store.drop_table(name)
    """
    tables = [store.create_table(name, SCHEMA, "k") for name in ("a", "b", "c", "d")]
    following = [Following(table.changelog(start, follow=True)) for table in tables for start in ("latest", "full")]
    run(store.path, program)
    for follower in following:
        with pytest.raises(NoSuchTable):
            follower.ended()
