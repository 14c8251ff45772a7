"""Executors that are processes of their own read what the driver's Python reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvstore
from tests.spark.test_source import SCHEMA

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from kvstore.spark import KvStoreSource, configure

builder = configure(SparkSession.builder.master("local-cluster[2,1,1024]"))
for name, value in {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.dataSource.register(KvStoreSource)
for table in ("t", "t$changelog", "t$binlog"):
    rows = spark.read.format("kvstore").options(path=sys.argv[1], table=table).load()
    print("counted", rows.rdd.getNumPartitions(), rows.count(), flush=True)
query = (
    spark.readStream.format("kvstore").options(path=sys.argv[1], table="t$changelog").load()
    .writeStream.format("parquet").options(path=sys.argv[2] + "/sink", checkpointLocation=sys.argv[2] + "/c")
)
query.trigger(availableNow=True).start().awaitTermination()
print("streamed", spark.read.parquet(sys.argv[2] + "/sink").count(), flush=True)
"""


@pytest.mark.long
def test_a_cluster_of_two_executors(store: kvstore.Store, tmp_path: Path) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=4)
    table.upsert([{"k": k, "s": f"{k:0100}", "v": 0.0} for k in range(100_000)])
    table.upsert([{"k": k, "s": f"{k:0100}", "v": 1.0} for k in range(50_000)])
    table.flush()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, store.path, tmp_path],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    printed = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(("counted", "streamed"))]
    assert [each[-1] for each in printed] == ["100000", "200000", "150000", "100000"], done.stderr[-3000:]
    assert all(int(each[0]) == 2 for each in printed[:3])
