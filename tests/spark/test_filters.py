"""Filters that are pushed down leave rows out, and never one that Spark would keep."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

import kvstore
from kvstore.log.segments import LogFiles
from kvstore.spark import KvStoreSource
from kvstore.spark.read.batch import KvStoreReader
from tests.support.examples import slow
from tests.support.spark_tables import listed

NAN = math.nan
TIMES = [dt.datetime(2026, 1, 1, 0, 0, n, tzinfo=dt.UTC) for n in range(3)]
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    # type, values in the table, values that Spark may ask for
    "i": (pa.int8(), [-128, 0, 1, 127], [-129, -128, 0, 1, 128]),
    "u": (pa.uint64(), [0, 1, 2**64 - 1], [Decimal(0), Decimal(2**64 - 1), Decimal(-1)]),
    "f": (pa.float32(), [-math.inf, -0.0, 0.0, 0.5, math.inf, NAN], [0.0, 0.5, NAN, math.inf]),
    "s": (pa.string(), ["", "a", "ab", "b", "é", "a\U0010ffff"], ["", "a", "ab", "é", "a\U0010ffff"]),
    "b": (pa.binary(2), [b"ab", b"\xff\0"], [b"ab", b"a", bytearray(b"\xff\0")]),
    "m": (pa.decimal128(5, 2), [Decimal("0.10"), Decimal("-1.00")], [Decimal("0.1"), Decimal("0.10")]),
    "d": (pa.date32(), [dt.date(1969, 1, 1), dt.date(2026, 1, 1)], [dt.date(1969, 1, 1)]),
    "t": (pa.timestamp("s", "UTC"), TIMES, [TIMES[1], TIMES[1].replace(microsecond=1)]),
    "flag": (pa.bool_(), [True, False], [True, False]),
}
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), *(pa.field(n, kind) for n, (kind, _, _) in COLUMNS.items())])
COMPARISONS = {
    EqualTo: lambda c: c == 0,
    GreaterThan: lambda c: c > 0,
    GreaterThanOrEqual: lambda c: c >= 0,
    LessThan: lambda c: c < 0,
    LessThanOrEqual: lambda c: c <= 0,
}


def compared(left: Any, right: Any) -> int:
    """As Spark compares: NaN is itself, and the largest."""
    if isinstance(left, float):
        left, right = ((math.isnan(each), 0.0 if math.isnan(each) else each) for each in (left, right))
    return (left > right) - (left < right)


def is_true(filter: Filter, row: dict[str, Any]) -> bool | None:
    """What Spark makes of a filter: true, false or null."""
    if isinstance(filter, Not):
        inner = is_true(filter.child, row)
        return None if inner is None else not inner
    (name,) = filter.attribute
    value = row[name]
    if isinstance(filter, IsNull):
        return value is None
    if isinstance(filter, IsNotNull):
        return value is not None
    if isinstance(filter, EqualNullSafe):
        return value is not None and compared(value, filter.value) == 0
    if value is None:
        return None
    if isinstance(filter, In):
        if any(each is not None and compared(value, each) == 0 for each in filter.value):
            return True
        return None if None in filter.value else False
    for kind, verdict in COMPARISONS.items():
        if isinstance(filter, kind):
            return verdict(compared(value, filter.value))
    texts = {StringStartsWith: "startswith", StringEndsWith: "endswith", StringContains: "__contains__"}
    return getattr(value, texts[type(filter)])(filter.value)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from([*COLUMNS, "k"]))
    asked = COLUMNS[name][2] if name in COLUMNS else [0, 5, 17, 40]
    value = draw(st.sampled_from(asked))
    kinds: list[Any] = [*COMPARISONS, EqualNullSafe, IsNull, IsNotNull, In]
    kind = draw(st.sampled_from(kinds + ([StringStartsWith, StringEndsWith, StringContains] if name == "s" else [])))
    found: Filter
    if kind is In:
        found = In((name,), draw(st.lists(st.sampled_from([*asked, None]), max_size=3)))  # type: ignore[arg-type]
    elif kind in (IsNull, IsNotNull):
        found = kind((name,))
    else:
        found = kind((name,), value)
    return Not(found) if draw(st.booleans()) else found


def read(store: kvstore.Store, table: str, wanted: list[Filter], **options: str) -> list[dict[str, Any]]:
    """What a source gives for filters, planned and read as in two processes."""
    source = KvStoreSource({"path": str(store.path), "table": table, "pushFilters": "true"} | options)
    reader = source.reader(source.schema())
    assert isinstance(reader, KvStoreReader)
    assert reader.pushFilters(wanted) is wanted
    tasks = reader.partitions()
    reader = pickle.loads(pickle.dumps(reader))
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def every_value(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with kvstore.open(tmp_path_factory.mktemp("filters") / "store") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        rows = [
            {"k": k} | {name: ([*there, None])[k % (len(there) + 1)] for name, (_, there, _) in COLUMNS.items()}
            for k in range(40)
        ]
        table.upsert(rows)
        table.delete([3, 17])
        table.flush()
        yield store


@slow(200)
@given(wanted=st.lists(filters(), min_size=1, max_size=3), changes=st.booleans())
def test_no_row_is_left_out_that_spark_would_keep(
    wanted: list[Filter], changes: bool, every_value: kvstore.Store
) -> None:
    name = "t$changelog" if changes else "t"
    everything = read(every_value, name, [])
    found = read(every_value, name, wanted)
    kept = [row for row in everything if all(is_true(each, row) for each in wanted)]
    as_text = [repr(row) for row in found]
    assert [repr(row) for row in kept if repr(row) not in as_text] == []
    assert set(as_text) <= {repr(row) for row in everything}


@pytest.mark.parametrize(
    "filter",
    [
        EqualTo(("k",), 7),
        Not(IsNull(("i",))),
        StringStartsWith(("s",), "a"),
        StringEndsWith(("s",), "b"),
        StringContains(("s",), "a"),
        GreaterThan(("f",), 0.5),
        EqualTo(("b",), bytearray(b"ab")),
        EqualTo(("t",), TIMES[1]),
        EqualTo(("u",), Decimal(2**64 - 1)),
        EqualNullSafe(("d",), dt.date(1969, 1, 1)),
        LessThanOrEqual(("m",), Decimal("0.10")),
        In(("k",), [1, 2, 99]),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_rows_are_left_out(every_value: kvstore.Store, filter: Filter) -> None:
    kept = [repr(row) for row in read(every_value, "t", []) if is_true(filter, row)]
    assert 0 < len(kept) < 38
    assert sorted(repr(row) for row in read(every_value, "t", [filter])) == sorted(kept)


def test_a_key_is_looked_for_where_it_can_be(store: kvstore.Store) -> None:
    table = store.create_table(
        "t", pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())]), "k", buckets=8
    )
    table.upsert(pa.table({"k": range(10_000), "v": range(10_000)}))
    table.flush()
    source = KvStoreSource({"path": str(store.path), "table": "t", "pushFilters": "true"})

    def planned(*wanted: Filter) -> list[Any]:
        reader = source.reader(source.schema())
        reader.pushFilters(list(wanted))
        return [piece for task in reader.partitions() for piece in task.pieces]

    assert len(planned()) == 8
    (piece,) = planned(EqualTo(("k",), 4711))
    assert piece.bucket == table.buckets_of([4711])[0]
    assert len(piece.wanted) == 1
    (piece,) = planned(EqualTo(("k",), 4711), GreaterThan(("k",), 4710))
    assert len(piece.wanted) == 1
    assert planned(LessThan(("v",), 0), LessThan(("k",), -1)) == []  # the end of a range belongs to what is read
    assert len(planned(EqualTo(("v",), 1))) == 8
    changes = KvStoreSource({"path": str(store.path), "table": "t$changelog", "pushFilters": "true"})
    reader = changes.reader(changes.schema())
    reader.pushFilters([EqualTo(("_bucket",), 3)])
    assert [piece.bucket for task in reader.partitions() for piece in task.pieces] == [3]


def test_rows_of_the_past_are_not_left_out_for_the_keys_of_now(store: kvstore.Store) -> None:
    table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), "k")
    table.upsert([{"k": k} for k in range(10)])
    then = str(table.offsets()[0][1])
    for gone in ([0, 9], range(1, 9)):
        table.delete(list(gone))
        table.flush()
        for k in (0, 5, 9):
            assert read(store, "t", [EqualTo(("k",), k)], asOf=then) == [{"k": k}]
        assert read(store, "t", [GreaterThan(("k",), 9)], asOf=then) == []


def test_only_the_part_of_a_log_is_read_that_can_have_it(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())]), "k")
    for n in range(100):
        texts = random.sample(range(1 << 40), 200)
        table.upsert(pa.table({"k": range(n * 200, n * 200 + 200), "s": [f"{text:x}" * 4 for text in texts]}))
    table.flush()
    names = ["_bucket", "_log_offset", "_commit_timestamp", "_commit_version"]
    everything = [row for batch in table.changelog(columns=names) for row in batch.to_pylist()]
    assert len(table.bucket(0).handle.log.marks(0, 20_000)) > 4
    batches = LogFiles.batches
    count = 0

    def counted(log: LogFiles, *arguments: Any) -> Any:
        nonlocal count
        for found in batches(log, *arguments):
            count += 1
            yield found

    monkeypatch.setattr(LogFiles, "batches", counted)
    time = everything[10_000]["_commit_timestamp"]
    for wanted in (
        [GreaterThanOrEqual(("_log_offset",), 12_345), LessThan(("_log_offset",), 13_000)],
        [EqualTo(("_commit_version",), 10_000)],
        [GreaterThan(("_commit_timestamp",), everything[-1]["_commit_timestamp"])],
        [LessThan(("_log_offset",), 7)],
        [EqualTo(("_commit_timestamp",), time), Not(LessThan(("_log_offset",), 1))],
    ):
        count = 0
        found = read(store, "t$changelog", wanted, columns=",".join(names))
        assert found == [row for row in everything if all(is_true(each, row) for each in wanted)]
        assert count < 60


def test_the_commit_that_a_range_begins_within(store: kvstore.Store) -> None:
    table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), "k")
    table.upsert([{"k": k} for k in range(10)])
    table.flush()
    found = read(store, "t$changelog", [EqualTo(("_commit_version",), 0)], startingOffsets='{"0": 4}')
    assert [row["k"] for row in found] == [4, 5, 6, 7, 8, 9]


CONDITIONS = [
    "k = 7",
    "k in (1, 2, 99)",
    "f > 0.1",
    "f = double('NaN')",
    "not (f > 0.1)",
    "s like 'a%' and k < 30",
    "not (s in ('a', null))",
    "i <=> null or k = 3",
    "u = 18446744073709551615",
    "t >= timestamp'2026-01-01T00:00:01Z'",
    "flag and b = X'6162'",
    "m = 0.1",
]


def of_python(spark: SparkSession, store: kvstore.Store, **options: str) -> DataFrame:
    return spark.read.format("kvstore_python").options(path=str(store.path), table="t", **options).load()


@pytest.mark.long
@pytest.mark.spark
def test_with_the_setting_on_and_off(spark: SparkSession, every_value: kvstore.Store) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    found = {}
    for state in ("true", "false"):
        spark.conf.set(setting, state)
        parts = [
            of_python(spark, every_value, pushFilters="true").where(each).selectExpr(f"{n} as n", "k")
            for n, each in enumerate(CONDITIONS)
        ]
        found[state] = [(row["n"], row["k"]) for row in listed(reduce(DataFrame.unionAll, parts), "n", "k")]
    # One DataFrame in several queries: here Spark would mix up their filters.
    spark.conf.set(setting, "true")
    rows = of_python(spark, every_value)
    counts = rows.where("k = 7").count(), rows.count()
    both = rows.where("k = 7").unionAll(rows.where("k = 8")).count()
    spark.conf.unset(setting)
    assert found["true"] == found["false"]
    assert {n for n, _ in found["true"]} == set(range(len(CONDITIONS))) - {CONDITIONS.index("not (s in ('a', null))")}
    assert (*counts, both) == (1, 38, 2)
