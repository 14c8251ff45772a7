"""Scans with a filter: by an index they return what Arrow's own filter leaves of the rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.indexing import asked, find
from kvstore.indexing.conditions import matching
from kvstore.indexing.filters import understood
from kvstore.table import reading
from tests.conftest import OpenStore
from tests.indexing.counted import entries_read
from tests.support.examples import slow

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), False),
        pa.field("age", pa.int16()),
        pa.field("mail", pa.string()),
        pa.field("score", pa.float32()),
        pa.field("big", pa.int64()),
        pa.field("ok", pa.bool_()),
        pa.field("at", pa.timestamp("ms")),
        pa.field("paid", pa.decimal128(9, 2)),
    ]
)
INDEXES = {name: name for name in SCHEMA.names[1:]} | {"both": ["age", "mail"]}
LARGE = 1 << 53
VALUES: dict[str, list[Any]] = {
    "id": [0, 1, 2, 3],
    "age": [None, -3, 0, 7, 8],
    "mail": [None, "", "a", "a\0", "ab", "abc", "b", "é", "\ud7ff", "\U0010ffff", "\U0010ffffz"],
    "score": [None, -0.0, 0.0, 0.1, 1.5, float("nan"), float("inf")],
    "big": [None, 0, LARGE - 1, LARGE, LARGE + 1],
    "ok": [None, False, True],
    "at": [None, dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1000)],
    "paid": [None, Decimal("0.00"), Decimal("1.50"), Decimal("2.00")],
}
ROWS = pa.RecordBatch.from_pylist(
    [
        {name: values[number * 7 // place % len(values)] for place, (name, values) in enumerate(VALUES.items(), 1)}
        | {"id": number}
        for number in range(300)
    ],
    SCHEMA,
)
OTHERS = [5, 7.0, 7.5, 0.1, float(LARGE), LARGE, "ab", Decimal("1.5"), dt.datetime(2020, 1, 1), dt.date(2020, 1, 1)]
COMPARISONS: list[Callable[[Any, Any], pc.Expression]] = [
    lambda one, other: one == other,
    lambda one, other: one != other,
    lambda one, other: one < other,
    lambda one, other: one <= other,
    lambda one, other: one > other,
    lambda one, other: one >= other,
]


@st.composite
def comparisons(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(SCHEMA.names))
    kind, field, known = SCHEMA.field(name).type, pc.field(name), VALUES[name]
    match draw(st.integers(0, 6)):
        case 0:
            return field.isin(pa.array(draw(st.lists(st.sampled_from(known), max_size=3)), kind))
        case 1:
            return field.is_null(nan_is_null=draw(st.booleans()))
        case 2:
            pattern = draw(st.sampled_from(["", "a", "ab%", "a_c", "%b", "\ud7ff".encode("utf-8", "replace").decode()]))
            like = draw(st.sampled_from([pc.starts_with, pc.match_like]))
            return like(pc.field("mail"), pattern, ignore_case=draw(st.booleans()))
        case 3:
            return pc.field("ok")
        case 4:
            value = draw(st.sampled_from(OTHERS))
        case _:
            value = pa.scalar(draw(st.sampled_from(known)), kind)
    compare = draw(st.sampled_from(COMPARISONS))
    literal = pc.scalar(value)
    return compare(field, literal) if draw(st.booleans()) else compare(literal, field)


FILTERS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(st.builds(and_, inner, inner), st.builds(or_, inner, inner), inner.map(lambda each: ~each)),
    max_leaves=4,
)


COMPARED = st.recursive(comparisons(), lambda inner: st.builds(and_, inner, inner), max_leaves=3)


def passing(rows: pa.RecordBatch, filter: pc.Expression) -> pa.RecordBatch | None:
    """The rows that pass a filter; None if Arrow can't compare these types."""
    try:
        return rows.filter(filter)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None


@given(st.lists(FILTERS, min_size=20, max_size=20))
def test_conditions_are_true_for_all_rows_that_pass(filters: list[pc.Expression]) -> None:
    for filter in filters:
        found = passing(ROWS, filter)
        conditions = understood(filter, SCHEMA).conditions
        assert len({each.column for each in conditions}) == len(conditions)
        if found is not None and conditions:
            assert matching(found, conditions).num_rows == found.num_rows, (filter, conditions)


