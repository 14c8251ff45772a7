"""A filter on the key reads only keys that can match, and finds the same rows as a full scan."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import InvalidRequest
from kvstore.index.index import View
from kvstore.index.leaves import Leaves
from kvstore.memtable.view import NewerView
from tests.conftest import OpenStore
from tests.support.examples import slow

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1) | st.integers(-5, 5)),
    "text": (pa.string(), st.text("ab\0é", max_size=5) | st.sampled_from(["common/" * 20 + end for end in "abcd"])),
    "date": (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    "decimal": (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
    "flag": (pa.bool_(), st.booleans()),
    "large int": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "fixed bytes": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "moment": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "time": (pa.time64("us"), st.times()),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999))),
}
k, v = pc.field("k"), pc.field("v")


def filters(values: st.SearchStrategy[Any], kind: pa.DataType) -> st.SearchStrategy[pc.Expression]:
    scalar = values.map(lambda value: pa.scalar(value, kind))
    simple = st.one_of(
        scalar.map(lambda x: k == x),
        scalar.map(lambda x: k != x),
        scalar.map(lambda x: k < x),
        scalar.map(lambda x: k >= x),
        st.lists(values, max_size=3).map(lambda listed: k.isin(pa.array(listed, kind))),
        st.integers(0, 3).map(lambda n: v == n),
        st.just(v.is_null()),
        st.just(k.is_null()),
        st.integers(-1, 4).map(lambda n: pc.field("second") >= n),
        st.tuples(scalar, st.integers(0, 3)).map(lambda both: (k == both[0]) & (pc.field("second") == both[1])),
    )
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda both: both[0] & both[1]),
            st.tuples(inner, inner).map(lambda both: both[0] | both[1]),
            inner.map(lambda one: ~one),
        ),
        max_leaves=4,
    )


@pytest.mark.parametrize("of", KEYS)
@slow(40)
@given(data=st.data())
def test_a_filter_finds_the_same_rows_as_a_full_scan(
    of: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, values = KEYS[of]
    schema = pa.schema([pa.field("k", kind, False), pa.field("second", pa.int8(), False), pa.field("v", pa.int64())])
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries({"k": values, "second": st.integers(0, 3), "v": st.none() | st.integers(0, 3)}),
            max_size=60,
        )
    )
    with kvstore.open(tmp_path_factory.mktemp("s") / "store") as store:
        table = store.create_table("t", schema, ["k", "second"])
        table.upsert(rows)
        everything = table.scan().read_all()
        for filter in data.draw(st.lists(filters(values, kind), min_size=1, max_size=5)):
            assert table.scan(filter=filter).read_all() == everything.filter(filter)


def test_two_bounds_on_a_decimal_whose_scale_is_negative(store: kvstore.Store) -> None:
    kind = pa.decimal128(5, -2)
    table = store.create_table("t", pa.schema([pa.field("k", kind, False)]), "k")
    table.upsert([{"k": Decimal(100 * n)} for n in range(-3, 4)])
    low, high = (pa.scalar(Decimal(value), kind) for value in (-100, 200))
    for filter, expected in (
        ((k >= low) & (k >= high), [200, 300]),
        ((k < low) & (k < high), [-300, -200]),
        ((k > low) | (k > high), [0, 100, 200, 300]),
        ((k <= low) | (k <= high), [-300, -200, -100, 0, 100, 200]),
    ):
        assert table.scan(filter=filter).read_all()["k"].to_pylist() == expected


LARGE: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int": (pa.int64(), lambda n: (n - 300) * 1_000_003),
    "text": (pa.string(), lambda n: f"{'common/' * (n % 3)}{'deep/' * (n % 7)}{n:03}"),
    "decimal": (pa.decimal128(20, 2), lambda n: Decimal(n**3 - 10**6) / 4),
    "moment": (pa.timestamp("us", "UTC"), lambda n: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=n * n)),
    "bytes": (pa.binary(), lambda n: bytes([0] * (n % 5) + [n % 256, n % 2]) * (n % 4 + 1) + n.to_bytes(2, "big")),
}


@pytest.mark.parametrize("of", LARGE)
def test_a_filter_finds_the_same_rows_in_a_table_of_many_pages(of: str, store: kvstore.Store) -> None:
    kind, key = LARGE[of]
    columns = {"k": kind, "second": pa.int8(), "v": pa.int64(), "pad": pa.string()}
    schema = pa.schema([pa.field(name, kind, name not in ("k", "second")) for name, kind in columns.items()])
    table = store.create_table("t", schema, ["k", "second"])
    rows = [
        {"k": key(n), "second": second, "v": n % 4 or None, "pad": "x" * 60} for n in range(600) for second in range(4)
    ]
    table.upsert(rows)
    then = table.offsets()[0][1]
    states: list[tuple[int | None, pa.Table]] = [(then, table.scan().read_all())]
    table.delete([{"k": key(n), "second": n % 4} for n in range(0, 600, 7)])
    table.delete([{"k": row["k"], "second": row["second"]} for row in sorted(rows, key=lambda row: row["k"])[-100:]])
    table.upsert([{"k": key(n), "second": 7, "v": 9, "pad": None} for n in range(0, 600, 50)])
    states.append((None, table.scan().read_all()))

    @slow(200, quick=15)
    @given(filter=filters(st.integers(-3 if of == "int" else 0, 603).map(key), kind))
    def agrees(filter: pc.Expression) -> None:
        for as_of, everything in states:
            assert table.scan(filter=filter, as_of=as_of).read_all() == everything.filter(filter)

    agrees()


COSTS: dict[str, tuple[tuple[str, ...], Callable[[int], dict[str, Any]], Callable[[int], pc.Expression]]] = {
    "the middle key": (("k",), lambda n: {"k": f"u{n:07}"}, lambda rows: k == f"u{rows // 2:07}"),
    "a key that is not there": (("k",), lambda n: {"k": f"u{n:07}"}, lambda rows: k == f"u{rows // 2:07}x"),
    "a few of many": (
        ("k",),
        lambda n: {"k": f"u{n:07}"},
        lambda rows: k.isin([f"u{n:07}" for n in range(0, rows, rows // 5)]),
    ),
    "a range": (
        ("k",),
        lambda n: {"k": "deep/" * 20 + f"{n:07}"},
        lambda rows: (k >= "deep/" * 20 + f"{rows // 2:07}") & (k < "deep/" * 20 + f"{rows // 2 + 9:07}"),
    ),
    "the beginning": (("k",), lambda n: {"k": n - 400}, lambda _: ~(k >= -395)),
    "a part of the key, and a value": (
        ("k", "second"),
        lambda n: {"k": f"s{n // 50:05}", "second": n % 50},
        lambda rows: (k == f"s{rows // 100:05}") & (pc.field("v") == 7),
    ),
    "a whole key": (
        ("k", "second"),
        lambda n: {"k": n // 500, "second": n % 500},
        lambda _: (k == 1) & (pc.field("second") == 77),
    ),
    "one or the other": (
        ("k",),
        lambda n: {"k": Decimal(n) / 100},
        lambda rows: (k == Decimal("0.05")) | (k > Decimal(rows - 5) / 100),
    ),
}


@pytest.fixture
def rows_and_pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows and of pages that were read from indexes."""
    counts = [0, 0]
    found, read = View.found, Leaves.read

    def found_and_counted(view: View, *arguments: Any, **options: Any) -> Any:
        for rows in found(view, *arguments, **options):
            counts[0] += len(rows.keys())
            yield rows

    def read_and_counted(leaves: Leaves, firsts: np.ndarray, numbers: np.ndarray, *arguments: Any) -> Any:
        counts[1] += int(numbers.sum())
        return read(leaves, firsts, numbers, *arguments)

    monkeypatch.setattr(View, "found", found_and_counted)
    monkeypatch.setattr(Leaves, "read", read_and_counted)
    return counts


