"""Changes as a filter sees them: put together, they are the filtered table, wherever a reader begins and ends."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.errors import InvalidRequest, SchemaMismatch, StoreClosed, UnsupportedOperation
from logformat.log import arrow_message
from tests.support.examples import IS_LONG
from tests.support.kept import KeptStore
from tests.support.tables import rows_of

SCHEMA = {"k": "int64", "v": "int64", "s": "string"}
FILTERS: dict[str, pc.Expression] = {
    "a column": pc.field("v") > 1,
    "a null": pc.field("s").is_null(),
    "the key": pc.field("k") < 2,
    "all": pc.field("k") >= 0,
    "nothing": pc.field("k") < 0,
    "both": (pc.field("v") == 0) | (pc.field("s") == "x"),
}
values = st.none() | st.integers(0, 3)
rows = st.fixed_dictionaries({"k": st.integers(0, 3), "v": values, "s": st.sampled_from([None, "x", "y"])})
writes = st.one_of(
    st.tuples(st.just("upsert"), st.lists(rows, max_size=4)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 3), max_size=3)),
    st.tuples(st.just("partial"), st.lists(rows, max_size=3)),
    st.tuples(st.just("flush"), st.none()),
)
more_writes = st.one_of(
    writes,
    st.tuples(st.just("alter"), st.none()),
    st.tuples(st.just("undo"), st.integers(0, 40)),
    st.tuples(st.just("epoch"), st.lists(rows, max_size=3)),
)

Fold = dict[int, dict[str, Any]]


def folded(batches: Any, into: Fold) -> Fold:
    """Rows after changes; a change that does not fit the rows before it fails."""
    for batch in batches:
        fold(batch.to_pylist(), into)
    return into


def fold(changes: list[dict[str, Any]], into: Fold) -> None:
    for change in changes:
        kind, row = change["_change_type"], {name: change[name] for name in ("k", "v", "s")}
        if kind == "insert":
            assert row["k"] not in into
            into[row["k"]] = row
        elif kind == "update_preimage":
            assert into[row["k"]] == row
        elif kind == "update_postimage":
            assert row["k"] in into
            into[row["k"]] = row
        else:
            assert kind == "delete"
            assert into.pop(row["k"]) == row


def write(store: kvstore.Store, table: kvstore.Table, kind: str, given: Any) -> None:
    if kind == "upsert":
        table.upsert(given)
    elif kind == "delete":
        table.delete(given)
    elif kind == "partial":
        table.upsert([{"k": row["k"], "v": row["v"]} for row in given], columns=["k", "v"])
    elif kind == "alter":
        store.add_columns("t", [pa.field(f"added {len(table.schema)}", pa.int64())])
    elif kind == "undo":
        table.apply(table.undo(min(given, table.offsets()[0][1])))
    elif kind == "epoch":
        known = table.writers.get("w")
        epoch = 0 if known is None or known.last_epoch is None else known.last_epoch + 1
        table.apply_epoch(kvstore.Changes.of([("upsert", row) for row in given], table.schema), "w", epoch)
    else:
        table.flush()


OTHERS = st.sampled_from(list(FILTERS)), st.integers(0, 40), st.integers(0, 40)


PASSES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "a column": lambda row: (row["v"] or 0) > 1,
    "a null": lambda row: row["s"] is None,
    "the key": lambda row: row["k"] < 2,
    "all": lambda _: True,
    "nothing": lambda _: False,
    "both": lambda row: row["v"] == 0 or row["s"] == "x",
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptStore]:
    kept = KeptStore(tmp_path_factory.mktemp("kept") / "store", durability="none")
    yield kept
    kept.store.close()


@settings(max_examples=(500 if IS_LONG else 200) // len(FILTERS))
@given(st.lists(more_writes, max_size=8))
def test_each_filtered_change_follows_the_change_of_its_offset(kept: KeptStore, history: list[tuple[str, Any]]) -> None:
    """Of two hundred histories, five hundred in ``make test-long``: each is looked at by all filters."""
    store = kept.empty()
    table = store.create_table("t", SCHEMA, primary_key="k")
    for kind, given_rows in history:
        write(store, table, kind, given_rows)
    changes = [[change] for batch in table.changelog() for change in batch.to_pylist()]
    for name, filter in FILTERS.items():
        shaped: dict[int, list[Any]] = {}
        for batch in table.changelog(filter=filter):
            for change in batch.to_pylist():
                shaped.setdefault(change["_log_offset"], []).append(change)
        all_rows: Fold = {}
        seen_rows: Fold = {}
        for change in changes:
            fold(change, all_rows)
            fold(shaped.pop(change[0]["_log_offset"], []), seen_rows)
            if change[0]["_change_type"] != "update_preimage":
                assert seen_rows == {key: row for key, row in all_rows.items() if PASSES[name](row)}
        assert not shaped


@given(st.lists(writes, max_size=8), *OTHERS)
def test_the_fold_is_the_filtered_table_at_every_offset(
    history: list[tuple[str, Any]], name: str, cut: int, end: int
) -> None:
    fold_is_the_filtered_table(history, name, cut, end)


@pytest.mark.long
@settings(max_examples=20_000)
@given(st.lists(more_writes, max_size=8), *OTHERS)
def test_the_fold_is_the_filtered_table_in_many_histories(
    history: list[tuple[str, Any]], name: str, cut: int, end: int
) -> None:
    fold_is_the_filtered_table(history, name, cut, end)


def fold_is_the_filtered_table(history: list[tuple[str, Any]], name: str, cut: int, end: int) -> None:
    filter = FILTERS[name]
    with tempfile.TemporaryDirectory() as directory, kvstore.open(Path(directory) / "s") as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        for kind, given_rows in history:
            write(store, table, kind, given_rows)
        last = table.offsets()[0][1]
        for offset in range(last + 1):
            there = {
                row["k"]: row for row in table.scan(list(SCHEMA), filter=filter, as_of=offset).read_all().to_pylist()
            }
            assert folded(table.changelog("earliest", offset, filter=filter), {}) == there
        # In two ranges, which may part an update; and from the rows of one moment on.
        cut, end = sorted((min(cut, last), min(end, last)))
        parts = folded(table.changelog("earliest", cut, filter=filter), {})
        whole = folded(table.changelog("earliest", end, filter=filter), {})
        assert folded(table.changelog(cut, end, filter=filter), parts) == whole
        now = {row["k"]: {name: row[name] for name in SCHEMA} for row in rows_of(table)}
        assert folded(table.changelog("full", filter=filter), {}) == folded(table.changelog(filter=filter), {})
        assert folded(table.changelog("full"), {}) == now


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
    table.upsert([{"k": k, "v": k, "s": "x"} for k in range(4)])
    table.upsert([{"k": k, "v": 3 - k, "s": "y"} for k in range(4)])
    table.delete([0, 3])
    return table


def seen(batches: Any) -> list[tuple[str, int, int]]:
    return sorted((row["_change_type"], row["k"], row["v"]) for batch in batches for row in batch.to_pylist())


def test_rows_come_and_go(table: kvstore.Table) -> None:
    assert seen(table.changelog(filter=pc.field("v") > 1)) == [
        ("delete", 0, 3),
        ("delete", 2, 2),
        ("delete", 3, 3),
        ("insert", 0, 3),
        ("insert", 1, 2),
        ("insert", 2, 2),
        ("insert", 3, 3),
    ]
    assert seen(table.changelog(filter=(pc.field("k") == 1))) == [
        ("insert", 1, 1),
        ("update_postimage", 1, 2),
        ("update_preimage", 1, 1),
    ]


def test_columns_are_chosen_apart_from_the_filter(table: kvstore.Table) -> None:
    changes = table.changelog(columns=["k", "_change_type"], filter=pc.field("v") == 2).read_all()
    assert changes.schema.names == ["k", "_change_type"]
    found = [(row["k"], row["_change_type"]) for row in changes.to_pylist()]
    assert sorted(found) == [(1, "insert"), (2, "delete"), (2, "insert")]
    assert all(batch.num_rows for batch in table.changelog(filter=pc.field("v") > 99))


@pytest.mark.parametrize("count", [10, 5000])
def test_what_need_not_be_decompressed_is_decoded_once(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    for first in range(0, 3 * count, count):  # each batch has one row for the filter; large ones are compressed
        table.upsert([{"k": first + number, "v": number, "s": "x"} for number in range(count)])
    decoded: list[Any] = []
    decode = arrow_message.decode

    def counted(message: memoryview, schema: pa.Schema, columns: Any = None, **how: Any) -> pa.RecordBatch:
        decoded.append(columns)
        return decode(message, schema, columns, **how)

    monkeypatch.setattr(arrow_message, "decode", counted)
    found = table.changelog(columns=["k", "s"], filter=pc.field("v") == 7).read_all()
    assert found["k"].to_pylist() == [7, 7 + count, 7 + 2 * count]
    assert decoded == [["v"]] * 3 + ([] if count == 10 else [["k", "s"]] * 3)


def test_offsets_are_those_of_the_changes(table: kvstore.Table) -> None:
    offsets = {(row["_bucket"], row["_log_offset"]): row for batch in table.changelog() for row in batch.to_pylist()}
    for batch in table.changelog(filter=pc.field("v") > 1):
        for row in batch.to_pylist():
            there = offsets[row["_bucket"], row["_log_offset"]]
            assert (there["k"], there["_commit_version"]) == (row["k"], row["_commit_version"])
            assert there["_change_type"] != "update_preimage"


def test_a_binlog_has_one_row_for_each(table: kvstore.Table) -> None:
    def shown(filter: pc.Expression, key: int) -> list[tuple[str, Any, Any]]:
        found = [row for batch in table.binlog(filter=filter) for row in batch.to_pylist()]
        images = [(row["_change_type"], row["before"], row["after"]) for row in found]
        return [(kind, old and old["v"], new and new["v"]) for kind, old, new in images if (old or new)["k"] == key]

    assert shown(pc.field("v") > 1, 2) == [("insert", None, 2), ("delete", 2, None)]
    assert shown(pc.field("k") == 1, 1) == [("insert", None, 1), ("update_postimage", 1, 2)]


def test_a_follower_waits_for_what_it_sees(table: kvstore.Table) -> None:
    changes = table.changelog("latest", follow=True, filter=pc.field("v") == 9)
    for value in (8, 9, 7, 9):
        table.upsert([{"k": 5, "v": value, "s": None}])
    assert [next(changes)["_change_type"].to_pylist()[0]] == ["insert"]
    changes.close()

    async def first() -> list[Any]:
        async for batch in table.follow(filter=pc.field("v") == 9, columns=["k", "v"]):
            return list(batch.to_pylist())[:1]
        return []

    assert asyncio.run(first()) == [{"k": 5, "v": 9}]


def test_a_log_table_is_only_filtered(store: kvstore.Store) -> None:
    log = store.create_table("log", {"v": "int64"})
    log.upsert([{"v": v} for v in range(5)])
    found = log.changelog(filter=pc.field("v") > 2).read_all()
    assert found.select(["_change_type", "v"]).to_pylist() == [{"_change_type": "append", "v": v} for v in (3, 4)]


def test_a_table_that_merges_is_shaped_by_what_is_stored(store: kvstore.Store) -> None:
    sums = store.create_table(
        "sums", {"k": "int64", "n": "int64"}, primary_key="k", merge_engine=kvstore.Aggregate({"n": "sum"})
    )
    for _ in range(3):
        sums.upsert({"k": 1, "n": 2})
    found = sums.changelog(filter=pc.field("n") > 3).read_all().select(["_change_type", "n"]).to_pylist()
    assert [(row["_change_type"], row["n"]) for row in found] == [
        ("insert", 4),
        ("update_preimage", 4),
        ("update_postimage", 6),
    ]


def test_columns_may_be_added_and_renamed_meanwhile(store: kvstore.Store, table: kvstore.Table) -> None:
    changes = table.changelog("earliest", follow=True, filter=pc.field("v") == 9)
    store.rename_columns("t", {"v": "w"})
    store.add_columns("t", [pa.field("more", pa.string())])
    table.upsert({"k": 7, "w": 9, "s": None, "more": "m"})
    batch = next(changes)
    assert batch.select(["k", "v"]).to_pylist() == [{"k": 7, "v": 9}]
    changes.close()


def test_a_reader_whose_filter_has_lost_its_column_says_so(store: kvstore.Store, table: kvstore.Table) -> None:
    begun = [
        read("latest", follow=True, filter=filter)
        for read in (table.changelog, table.binlog)
        for filter in (pc.field("v") == 9, pc.field("k") == 7)
    ]
    table.upsert({"k": 7, "v": 9, "s": None})
    assert [len(next(changes)) for changes in begun] == [1] * 4
    store.rename_columns("t", {"v": "w"})
    store.drop_columns("t", "w")
    table = store.table("t")
    table.upsert({"k": 7, "s": "new"})
    for by_v, by_k in (begun[:2], begun[2:]):
        with pytest.raises(SchemaMismatch, match=r"dropped; read with another filter.*dropped=\['v'\]"):
            next(by_v)
        assert len(next(by_k)) > 0
        by_k.close()


@pytest.mark.parametrize(
    ("filter", "error"),
    [
        ("v > 1", InvalidRequest),
        (pc.field("v") + 1, InvalidRequest),
        (pc.field("nope") > 1, InvalidRequest),
        (pc.field(0) > 1, InvalidRequest),
    ],
)
def test_filters_that_are_not_possible(table: kvstore.Table, filter: Any, error: type[Exception]) -> None:
    for read in (table.changelog, table.follow, table.binlog):
        with pytest.raises(error):
            read(filter=filter)
    with pytest.raises(SchemaMismatch):
        table.changelog(columns=["nope"], filter=pc.field("v") > 1)


def test_a_wal_image_is_refused(store: kvstore.Store) -> None:
    wal = store.create_table("w", {"k": "int64"}, primary_key="k", changelog_image="wal")
    with pytest.raises(UnsupportedOperation, match="WAL image"):
        wal.changelog(filter=pc.field("k") > 1)


def test_the_end_of_the_store_is_seen(store: kvstore.Store, table: kvstore.Table) -> None:
    changes = table.changelog(follow=True, filter=pc.field("k") < 0)
    store.close()
    with pytest.raises(StoreClosed):
        next(changes)