@given(st.lists(COMPARED, min_size=20, max_size=20))
def test_a_filter_that_is_understood_wholly_finds_what_arrow_finds(filters: list[pc.Expression]) -> None:
    for filter in filters:
        known = understood(filter, SCHEMA)
        found = passing(ROWS, filter)
        if known.comparisons is not None and found is not None:
            assert known.matching(ROWS)["id"].equals(found["id"]), filter


def test_comparisons_joined_by_and_are_understood_wholly() -> None:
    age, mail = pc.field("age"), pc.field("mail")
    whole = [age == 7, pc.scalar(7) < age, (mail >= "a") & (mail < "b"), mail.isin(["a", "b"]) & (age <= 7)]
    others = [(mail >= "a") | (age == 7), age != 7, (age == 7) & pc.field("ok"), mail.isin(["a", None]), age + 1 == 7]
    assert all(understood(filter, SCHEMA).comparisons for filter in whole)
    assert not any(understood(filter, SCHEMA).comparisons for filter in others)


FOUND: list[tuple[pc.Expression, str]] = [
    (pc.field("age") == 7, "index age by age"),
    (pc.scalar(7) == pc.field("age"), "index age by age"),
    (pc.field("score") == 1.5, "index score by score"),
    (pc.field("big") == 7.0, "index big by big"),
    (pc.field("mail").isin(["a", None]), "index mail by mail"),
    (pc.field("mail").is_null(), "index mail by mail"),
    (pc.starts_with(pc.field("mail"), "ab"), "index mail by mail"),
    (pc.match_like(pc.field("mail"), "ab%c"), "index mail by mail"),
    ((pc.field("mail") == "a") | (pc.field("mail") == "b") | pc.field("mail").isin(["c"]), "index mail by mail"),
    ((pc.field("mail") >= "a") & (pc.field("mail") < "b"), "index mail by mail"),
    ((pc.field("mail") < "a") | (pc.field("mail") < "b"), "index mail by mail"),
    ((pc.field("mail") > "a") & (pc.field("age") == 7), "index both by age, mail"),
    (
        pc.if_else(pc.field("mail").is_valid(), pc.field("mail") == "a", pa.scalar(None, pa.bool_())),
        "index mail by mail",
    ),
    (pc.if_else(pc.field("mail") == "a", pc.field("age") == 7, pc.scalar(True)), "scan of all rows"),
    (pc.field("ok"), "index ok by ok"),
    (~pc.field("ok"), "index ok by ok"),
    (pc.field("at") == pa.scalar(dt.datetime(2020, 1, 1), pa.timestamp("us")), "index at by at"),
    (pc.field("paid") > Decimal("1.5"), "index paid by paid"),
    ((pc.field("age") == 7) & (pc.field("age") != 8) & pc.scalar(True), "index age by age"),
    (pc.field("age") + 1 == 8, "scan of all rows"),
    (pc.field("score").is_null(nan_is_null=True), "scan of all rows"),
    (pc.starts_with(pc.field("mail"), "ab", ignore_case=True), "scan of all rows"),
    (pc.field("age") != 7, "scan of all rows"),
    (pc.field("age") == 7.5, "scan of all rows"),
    ((pc.field("age") == 7) | (pc.field("mail") == "a"), "scan of all rows"),
    (~(pc.field("age") == 7), "scan of all rows"),
    (pc.field("big") == float(LARGE), "scan of all rows"),
    (pc.field("id") == 5, "lookup of 1 key"),
]


def test_a_filter_is_searched_for_by_an_index(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes=INDEXES)
    table.upsert(ROWS)
    table.flush()
    assert [(str(filter), table.explain(filter)) for filter, _ in FOUND] == [(str(each), way) for each, way in FOUND]
    listed = reduce(or_, (pc.field("mail") == f"m{number}" for number in range(3000)))
    assert table.explain(listed) == "index mail by mail"
    assert (
        table.explain(
            pc.field("age").isin([7]),
        )
        == "index age by age"
    )


