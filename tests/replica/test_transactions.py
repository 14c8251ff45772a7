"""A replica, a copy that follows it, and a restored store have all of a transaction over several tables, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.commit import ends
from kvstore.errors import StoreFull, Unavailable
from kvstore.replica.follow.copied_bucket import CopiedBucket
from kvstore.replica.ship import shipper
from kvstore.replica.ship.shipper import Shipper
from kvstore.transaction import cut
from logformat.log.index_state import IndexState
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

TABLES = {"a": 2, "b": 1, "c": 3}
"""Names, and numbers of buckets."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kvstore.Store]:
    with kvstore.open(tmp_path / "s") as store:
        for name, buckets in TABLES.items():
            store.create_table(name, {"k": "int64", "v": "int64"}, primary_key="k", buckets=buckets)
        put(store, 0)
        yield store


def put(store: kvstore.Store, value: int) -> None:
    with store.transaction() as tx:
        for name in TABLES:
            tx.upsert(name, [{"k": k, "v": value} for k in range(5)])


def values(store: kvstore.Store) -> set[int]:
    return {row["v"] for name in TABLES for row in rows_of(store[name])}


@pytest.mark.parametrize("later", [1, 3, 5])
def test_a_transaction_that_comes_while_the_ends_are_noted(
    store: kvstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    replica = store.add_replica(str(tmp_path / "r"), "r")
    replica.ship()
    committed, calls = BucketHandle.committed, []

    def overtaken(self: BucketHandle) -> IndexState:
        state = committed(self)
        calls.append(self)
        if len(calls) == later:
            put(store, 1)
        return state

    monkeypatch.setattr(BucketHandle, "committed", overtaken)
    replica.ship()
    assert len(calls) > later
    monkeypatch.undo()
    kvstore.restore(str(tmp_path / "r"), tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert values(back) == {1}
        assert back.check().ok


def test_rounds_beside_transactions(store: kvstore.Store, tmp_path: Path) -> None:
    replica = store.add_replica(str(tmp_path / "r"), "r")
    replica.ship()
    stop, written = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            put(store, written[0] + 1)
            written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen: list[Any] = []
        with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
            for _ in range(3):
                replica.ship()
                follower.pull()
                with kvstore.open(tmp_path / "copy", read_only=True) as copy:
                    seen.append(values(copy))
    finally:
        stop.set()
        writer.join()
    assert all(len(each) == 1 for each in seen), seen
    assert max(max(each) for each in seen) > 0


def test_a_copy_whose_catalog_is_ahead_of_its_rows_is_read(
    store: kvstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends are noted before the catalog is shipped, which has the commits that were begun meanwhile."""
    monkeypatch.setattr(ends, "OPEN_SECONDS", 600.0)
    monkeypatch.setattr(cut, "COMMIT_WAIT_SECONDS", 0.0)
    replica = store.add_replica(str(tmp_path / "r"), "r")
    replica.ship()
    with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
        follower.pull()
        lead, calls = Shipper.lead, []

        def overtaken(self: Shipper) -> None:
            calls.append(self)
            if len(calls) == 1:
                put(store, 1)
            lead(self)

        store["a"].upsert({"k": 9, "v": 0})
        with monkeypatch.context() as patched:
            patched.setattr(Shipper, "lead", overtaken)
            replica.ship()
        follower.pull()
        check_is_before(tmp_path / "copy")
    check_is_before(tmp_path / "copy")  # nor is one that is not followed now taken for a store whose writer died
    with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
        replica.ship()
        follower.pull()
        with kvstore.open(tmp_path / "copy", read_only=True) as copy, copy.snapshot() as at:
            assert {row["v"] for name in at for row in rows_of(at[name]) if row["k"] != 9} == {1}


def check_is_before(path: Path) -> None:
    with kvstore.open(path, read_only=True) as copy:
        assert copy.runtime.catalog().writers_of(copy.runtime.definition("a").id).commits
        assert values(copy) == {0}
        assert copy["a"].count() == 6
        with copy.snapshot() as at:
            assert {row["v"] for name in at for row in rows_of(at[name])} == {0}


def test_a_round_between_the_tables_of_a_transaction_takes_what_is_before_it(
    store: kvstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipper does not wait for long until no commit comes."""
    monkeypatch.setattr(shipper, "CUT_LOOKS", 1)
    replica = store.add_replica(str(tmp_path / "r"), "r")
    replica.ship()
    with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
        follower.pull()
        committed, calls = BucketHandle.committed, []

        def overtaken(self: BucketHandle) -> IndexState:
            state = committed(self)
            calls.append(self)
            if len(calls) == 2:  # all of a, nothing of the other tables
                put(store, 1)
            return state

        with monkeypatch.context() as patched:
            patched.setattr(BucketHandle, "committed", overtaken)
            replica.ship()
        follower.pull()
        kvstore.restore(str(tmp_path / "r"), tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert values(back) == {0}
            assert back.check().ok
        with kvstore.open(tmp_path / "copy", read_only=True) as copy:
            assert values(copy) == {0}
            with copy.snapshot() as at:
                assert {row["v"] for name in at for row in rows_of(at[name])} == {0}
            replica.ship()
            follower.pull()
            assert values(copy) == {1}


def test_a_reader_of_a_copy_sees_no_part_of_a_round(
    store: kvstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = store.add_replica(str(tmp_path / "r"), "r")
    replica.ship()
    with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
        follower.pull()
        put(store, 1)
        a = store.runtime.definition("a").id
        wait_until(lambda: not store.runtime.catalog().writers_of(a).commits)
        replica.ship()
        append, seen = CopiedBucket.append, []

        def read(copy: kvstore.Store) -> set[int]:
            with copy.snapshot() as at:
                return {row["v"] for name in at for row in rows_of(at[name])}

        with kvstore.open(tmp_path / "copy", read_only=True) as copy, ThreadPoolExecutor(1) as pool:

            def appended(self: CopiedBucket, batches: Any) -> int:
                count = append(self, batches)
                seen.append(pool.submit(read, copy))
                sleep(0.05)
                return count

            monkeypatch.setattr(CopiedBucket, "append", appended)
            follower.pull()
            assert [each.result() for each in seen] == [{1}] * 6


def test_a_round_that_ended_halfway_is_not_read_before_the_next(
    store: kvstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "COMMIT_WAIT_SECONDS", 0.0)
    replica = store.add_replica(str(tmp_path / "r"), "r")
    replica.ship()
    with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
        follower.pull()
        put(store, 1)
        replica.ship()
        append, calls = CopiedBucket.append, []

        def fails(self: CopiedBucket, batches: Any) -> int:
            calls.append(self)
            if len(calls) == 3:
                raise StoreFull("No room.")
            return append(self, batches)

        with kvstore.open(tmp_path / "copy", read_only=True) as copy:
            with monkeypatch.context() as patched:
                patched.setattr(CopiedBucket, "append", fails)
                with pytest.raises(StoreFull):
                    follower.pull()
            with pytest.raises(Unavailable, match="follow on"):
                copy.snapshot()
            follower.pull()
            with copy.snapshot() as at:
                assert {row["v"] for name in at for row in rows_of(at[name])} == {1}