@pytest.mark.parametrize("of", COSTS)
def test_a_filter_on_the_key_costs_the_same_in_a_table_of_any_size(
    of: str, store: kvstore.Store, rows_and_pages: list[int]
) -> None:
    key, row, condition = COSTS[of]
    costs = []
    for size in (2_000, 20_000):
        rows = pa.Table.from_pylist([row(n) | {"v": n % 10} for n in range(size)])
        table = store.create_table(f"t{size}", rows.schema, key)
        table.upsert(rows)
        store.flush()  # few rows would stay in memory, where none has to be found
        expected = rows.filter(condition(size))
        rows_and_pages[:] = 0, 0
        found = table.scan(filter=condition(size)).read_all()
        costs.append(tuple(rows_and_pages))
        assert found.to_pylist() == expected.to_pylist()
    (rows_before, pages_before), (rows_after, pages_after) = costs
    # Leaves are not equally full, and the large tree has one more level.
    assert rows_after <= rows_before + 150
    assert pages_after <= pages_before + 3


@pytest.fixture(scope="module")
def large(store_of_module: kvstore.Store) -> kvstore.Table:
    """A table of 100,000 rows, which nothing writes."""
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
    table = store_of_module.create_table("large", schema, "k")
    table.upsert(pa.table({"k": range(100_000), "v": [1] * 100_000}))
    table.flush()
    return table


