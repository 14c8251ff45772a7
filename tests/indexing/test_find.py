"""What ``find`` returns is what a model has, whatever is merged and whichever process reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import InvalidRequest, SchemaMismatch, UnsupportedOperation
from kvstore.indexing import building, find
from kvstore.testing.model import Row
from tests.conftest import OpenStore
from tests.indexing.counted import entries_read
from tests.support.examples import slow
from tests.support.kept import KeptStore
from tests.support.processes import Child, Pipe

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), False),
        pa.field("mail", pa.string()),
        pa.field("age", pa.int16()),
        pa.field("score", pa.float64()),
    ]
)
BY_HAND: dict[str, Any] = {"commit_wait_ms": 600_000, "commit_idle_ms": 600_000}
"""Nothing is merged before a test says so."""
INDEXES = {"by_mail": ["mail"], "by_age_and_mail": ["age", "mail"], "by_score": "score"}
MAILS = [None, "", "a", "a\0", "b@x", "é", 300 * "x", 300 * "x" + "y"]
SCORES = [None, -0.0, 0.0, 1.5, -math.inf, math.nan]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    values = st.sampled_from(MAILS), st.sampled_from([None, -3, 0, 7, 8]), st.sampled_from(SCORES)
    return dict(zip(SCHEMA.names, (draw(st.integers(0, 5)), *map(draw, values)), strict=True))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(rows(), min_size=1, max_size=6)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("create"), st.sampled_from(list(INDEXES))),
        st.tuples(st.just("drop"), st.sampled_from(list(INDEXES))),
    ),
    min_size=5,
    max_size=10,
)


def has(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        low, high = wanted
        return value is not None and (low is None or value >= low) and (high is None or value <= high)
    if isinstance(wanted, list):
        return any(has(value, each) for each in wanted)
    return bool(value is None if wanted is None else value == wanted)


def same(found: list[Row]) -> list[str]:
    return list(map(repr, found))  # a NaN is not equal to itself


SOUGHT: list[dict[str, Any]] = [
    *({"mail": mail} for mail in MAILS),
    {"mail": ["a", None, "nowhere"]},
    {"mail": ("a", "b@x")},
    {"age": 7},
    {"age": [7, -3], "mail": "a"},
    {"age": (None, 0)},
    {"age": 7, "mail": ("", "a\0")},
    {"age": (0, 8), "mail": 300 * "x"},
    *({"score": score} for score in SCORES),
    {"score": [0.0, 1.5, math.nan]},
    {"score": (-1.0, None)},
    {"id": 3, "mail": "a"},
    {"mail": []},
]


def assert_found(table: kvstore.Table, model: dict[int, Row], every: int = 1, first: int = 0) -> None:
    for sought in SOUGHT[first % every :: every]:
        expected = [row for _, row in sorted(model.items()) if all(has(row[name], sought[name]) for name in sought)]
        found = table.find(**sought).to_pylist()
        if table.buckets > 1:
            found.sort(key=lambda row: row["id"])
        else:
            assert same([one] if (one := table.find_one(**sought)) else []) == same(expected[:1]), sought
        assert same(found) == same(expected), sought


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptStore]:
    kept = KeptStore(tmp_path_factory.mktemp("kept") / "store", **BY_HAND)
    yield kept
    kept.store.close()


@slow(1_000, quick=15)
@given(STEPS, st.sampled_from([1, 3]))
def test_find_returns_what_a_model_has(kept: KeptStore, steps: Any, buckets: int) -> None:
    store = kept.empty()
    table = store.create_table("t", SCHEMA, "id", buckets=buckets, indexes={"first": ["mail"]})
    model: dict[int, Row] = {}
    for number, (step, argument) in enumerate(steps):
        match step:
            case "upsert":
                table.upsert(argument)
                model |= {row["id"]: row for row in argument}
            case "delete":
                table.delete(argument)
                for key in argument:
                    model.pop(key, None)
            case "flush":
                table.flush()
            case "reopen":
                store = kept.reopened()
                table = store.table("t")
            case "create" if argument not in table.indexes:
                store.create_index("t", argument, INDEXES[argument])
            case "drop" if argument in table.indexes:
                store.drop_index("t", argument)
        assert_found(table, model, 11, number)
    assert_found(table, model, 2)
    assert store.check().findings == []


def write(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path, **BY_HAND) as store:
        table = store.table("t")
        while (command := pipe.recv()) is not None:
            match command:
                case "flush":
                    table.flush()
                case "create":
                    store.create_index("t", "by_age", "age")
                case list():
                    table.upsert(command)
            pipe.send(None)


def test_another_process_finds_what_was_acknowledged(open_store: OpenStore, store_path: Path) -> None:
    with open_store(**BY_HAND) as store:
        store.create_table("t", SCHEMA, "id", indexes=INDEXES)
    model: dict[int, Row] = {}
    with open_store() as store, Child(write, store_path) as child:
        table = store.table("t")
        for number in range(8):
            made = [
                dict(zip(SCHEMA.names, (key, MAILS[(key + number) % 8], number % 5, 0.5 * key), strict=True))
                for key in range(number, number + 5)
            ]
            model |= {row["id"]: row for row in made}
            for command in (made, *(["flush"] if number % 3 == 0 else []), *(["create"] if number == 4 else [])):
                child.pipe.send(command)
                child.pipe.recv()
                assert_found(table, model, 3, number)
        child.pipe.send(None)


def test_only_entries_of_the_value_are_read(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes=INDEXES)
    table.upsert([{"id": number, "mail": f"m{number}", "age": number % 100} for number in range(3000)])
    table.flush()
    read = entries_read(monkeypatch)
    assert table.find(mail="m77").num_rows == read() == 1
    assert table.find(mail=["m77", "m5", "none"]).num_rows == read() == 2
    assert table.find(age=(3, 5)).num_rows == read() == 90
    assert table.find(age=7, mail=("m100", "m7")).num_rows == read() == 27
    assert table.find(age=7, mail="m107").num_rows == read() == 1
    assert table.find(mail=("m", None)).num_rows == 3000
    assert read() == find.FEW_ROWS + 1, "so many rows are read by a scan"
    assert table.find(id=8).num_rows == 1
    assert read() == 0


def test_explain_says_what_is_read(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes=INDEXES)
    nothing = "nothing is read: no key can have such a row"
    assert table.explain(mail="a") == table.explain(pc.field("mail") == "a") == nothing
    table.upsert([{"id": number, "mail": f"m{number}", "age": number % 2} for number in range(3000)])
    table.flush()
    assert table.explain(mail=("m5", "m6")) == "index by_mail by mail"
    assert table.explain(age=1, mail="a") == "index by_age_and_mail by age, mail"
    assert table.explain(age=1) == "scan of all rows", "it has half of them"
    assert table.explain((pc.field("mail") == "a") & (pc.field("score") > 5)) == "index by_mail by mail"
    assert table.explain((pc.field("mail") == "a") | (pc.field("score") > 5)) == "scan of all rows"
    assert table.explain(pc.field("id") == 5) == table.explain(id=5) == "lookup of 1 key"
    with pytest.raises(InvalidRequest, match=r"Give a filter"):
        table.explain()
    with pytest.raises(InvalidRequest, match=r"Give a filter"):
        table.explain(pc.field("id") == 5, id=5)


def test_entries_follow_renamed_and_added_columns(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes={"by_mail": "mail"})
    table.upsert({"id": 1, "mail": "a"})
    table.flush()
    store.add_columns("t", {"city": "string"})
    store.rename_columns("t", {"mail": "address"})
    store.create_index("t", "by_city", ["city", "id"])
    assert table.indexes == {"by_mail": ("address",), "by_city": ("city", "id")}
    table.upsert({"id": 2, "address": "a", "city": "x"})
    for _ in range(2):
        assert table.find(address="a").column("id").to_pylist() == [1, 2]
        assert table.find(city=None).column("id").to_pylist() == [1]
        assert table.find(city="x", id=2).num_rows == 1
        table.flush()
    with pytest.raises(SchemaMismatch, match=r"no such column"):
        table.find(mail="a")
    with pytest.raises(InvalidRequest, match=r"drop_index"):
        store.drop_columns("t", ["address"])
    store.drop_index("t", "by_mail")
    store.drop_columns("t", ["address"])
    assert table.find(city="x").num_rows == 1


@pytest.mark.parametrize("image", ["full", "wal"])
def test_other_writes_move_entries_too(store: kvstore.Store, image: str) -> None:
    table = store.create_table("t", SCHEMA, "id", changelog_image=image, indexes={"by_age": "age"})
    table.upsert([{"id": number, "mail": "a", "age": number} for number in range(10)])
    table.flush()
    table.upsert([{"id": 3, "age": 30}], columns=["id", "age"])
    table.increment(4, {"age": 40})
    table.update_where(pc.field("id") == 5, {"age": 50})
    table.delete(where=pc.field("age") == 6)
    assert table.put_if({"id": 7, "age": 70}, expected=table[7])
    for _ in range(2):
        assert table.find(age=(3, None)).column("id").to_pylist() == [3, 4, 5, 7, 8, 9]
        assert [table.find_one(age=age) for age in (3, 4, 5, 6, 7)] == [None] * 5
        assert {age: table.find(age=age).column("id").to_pylist() for age in (30, 44, 50, 70)} == {
            30: [3],
            44: [4],
            50: [5],
            70: [7],
        }
        table.flush()


def test_rows_that_come_between_finds_are_found(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes={"by_mail": "mail", "by_age": "age"})
    table.upsert([{"id": number, "mail": "old", "age": number % 4} for number in range(100)])
    table.flush()
    for number in range(12):
        table.upsert([{"id": number, "mail": f"new{number}", "age": 7}])
        table.upsert([{"id": 50 + number, "mail": f"new{number}", "age": 8}])
        table.delete([20 + number])
        for seen in range(number + 1):
            assert table.find(mail=f"new{seen}").column("id").to_pylist() == [seen, 50 + seen]
            assert table.find_one(mail=f"new{seen}") == table[seen]
        assert table.find(age=8).column("id").to_pylist() == list(range(50, 51 + number))
        if number % 5 == 4:
            table.flush()


def test_rows_in_memory_are_found_by_several_conditions(open_store: OpenStore) -> None:
    """What is kept is counted as memory until the rows are merged, and follows columns that exchange their names."""
    store, count = open_store(**BY_HAND), 10_000
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    table = store.create_table("t", schema, "id", indexes={"by_a": "a", "by_b": "b"})
    table.upsert([{"id": n, "a": n % 50, "b": n % 70} for n in range(count)])
    memtable = table.bucket(0).handle.memtable()
    assert memtable is not None
    before = memtable.size
    expected = [n for n in range(count) if n % 50 in (3, 4) and n % 70 == 23]
    assert table.find(a=[3, 4], b=23)["id"].to_pylist() == expected
    assert memtable.size > before
    assert table.find_one(a=49) == {"id": 49, "a": 49, "b": 49}
    for rename in ({"a": "c"}, {"b": "a"}, {"c": "b"}):
        store.rename_columns("t", rename)
    wanted = [n for n in range(count) if n % 50 == 3 and n % 70 in (23, 33)]
    assert table.find(b=3, a=[23, 33])["id"].to_pylist() == wanted != []
    assert table.find_one(b=3) == {"id": 3, "b": 3, "a": 3}
    assert table.find_one(a=60) == {"id": 60, "b": 10, "a": 60}
    assert table.find(b=60).num_rows == 0
    table.flush()
    assert memtable.size == 0


def test_values_that_do_not_fit_are_refused(store: kvstore.Store) -> None:
    table = store.create_table("t", {"id": "int64", "mail": "string", "tags": pa.list_(pa.string())}, "id")
    with pytest.raises(InvalidRequest, match=r"Name a column"):
        table.find()
    with pytest.raises(SchemaMismatch, match=r"no such column"):
        table.find(nowhere=1)
    with pytest.raises(SchemaMismatch, match=r"mail"):
        table.find(mail=5)
    with pytest.raises(SchemaMismatch, match=r"lists"):
        table.find(tags=["a"])
    for wrong in [(1,), (1, 2, 3), (None, None)]:
        with pytest.raises(InvalidRequest, match=r"two ends"):
            table.find(id=wrong)
    log = store.create_table("log", {"n": "int64"})
    with pytest.raises(UnsupportedOperation, match=r"log table"):
        log.find(n=1)


def test_many_rows_are_made_and_moved(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "BUILD_ROWS", 700)
    monkeypatch.setattr(building, "RUN_ROWS", 1400)
    monkeypatch.setattr(building, "REMOVED_AT_A_TIME", 300)
    table = store.create_table("t", SCHEMA, "id")
    table.upsert([{"id": number, "mail": f"{number % 50}", "age": number % 9} for number in range(5000)])
    store.create_index("t", "by_mail", "mail")
    assert table.find(mail="7").num_rows == 100
    table.upsert([{"id": number, "mail": "new"} for number in range(0, 5000, 50)])
    table.flush()
    assert table.find(mail="0").num_rows == 0
    assert table.find(mail="new").num_rows == 100
    store.drop_index("t", "by_mail")
    store.create_index("t", "by_mail", ["age"])
    assert table.find(age=3).num_rows == sum(number % 9 == 3 and number % 50 > 0 for number in range(5000))


@pytest.mark.parametrize(("merged", "newer"), [(0, 100), (40, 40), (100, 0)])
def test_many_rows_with_one_value_are_all_found(open_store: OpenStore, merged: int, newer: int) -> None:
    store = open_store(**BY_HAND)
    table = store.create_table("t", {"k": "int64", "n": "int64"}, "k", indexes={"i": "n"})
    if merged:
        table.upsert([{"k": k, "n": 5} for k in range(merged)])
        table.flush()
    if newer:
        table.upsert([{"k": k, "n": 5} for k in range(1000, 1000 + newer)])
    assert table.find(n=5).num_rows == merged + newer
    assert table.find_one(n=5) == {"k": 0 if merged else 1000, "n": 5}


def test_half_floats_are_refused_because_arrow_does_not_compare_them(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64", "h": "halffloat"}, "k")
    table.upsert({"k": 1, "h": 1.0})
    with pytest.raises(SchemaMismatch, match="float16"):
        table.find(h=1.0)
    for unique in (True, False):
        with pytest.raises(InvalidRequest, match="float16"):
            store.create_index("t", "i", "h", unique=unique)
    with pytest.raises(InvalidRequest, match="float16"):
        store.create_table("u", {"k": "int64", "h": "halffloat"}, "k", indexes={"i": "h"})


def test_an_index_on_half_floats_of_an_earlier_version_is_kept(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("t", {"k": "int64", "h": "halffloat"}, "k")
    with monkeypatch.context() as patch:
        patch.setattr(pa.types, "is_float16", lambda _: False)
        store.create_index("t", "i", "h")
    table.upsert([{"k": 1, "h": 1.0}, {"k": 2, "h": None}, {"k": 3, "h": 3.5}])
    table.flush()
    store.add_columns("t", {"z": "int64"})
    table.upsert([{"k": 1, "h": 2.0}, {"k": 2, "h": 1.0}, {"k": 3, "h": 3.5}])
    table.flush()
    assert store.check()
    assert [table[k]["h"] for k in (1, 2, 3)] == [2.0, 1.0, 3.5]
