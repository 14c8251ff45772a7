"""Statements and streams of Spark beside a process that writes the same tables all the time: none is refused."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kvstore
from tests.spark.catalogs import catalog_of
from tests.support.processes import Child
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.spark_more]

OTHERS = 1_000
"""Keys from here on are the process's own."""


def _write(pipe: Connection, path: Path) -> None:
    """Write both tables until something is said; then say how often, and what the table `t` has of it."""
    rows: dict[int, int] = {}
    written = 0
    with kvstore.open(path) as store:
        table, copy = store.table("t"), store.table("copy")
        while not pipe.poll(0):
            key = OTHERS + written % 20
            table.upsert({"k": key, "n": written})
            copy.upsert({"k": key + OTHERS, "n": written})
            rows[key] = written
            written += 1
            if written == 1:
                pipe.send("writes")
    pipe.send((written, rows))


def _rows(spark: SparkSession, path: Path, table: str) -> dict[int, int]:
    found = spark.read.format("kvstore").options(path=str(path), table=table).load().collect()
    return {row.k: row.n for row in found}


@pytest.fixture
def path(store_path: Path) -> Path:
    with kvstore.open(store_path) as store:
        for name in ("t", "copy"):
            store.create_table(name, {"k": "int64 not null", "n": "int64"}, "k", buckets=2)
    return store_path


def test_statements_beside_a_process_that_writes(spark: SparkSession, path: Path) -> None:
    with Child(_write, path) as writer, catalog_of(spark, path) as (_, run):
        assert writer.hear() == "writes"
        run("INSERT INTO kv.t SELECT id, 3 FROM range(40)")
        run("UPDATE kv.t SET n = n + 100 WHERE k < 10")
        run("DELETE FROM kv.t WHERE k >= 10 AND k < 20")
        run(
            "MERGE INTO kv.t USING (SELECT id AS k FROM range(15, 50)) AS s ON t.k = s.k "
            "WHEN MATCHED AND s.k < 25 THEN UPDATE SET n = -1 WHEN MATCHED THEN DELETE "
            "WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, 7)"
        )
        expected = dict.fromkeys(range(10), 103) | dict.fromkeys((*range(15, 20), *range(40, 50)), 7)
        expected |= dict.fromkeys(range(20, 25), -1)
        own = {k: n for k, n in _rows(spark, path, "t").items() if k < OTHERS}
        assert own == expected
        run(f"DELETE FROM kv.t WHERE k < {OTHERS}")
        writer.say("end")
        written, rows = writer.hear()
        assert writer.join() == 0
    assert written > 1
    assert _rows(spark, path, "t") == rows


def test_a_stream_into_a_table_beside_a_process_that_writes_both(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    with Child(_write, path) as writer:
        assert writer.hear() == "writes"
        changes = spark.readStream.format("kvstore").options(path=str(path), table="t$changelog").load()
        query = (
            changes.where("_change_type <> 'update_preimage'")
            .writeStream.format("kvstore")
            .options(path=str(path), table="copy", checkpointLocation=str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            wait_until(lambda: not query.isActive or (query.lastProgress or {"batchId": 0})["batchId"] >= 2)
            writer.say("end")
            written, rows = writer.hear()
            query.processAllAvailable()
            assert query.exception() is None
        finally:
            query.stop()
        assert writer.join() == 0
    assert written > 4
    assert {k: n for k, n in _rows(spark, path, "copy").items() if k < 2 * OTHERS} == rows
