"""Increments: each adds to the row as it is then, and is the row after it; what can't be added changes nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import CorruptData, InvalidRequest, InvalidTargetColumns, SchemaMismatch, UnsupportedOperation
from kvstore.kernel import library
from kvstore.memtable.memtable import Memtable
from kvstore.request import increments
from tests.conftest import OpenStore
from tests.support.examples import slow

WAYS = ["small", "general"]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        ("flag", pa.bool_()),
        ("i8", pa.int8()),
        ("u64", pa.uint64()),
        ("text", pa.string()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
    ]
)
LIMITS = {"i8": (-(2**7), 2**7 - 1), "u64": (0, 2**64 - 1)}
ROW = {"k": "a", "flag": True, "i8": 0, "u64": 0, "text": "é\0", "f32": 0.0, "f64": 0.0}


@dataclass
class Pages:
    id: int
    pages: dict[str, int]
    n: int


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "general":
        monkeypatch.setattr(increments, "encoded_writes", lambda _: None)
    return str(request.param)


@pytest.mark.parametrize("way", WAYS)
@slow(60)
@given(data=st.data(), buckets=st.integers(1, 2))
def test_increments_are_sums(way: str, data: st.DataObject, buckets: int, tmp_path_factory: Any) -> None:
    amounts = st.dictionaries(st.sampled_from(list(LIMITS)), st.integers(-130, 130), min_size=1)
    with pytest.MonkeyPatch.context() as patch, kvstore.open(tmp_path_factory.mktemp("s") / "store") as store:
        if way == "general":
            patch.setattr(increments, "encoded_writes", lambda _: None)
        table = store.create_table("t", SCHEMA, "k", buckets=buckets)
        model: dict[str, dict[str, Any]] = {}
        for key, given_amounts, begins in data.draw(
            st.lists(st.tuples(st.sampled_from("ab"), amounts, st.booleans()), max_size=12)
        ):
            row = model.get(key)
            if row is None and not begins:
                with pytest.raises(KeyError):
                    table.increment(key, given_amounts)
                continue
            row = dict(row or {**dict.fromkeys(SCHEMA.names), "k": key, "i8": 100, **dict.fromkeys(given_amounts, 0)})
            if key not in model:
                row["i8"] = 100
            after = {**row, **{name: None if row[name] is None else row[name] + n for name, n in given_amounts.items()}}
            fits = all(
                after[name] is not None and low <= after[name] <= high
                for name, (low, high) in LIMITS.items()
                if name in given_amounts
            )
            asked = {"default": {"i8": 100}} if begins else {}
            if fits:
                assert table.increment(key, given_amounts, **asked) == after
                model[key] = after
            else:
                with pytest.raises(InvalidRequest):
                    table.increment(key, given_amounts, **asked)
            assert {row["k"]: row for row in table} == model
        changes = [
            (row["i8"], row["u64"])
            for row in table.changelog().read_all().to_pylist()
            if row["_change_type"] in ("insert", "update_postimage") and row["k"] == "a"
        ]
        assert changes[-1:] == [(row["i8"], row["u64"]) for key, row in model.items() if key == "a"]


@pytest.mark.usefixtures("way")
def test_floats_keep_their_type(open_store: OpenStore) -> None:
    table = open_store().create_table("t", SCHEMA, "k")
    table.upsert(ROW)
    assert table.increment("a", {"f32": 0.1, "f64": 0.1})["f32"] == float(np.float32(0.1))
    assert table.increment(("a",), {"f64": np.float64(0.2)})["f64"] == 0.1 + 0.2
    assert table.increment({"k": "a"}, {"f64": 1})["f64"] == 0.1 + 0.2 + 1
    assert table["a"]["text"] == "é\0"
    for name, most in (("f32", 3e38), ("f64", 1.7e308)):
        table.increment("a", {name: most})
        with pytest.raises(InvalidRequest, match="does not fit the column"):
            table.increment("a", {name: most})
    assert table["a"]["f32"] == float(np.float32(3e38))


@pytest.mark.usefixtures("way")
def test_a_null_is_no_number(open_store: OpenStore) -> None:
    table = open_store().create_table("t", SCHEMA, "k")
    table.upsert({"k": "a", "i8": 1})
    with pytest.raises(InvalidRequest, match="null"):
        table.increment("a", {"i8": 1, "u64": 1})
    assert table["a"]["i8"] == 1
    assert table.count() == table.offsets()[0][1] == 1


@pytest.mark.usefixtures("way")
def test_a_row_begins_with_the_default(open_store: OpenStore) -> None:
    table = open_store().create_table("t", SCHEMA, "k")
    with pytest.raises(KeyError):
        table.increment("a", {"i8": 1})
    begun = table.increment("a", {"i8": 1, "f64": 0.5}, default={"text": "x", "i8": 5})
    assert begun == {**dict.fromkeys(SCHEMA.names), "k": "a", "i8": 6, "f64": 0.5, "text": "x"} == table["a"]
    assert table.increment("a", {"i8": 1}, default={"text": "y"})["text"] == "x"
    for default in ({"k": "b"}, {"unknown": 1}, {"i8": "x"}, {"i8": None}, {"i8": 127}, 7, {"text": 7}):
        with pytest.raises(InvalidRequest):
            table.increment("z", {"i8": 1}, default=default)
    assert list(table) == [table["a"]]
    strict = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64(), False), ("m", pa.int64())])
    counters = table_of(open_store, strict)
    assert counters.increment(7, {"m": 2}, default={"n": 1}) == {"k": 7, "n": 1, "m": 2}
    with pytest.raises(SchemaMismatch):
        counters.increment(8, {"m": 2}, default={})


def table_of(open_store: OpenStore, schema: pa.Schema, **options: Any) -> kvstore.Table:
    return open_store().create_table("other", schema, "k", **options)


@pytest.mark.parametrize(
    ("amounts", "error"),
    [
        *((each, InvalidTargetColumns) for each in ({"k": 1}, {"none": 1}, {"i8": 1, "none": 1})),
        *((each, SchemaMismatch) for each in ({}, 1, {"text": 1}, {"flag": 1}, {"i8": 1.5}, {"i8": "1"}, {"i8": None})),
        *(
            (each, SchemaMismatch)
            for each in ({"i8": True}, {"f64": float("nan")}, {"f64": float("inf")}, {"f64": "1"})
        ),
    ],
)
def test_amounts_that_are_none_are_refused(open_store: OpenStore, amounts: Any, error: type[Exception]) -> None:
    table = open_store().create_table("t", SCHEMA, "k")
    table.upsert(ROW)
    with pytest.raises(error):
        table.increment("a", amounts)
    assert table["a"] == ROW


@pytest.mark.usefixtures("way")
def test_threads_lose_no_increment(open_store: OpenStore) -> None:
    table = open_store(durability="none").create_table("t", {"k": "int64", "n": "int64", "m": "int64"}, "k", buckets=2)

    def work(number: int) -> list[int]:
        return [table.increment(number % 2, {"n": 1, "m": -2}, default={})["n"] for _ in range(50)]

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(work, range(6)))
    assert [row["n"] for row in table] == [150, 150]
    assert [row["m"] for row in table] == [-300, -300]
    assert sorted(n for each in answers for n in each) == sorted([*range(1, 151)] * 2)


def test_other_kinds_of_tables(open_store: OpenStore) -> None:
    store = open_store()
    store.create_table("first", {"k": "int64", "n": "int64"}, "k", merge_engine="first_row")
    with pytest.raises(UnsupportedOperation, match="last_row"):
        store["first"].increment(1, {"n": 1}, default={})
    with pytest.raises(UnsupportedOperation, match="log table"):
        store.create_table("log", {"n": "int64"}).increment(1, {"n": 1})
    ids = store.create_table("ids", {"k": "string", "id": "int64", "n": "int64"}, "k", auto_increment="id")
    with pytest.raises(UnsupportedOperation, match="upsert it first"):
        ids.increment("a", {"n": 1}, default={})
    ids.upsert([{"k": "a", "n": 0}, {"k": "b", "n": 0}])
    assert ids.increment("b", {"n": 2}) == {"k": "b", "id": ids["b"]["id"], "n": 2} == ids["b"]
    kinds = {"money": pa.decimal128(5, 2), "at": pa.timestamp("us"), "tags": pa.list_(pa.string())}
    nested = store.create_table("nested", pa.schema([pa.field("k", pa.int64(), False), *kinds.items()]), "k")
    nested.upsert({"k": 1, "money": Decimal("990.50"), "at": dt.datetime(2026, 1, 1), "tags": ["a"]})
    after = nested.increment(1, {"money": Decimal("9.49")})
    assert after == nested[1] == {"k": 1, "money": Decimal("999.99"), "at": dt.datetime(2026, 1, 1), "tags": ["a"]}
    for amount, what in (
        ("0.01", "sum"),
        ("-0.001", "amount"),
        ("0.0010", "amount"),
        ("1E+30", "sum"),
        ("1E+999", "sum"),
    ):
        with pytest.raises(InvalidRequest, match=f"{what} does not fit the column"):
            nested.increment(1, {"money": Decimal(amount)})
    for other in (0.5, (0, (1, 2), -1), "1"):
        with pytest.raises(SchemaMismatch):
            nested.increment(1, {"money": other})
    assert nested.increment(1, {"money": np.int64(-999)})["money"] == Decimal("0.99")


def test_rows_of_an_earlier_schema_are_incremented(open_store: OpenStore) -> None:
    store = open_store()
    table = store.create_table("t", {"k": "int64", "n": "int64"}, "k")
    table.upsert({"k": 1, "n": 1})
    store.add_columns("t", [pa.field("m", pa.int64())])
    assert table.increment(1, {"n": 1}) == {"k": 1, "n": 2, "m": None}
    store.rename_columns("t", {"n": "count"})
    assert table.increment(1, {"count": 1}) == {"k": 1, "count": 3, "m": None}
    store.drop_columns("t", ["m"])
    assert table.increment(1, {"count": 1}) == table[1] == {"k": 1, "count": 4}
    assert table.to_arrow(filter=pc.field("count") == 4).num_rows == 1


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        lambda row: row[:-1] + b"x",
        lambda row: row[:8],
        lambda row: row[:4],
        lambda row: row[:6] + b"\xff" + row[7:],  # all columns are null
        lambda row: row[:7] + b"\x7f" * (len(row) - 7),  # no sum fits
    ],
)
def test_an_increment_of_a_damaged_row_says_so_and_writes_nothing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes], has_kernel: bool
) -> None:
    table = table_of(open_store, SCHEMA)
    table.upsert(ROW)
    ends, found = table.offsets(), Memtable.get
    with monkeypatch.context() as patch, nullcontext() if has_kernel else library.switched_off():
        patch.setattr(Memtable, "get", lambda *given: [damage(row) if row else row for row in found(*given)])
        with pytest.raises(CorruptData):
            table.increment("a", {"i8": 1})
    assert table.offsets() == ends
    assert table.increment("a", {"i8": 1}) == {**ROW, "i8": 1}


@pytest.mark.parametrize(
    ("default", "amount", "row"),
    [(np.int8(127), 1, 128), (np.uint8(3), -5, -2), (np.int64(2**62), 1, 2**62 + 1)],
)
def test_numbers_of_numpy_do_not_wrap_round(
    way: str, default: Any, amount: int, row: int, open_store: OpenStore
) -> None:
    table = open_store().create_table("t", {"k": "string", "n": "int64"}, "k")
    assert table.increment("a", {"n": amount}, default={"n": default})["n"] == row


@pytest.mark.parametrize("default", [np.int64(2**63 - 1), True, "1", 1.5])
def test_a_default_that_is_no_such_number_is_refused(way: str, default: Any, open_store: OpenStore) -> None:
    table = open_store().create_table("t", {"k": "string", "n": "int64"}, "k")
    with pytest.raises(InvalidRequest):
        table.increment("a", {"n": 1}, default={"n": default})
    assert "a" not in table


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.duration("s"), pa.timestamp("us", "UTC")])
def test_an_increment_whose_answer_python_lacks_a_value_for_writes_nothing(
    way: str, kind: pa.DataType, open_store: OpenStore
) -> None:
    table = open_store().create_table("t", pa.schema([("k", pa.int64()), ("n", pa.int64()), ("v", kind)]), "k")
    far = pa.array([2**62 if kind == pa.timestamp("us", "UTC") else 400_000_000_000_000], kind)
    table.upsert(pa.table({"k": [1], "n": [1], "v": far}))
    with pytest.raises(UnsupportedOperation, match="Python has no such value"):
        table.increment(1, {"n": 1})
    assert table.to_arrow(columns=["n"])["n"].to_pylist() == [1]
    with pytest.raises(UnsupportedOperation, match="read the row as Arrow"):
        table.get(1)
    assert table.lookup([1])["v"].to_numpy()[0] == far.to_numpy()[0]


def test_a_map_that_is_declared_as_a_dict_comes_back_as_one(open_store: OpenStore) -> None:
    table = open_store().create_table("t", Pages, "id")
    table.upsert(Pages(1, {"a": 1}, 0))
    assert table.increment(1, {"n": 2}) == table.get(1) == {"id": 1, "pages": {"a": 1}, "n": 2}
    assert table.increment(2, {"n": 2}, default={"pages": {"b": 2}}) == {"id": 2, "pages": {"b": 2}, "n": 2}
