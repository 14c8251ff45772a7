"""Spark reads what Python reads: rows, changes, types, and the moment they were loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import kvstore
from kvstore.errors import (
    InvalidRequest,
    NoSuchTable,
    NotAStore,
    OffsetOutOfRange,
    SchemaMismatch,
    UnsupportedOperation,
)
from kvstore.spark import KvStoreSource
from tests.support.spark_tables import EVERY_TYPE, SCHEMA, listed, load, python_changes

pytestmark = pytest.mark.spark


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    """Enough rows for a task on each core, some of them changed and deleted."""
    table = store.create_table("t", SCHEMA, primary_key="k")
    count = 200_000
    keys = pa.array(range(count))
    table.upsert(pa.table({"k": keys, "s": [f"name-{k}" for k in range(count)], "v": keys.cast(pa.float64())}))
    table.upsert([{"k": k, "s": None, "v": -1.0} for k in range(0, count, 1000)])
    table.delete(list(range(5, count, 5000)))
    table.flush()
    return table


def test_rows_and_changes_equal_pythons(spark: SparkSession, store: kvstore.Store, table: kvstore.Table) -> None:
    rows = load(spark, store, "t")
    assert rows.rdd.getNumPartitions() == 2
    assert rows.orderBy("k").toArrow().equals(table.scan().read_all().cast(rows.toArrow().schema))
    changes = load(spark, store, "t$changelog")
    assert changes.rdd.getNumPartitions() == 2
    expected = pa.Table.from_batches(table.changelog())
    assert changes.orderBy("_log_offset").toArrow().equals(expected.cast(changes.toArrow().schema))


@pytest.mark.spark_more
def test_projections(spark: SparkSession, store: kvstore.Store, table: kvstore.Table) -> None:
    expected = table.scan(["v", "k"]).read_all().to_pylist()
    assert listed(load(spark, store, "t", columns="v, k"), "k") == expected
    reader = spark.read.format("kvstore").options(path=str(store.path), table="t")
    assert listed(reader.schema("v double, k bigint").load(), "k") == expected
    changes = load(spark, store, "t$changelog", columns="_change_type,k")
    assert changes.columns == ["_change_type", "k"]
    assert {row["_change_type"]: row["count"] for row in changes.groupBy("_change_type").count().collect()} == {
        "insert": 200_000,
        "update_preimage": 200,
        "update_postimage": 200,
        "delete": 40,
    }
    assert load(spark, store, "t").select().count() == 199_960


@pytest.mark.spark_more
def test_what_is_loaded_stays_as_it_was(spark: SparkSession, store: kvstore.Store, table: kvstore.Table) -> None:
    rows, changes = load(spark, store, "t"), load(spark, store, "t$changelog")
    expected, end = table.scan().read_all(), table.offsets()[0][1]
    table.upsert([{"k": k, "s": "later", "v": 0.0} for k in range(-50, 50)])
    table.delete(list(range(100_000, 100_100)))
    table.flush()
    assert rows.orderBy("k").toArrow().equals(expected.cast(rows.toArrow().schema))
    assert changes.count() == end
    assert load(spark, store, "t").count() == table.count()


@pytest.mark.spark_more
def test_with_a_schema_given_the_first_query_is_the_moment(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    table.upsert({"k": 1, "s": "a", "v": None})
    table.flush()
    rows = spark.read.format("kvstore").options(path=str(store.path), table="t").schema("k bigint, s string").load()
    assert listed(rows, "k") == [{"k": 1, "s": "a"}]
    table.upsert([{"k": 1, "s": "later", "v": None}, {"k": 2, "s": "b", "v": None}])
    table.flush()
    assert listed(rows, "k") == [{"k": 1, "s": "a"}]


def test_offsets_that_were_not_there_when_the_columns_were_asked_for_are_read(store: kvstore.Store) -> None:
    table = store.create_table("late", {"k": "int64"}, "k")
    source = KvStoreSource({"path": str(store.path), "table": "late", "asOf": "3"})
    columns = source.schema()
    with pytest.raises(OffsetOutOfRange):
        source.reader(columns)
    table.upsert([{"k": k} for k in range(5)])
    table.flush()
    reader = source.reader(columns)
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 3


@pytest.mark.parametrize("name", ["t", "t$changelog"])
def test_another_table_of_the_same_name_is_not_read(spark: SparkSession, store: kvstore.Store, name: str) -> None:
    for text in ("old", "new"):
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert({"k": 1, "s": text, "v": None})
        table.flush()
        if text == "old":
            rows = load(spark, store, name)
            assert [row["s"] for row in rows.collect()] == ["old"]
            store.drop_table("t")
    with pytest.raises(Exception, match=r"NoSuchTable.*dropped since"):
        rows.collect()
    assert [row["s"] for row in load(spark, store, name).collect()] == ["new"]


def test_tasks_and_plans_go_on_with_a_table_that_was_renamed(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        store.create_table("t", SCHEMA, primary_key="k").upsert({"k": 1, "s": "a", "v": None})
    source = KvStoreSource({"path": str(tmp_path / "store"), "table": "t"})
    reader = source.reader(source.schema())
    with kvstore.open(tmp_path / "store") as store:
        store.rename_table("t", "u")
        store.create_table("t", SCHEMA, primary_key="k")
    (partition,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(partition)] == [1]


def test_neither_tasks_nor_plans_read_what_was_replaced(tmp_path: Path) -> None:
    def create() -> None:
        with kvstore.open(tmp_path / "store") as store:
            store.create_table("t", SCHEMA, primary_key="k").upsert({"k": 1, "s": "a", "v": None})

    create()
    source = KvStoreSource({"path": str(tmp_path / "store"), "table": "t"})
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(partition)] == [1]
    with kvstore.open(tmp_path / "store") as store:
        store.drop_table("t")
    for _ in range(2):
        with pytest.raises(NoSuchTable, match="dropped since"):
            reader.partitions()
        with pytest.raises(NoSuchTable, match="dropped since"):
            next(reader.read(partition))
        # A new store gives the same table id again.
        shutil.rmtree(tmp_path / "store")
        create()


@pytest.mark.spark_more
def test_offsets(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    for k in range(5):
        table.upsert([{"k": k, "s": "a", "v": None}, {"k": 0, "s": "b", "v": 1.0}])
    table.flush()
    for start in (0, 3, 7):
        for end in (7, 9):
            options = {"startingOffsets": f'{{"0": {start}}}', "endingOffsets": f'{{"0": {end}}}'}
            found = load(spark, store, "t$changelog", **options)
            assert [row["_log_offset"] for row in found.orderBy("_log_offset").collect()] == list(range(start, end))
    assert load(spark, store, "t$changelog", startingOffsets="latest").count() == 0
    assert load(spark, store, "t$changelog", startingOffsets="earliest").count() == table.offsets()[0][1]


@pytest.mark.spark_more
def test_several_buckets_and_added_columns(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    table.upsert([{"k": k, "s": "a", "v": 0.0} for k in range(100)])
    store.add_columns("t", [pa.field("n", pa.int32())])
    table.upsert([{"k": k, "s": "b", "v": 1.0, "n": k} for k in range(50, 150)])
    table.flush()
    rows = load(spark, store, "t")
    assert rows.rdd.getNumPartitions() == 1  # there is little of each
    assert listed(rows, "k") == sorted(table.scan().read_all().to_pylist(), key=lambda row: row["k"])
    changes = listed(load(spark, store, "t$changelog"), "_bucket", "_log_offset")
    assert changes == python_changes(table)
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    starts = {bucket: end // 2 for bucket, end in ends.items()}
    options = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    found = listed(load(spark, store, "t$changelog", **options), "_bucket", "_log_offset")
    assert found == python_changes(table, starts, ends)


def test_empty_tables_and_log_tables(spark: SparkSession, store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k")
    assert load(spark, store, "t").collect() == []
    assert load(spark, store, "t$changelog").collect() == []
    log = store.create_table("log", SCHEMA)
    log.upsert([{"k": k, "s": None, "v": None} for k in (3, 3, 1)])
    log.flush()
    found = listed(load(spark, store, "log$changelog"), "_log_offset")
    assert [(row["_change_type"], row["k"]) for row in found] == [("append", 3), ("append", 3), ("append", 1)]


def test_every_type(spark: SparkSession, store: kvstore.Store) -> None:
    schema = pa.schema([pa.field("k", pa.int32(), False), *((name, kind) for name, (kind, _) in EVERY_TYPE.items())])
    table = store.create_table("t", schema, primary_key="k")
    full = {"k": 1} | {name: value for name, (_, value) in EVERY_TYPE.items()}
    nothing = {"k": 2} | dict.fromkeys(EVERY_TYPE)
    table.upsert([full, nothing])
    table.flush()
    assert listed(load(spark, store, "t"), "k") == [full, nothing]
    changes = listed(load(spark, store, "t$changelog", columns=",".join(schema.names)), "k")
    assert changes == [full, nothing]


def test_a_value_that_spark_can_not_hold_is_named(spark: SparkSession, store: kvstore.Store) -> None:
    schema = pa.schema([pa.field("k", pa.int32(), False), pa.field("fine", pa.timestamp("ns"))])
    table = store.create_table("t", schema, primary_key="k")
    table.upsert(pa.table({"k": pa.array([1], pa.int32()), "fine": pa.array([1], pa.timestamp("ns"))}))
    table.flush()
    assert load(spark, store, "t", columns="k").count() == 1
    with pytest.raises(PySparkException, match="column=fine"):
        load(spark, store, "t").collect()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("t", {"colums": "k"}, "Unknown option"),
        ("t", {"ASOF": "yesterday"}, "or a time with its zone"),
        ("t", {"asOf": "2026-01-01T00:00:00"}, "or a time with its zone"),
        ("t$changelog", {"asOf": "1"}, "for a table's rows"),
        ("t", {"columns": "k,s, k"}, "names a column twice"),
        ("t$bin", {}, r"`name\$changelog` or `name\$binlog` for its changes"),
        ("t$binlog", {"columns": "zzz"}, "no such column"),
        ("nope", {}, "There is no such table"),
        ("t", {"columns": "zzz"}, "no such column"),
        ("t$changelog", {"columns": "zzz"}, "no such column"),
        ("t", {"startingOffsets": "earliest"}, "for a changelog"),
        ("t$changelog", {"startingOffsets": "newest"}, "JSON from bucket to offset"),
        ("t$changelog", {"endingOffsets": "full"}, "JSON from bucket to offset"),
        ("t$changelog", {"startingTimestamp": "now"}, "in milliseconds"),
        ("t$changelog", {"startingTimestamp": "1", "startingOffsets": "latest"}, "leave one out"),
        ("t$changelog", {"failOnDataLoss": "maybe"}, "true or false"),
        ("t$changelog", {"maxOffsetsPerTrigger": "0"}, "a number above 0"),
        ("t$changelog", {"maxOffsetsPerTrigger": "1"}, "for streams"),
        ("t$changelog", {"startingOffsets": '{"0": 1}', "endingOffsets": '{"0": 0}'}, "before its start"),
        ("t$changelog", {"startingOffsets": '{"0": 99}'}, "does not hold this offset"),
        ("t$changelog", {"endingOffsets": '{"0": 99}'}, "does not hold this offset"),
        ("t$changelog", {"startingOffsets": '{"1": 0}'}, "an offset for each bucket"),
    ],
)
def test_bad_options(store: kvstore.Store, table: str, options: dict[str, str], message: str) -> None:
    """Before any task; test_errors.py shows what Spark makes of such an error."""
    store.create_table("t", SCHEMA, primary_key="k").upsert({"k": 1, "s": "a", "v": None})
    store.flush()

    def plan() -> None:
        source = KvStoreSource({"path": str(store.path), "table": table} | options)
        source.reader(source.schema()).partitions()

    with pytest.raises(kvstore.errors.StoreError, match=message):
        plan()


@pytest.mark.parametrize(
    ("table", "options", "error"),
    [
        ("t", {"startingTimestamp": "1"}, InvalidRequest),
        ("log", {}, UnsupportedOperation),
        ("log$changelog", {"startingOffsets": "full"}, UnsupportedOperation),
        ("wal$binlog", {}, UnsupportedOperation),
        ("wal", {"asOf": "0"}, UnsupportedOperation),
        ("t", {"columns": "k,k"}, SchemaMismatch),
        ("t$foo", {}, InvalidRequest),
        ("t", {"path": "hdfs:///store"}, InvalidRequest),
        ("t", {"path": "file://elsewhere/store"}, InvalidRequest),
        ("t", {"path": "file:///store"}, NotAStore),
    ],
)
def test_the_class_of_an_error(store: kvstore.Store, table: str, options: dict[str, str], error: type) -> None:
    store.create_table("t", SCHEMA, primary_key="k")
    store.create_table("log", SCHEMA)
    store.create_table("wal", SCHEMA, primary_key="k", changelog_image="wal")
    with pytest.raises(InvalidRequest) as raised:
        KvStoreSource({"path": str(store.path), "table": table} | options).schema()
    assert type(raised.value) is error


@pytest.mark.parametrize("prefix", ["file:", "file://", "FILE://", "file://localhost"])
def test_paths_as_uris(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "a%20b c#d?"
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, primary_key="k")
    source = KvStoreSource({"path": f"{prefix}{path}", "table": "t"})
    assert source.reader(source.schema()).partitions()


def test_a_path_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with kvstore.open(tmp_path / "store") as store:
        store.create_table("t", SCHEMA, primary_key="k")
    source = KvStoreSource({"path": "~/store", "table": "t"})
    assert source.reader(source.schema()).partitions()


def test_a_path_that_is_no_store(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match=r"There is no store here; give `path`"):
        spark.read.format("kvstore").options(path=str(tmp_path), table="t").load()
    with pytest.raises(AnalysisException, match="`path` is missing or empty"):
        spark.read.format("kvstore").option("table", "t").load()


def test_a_schema_that_is_not_the_tables(spark: SparkSession, store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k")
    reader = spark.read.format("kvstore").options(path=str(store.path), table="t")
    for schema, message in (
        ("k string", "leave columns out"),
        ("zzz bigint", "leave columns out"),
        ("k bigint, k bigint", "names a column twice"),
    ):
        with pytest.raises(AnalysisException, match=message):
            reader.schema(schema).load().collect()
