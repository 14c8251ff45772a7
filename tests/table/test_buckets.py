"""Tables of several buckets: a table is to all keys what each bucket is to its own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import AggregateOverflow, InvalidRequest, SchemaMismatch
from kvstore.testing.model import Model
from tests.conftest import OpenStore
from tests.store.helpers import run
from tests.support.examples import slow
from tests.support.tables import changes_of, rows_of

pytestmark = pytest.mark.usefixtures("both_ways")

SCHEMA = pa.schema([pa.field("a", pa.int32(), False), pa.field("b", pa.string(), False), pa.field("v", pa.int64())])
KEY = ("a", "b")
ROWS = st.builds(lambda a, b, v: {"a": a, "b": b, "v": v}, st.integers(0, 5), st.sampled_from("xyz"), st.integers(0, 9))
BATCHES = st.lists(st.lists(st.tuples(st.sampled_from(["upsert", "upsert", "delete"]), ROWS), max_size=12), max_size=6)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


@slow(40)
@given(batches=BATCHES, buckets=st.integers(1, 5), bucket_key=st.sampled_from([None, "a", "b", ["b", "a"]]))
def test_each_bucket_is_a_table_of_its_keys(
    batches: list[list[tuple[str, dict[str, Any]]]], buckets: int, bucket_key: Any, tmp_path_factory: Any
) -> None:
    with kvstore.open(tmp_path_factory.mktemp("s") / "store") as store:
        table = store.create_table("t", SCHEMA, KEY, buckets=buckets, bucket_key=bucket_key)
        models = [Model(KEY) for _ in range(buckets)]
        ends = [[0] * buckets]
        for batch in batches:
            result = table.apply(kvstore.Changes.of(batch, SCHEMA))
            parts: dict[int, list[tuple[str, dict[str, Any]]]] = {}
            for word, row in batch:
                parts.setdefault(table.buckets_of([key_of(row)])[0], []).append((word, row))
            if not batch and buckets == 1:
                parts[0] = []
            for bucket, part in parts.items():
                answer = models[bucket].apply(part)
                found = result.by_bucket[bucket]
                assert (found.first_offset, found.last_offset) == (answer.first_offset, answer.last_offset)
            assert set(result.by_bucket) == set(parts)
            ends.append([model.end for model in models])
        every = {key: row for model in models for key, row in model.rows.items()}
        assert rows_of(table) == [row for model in models for _, row in sorted(model.rows.items())]
        assert table.count() == len(every)
        assert table.offsets() == {bucket: (0, model.end) for bucket, model in enumerate(models)}
        assert changes_of(table) == [change for model in models for change in model.log]
        keys = [(a, b) for a in range(6) for b in "xyz"]
        assert [row["v"] if row["_found"] else None for row in table.lookup(keys).to_pylist()] == [
            every[key]["v"] if key in every else None for key in keys
        ]
        for a in range(6):
            found = sorted(map(key_of, table.prefix_lookup({"a": a}).to_pylist()))
            assert found == sorted(key for key in every if key[0] == a)
        for then in ends:
            rows = table.scan(as_of=dict(enumerate(then))).read_all().to_pylist()
            assert rows == rows_then(models, then)
        table.apply(table.undo(dict(enumerate(ends[len(ends) // 2]))))
        assert rows_of(table) == rows_then(models, ends[len(ends) // 2])
        assert store.check()


def rows_then(models: list[Model], ends: list[int]) -> list[dict[str, Any]]:
    found = []
    for model, end in zip(models, ends, strict=True):
        rows: dict[Any, Any] = {}
        for offset, kind, row, _ in model.log:
            if offset < end and kind in ("insert", "update_postimage"):
                rows[key_of(row)] = row
            elif offset < end and kind == "delete":
                rows.pop(key_of(row))
        found += [row for _, row in sorted(rows.items())]
    return found


def test_buckets_survive_a_reopen_and_are_dropped_with_the_table(open_store: OpenStore) -> None:
    store = open_store()
    table = store.create_table("t", SCHEMA, KEY, buckets=3)
    rows = [{"a": a, "b": "x", "v": a} for a in range(100)]
    table.upsert(rows)
    store.close()
    store = open_store()
    table = store.table("t")
    assert sorted(row["a"] for row in rows_of(table)) == list(range(100))
    assert sorted(path.name for path in (store.path / "tables/1").iterdir() if path.is_dir()) == ["0", "1", "2"]
    store.drop_table("t")
    assert not (store.path / "tables/1").exists()


def test_offsets_belong_to_buckets(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, KEY, buckets=2)
    for call in (
        lambda: table.changelog(0),
        lambda: table.changelog(end=0),
        lambda: table.changelog({0: 0}),
        lambda: table.scan(as_of=0),
        lambda: table.undo(0),
        lambda: table.bucket(2),
        lambda: table.changelog(bucket=-1),
    ):
        with pytest.raises(InvalidRequest):
            call()
    assert list(table.changelog({1: 0}, bucket=1)) == []


def test_a_numbered_batch_takes_only_rows_of_its_bucket(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, KEY, buckets=2)
    row = {"a": 1, "b": "x", "v": 0}
    (home,) = table.buckets_of([(1, "x")])
    changes = kvstore.Changes.of([("upsert", row)], SCHEMA)
    with pytest.raises(InvalidRequest, match="other buckets"):
        table.bucket(1 - home).apply(changes, 5, 0)
    assert not table.bucket(home).apply(changes, 5, 0).duplicated
    assert table.bucket(home).apply(changes, 5, 0).duplicated
    assert rows_of(table) == [row]


@pytest.mark.parametrize("engine", ["last_row", "first_row"])
def test_undo_of_several_buckets_whatever_the_engine(store: kvstore.Store, engine: str) -> None:
    schema = pa.schema([*SCHEMA, pa.field("id", pa.int64())])
    table = store.create_table(
        "t", schema, KEY, buckets=3, merge_engine=engine, delete_behavior="allow" if engine == "last_row" else None,
        auto_increment="id",
    )  # fmt: skip
    table.upsert([{"a": a, "b": "x", "v": 1} for a in range(20)])
    before, then = rows_of(table), {bucket: end for bucket, (_, end) in table.offsets().items()}
    table.upsert([{"a": a, "b": b, "v": 2} for a in range(20) for b in "xy"])
    if engine == "last_row":
        table.delete([(a, "x") for a in range(5)])
    for bucket, changes in table.by_bucket(table.undo(then), overwrite=True).items():
        table.bucket(bucket).apply(changes, overwrite=True)
    assert rows_of(table) == before


def test_following_all_buckets(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, KEY, buckets=4)
    following = table.changelog(follow=True, columns=["_bucket", "a"])
    seen: list[tuple[int, int]] = []
    for step in range(5):
        table.upsert([{"a": 20 * step + a, "b": "x", "v": 0} for a in range(20)])
        table.flush()
        while len(seen) < 20 * (step + 1):
            seen += [(row["_bucket"], row["a"]) for row in next(following).to_pylist()]
    assert sorted(a for _, a in seen) == list(range(100))
    assert [bucket for bucket, _ in seen] == table.buckets_of([(a, "x") for _, a in seen])


def test_ids_are_unique_over_all_buckets(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, KEY, buckets=3, auto_increment="v")
    for first in range(0, 300, 100):
        table.upsert([{"a": a, "b": "x"} for a in range(first, first + 100)])
    ids = [row["v"] for row in rows_of(table)]
    assert len(set(ids)) == 300


@pytest.mark.parametrize("prefix", [{}, {"b": "x"}, {"a": "x"}, {"a": None}, (), (1, "x", 2), {"z": 1}])
def test_a_prefix_is_the_beginning_of_a_key(store: kvstore.Store, prefix: Any) -> None:
    table = store.create_table("t", SCHEMA, KEY)
    with pytest.raises(SchemaMismatch):
        table.prefix_lookup(prefix)


def test_a_log_table_of_several_buckets(store: kvstore.Store) -> None:
    by_column = store.create_table("by", SCHEMA, None, buckets=3, bucket_key="b")
    anywhere = store.create_table("any", SCHEMA, None, buckets=3)
    for table in (by_column, anywhere):
        for step in range(6):
            table.upsert([{"a": step, "b": b, "v": 0} for b in "xyz"])
        changes = [row for batch in table.changelog() for row in batch.to_pylist()]
        assert len(changes) == table.count() == 18
    homes = {row["b"]: row["_bucket"] for batch in by_column.changelog() for row in batch.to_pylist()}
    for batch in by_column.changelog():
        assert all(homes[row["b"]] == row["_bucket"] for row in batch.to_pylist())
    assert all(end for _, end in anywhere.offsets().values())


@pytest.mark.parametrize(
    "options",
    [
        {"buckets": 0},
        {"buckets": 1025},
        {"buckets": True},
        {"bucket_key": "v"},
        {"bucket_key": "zzz"},
        {"bucket_key": []},
        {"primary_key": None, "bucket_key": "v"},
    ],
    ids=str,
)
def test_bad_buckets(store: kvstore.Store, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        store.create_table("t", SCHEMA, **({"primary_key": KEY} | options))
    assert store.list_tables() == []


def test_a_write_refused_by_one_bucket_lists_the_buckets_that_were_written(store: kvstore.Store) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int8())])
    table = store.create_table("t", schema, "k", buckets=3, merge_engine=kvstore.Aggregate({"n": "sum"}))
    table.upsert([{"k": k, "n": 100} for k in range(30)])
    full = table.buckets_of([7])[0]
    with pytest.raises(AggregateOverflow) as refused:
        table.upsert([{"k": k, "n": 100 if k == 7 else 1} for k in range(30)])
    written = refused.value.where["buckets_written"]
    assert written == [bucket for bucket in range(3) if bucket != full]
    assert {row["n"] for row in rows_of(table) if table.buckets_of([row["k"]])[0] == full} == {100}
    assert {row["n"] for row in rows_of(table) if table.buckets_of([row["k"]])[0] != full} == {101}


def test_more_buckets_than_files_may_be_open(store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, KEY, buckets=30)
    answer = run(
        store.path,
        """
        import resource
        table = kvstore.open(path).table("t")
        rows = [{"a": a, "b": "x", "v": 0} for a in range(1000)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 4096))
        try:
            table.upsert(rows)
        except LogFailed as error:
            print("ulimit -n" in str(error), end=" ")
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 4096))
        print(table.count(), len(table.upsert(rows).by_bucket), table.count())
        """,
    )
    assert answer == "True 0 30 1000"
