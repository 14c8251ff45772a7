"""Spark writes a shared table from any machine, each write once and whole, and reads it as a replica."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession, functions as sf

import kvstore.shared
import kvstore.spark
from kvstore.errors import CorruptData, InvalidRequest, NoSuchTable, SchemaMismatch, TableExists, UnsupportedOperation
from kvstore.spark import KvStoreSource, WriteSummary
from kvstore.spark.failures import raised_here
from tests.spark.catalogs import catalog_of

pytestmark = pytest.mark.spark

SUM = kvstore.Aggregate({"v": "sum"})


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))


def rows_here(url: str, table: str, **options: str) -> list[dict[str, Any]]:
    """What the source reads, by itself."""
    source = KvStoreSource({"path": url, "table": table} | options)
    reader = source.reader(source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_shared_table_is_written_and_read(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "place").as_uri()
    kvstore.spark.create_table(url, "files", {"k": "int64 not null", "s": "string"}, primary_key="k")
    assert rows_here(url, "files") == []
    first = spark.range(0, 1000, 1, 1).select(sf.col("id").alias("k"), sf.concat(sf.lit("a"), sf.col("id")).alias("s"))
    assert kvstore.spark.write(first, url, "files", txn="load 1") == WriteSummary(1)
    assert kvstore.spark.write(first, url, "files", txn="load 1").duplicated
    changes = spark.createDataFrame(
        [(1, None, "delete"), (2, "b", "insert"), (5000, "c", "insert")], "k bigint, s string, _change_type string"
    ).coalesce(1)
    assert kvstore.spark.write(changes, url, "files") == WriteSummary(2)
    found = spark.read.format("kvstore").options(path=url, table="files").load()
    assert found.count() == 1000
    expected = [(2, "b"), (3, "a3"), (5000, "c")]
    assert [tuple(row) for row in found.where("k in (1, 2, 3, 5000)").orderBy("k").collect()] == expected
    kinds = [row["_change_type"] for row in rows_here(url, "files$changelog", startingOffsets='{"0": 1000}')]
    assert sorted(kinds) == ["delete", "insert", "update_postimage", "update_preimage"]
    assert len(rows_here(url, "files", asOf="1000")) == 1000
    assert not list((tmp_path / "place/staging").rglob("*-*")), "what was staged is removed"


@pytest.mark.spark_more
def test_an_error_of_a_task_is_raised_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "place").as_uri()
    kvstore.spark.create_table(url, "t", {"k": "int64 not null", "v": "int8"}, "k")
    rows = spark.range(1, 2, 1, 1).withColumnRenamed("id", "k")
    with pytest.raises(SchemaMismatch, match=r"does not fit.* column=v expected=int8") as raised:
        kvstore.spark.write(rows.withColumn("v", sf.lit(3000)), url, "t")
    assert isinstance(raised.value.__cause__, PythonException)
    assert kvstore.spark.write(rows, url, "t")
    (written,) = (tmp_path / "place/tables").rglob("*.range")
    written.write_bytes(written.read_bytes()[:-1] + b"x")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CorruptData, match=rf"checksum.* object=.*{written.name}"):
        kvstore.spark.write(rows, url, "t")
    text = "Traceback (most recent call last):\n  File ...\nkvstore.errors.InvalidRequest: of the user's own function"
    with pytest.raises(PythonException), raised_here():
        raise PythonException(text)


@pytest.mark.long
def test_shared_tables_are_a_catalog_that_is_read(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "place").as_uri()
    kvstore.spark.create_table(url, "files", {"k": "int64 not null", "v": "int64"}, primary_key="k")
    kvstore.spark.write(spark.range(100).selectExpr("id AS k", "id % 7 AS v"), url, "files")
    with catalog_of(spark, url) as (name, run):
        assert [row[1] for row in run(f"SHOW TABLES IN {name}")] == ["files"]
        assert run("SELECT count(*), sum(v) FROM kv.files WHERE k < 50") == [(50, sum(k % 7 for k in range(50)))]
        assert run("SELECT count(*) FROM kv.`files$changelog`") == [(100,)]
        with pytest.raises(Exception, match=r"written by kvstore\.spark"):
            run("CREATE TABLE kv.x (k bigint, PRIMARY KEY (k))")


@pytest.mark.long
def test_a_stream_writes_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "place").as_uri()
    kvstore.spark.create_table(url, "t", {"k": "int64 not null", "v": "int64"}, "k", merge_engine=SUM)
    write = kvstore.spark.sink(url, "t", writer="w")

    def run(number: int, dies: bool = False) -> None:
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / f"in/{number}.csv").write_text(f"1,{10**number}\n")
        rows = spark.readStream.schema("k bigint, v bigint").csv(str(tmp_path / "in"))

        def batch(df: DataFrame, id: int) -> None:
            write(df, id)
            if dies:
                raise RuntimeError("the driver dies after the commit, before Spark has noted the batch")

        query = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(batch)
        query.trigger(availableNow=True).start().awaitTermination()

    run(0)
    with pytest.raises(Exception, match="driver dies"):
        run(1, dies=True)
    run(2)
    assert rows_here(url, "t") == [{"k": 1, "v": 111}]


@pytest.mark.long
def test_spark_goes_on_with_a_published_table(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "place").as_uri()
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", {"k": "int64 not null", "v": "int64"}, "k", buckets=2, merge_engine=SUM)
        table.upsert([{"k": k, "v": 1} for k in range(100)])
        table.flush()
        rows = spark.range(0, 50, 1, 2).selectExpr("id AS k", "10L AS v")
        options = {"path": str(store.path), "table": "t", "txnId": "tens"}
        rows.write.format("kvstore").options(**options).mode("append").save()
        store.publish("t", url)
        ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    assert kvstore.spark.write(rows, url, "t", txn="tens").duplicated
    assert kvstore.spark.write(rows, url, "t", txn="more") == WriteSummary(1)
    found = {row["k"]: row["v"] for row in rows_here(url, "t")}
    assert found == {k: 21 if k < 50 else 1 for k in range(100)}
    later = rows_here(url, "t$changelog", startingOffsets=json.dumps(ends))
    assert {row["_log_offset"] >= ends[row["_bucket"]] for row in later} == {True}
    assert [row["v"] for row in later if row["_change_type"] == "update_postimage"] == [21] * 50


def test_calls_that_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "place")
    kvstore.spark.create_table(url, "t", {"k": "int64 not null", "s": "string"}, primary_key="k")
    with pytest.raises(TableExists, match="choose another"):
        kvstore.spark.create_table(url, "t", {"k": "int64 not null"}, primary_key="k")
    rows = spark.range(3).withColumnRenamed("id", "k")
    with pytest.raises(NoSuchTable, match="no shared table of that name"):
        kvstore.spark.write(rows, url, "u")
    with pytest.raises(NoSuchTable, match="no shared tables at this URL"):
        kvstore.spark.write(rows, str(tmp_path), "t")
    with pytest.raises(InvalidRequest, match=r"DataFrame of Spark.*createDataFrame"):
        kvstore.spark.write([{"k": 1}], url, "t")  # type: ignore[arg-type]
    for no_url in ("", "s3:/bucket/tables", "file:/tables"):
        for call in (
            lambda url: kvstore.spark.create_table(url, "t", {"k": "int64 not null"}, "k"),
            lambda url: kvstore.spark.write(rows, url, "t"),
            lambda url: kvstore.shared.check(url, "t"),
        ):
            with pytest.raises(InvalidRequest, match="s3://bucket/path or file:///dir"):
                call(no_url)
    with pytest.raises(InvalidRequest, match="A URL is text"):
        kvstore.spark.write(rows, None, "t")  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatch):
        kvstore.spark.write(rows.withColumn("x", sf.lit(1)), url, "t")
    with pytest.raises(UnsupportedOperation, match="foreachBatch"):
        kvstore.spark.sink(url, "t", writer="w")(rows, 0)
    with pytest.raises(InvalidRequest, match="credentials"):
        kvstore.spark.write(rows, "s3://key:secret@bucket/x", "t")
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", {"k": "int64 not null"}, "k")
        store.add_replica(str(tmp_path / "replica"), "r").ship()
    with pytest.raises(UnsupportedOperation, match="There is a replica"):
        kvstore.spark.create_table(str(tmp_path / "replica"), "t", {"k": "int64 not null"}, primary_key="k")