@pytest.mark.parametrize(
    ("filter", "rows_read_max"),
    [
        (k == 77_777, 250),  # some 110 rows of this table fit in a page
        (k.isin([5, 99_000]), 400),
        ((k >= 50_000) & (k < 50_100) & (v > 0), 300),
        (k < 0, 0),
        (v == 1, 100_000),
    ],
    ids=str,
)
def test_a_selective_filter_reads_few_rows(
    large: kvstore.Table, rows_and_pages: list[int], filter: pc.Expression, rows_read_max: int
) -> None:
    rows_and_pages[:] = 0, 0
    found = large.scan(filter=filter).read_all()
    assert found.num_rows > 0 or rows_read_max == 0
    assert rows_and_pages[0] <= rows_read_max


NAN = float("nan")


@pytest.mark.parametrize("filter", [~(k <= NAN), ~(k > NAN), k < NAN, ~k.isin([NAN]), (k > 5) | ~(k < NAN)], ids=str)
def test_a_filter_that_compares_the_key_with_no_number_finds_the_same_rows_as_a_full_scan(
    large: kvstore.Table, filter: pc.Expression
) -> None:
    everything = large.to_arrow()
    assert large.to_arrow(filter=filter).equals(everything.filter(filter))


def test_changes_are_found_by_a_filter_that_compares_their_offset_with_no_number(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64"}, "k")
    for key in range(50):
        table.upsert([{"k": key}])
    found = table.changes_dataset().to_table(filter=~(pc.field("_log_offset") <= NAN))
    assert found["_log_offset"].to_pylist() == list(range(50))


ASKED: list[tuple[pc.Expression, str]] = [
    (k == 5, "lookup of 1 key"),
    (k.isin([5, 7, 5]) & (v == 1), "lookup of 2 keys"),
    ((k == 5) & ((v == 1) | (v == 2)), "lookup of 1 key"),
    ((k >= 5) & (k < 9), "scan of 1 range of keys"),
    ((k == 5) & (k == 6), "lookup of 1 key"),
    (k < -1, "nothing is read: no key can have such a row"),
    (v == 1, "scan of all rows"),
]


@pytest.mark.parametrize(("filter", "expected"), ASKED, ids=str)
def test_conditions_on_the_key_say_where_to_look(large: kvstore.Table, filter: pc.Expression, expected: str) -> None:
    assert large.explain(filter) == expected


def test_a_condition_on_the_key_reads_no_pages_of_a_large_table(
    large: kvstore.Table, rows_and_pages: list[int]
) -> None:
    for filter in (k == 5, k.isin([1, 50_000]), (k == 7) & ((v == 1) | (v > 5)), (k >= 50) & (k < 60)):
        rows_and_pages[:] = 0, 0
        assert large.to_arrow(filter=filter).num_rows
        assert rows_and_pages == [0, 0]


def test_rows_of_keys_that_a_filter_names_come_in_order_and_within_the_range(store: kvstore.Store) -> None:
    columns = {"a": "string", "b": "int32", "v": "int64"}
    table = store.create_table("t", columns, ["a", "b"], buckets=3)
    table.upsert(
        [{"a": a, "b": b, "v": b} for a in ("x", "x\0", "y" * 300, "y" * 600) if len(a) < 400 for b in range(9)]
    )
    a, b = pc.field("a"), pc.field("b")

    def found(filter: pc.Expression, **span: Any) -> list[tuple[str, int]]:
        return [(row["a"][:2], row["b"]) for row in table.to_arrow(filter=filter, **span).to_pylist()]

    both = a.isin(["x", "x\0", "y" * 600]) & b.isin([3, 7, 99])
    assert found(both, reverse=True) == [("x\0", 7), ("x\0", 3), ("x", 7), ("x", 3)]
    assert found(both, start=("x", 4), stop=("x\0", 4)) == [("x", 7), ("x\0", 3)]
    assert found(both, start=("x",), limit=1) == [("x", 3)]
    assert found((a == "x") & (b > 6), reverse=True) == [("x", 8), ("x", 7)]
    assert found((a > "x") & (b == 6), start=("x",)) == [("x\0", 6), ("yy", 6)]
    assert found(a == "y" * 600) == []
    table.delete([("x", 3)])
    assert sorted(found(both)) == [("x", 7), ("x\0", 3), ("x\0", 7)]


def test_a_filter_that_fails_for_a_key_is_refused_by_the_reader(store: kvstore.Store) -> None:
    table = store.create_table("t", pa.schema([pa.field("k", pa.uint64(), False)]), "k")
    table.upsert([{"k": 1}, {"k": 2**64 - 1}])
    assert table.to_arrow(filter=k >= 1).num_rows == 2
    reader = table.scan(filter=~(k < 0))  # 0 is an int64, so everything it is compared with must be one
    with pytest.raises(InvalidRequest, match="can't be used on these rows"):
        reader.read_all()
    assert table.scan(filter=k >= pa.scalar(2, pa.uint64())).read_all().to_pylist() == [{"k": 2**64 - 1}]


def test_all_ranges_of_a_bucket_are_read_at_one_moment(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.upsert([{"k": 1, "v": 0}, {"k": 2, "v": 0}])
    real, calls = NewerView.first, 0

    def first(*given: Any, **named: Any) -> Any:
        nonlocal calls
        found = real(*given, **named)
        calls += 1
        if calls == 1:
            table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
        return found

    monkeypatch.setattr(NewerView, "first", first)
    assert table.to_arrow(filter=pc.field("k").isin([1, 2]))["v"].to_pylist() == [0, 0]
    assert calls == 2
    assert table.to_arrow(filter=pc.field("k").isin([1, 2]))["v"].to_pylist() == [1, 1]


@pytest.mark.parametrize("count", [256, 257, 258])
def test_ranges_with_one_row_more_than_are_read_at_once(open_store: OpenStore, count: int) -> None:
    store = open_store(commit_wait_ms=600_000, commit_idle_ms=600_000)
    table = store.create_table("t", {"a": "int64", "b": "int64"}, ["a", "b"])
    table.upsert([{"a": 1, "b": b} for b in range(count)] + [{"a": 2, "b": 0}])
    for _ in range(2):
        assert table.to_arrow(filter=pc.field("a").isin([1, 2])).num_rows == count + 1
        assert table.scan(filter=pc.field("a").isin([1, 2]), limit=count).read_all().num_rows == count
        table.flush()
