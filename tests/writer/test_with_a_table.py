"""A writer with a real table."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import (
    AggregateOverflow,
    KeyTooLarge,
    NoSuchTable,
    RowsRefused,
    SchemaMismatch,
    StoreClosed,
    StoreLocked,
)
from tests.support.tables import rows_of
from tests.writer.inputs import eventually
from writer import Identity, TableWriter
from writer.bucket_queue import BucketQueue
from writer.buffer import Buffer

SCHEMA = pa.schema([pa.field("k", pa.string(), False), pa.field("n", pa.int8())])


def identity(store: kvstore.Store) -> Identity:
    return Identity(store.new_writer_id())


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows that sending threads have taken, though they may not be in a batch yet."""
    counts: list[int] = []
    converted = Buffer.converted

    def counted(self: Buffer, items: int, known: int, now: int) -> None:
        converted(self, items, known, now)
        counts.append(items)

    monkeypatch.setattr(Buffer, "converted", counted)
    return counts


def test_rows_reach_every_bucket(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=3)
    with TableWriter(table, identity(store), batch_rows=100, linger_ms=1) as writer:
        for i in range(3000):
            writer.upsert({"k": f"{i % 1000}", "n": i % 100})
        writer.delete([f"{i}" for i in range(500)])
        writer.delete("unknown")
        writer.flush()
        assert table.count() == 500
    assert {row["k"]: row["n"] for row in rows_of(table)} == {f"{i}": i % 100 for i in range(500, 1000)}


