"""A replica, a copy that follows it, and a restored store have all of a transaction over several tables, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.bucket.handle import BucketHandle
from logformat.log.index_state import IndexState
from tests.support.tables import rows_of

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
