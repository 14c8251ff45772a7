"""``hosts.py MASTER URL WRITES``: writes the shared table ``t``, streams into it, and reads it, on several hosts.

Write *n* adds 2^n to the sum of each of ``KEYS`` keys. Each line for the test is a fact, or that something is about to
begin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kvstore
import kvstore.spark
from kvstore.errors import StoreError
from tests.spark.drivers.session import say, session

KEYS = 200
STREAMED = 50
CHECKPOINT = "/tmp/checkpoint"


def file_systems(spark: SparkSession) -> tuple[set[str], set[str]]:
    """The mount namespaces in which tasks run, and those of which a task has seen a file of another."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            own = os.readlink("/proc/self/ns/mnt")
            Path("/tmp", f"of {own}").touch()
            seen = [path.name.removeprefix("of ") for path in Path("/tmp").glob("of *")]
            yield pa.record_batch([pa.array([own] * len(seen)), pa.array(seen)], ["own", "seen"])

    rows = spark.range(0, 16, 1, 16).mapInArrow(find, "own string, seen string").collect()
    return {row.own for row in rows}, {row.seen for row in rows if row.seen != row.own}


def copies(spark: SparkSession) -> int:
    """How many copies of buckets all hosts have together."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            found = [path.name for path in Path("/tmp/cache").glob("shared/*/tables/*/*") if path.is_dir()]
            own = os.readlink("/proc/self/ns/mnt")
            yield pa.record_batch([pa.array([own] * len(found)), pa.array(found)], ["own", "bucket"])

    return spark.range(0, 16, 1, 16).mapInArrow(find, "own string, bucket string").distinct().count()


def write(spark: SparkSession, url: str, number: int) -> None:
    rows = spark.range(0, KEYS, 1, 4).selectExpr("id AS k", f"{1 << number}L AS v")
    while True:
        say("writing", number)
        try:
            kvstore.spark.write(rows, url, "t", txn=f"write {number}")
            return
        except (PySparkException, StoreError) as error:
            say("failed", type(error).__name__, str(error).replace("\n", " ")[:300])


def main(master: str, url: str, writes: str) -> None:
    spark = session(master, **{"spark.task.maxFailures": "10", "spark.locality.wait": "60s"})
    kvstore.spark.create_table(
        url, "t", {"k": "int64 not null", "v": "int64"}, "k", buckets=4, merge_engine=kvstore.Aggregate({"v": "sum"})
    )
    own, others = file_systems(spark)
    say("hosts", len(own | {os.readlink("/proc/self/ns/mnt")}), len(others))
    for number in range(int(writes)):
        if number == int(writes) // 2:
            say("copies", copies(spark))
        write(spark, url, number)
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=STREAMED, numPartitions=2).load()
    stream = numbers.selectExpr("value + 1000000 AS k", "1L AS v").writeStream.trigger(availableNow=True)
    stream = stream.foreachBatch(kvstore.spark.sink(url, "t", writer="w"))
    stream.option("checkpointLocation", CHECKPOINT).start().awaitTermination()
    rows = spark.read.format("kvstore").options(path=url, table="t").load()
    say("read", *rows.where("k < 1000000").selectExpr("count(*)", "min(v)", "max(v)").first())
    say("streamed in", rows.where("k >= 1000000").count())
    changes: list[int] = []

    def count(df: DataFrame, _: int) -> None:
        changes.append(df.count())

    reader = (
        spark.readStream.format("kvstore").options(path=url, table="t$changelog", startingOffsets="earliest").load()
    )
    query = reader.writeStream.foreachBatch(count).trigger(availableNow=True)
    query.option("checkpointLocation", f"{CHECKPOINT}-2").start().awaitTermination()
    say("streamed out", sum(changes))
    say("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
