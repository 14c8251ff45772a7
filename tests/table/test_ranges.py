"""Ranges of keys: a scan between two keys, of a prefix, or backwards is that part of the sorted rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import InvalidRequest, SchemaMismatch, UnsupportedOperation
from kvstore.table import reading
from tests.conftest import OpenStore
from tests.support.bytes_read import bytes_read
from tests.support.calls_made import CallsMade
from tests.support.examples import slow

pytestmark = pytest.mark.usefixtures("both_ways")

TEXTS = st.text("\0\1ab\xff\uffff\U0001f600", max_size=4)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXTS),
    "bytes": (pa.binary(), TEXTS.map(str.encode)),
    "number": (pa.int32(), st.integers(-3, 3)),
    "flag": (pa.bool_(), st.booleans()),
    "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2)),
}


def order_of(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def order(key: Sequence[Any]) -> list[Any]:
    return [order_of(value) for value in key]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Columns of a key, keys, and those of them that are deleted later."""
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3, unique=True))
    keys = draw(st.lists(st.tuples(*(COLUMNS[name][1] for name in names)), max_size=16, unique=True))
    return names, keys, [key for key in keys if draw(st.booleans())]


def beginnings(names: Sequence[str], data: st.DataObject) -> tuple[Any, ...]:
    return tuple(data.draw(COLUMNS[name][1]) for name in names[: data.draw(st.integers(1, len(names)))])


def begins(key: Sequence[Any], prefix: Sequence[Any]) -> bool:
    *whole, last = prefix
    value = key[len(whole)]
    if isinstance(last, (str, bytes)):
        return list(key[: len(whole)]) == whole and order_of(value).startswith(order_of(last))
    return tuple(key[: len(prefix)]) == tuple(prefix)


