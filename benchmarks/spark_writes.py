"""``make bench-spark``, second part: Spark writes a table, beside Python; and how long a batch of a stream takes.

* The same rows, from Parquet: ``write.format("kvstore")``, and ``Table.upsert`` in batches, each into a new table of
  four buckets. They take turns; a figure is the median of the rounds, a ratio that of the rounds' ratios of rates.
* Batches of 1,000 rows of a stream into Spark's ``noop``: of a changelog, and of Spark's own ``rate-micro-batch``, in
  the same session with the same settings. The time is what Spark says a trigger took; the first ones do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import kvstore
from benchmarks.rows import SCHEMA, Rows
from benchmarks.spark import session

BATCH_ROWS = 50_000
BUCKETS = 4
TRIGGER_ROWS = 1000
TRIGGERS, WARM_UP = 30, 5
SINK_TARGET, TRIGGER_TARGET = 0.5, 1.3


def seconds_to_write(spark: SparkSession, directory: Path, rows: int, rounds: int) -> dict[str, list[float]]:
    batches = Rows(rows).inserts(BATCH_ROWS)
    parquet = directory / "rows.parquet"
    with pq.ParquetWriter(parquet, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    frame = spark.read.parquet(str(parquet))
    seconds: dict[str, list[float]] = {"python": [], "spark": []}
    frame.write.format("noop").mode("overwrite").save()
    with kvstore.open(directory / "store") as store:
        for _ in range(rounds):
            for name, times in seconds.items():
                table = store.create_table(name, SCHEMA, "k", buckets=BUCKETS)
                began = time.perf_counter()
                if name == "spark":
                    options = {"path": str(store.path), "table": name}
                    frame.write.format("kvstore").options(**options).mode("append").save()
                else:
                    for batch in batches:
                        table.upsert(batch)
                    table.flush()
                times.append(time.perf_counter() - began)
                assert table.count() == rows
                store.drop_table(name)
    return seconds


def trigger_ms(stream: DataFrame, checkpoint: Path) -> list[int]:
    """How long each trigger took."""
    query = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    found: dict[int, int] = {}
    while len(found) < TRIGGERS + WARM_UP:
        time.sleep(0.05)
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                found[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
    query.stop()
    return [found[batch] for batch in sorted(found)][WARM_UP:]


def triggers(spark: SparkSession, directory: Path) -> dict[str, list[int]]:
    with kvstore.open(directory / "streamed") as store:
        table = store.create_table("t", SCHEMA, "k")
        for batch in Rows(TRIGGER_ROWS * (TRIGGERS + WARM_UP + 20)).inserts(TRIGGER_ROWS):
            table.upsert(batch)
        table.flush()
        options = {"path": str(store.path), "table": "t$changelog", "startingOffsets": "earliest"}
        options["maxOffsetsPerTrigger"] = str(TRIGGER_ROWS)
        changes = spark.readStream.format("kvstore").options(**options).load()
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", TRIGGER_ROWS).load()
        return {
            "rate-micro-batch": trigger_ms(rate, directory / "rate"),
            "changelog": trigger_ms(changes, directory / "changes"),
        }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        spark = session(Path(temporary))
        took = triggers(spark, Path(temporary))
        seconds = seconds_to_write(spark, Path(temporary), given.rows, given.rounds)
        spark.stop()
    shown = Table("what", "Spark", "beside", "ratio", "target")
    rate = statistics.median(ours / theirs for ours, theirs in zip(seconds["python"], seconds["spark"], strict=True))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    shown.add_row(
        f"write of {given.rows:,} rows, s", f"{medians['spark']:.1f}", f"{medians['python']:.1f} (Table.upsert)",
        f"{rate:.2f}", f"≥ {SINK_TARGET}",
    )  # fmt: skip
    ours, theirs = (statistics.median(took[name]) for name in ("changelog", "rate-micro-batch"))
    shown.add_row(
        f"trigger of {TRIGGER_ROWS:,} rows, ms", f"{ours:.0f}", f"{theirs:.0f} (rate-micro-batch)",
        f"{ours / theirs:.2f}", f"≤ {TRIGGER_TARGET}",
    )  # fmt: skip
    Console(width=120).print(shown)
    results = Path(__file__).parent / "results" / "spark_writes.json"
    found = {"rows": given.rows, "seconds": seconds, "rate": rate, "trigger_ms": took, "trigger": ours / theirs}
    results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
