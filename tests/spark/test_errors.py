"""What a user sees when the store refuses in a task of Spark: the store's own error, and no traceback."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kvstore
from kvstore.spark import KvStoreSource
from kvstore.spark.failures import shown_alone
from kvstore.spark.frames import mapped
from kvstore.spark.types import spark_schema
from tests.support.spark_tables import load

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])


def shown(run: Callable[[], object]) -> str:
    """What Spark shows in the place of the Python error, on one line."""
    with pytest.raises(PySparkException) as raised:
        run()
    text = str(raised.value)
    assert "Traceback" not in text, text
    found = re.search(r"kvstore\.errors\..*", text)
    assert found, text
    return found[0]


@pytest.fixture
def damaged(store_path: Path) -> Path:
    """A store whose changelog is damaged."""
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert([{"k": number, "v": "text" * 100} for number in range(100)])
    log = next(store_path.glob("tables/*/*/log/*.log"))
    data = bytearray(log.read_bytes())
    data[-100] ^= 1
    log.write_bytes(data)
    return store_path


def read_changes(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("kvstore").options(path=str(path), table="t$changelog").load()


def test_a_task_that_reads(spark: SparkSession, damaged: Path) -> None:
    assert shown(read_changes(spark, damaged).collect).startswith(
        "kvstore.errors.CorruptBatch: A batch fails its checksum;"
    )


def test_a_frame_of_an_open_table(spark: SparkSession, damaged: Path) -> None:
    with kvstore.open(damaged, read_only=True) as store:
        frame = store.table("t").changelog_to_spark(spark)
        assert shown(frame.collect).startswith("kvstore.errors.CorruptBatch: A batch fails its checksum;")


@pytest.mark.spark_more
def test_a_task_that_writes(spark: SparkSession, store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k")
    frame = spark.createDataFrame([(None, "a")], "k bigint, v string")
    write = frame.write.format("kvstore").options(path=str(store.path), table="t").mode("append")
    assert shown(write.save) == "kvstore.errors.SchemaMismatch: This column does not allow nulls. column=k nulls=1"


def test_a_commit(spark: SparkSession, store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k")
    frame = spark.createDataFrame([(1, "a")], "k bigint, v string")
    write = frame.write.format("kvstore").options(path=str(store.path), table="t", txnId="a" * 5000).mode("append")
    assert shown(write.save).startswith("kvstore.errors.InvalidRequest: ")


def test_a_stream(spark: SparkSession, damaged: Path, tmp_path: Path) -> None:
    reader = spark.readStream.format("kvstore").options(path=str(damaged), table="t$changelog")
    stream = reader.option("startingOffsets", "earliest").load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert shown(query.awaitTermination).startswith("kvstore.errors.CorruptBatch: A batch fails its checksum;")


def test_a_stream_that_begins(spark: SparkSession, store: kvstore.Store, tmp_path: Path) -> None:
    store.create_table("t", SCHEMA, primary_key="k")
    reader = spark.readStream.format("kvstore").options(path=str(store.path), table="t$changelog")
    stream = reader.option("startingOffsets", '{"0": 5}').load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert shown(query.awaitTermination).startswith("kvstore.errors.OffsetOutOfRange: ")


def test_a_bad_option(spark: SparkSession, store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k")
    assert shown(lambda: load(spark, store, "t", colums="k")).startswith("kvstore.errors.InvalidRequest: Unknown")


def test_a_table_that_is_not_there(spark: SparkSession, store: kvstore.Store) -> None:
    message = "kvstore.errors.NoSuchTable: There is no such table. table=nope tables=[]"
    assert shown(lambda: load(spark, store, "nope")) == message


def test_an_error_of_the_users_own_code_keeps_its_traceback(spark: SparkSession, store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k").upsert({"k": 1, "v": "a"})
    store.flush()
    shown(lambda: load(spark, store, "nope"))  # in a process of its own: it says nothing of others

    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.column("no such column")

    with pytest.raises(PySparkException, match=r"(?s)Traceback.*in broken.*KeyError"):
        mapped(spark.range(1), broken, spark_schema(SCHEMA)).collect()


def test_nothing_changes_outside_of_sparks_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(kvstore.errors.NotAStore), shown_alone():
        KvStoreSource({"path": str(tmp_path), "table": "t"}).schema()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