@slow(60)
@given(made=tables(), buckets=st.integers(1, 3), few=st.integers(0, 3), data=st.data())
def test_a_range_is_that_part_of_the_sorted_rows(
    made: Any, buckets: int, few: int, data: st.DataObject, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, keys, deleted = made
    monkeypatch.setattr(reading, "SHORT_ROWS", few)  # reads of more rows take the other way
    with kvstore.open(tmp_path_factory.mktemp("s") / "store", durability="none") as store:
        fields = [pa.field(name, COLUMNS[name][0], nullable=False) for name in names]
        table = store.create_table("t", pa.schema([*fields, ("n", pa.int64())]), names, buckets=buckets)
        table.upsert([dict(zip(names, key, strict=True)) | {"n": nth} for nth, key in enumerate(keys)])
        then = {bucket: end for bucket, (_, end) in table.offsets().items()}
        if deleted:
            table.delete(deleted)
        rows = [(key, nth) for nth, key in sorted(enumerate(keys), key=lambda each: order(each[1]))]
        for _ in range(4):
            asked: dict[str, Any] = {"reverse": data.draw(st.booleans())}
            for name in ("start", "stop", "prefix"):
                if data.draw(st.booleans()):
                    asked[name] = beginnings(names, data)
            if data.draw(st.booleans()):
                asked["as_of"] = then
            if data.draw(st.booleans()):
                asked["filter"] = pc.field("n") > 3
            if data.draw(st.booleans()):
                asked["limit"] = data.draw(st.integers(0, 9))
            expected = [
                nth
                for key, nth in rows
                if ("as_of" in asked or key not in deleted)
                and ("start" not in asked or order(key)[: len(asked["start"])] >= order(asked["start"]))
                and ("stop" not in asked or order(key) < order(asked["stop"]))
                and ("prefix" not in asked or begins(key, asked["prefix"]))
                and ("filter" not in asked or nth > 3)
            ]
            if asked["reverse"]:
                expected.reverse()
            found = table.to_arrow(["n"], **asked)["n"].to_pylist()
            # Without a range, the rows of one bucket come after those of another.
            if set(asked) & {"start", "stop", "prefix"} or asked["reverse"] or buckets == 1:
                assert found == expected[: asked.get("limit")]
        now = [nth for key, nth in rows if key not in deleted]
        assert [row["n"] for row in table] == now
        assert [row["n"] for row in reversed(table)] == now[::-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_condition_on_the_key_may_leave_several_parts_of_a_range(open_store: OpenStore, reverse: bool) -> None:
    table = open_store().create_table("t", {"k": "int64"}, "k")
    table.upsert(pa.table({"k": range(50_000)}))
    apart = (pc.field("k") < 3) | (pc.field("k") > 49_996)
    found = table.to_arrow(filter=apart, start=1, stop=49_999, reverse=reverse)["k"].to_pylist()
    assert found == sorted([1, 2, 49_997, 49_998], reverse=reverse)


@pytest.mark.parametrize("buckets", [1, 3])
def test_long_ranges_come_in_many_batches(open_store: OpenStore, buckets: int) -> None:
    table = open_store().create_table("t", {"k": "int64", "v": "string"}, "k", buckets=buckets)
    table.upsert(pa.table({"k": range(100_000), "v": ["x"] * 100_000}))
    assert table.to_arrow(["k"], start=10, reverse=True)["k"].to_pylist() == list(range(99_999, 9, -1))
    assert table.to_arrow(["k"], start=10, stop=90_000)["k"].to_pylist() == list(range(10, 90_000))
    then = {bucket: end for bucket, (_, end) in table.offsets().items()}
    table.delete(list(range(0, 100_000, 2)))
    table.upsert({"k": 200_000})
    for reverse in (False, True):
        assert sorted(range(100_000), reverse=reverse) == (
            table.to_arrow(["k"], start=0, as_of=then, reverse=reverse)["k"].to_pylist()
        )


def test_a_short_range_of_a_large_table_reads_little(open_store: OpenStore) -> None:
    table = open_store().create_table("t", {"k": "int64", "v": "string"}, "k")
    table.upsert(pa.table({"k": range(100_000), "v": ["x" * 100] * 100_000}))
    table.flush()
    table.to_arrow(start=0, reverse=True, limit=1_000)  # what is loaded once
    for asked in ({"reverse": True}, {"start": 50_000}, {"stop": 50_000, "reverse": True}):
        before = bytes_read()
        assert table.to_arrow(**asked, limit=1_000).num_rows == 1_000
        assert bytes_read() - before < 2 << 20


@pytest.mark.parametrize("reverse", [False, True])
def test_a_limit_is_reached_beyond_many_later_rows(open_store: OpenStore, reverse: bool) -> None:
    """It took one step for each of them."""
    table = open_store().create_table("t", {"k": "int64"}, "k")
    table.upsert([{"k": -1}, {"k": 5_000}])
    table.upsert(pa.table({"k": range(5_000)}))
    start, stop = (-1, 5_000) if reverse else (0, None)
    with CallsMade() as calls:
        found = table.to_arrow(start=start, stop=stop, as_of=2, reverse=reverse, limit=1)["k"].to_pylist()
    assert found == [start if reverse else 5_000]
    assert calls.number < 50_000  # a reverse scan takes some calls for each row, but no batch


def test_rows_that_are_not_committed_yet_are_in_a_range(open_store: OpenStore) -> None:
    table = open_store().create_table("t", {"k": "string"}, "k")
    for key in "bdac":
        table.upsert({"k": key})
        assert table.to_arrow(start="a", reverse=True, limit=1)["k"][0].as_py() == max(row["k"] for row in table)
    assert table.to_pandas(start="b", stop="d")["k"].tolist() == ["b", "c"]
    assert table.to_polars(prefix="b", reverse=True)["k"].to_list() == ["b"]


def test_keys_need_not_be_tuples(open_store: OpenStore) -> None:
    table = open_store().create_table("t", {"a": "string", "b": "int64"}, ["a", "b"])
    table.upsert([{"a": a, "b": b} for a in ("u", "ux", "v") for b in range(3)])
    assert table.to_arrow(start={"a": "u", "b": 2}, stop="v")["b"].to_pylist() == [2, 0, 1, 2]
    assert table.to_arrow(prefix="u").num_rows == 6
    assert table.to_arrow(prefix={"a": "u", "b": 1}).to_pylist() == [{"a": "u", "b": 1}]
    assert table.to_arrow(prefix=b"ux").num_rows == 3
    assert table.to_arrow(start="x" * 1000).num_rows == table.to_arrow(prefix="u" * 600).num_rows == 0
    assert table.to_arrow(stop="x" * 1000).num_rows == 9


@pytest.mark.parametrize(
    "asked",
    [
        *({"start": each} for each in ({}, (), {"b": 1}, 1, (None, 1), ("x", "y"), ("x", 1, 2), b"x")),
        *({"prefix": each} for each in ({}, {"b": 1}, 1, ("x", "y"), "x\ud800")),
    ],
)
def test_a_range_that_is_none_is_refused(open_store: OpenStore, asked: Any) -> None:
    table = open_store().create_table("t", {"a": "string", "b": "int64"}, ["a", "b"])
    (name,) = asked
    with pytest.raises(SchemaMismatch) as caught:
        table.scan(**asked)
    assert f"`{name}`" in str(caught.value) or "column" in caught.value.where


def test_what_else_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(InvalidRequest, match="True or False"):
        store.create_table("t", {"k": "string"}, "k").scan(reverse=1)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOperation, match="log table"):
        store.create_table("log", {"k": "string"}).scan(prefix="x")


def test_a_prefix_lookup_of_a_part_of_a_text_is_refused(open_store: OpenStore) -> None:
    """It finds whole values only, so it silently gave no row."""
    store = open_store()
    table = store.create_table("t", {"sid": "string"}, "sid")
    table.upsert({"sid": "u001:a"})
    with pytest.raises(InvalidRequest, match=r"scan\(prefix=…\)"):
        table.prefix_lookup({"sid": "u001:"})
    assert table.to_arrow(prefix="u001:").num_rows == 1
    both = store.create_table("both", {"a": "string", "b": "string"}, ["a", "b"])
    both.upsert({"a": "x", "b": "u001:a"})
    with pytest.raises(InvalidRequest, match=r"scan\(prefix=…\)"):
        both.prefix_lookup(("x", "u001:"))
    assert both.prefix_lookup(("x",)).num_rows == both.to_arrow(prefix=("x", "u001:")).num_rows == 1
    numbers = store.create_table("numbers", {"k": "int64"}, "k")
    numbers.upsert({"k": 1})
    assert numbers.prefix_lookup({"k": 1}).num_rows == 1
