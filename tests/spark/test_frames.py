"""DataFrames of an open table, and of Spark's own reader with options: what Python's reader gives."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import kvstore
from kvstore.errors import InvalidRequest, OffsetOutOfRange, SchemaMismatch
from kvstore.spark import KvStoreSource
from kvstore.spark.options import Kind
from kvstore.spark.read.address import TableAddress
from kvstore.spark.read.sources import read
from kvstore.spark.read.store import StoreReads
from kvstore.spark.read.tasks import ReadRange, tasks_of
from tests.support.spark_tables import SCHEMA, listed, load, python_changes

pytestmark = pytest.mark.spark


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=4)
    table.upsert([{"k": k, "s": str(k), "v": 0.0} for k in range(1000)])
    table.upsert([{"k": k, "s": None, "v": 1.0} for k in range(0, 1000, 3)])
    table.delete(list(range(0, 1000, 7)))
    return table


def ordered(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [row[name] for name in names])


def test_frames(spark: SparkSession, table: kvstore.Table) -> None:
    then = {bucket: end // 2 for bucket, (_, end) in table.offsets().items()}
    where = (pc.field("v") > 0) & (pc.field("k") < 500)
    rows, some = table.to_spark(spark), table.to_spark(spark, ["s"], where, as_of=then)
    changes = table.changelog_to_spark(spark)
    deletes = table.changelog_to_spark(spark, "full", columns=["k"], where=pc.field("_change_type") == "delete")
    later = table.changelog_to_spark(spark, then, columns=["k", "_log_offset"], where=pc.field("_bucket") > 1)
    expected = table.scan().read_all().to_pylist(), python_changes(table)
    expected_some = table.scan(["s"], where, as_of=then).read_all().to_pylist()
    expected_later = [row for row in python_changes(table, then) if row["_bucket"] > 1]
    table.upsert([{"k": k, "s": "later", "v": 9.0} for k in range(2000)])
    assert listed(rows, "k") == ordered(expected[0], "k")
    assert listed(changes, "_bucket", "_log_offset") == expected[1]
    assert sorted(map(str, listed(some, "s"))) == sorted(map(str, expected_some))
    assert deletes.count() == 0
    assert sorted(map(tuple, later.collect())) == sorted((row["k"], row["_log_offset"]) for row in expected_later)


def test_what_frames_read_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "short", segment_bytes_max=1, log_bytes_max=1) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        for text in ("a", "b"):
            table.upsert([{"k": k, "s": text, "v": 0.0} for k in range(3)])
        rows, changes = table.to_spark(spark), table.changelog_to_spark(spark, 3)
        expected = table.scan().read_all().to_pylist(), python_changes(table, 3)
        for text in ("c", "d", "e"):
            table.upsert([{"k": k, "s": text, "v": 0.0} for k in range(3)])
        table.bucket(0).handle.retain()
        assert table.offsets()[0][0] == 3
        assert listed(rows, "k") == expected[0]
        assert listed(changes, "_log_offset") == expected[1]


def test_what_frames_refuse(spark: SparkSession, store: kvstore.Store, table: kvstore.Table) -> None:
    with pytest.raises(SchemaMismatch):
        table.to_spark(spark, ["zzz"])
    with pytest.raises(InvalidRequest):
        table.to_spark(spark, where="k > 1")
    with pytest.raises(InvalidRequest):
        table.to_spark(spark, where=pc.field("zzz") > 1)
    with pytest.raises(OffsetOutOfRange):
        table.to_spark(spark, as_of=dict.fromkeys(range(4), 99_999))
    empty = store.create_table("empty", SCHEMA, primary_key="k")
    assert empty.to_spark(spark).collect() == empty.changelog_to_spark(spark).collect() == []
    assert empty.changelog_to_spark(spark, columns=["k"]).columns == ["k"]


@pytest.mark.spark_more
def test_ranges_and_moments(spark: SparkSession, store: kvstore.Store, table: kvstore.Table) -> None:
    table.flush()
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    middle = {bucket: end * 2 // 3 for bucket, end in ends.items()}
    times = sorted({row["_commit_timestamp"] for row in python_changes(table)})
    moment = times[-1]
    milliseconds = str(int(moment.timestamp() * 1000))
    names = ("_bucket", "_log_offset")
    for options, arguments in (
        ({"startingTimestamp": milliseconds}, (moment,)),
        ({"endingTimestamp": milliseconds}, ("earliest", moment)),
        ({"startingOffsets": "full"}, ("full",)),
        ({"startingOffsets": json.dumps(middle), "endingTimestamp": "99999999999999"}, (middle,)),
    ):
        found = listed(load(spark, store, "t$changelog", **options), *names, "k")
        assert found == ordered(python_changes(table, *arguments), *names, "k")
    for text, as_of in (
        (json.dumps(middle), middle),
        (moment.isoformat(), moment),
        (moment.astimezone(dt.timezone(dt.timedelta(hours=2))).isoformat(), moment),
    ):
        found = listed(load(spark, store, "t", asOf=text), "k")
        assert found == ordered(table.scan(as_of=as_of).read_all().to_pylist(), "k")


def test_the_binlog(spark: SparkSession, store: kvstore.Store, table: kvstore.Table) -> None:
    table.flush()
    expected = [row for batch in table.binlog() for row in batch.to_pylist()]
    assert listed(load(spark, store, "t$binlog"), "_bucket", "_log_offset") == expected
    expected = [row for batch in table.binlog(columns=["v", "k"]) for row in batch.to_pylist()]
    assert listed(load(spark, store, "t$binlog", columns="v,k"), "_bucket", "_log_offset") == expected
    reader = spark.read.format("kvstore").options(path=str(store.path), table="t$binlog")
    found = reader.schema("_log_offset bigint, _change_type string").load().where("_change_type = 'delete'")
    assert sorted(row["_log_offset"] for row in found.collect()) == sorted(
        row["_log_offset"] for row in expected if row["_change_type"] == "delete"
    )


def test_work_is_cut_into_as_many_tasks_as_there_are_cores(store: kvstore.Store) -> None:
    count = 300_000
    table = store.create_table(
        "u", pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())]), "k", buckets=5
    )
    table.upsert(pa.table({"k": range(count), "v": range(count)}))
    table.flush()
    for name in ("u", "u$changelog", "u$binlog"):
        source = KvStoreSource({"path": str(store.path), "table": name})
        reader = source.reader(source.schema())
        tasks = reader.partitions()
        sizes = [sum(batch.num_rows for batch in reader.read(task)) for task in tasks]
        assert sum(sizes) == count
        assert len(sizes) == 2
        assert min(sizes) > 0.3 * count


def test_rows_come_first_and_then_what_was_changed_since(store: kvstore.Store) -> None:
    table = store.create_table("u", SCHEMA, "k")
    table.upsert([{"k": k, "s": "a", "v": 0.0} for k in range(3)])
    table.upsert([{"k": k, "s": "b", "v": 0.0} for k in range(2)])
    table.flush()
    place = TableAddress.of(str(store.path), table, Kind.CHANGELOG)
    target = pa.schema([("k", pa.int64()), ("s", pa.string()), ("_change_type", pa.string())])
    tasks = tasks_of(place, StoreReads(place, table), [ReadRange(0, 3, 7, inserted_at=0)])
    found = [tuple(row.values()) for task in tasks for batch in read(task, target) for row in batch.to_pylist()]
    update = [(k, text, kind) for k in (0, 1) for text, kind in (("a", "update_preimage"), ("b", "update_postimage"))]
    assert sorted(found) == sorted([(k, "a", "insert") for k in range(3)] + update)