def test_only_the_key_that_is_too_large_is_refused(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    with TableWriter(table, identity(store)) as writer:
        # Escaping doubles bytes, so the length alone does not decide.
        writer.upsert([{"k": k, "n": 1} for k in ("a", "x" * 510, "b", "\0" * 300, "c", "y" * 509, "\0" * 254)])
        writer.delete(["a", "z" * 600])
        with pytest.raises(RowsRefused) as raised:
            writer.flush()
    assert [each.rows[0] if isinstance(each.changes, list) else None for each in raised.value.refused] == [
        {"k": "x" * 510, "n": 1},
        {"k": "\0" * 300, "n": 1},
        "z" * 600,
    ]
    assert {type(each.error) for each in raised.value.refused} == {KeyTooLarge}
    assert sorted(row["k"] for row in rows_of(table)) == sorted(["b", "c", "y" * 509, "\0" * 254])


def test_an_overflow_refuses_one_batch_and_later_ones_are_written(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", merge_engine=kvstore.Aggregate({"n": "sum"}))
    with TableWriter(table, identity(store), batch_rows=2, linger_ms=10_000) as writer:
        for n in (100, 1, 2, 100, 3, 4, 5, 6):
            writer.upsert({"k": "a", "n": n})
        with pytest.raises(RowsRefused) as raised:
            writer.flush()
    (refused,) = raised.value.refused
    assert refused.rows == [{"k": "a", "n": 2}, {"k": "a", "n": 100}]
    assert isinstance(refused.error, AggregateOverflow)
    assert rows_of(table) == [{"k": "a", "n": 100 + 1 + 3 + 4 + 5 + 6}]
    # The empty batch took an offset.
    assert table.offsets() == {0: (0, 1 + 2 * 5 + 1)}


def test_an_auto_increment_column_is_not_given(store: kvstore.Store) -> None:
    schema = pa.schema([*SCHEMA, pa.field("id", pa.int64())])
    table = store.create_table("t", schema, primary_key="k", auto_increment="id", buckets=2)
    with TableWriter(table, identity(store)) as writer:
        writer.upsert([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        writer.upsert(pa.table({"n": pa.array([3], pa.int8()), "k": ["c"]}))
        writer.delete("a")
        writer.upsert({"k": "d", "n": 1, "id": 5})
        with pytest.raises(RowsRefused, match="no such column"):
            writer.flush()
    assert sorted((row["k"], row["n"]) for row in rows_of(table)) == [("b", 2), ("c", 3)]


def test_a_log_table_is_appended_to(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, buckets=2)
    with TableWriter(table, identity(store), batch_rows=10) as writer:
        writer.upsert([{"k": "a", "n": n} for n in range(100)])
    assert table.count() == 100


def test_data_may_lack_a_column_added_since(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    with TableWriter(table, identity(store)) as writer:
        writer.upsert({"k": "a", "n": 1})
        writer.flush()
        store.add_columns("t", [pa.field("x", pa.int8())])
        writer.upsert({"k": "b", "n": 1, "x": 2})
        # Whether a row was handed over before the column was added can't be known: the thread takes it later.
        writer.upsert({"k": "c", "n": 1})
        writer.upsert({"n": 1, "x": 1})
        writer.delete("a")
        with pytest.raises(RowsRefused) as raised:
            writer.flush()
        assert [each.rows for each in raised.value.refused] == [[{"n": 1, "x": 1}]]
        assert isinstance(raised.value.refused[0].error, SchemaMismatch)
        with pytest.raises(SchemaMismatch):
            writer.upsert(pa.table({"n": pa.array([1], pa.int8())}))
        writer.upsert(pa.table({"k": ["e"], "n": pa.array([1], pa.int8())}))
    assert rows_of(table) == [
        {"k": "b", "n": 1, "x": 2},
        {"k": "c", "n": 1, "x": None},
        {"k": "e", "n": 1, "x": None},
    ]


def test_rows_from_before_and_after_a_new_column_are_in_different_batches(
    store: kvstore.Store, taken: list[int]
) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    with TableWriter(table, identity(store), linger_ms=60_000) as writer:
        for i in range(64):
            writer.upsert({"k": f"{i}", "n": 1})
        assert eventually(lambda: sum(taken) == 64)
        store.add_columns("t", [pa.field("x", pa.int8())])
        for i in range(64, 128):
            writer.upsert({"k": f"{i}", "n": 1, "x": 2})
    assert {(int(row["k"]) >= 64, row["x"]) for row in rows_of(table)} == {(False, None), (True, 2)}
    assert table.count() == 128


def test_rows_of_every_form_from_before_a_new_column_are_written(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
    table.upsert([{"k": "gone", "n": 1}, {"k": "gone too", "n": 1}])
    with TableWriter(table, identity(store), linger_ms=60_000) as writer:
        writer.upsert(pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int8())}))
        writer.delete(pa.array(["gone"]))
        writer.upsert({"k": "c", "n": 3})
        writer.delete("gone too")
        store.add_columns("t", [pa.field("x", pa.int8())])
        writer.upsert({"k": "d", "n": 4, "x": 1})
        writer.upsert(pa.table({"k": ["e"], "n": pa.array([5], pa.int8()), "x": pa.array([2], pa.int8())}))
    assert sorted((row["k"], row["n"], row["x"]) for row in rows_of(table)) == [
        *(("a", 1, None), ("b", 2, None), ("c", 3, None), ("d", 4, 1), ("e", 5, 2)),
    ]


class LockedBucket:
    """A bucket that loses everything while it is locked."""

    locked = True

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    def submit(self, *batch: Any, **options: Any) -> Future[Any]:
        if LockedBucket.locked:
            raise StoreLocked("Locked.")
        return self._bucket.submit(*batch, **options)


@pytest.mark.parametrize("engine", [None, kvstore.Aggregate({"n": "sum"})])
def test_a_batch_from_before_a_new_column_is_written_and_so_is_its_empty_batch(
    store: kvstore.Store, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", **({} if engine is None else {"merge_engine": engine}))
    monkeypatch.setattr(LockedBucket, "locked", True)
    queued: list[BucketQueue] = []
    add = BucketQueue.add

    def added(self: BucketQueue, *batch: Any) -> None:
        add(self, *batch)
        queued.append(self)

    monkeypatch.setattr(BucketQueue, "add", added)
    bucket = table.bucket(0)
    monkeypatch.setattr(table, "bucket", lambda _: LockedBucket(bucket))
    writer = TableWriter(table, identity(store), batch_rows=2, delivery_timeout_ms=5_000)
    writer.upsert([{"k": "a", "n": 100}, {"k": "b", "n": 1}, {"k": "a", "n": 100}, {"k": "c", "n": 1}])
    assert eventually(lambda: len(queued) == 2)
    store.add_columns("t", [pa.field("x", pa.int8())])
    LockedBucket.locked = False
    if engine is None:
        writer.close()
        assert rows_of(table) == [{"k": "a", "n": 100, "x": None}, *({"k": k, "n": 1, "x": None} for k in "bc")]
    else:
        with pytest.raises(RowsRefused) as raised:
            writer.close()
        (refused,) = raised.value.refused
        assert isinstance(refused.error, AggregateOverflow)
        assert rows_of(table) == [{"k": "a", "n": 100, "x": None}, {"k": "b", "n": 1, "x": None}]


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_rows_are_not_lost_when_the_table_is_dropped(store_path: Path, taken: list[int], how: str) -> None:
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=3)
        writer = TableWriter(table, identity(store), linger_ms=60_000)
        for i in range(64):
            writer.upsert({"k": f"{i}", "n": 1})
        assert eventually(lambda: sum(taken) == 64)
        if how == "closed":
            store.close()
        else:
            store.drop_table("t")
        with pytest.raises(StoreClosed if how == "closed" else NoSuchTable):
            writer.flush()
    assert sorted(int(k) for changes in writer.unacknowledged for k in changes.rows.column("k").to_pylist()) == [
        *range(64)
    ]


def test_an_unclosed_writer_writes_its_rows_at_the_end_of_the_program(store_path: Path) -> None:
    program = """
import sys, kvstore, pyarrow as pa
store = kvstore.open(sys.argv[1])
table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k", buckets=2)
writer = table.writer(linger_ms=60_000)
for k in range(10):
    writer.upsert({"k": k})
"""
    run = [sys.executable, "-W", "always", "-c", program, str(store_path)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0
    assert "ResourceWarning: TableWriter was not closed" in done.stderr
    with kvstore.open(store_path) as store:
        assert store.table("t").count() == 10


def test_closing_the_store_ends_the_writer(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        writer = TableWriter(table, identity(store), linger_ms=60_000)
        writer.upsert({"k": "a", "n": 1})
    with pytest.raises(StoreClosed, match="The store was closed"):
        writer.flush()
    assert [changes.rows.to_pylist() for changes in writer.unacknowledged] == [[{"k": "a", "n": 1}]]
    with pytest.raises(StoreClosed):
        writer.close()
