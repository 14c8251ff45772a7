"""A writer and a real table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import AggregateOverflow, KeyTooLarge, RowsRefused, SchemaMismatch, StoreClosed
from tests.support.tables import rows_of
from writer import Identity, TableWriter

SCHEMA = pa.schema([pa.field("k", pa.string(), False), pa.field("n", pa.int8())])


def who(store: kvstore.Store) -> Identity:
    return Identity(store.new_writer_id())


def test_rows_go_through_to_every_bucket(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=3)
    with TableWriter(table, who(store), batch_rows=100, linger_ms=1) as writer:
        for i in range(3000):
            writer.upsert({"k": f"{i % 1000}", "n": i % 100})
        writer.delete([f"{i}" for i in range(500)])
        writer.delete("nobody")
        writer.flush()
        assert table.count() == 500
    assert {row["k"]: row["n"] for row in rows_of(table)} == {f"{i}": i % 100 for i in range(500, 1000)}


def test_a_key_too_large_is_refused_by_itself(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    with TableWriter(table, who(store)) as writer:
        # What is escaped takes two bytes, so length alone does not say.
        writer.upsert([{"k": k, "n": 1} for k in ("a", "x" * 510, "b", "\0" * 300, "c", "y" * 509, "\0" * 254)])
        writer.delete(["a", "z" * 600])
        with pytest.raises(RowsRefused) as told:
            writer.flush()
    assert [each.rows[0] if isinstance(each.changes, list) else None for each in told.value.refused] == [
        {"k": "x" * 510, "n": 1},
        {"k": "\0" * 300, "n": 1},
        "z" * 600,
    ]
    assert {type(each.error) for each in told.value.refused} == {KeyTooLarge}
    assert sorted(row["k"] for row in rows_of(table)) == sorted(["b", "c", "y" * 509, "\0" * 254])


def test_an_overflow_refuses_a_batch_and_those_behind_it_are_written(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", merge_engine=kvstore.Aggregate({"n": "sum"}))
    with TableWriter(table, who(store), batch_rows=2, linger_ms=10_000) as writer:
        for n in (100, 1, 2, 100, 3, 4, 5, 6):
            writer.upsert({"k": "a", "n": n})
        with pytest.raises(RowsRefused) as told:
            writer.flush()
    (refused,) = told.value.refused
    assert refused.rows == [{"k": "a", "n": 2}, {"k": "a", "n": 100}]
    assert isinstance(refused.error, AggregateOverflow)
    assert rows_of(table) == [{"k": "a", "n": 100 + 1 + 3 + 4 + 5 + 6}]
    # The empty batch took an offset.
    assert table.offsets() == {0: (0, 1 + 2 * 5 + 1)}


def test_a_column_the_table_fills_is_not_given(store: kvstore.Store) -> None:
    schema = pa.schema([*SCHEMA, pa.field("id", pa.int64())])
    table = store.create_table("t", schema, primary_key="k", auto_increment="id", buckets=2)
    with TableWriter(table, who(store)) as writer:
        writer.upsert([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        writer.upsert(pa.table({"n": pa.array([3], pa.int8()), "k": ["c"]}))
        writer.delete("a")
        writer.upsert({"k": "d", "n": 1, "id": 5})
        with pytest.raises(RowsRefused, match="no such column"):
            writer.flush()
    assert sorted((row["k"], row["n"]) for row in rows_of(table)) == [("b", 2), ("c", 3)]


def test_a_log_table_is_appended_to(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, buckets=2)
    with TableWriter(table, who(store), batch_rows=10) as writer:
        writer.upsert([{"k": "a", "n": n} for n in range(100)])
    assert table.count() == 100


def test_a_column_added_meanwhile_is_asked_for_from_then_on(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    with TableWriter(table, who(store)) as writer:
        writer.upsert({"k": "a", "n": 1})
        writer.flush()
        store.add_columns("t", [pa.field("x", pa.int8())])
        writer.upsert({"k": "b", "n": 1, "x": 2})
        writer.upsert({"k": "c", "n": 1})
        with pytest.raises(RowsRefused) as told:
            writer.flush()
        assert [each.rows for each in told.value.refused] == [[{"k": "c", "n": 1}]]
        assert isinstance(told.value.refused[0].error, SchemaMismatch)
    assert rows_of(table) == [{"k": "a", "n": 1, "x": None}, {"k": "b", "n": 1, "x": 2}]


def test_a_store_that_is_closed_ends_the_writer(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        writer = TableWriter(table, who(store), linger_ms=60_000)
        writer.upsert({"k": "a", "n": 1})
    with pytest.raises(StoreClosed, match="The store was closed"):
        writer.flush()
    assert [changes.rows.to_pylist() for changes in writer.unacknowledged] == [[{"k": "a", "n": 1}]]
    with pytest.raises(StoreClosed):
        writer.close()