def test_a_beginning_of_bytes_that_are_no_text(store: kvstore.Store) -> None:
    table = store.create_table("t", {"id": "int64 not null", "b": "binary"}, "id", indexes={"by_b": "b"})
    table.upsert([{"id": 1, "b": b"\xed\x9f\x01"}, {"id": 2, "b": b"ab"}])
    filter = pc.starts_with(pc.field("b"), b"\xed\x9f")
    assert table.scan(filter=filter).read_all().column("id").to_pylist() == [1]
    assert table.explain(filter) == "scan of all rows"
    assert [each.num_rows for each in table.changelog(filter=filter)] == [1]
    table.delete(where=filter)
    assert table.to_arrow().column("id").to_pylist() == [2]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table of one bucket and one of three, some rows of which are not merged."""
    with kvstore.open(tmp_path_factory.mktemp("t") / "store", commit_wait_ms=600_000, commit_idle_ms=600_000) as store:
        made = []
        for buckets in (1, 3):
            table = store.create_table(f"t{buckets}", SCHEMA, "id", buckets=buckets, indexes=INDEXES)
            old = ROWS.slice(40)
            table.upsert(old.take(pa.array(range(old.num_rows - 1, -1, -1))).set_column(0, "id", old.column("id")))
            table.upsert(pa.record_batch([pa.array([900, 901], pa.int32())], ["id"]), columns=["id"])
            table.flush()
            table.upsert(ROWS.slice(150))
            table.delete([900, 901])
            table.upsert(ROWS.slice(0, 150))
            made.append(table)
        yield made


SPANS: list[dict[str, Any]] = [{}, {"start": 50, "stop": 200}, {"reverse": True}]
SCANS = st.tuples(FILTERS, st.sampled_from(SPANS), st.sampled_from([None, 5]))


@pytest.mark.parametrize(("few", "at_once"), [(10, 3), (10_000, 7)])
@slow(1_000, quick=12)
@given(st.lists(SCANS, min_size=5, max_size=5))
def test_a_scan_returns_what_passes(tables: Any, few: int, at_once: int, scans: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (find, asked):
            patch.setattr(module, "FEW_ROWS", few)
            patch.setattr(module, "SHARE_MAX", 1)
        patch.setattr(asked, "AT_ONCE_ROWS", at_once)
        for filter, span, limit in scans:
            expected = passing(ROWS, filter)
            if expected is not None:
                for table in tables:
                    assert_scanned(table, expected, filter, span, limit)


def assert_scanned(table: Any, expected: pa.RecordBatch, filter: Any, span: dict[str, Any], limit: int | None) -> None:
    mails = dict(zip(expected["id"].to_pylist(), expected["mail"].to_pylist(), strict=True))
    ids = [id for id in mails if "start" not in span or 50 <= id < 200]
    if "reverse" in span:
        ids.reverse()
    found = table.scan(["id", "mail"], filter, limit, **span).read_all().to_pydict()
    if table.buckets > 1 and not span:  # one bucket after the other
        assert len(set(found["id"])) == len(found["id"]) == min(len(ids), limit or len(ids))
        assert set(found["id"]) <= set(ids)
    else:
        assert found["id"] == ids[:limit]
    assert found["mail"] == [mails[id] for id in found["id"]]


def test_every_read_with_a_filter_uses_an_index(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes={"mail": "mail", "age": "age"})
    table.upsert([{"id": number, "mail": f"m{number % 500}", "age": number % 7} for number in range(3000)])
    table.flush()
    read_since = entries_read(monkeypatch)
    wanted = (pc.field("mail") == "m77") & (pc.field("age") > 2)
    expected = [number for number in range(77, 3000, 500) if number % 7 > 2]
    listed = "(" + ", ".join(f"'m{number}'" for number in range(20)) + ")"
    reads: list[tuple[Callable[[], list[int]], list[int]]] = [
        (lambda: table.to_arrow(filter=wanted)["id"].to_pylist(), expected),
        (lambda: list(table.to_pandas(filter=wanted)["id"]), expected),
        (lambda: list(table.to_polars(filter=wanted)["id"]), expected),
        (lambda: table.dataset().to_table(filter=wanted)["id"].to_pylist(), expected),
        (lambda: [table.dataset().count_rows(filter=wanted)], [len(expected)]),
        (lambda: list(duckdb_ids(store, "mail = 'm77' AND age > 2")), expected),
        (lambda: list(duckdb_ids(store, "mail >= 'm77' AND mail < 'm770' AND age > 2 AND mail = 'm77'")), expected),
        (lambda: list(duckdb_ids(store, f"mail IN {listed} AND id >= 2600")), []),
    ]
    for read, ids in reads:
        read_since()
        assert read() == ids
        assert 0 < read_since() <= 300
    table.update_where(wanted, {"score": 2.5})
    table.delete(where=wanted & (pc.field("id") < 2000))
    assert 0 < read_since() <= 12
    assert table.scan(["id"], pc.field("score") == 2.5).read_all()["id"].to_pylist() == [
        i for i in expected if i >= 2000
    ]
    read_since()
    assert table.to_arrow(filter=pc.field("age") > 2).num_rows == sum(row["age"] > 2 for row in table)
    assert table.scan(filter=wanted, as_of=3000).read_all().num_rows == len(expected)
    assert read_since() <= 1025, "so many entries show that a scan is faster; the past is scanned"


def test_a_limit_reads_no_more_rows_than_it_needs(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes={"age": "age"})
    table.upsert([{"id": number, "age": number % 10} for number in range(20_000)])
    table.flush()
    read: list[int] = []
    rows_of_keys = reading.rows_of_keys

    def counted(*given: Any, **named: Any) -> Iterator[pa.RecordBatch]:
        for rows in rows_of_keys(*given, **named):
            read.append(rows.num_rows)
            yield rows

    monkeypatch.setattr(reading, "rows_of_keys", counted)
    wanted = pc.field("age") == 3
    assert table.explain(wanted) == "index age by age"
    assert table.scan(["id"], wanted, 2).read_all()["id"].to_pylist() == [3, 13]
    assert read == [reading.LIMITED_ROWS]


def duckdb_ids(store: kvstore.Store, where: str) -> list[int]:
    ids: list[int] = store.sql(f"SELECT id FROM t WHERE {where} ORDER BY id").read_all()["id"].to_pylist()
    return ids


def test_a_scan_by_an_index_shows_one_moment(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes={"age": "age"})
    table.upsert([{"id": number, "age": number % 2, "mail": "a"} for number in range(20)])
    for _ in range(2):
        rows = table.scan(["id"], pc.field("age") == 1)
        table.update_where(pc.field("age") == 1, {"age": 3})
        table.flush()
        assert rows.read_all()["id"].to_pylist() == list(range(1, 20, 2))
        assert table.to_arrow(filter=pc.field("age") == 1).num_rows == 0
        table.update_where(pc.field("age") == 3, {"age": 1})


def test_another_process_scans_by_an_index(open_store: OpenStore) -> None:
    with open_store() as store:
        table = store.create_table("t", SCHEMA, "id", indexes={"age": "age"})
        table.upsert([{"id": number, "age": number % 2} for number in range(20)])
        table.flush()
        table.upsert([{"id": 3, "age": 8}, {"id": 4, "age": 1}])
        with open_store(read_only=True) as other:
            seen = other.table("t")
            assert seen.explain(pc.field("age") == 1) == "index age by age"
            found = seen.to_arrow(["id"], pc.field("age") == 1)
            assert found["id"].to_pylist() == [1, 4, 5, 7, 9, 11, 13, 15, 17, 19]


def test_a_snapshot_is_searched_by_its_indexes(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "id", indexes={"age": "age"})
    table.upsert([{"id": number, "age": number % 2} for number in range(20)])
    table.flush()
    table.upsert([{"id": 3, "age": 8}, {"id": 4, "age": 1}])
    with store.snapshot() as at:
        table.delete(where=pc.field("age") == 1)
        seen = at.table("t")
        assert seen.explain(age=1) == "index age by age"
        assert seen.find(age=1).num_rows == 10
        assert seen.find_one(age=8) == table[3]
        assert seen.to_arrow(filter=pc.field("age") == 1).num_rows == 10
        assert at.sql("SELECT id FROM t WHERE age = 1").read_all().num_rows == 10


def test_a_set_with_one_value_that_is_no_number_finds_rows_that_are_not_merged(open_store: OpenStore) -> None:
    store = open_store(commit_wait_ms=600_000, commit_idle_ms=600_000)
    table = store.create_table("t", {"k": "int64", "f": "float64"}, "k", indexes={"i": "f"})
    table.upsert([{"k": 1, "f": float("nan")}, {"k": 2, "f": 1.0}])
    for _ in range(2):
        assert table.to_arrow(filter=pc.field("f").isin([float("nan")]))["k"].to_pylist() == [1]
        table.flush()


def test_durations_have_two_ends(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64", "d": "duration[ms]"}, "k")
    table.upsert([{"k": k, "d": dt.timedelta(seconds=k)} for k in range(5)])
    low, high = dt.timedelta(seconds=1), dt.timedelta(seconds=3)
    within = (pc.field("d") > low) & (pc.field("d") < high)
    outside = (pc.field("d") < low) | (pc.field("d") < dt.timedelta(0))
    assert table.to_arrow(filter=within)["k"].to_pylist() == [2]
    assert table.to_arrow(filter=outside)["k"].to_pylist() == [0]
    table.delete(where=within)
    assert table.to_arrow()["k"].to_pylist() == [0, 1, 3, 4]
