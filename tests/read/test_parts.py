"""Commits of already partitioned changes: all or nothing, one after another, and replacing all rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore import Aggregate
from kvstore.errors import InvalidRequest, StoreError, UnsupportedOperation
from tests.conftest import OpenStore
from tests.support.processes import Child, Pipe
from tests.support.tables import changes_to, rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
COMMITS, ROWS = 12, 10


def upserts(keys: Any, value: int = 0) -> kvstore.Changes:
    return changes_to(SCHEMA, dict.fromkeys(keys, value))


def commit(pipe: Pipe, path: str, first: int) -> None:
    """Commit its own rows repeatedly, each time with a newly opened store."""
    pipe.send("ready")
    pipe.recv()
    for number in range(COMMITS):
        with kvstore.open(path) as store:
            table = store.table("t")
            start = first + number * ROWS
            answer = table.parts.apply(table.by_bucket(upserts(range(start, start + ROWS))), "batches")
            assert not any(each.duplicated for each in answer.by_bucket.values())
    pipe.send("done")


@pytest.mark.parametrize("buckets", [1, 3])
def test_concurrent_commits_of_several_processes_are_all_there(store: kvstore.Store, buckets: int) -> None:
    """The next process takes the next number, however much of the commit before waits for the index."""
    table = store.create_table("t", SCHEMA, "k", buckets=buckets)
    with (
        Child(commit, str(store.path), 0) as one,
        Child(commit, str(store.path), 10_000) as two,
        Child(commit, str(store.path), 20_000) as three,
    ):
        children = (one, two, three)
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say("go")
        for child in children:
            assert child.hear() == "done"
    assert table.count() == len(children) * COMMITS * ROWS
    assert table.bucket(0).last_sequence(table.writers["batches"].writer_id) == len(children) * COMMITS - 1


def replace_all(pipe: Pipe, path: str) -> None:
    with kvstore.open(path) as store:
        table = store.table("t")
        table.parts.apply(table.by_bucket(upserts([-1])), "batches", replaces=True)
    pipe.send("done")


@pytest.mark.parametrize("buckets", [1, 3])
def test_earlier_acknowledged_rows_are_replaced(open_store: OpenStore, buckets: int) -> None:
    """Including rows that their writer has not yet committed to the index."""
    store = open_store(commit_idle_ms=60_000, commit_wait_ms=60_000)
    table = store.create_table("t", SCHEMA, "k", buckets=buckets)
    for number in range(20):
        table.upsert({"k": number, "v": 0})
    with Child(replace_all, str(store.path)) as child:
        assert child.hear() == "done"
    assert rows_of(table) == [{"k": -1, "v": 0}]
    table.upsert({"k": 5, "v": 5})
    assert table.count() == 2


KEYS = st.tuples(
    st.integers(-2, 2),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([Decimal("-1.50"), Decimal("0.00"), Decimal("2.25")]),
    st.sampled_from([b"ab", b"\0\0"]),
    st.sampled_from([dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 1, 1, tzinfo=dt.UTC)]),
)
WIDE = pa.schema(
    [
        pa.field("i", pa.int16(), False),
        pa.field("s", pa.string(), False),
        pa.field("d", pa.decimal128(5, 2), False),
        pa.field("b", pa.binary(2), False),
        pa.field("t", pa.timestamp("us", "UTC"), False),
        pa.field("v", pa.int64()),
    ]
)


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(KEYS, max_size=6), st.lists(KEYS, max_size=6), st.integers(1, 3))
def test_replacing_leaves_exactly_the_written_rows(
    tmp_path_factory: pytest.TempPathFactory, before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], buckets: int
) -> None:
    def rows(keys: list[tuple[Any, ...]], value: int) -> list[dict[str, Any]]:
        return [{**dict(zip("isdbt", key, strict=True)), "v": value} for key in keys]

    with kvstore.open(tmp_path_factory.mktemp("replaced") / "s") as store:
        table = store.create_table("t", WIDE, ["i", "s", "d", "b", "t"], buckets=buckets)
        table.upsert(rows(before, 0))
        written = table.by_bucket(kvstore.Changes.of([("upsert", row) for row in rows(after, 1)], WIDE))
        table.parts.apply(written, "w", replaces=True)
        assert {tuple(row.values()) for row in rows_of(table)} == {(*key, 1) for key in after}
        gone = [row for batch in table.changelog() for row in batch.to_pylist() if row["_change_type"] == "delete"]
        assert {tuple(row[name] for name in "isdbt") for row in gone} == set(before) - set(after)
        assert store.check().ok


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("options", [{}, {"changelog_image": "wal"}, {"auto_increment": "n"}])
def test_rows_that_stay_equal_are_no_changes_of_a_replacement(
    open_store: OpenStore, buckets: int, options: dict[str, Any]
) -> None:
    store = open_store()
    schema = SCHEMA.append(pa.field("n", pa.int64()))
    table = store.create_table("t", schema, "k", buckets=buckets, **options)

    def parts(values: list[tuple[int, int]]) -> Any:
        rows = [("upsert", {"k": k, "v": v, **({} if "auto_increment" in options else {"n": k})}) for k, v in values]
        return table.by_bucket(
            kvstore.Changes.of(rows, pa.schema(schema if "auto_increment" not in options else SCHEMA))
        )

    table.parts.apply(parts([(k, 1) for k in range(8)]), "w")
    before = {bucket: end for bucket, (_, end) in table.offsets().items()}
    table.parts.apply(parts([(0, 1), (1, 1), (2, 9), (2, 1), (5, 2), (9, 1)]), "w", replaces=True)
    changes = [row for batch in table.changelog(before) for row in batch.to_pylist()]
    posts = [(row["k"], row["v"]) for row in changes if row["_change_type"] in ("insert", "update_postimage")]
    assert sorted(posts) == [(2, 1), (2, 9), (5, 2), (9, 1)]
    assert sorted(row["k"] for row in changes if row["_change_type"] == "delete") == [3, 4, 6, 7]
    assert sorted((row["k"], row["v"]) for row in rows_of(table)) == [(0, 1), (1, 1), (2, 1), (5, 2), (9, 1)]


def test_replacing_while_a_column_is_added(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.apply(upserts(range(4)))
    old = table.by_bucket(upserts([1, 9], 1))
    store.add_columns("t", [pa.field("n", pa.int64())])
    table.parts.apply(old, "w", replaces=True)
    assert sorted(row["k"] for row in rows_of(table)) == [1, 9]
    assert {row["n"] for row in rows_of(table)} == {None}


@pytest.mark.parametrize("epoch", [-1, True, "7", 1.5, 2**70])
def test_an_invalid_epoch_is_refused(store: kvstore.Store, epoch: Any) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    with pytest.raises(InvalidRequest, match="`epoch` must be an integer"):
        table.parts.apply({}, "w", epoch)
    with pytest.raises(InvalidRequest, match="`epoch` must be an integer"):
        table.apply_epoch(upserts([]), "w", epoch)
    assert table.writers == {}


def test_rows_of_another_bucket_are_refused(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    parts = table.by_bucket(upserts(range(10)))
    for wrong in ({0: parts[1]}, {1: parts[0], 0: parts[1]}, {2: parts[0]}, {0: upserts(range(10))}):
        with pytest.raises(InvalidRequest, match="belong to another bucket"):
            table.parts.apply(wrong, "w")
    assert table.count() == 0


@pytest.mark.parametrize(
    "options", [{"primary_key": None}, {"merge_engine": "first_row"}, {"delete_behavior": "ignore"}]
)
def test_tables_that_can_not_be_replaced(store: kvstore.Store, options: dict[str, Any]) -> None:
    table = store.create_table("t", SCHEMA, **({"primary_key": "k"} | options))
    with pytest.raises(UnsupportedOperation, match="can be replaced"):
        table.parts.apply({}, "w", replaces=True)


def test_a_refused_content_leaves_the_number_free(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2, merge_engine=Aggregate({"v": "sum"}))
    table.parts.apply(table.by_bucket(upserts([1], 2**62)), "w")
    with pytest.raises(StoreError):
        table.parts.apply(table.by_bucket(upserts([1], 2**62)), "w")
    table.parts.apply(table.by_bucket(upserts([2], 1)), "w")
    assert sorted(row["v"] for row in rows_of(table)) == [1, 2**62]
