"""``make bench-spark``: Spark reads a changelog, beside its own reader of the same rows in Parquet.

One session, one run: readers take turns, round by round. A figure is the median of its rounds, a ratio the median of
the rounds' ratios to Parquet. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import kvstore
from benchmarks.rows import SCHEMA, Rows
from kvstore.spark import KvStoreSource, configure

BATCH_ROWS = 50_000
FILES = 8
SUMMED = ["a", "c"]
WORK: dict[str, Callable[[DataFrame], object]] = {
    "count": lambda frame: frame.count(),
    "sum of 2": lambda frame: frame.agg({"a": "sum", "c": "sum"}).collect(),
    "noop write": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}
TARGETS = {
    "connector": {"count": 0.5, "sum of 2": 0.85, "noop write": 0.7},
    "connector: rows of the table": {"count": 0.5, "sum of 2": 1.5},
    "source": {"count": 4.5, "sum of 2": 1.2, "noop write": 0.4},
    "frame": {"count": 2.5, "sum of 2": 0.8, "noop write": 0.25},
}


def session(directory: Path) -> SparkSession:
    builder = configure(SparkSession.builder.master("local[2]")).config("spark.ui.enabled", "false")
    for name, value in {
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(KvStoreSource)
    return spark


def written(store: kvstore.Store, rows: int) -> kvstore.Table:
    """A table, and its changelog: inserts only, so that it has as many rows."""
    table = store.create_table("t", SCHEMA, "k")
    for batch in Rows(rows).inserts(BATCH_ROWS):
        table.upsert(batch)
    table.flush()
    return table


def as_parquet(table: kvstore.Table, rows: int, directory: Path) -> Path:
    target = directory / "parquet"
    target.mkdir()
    batches: Iterator[pa.RecordBatch] = table.changelog()
    schema = table.changelog_schema()
    for number in range(FILES):
        with pq.ParquetWriter(target / f"{number}.parquet", schema, compression="snappy") as writer:
            count = 0
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
                if count >= rows / FILES:
                    break
    return target


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument(
        "--readers", default="", help="beginning of the names of the readers beside Parquet; all if empty"
    )
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        spark = session(directory)
        with kvstore.open(directory / "store") as store:
            table = written(store, given.rows)
            parquet = as_parquet(table, given.rows, directory)
            place = {"path": str(store.path)}
            connector = spark.read.format("kvstore").options(**place)
            source = spark.read.format("kvstore_python").options(**place, table="t$changelog")
            # A new DataFrame each time: Spark plans it again.
            frames: dict[str, Callable[[], DataFrame]] = {
                "parquet": lambda: spark.read.parquet(str(parquet)),
                "connector": lambda: connector.option("table", "t$changelog").load(),
                "connector: rows of the table": lambda: connector.option("table", "t").load(),
                "source": lambda: source.load(),
                "source, 2 columns": lambda: (
                    spark.read.format("kvstore_python")
                    .options(**place, table="t$changelog", columns=",".join(SUMMED))
                    .load()
                ),
                "frame": lambda: table.changelog_to_spark(spark),
                "frame, 2 columns": lambda: table.changelog_to_spark(spark, columns=SUMMED),
                "rows of the table, 2 columns": lambda: table.to_spark(spark, SUMMED),
            }
            frames = {name: frame for name, frame in frames.items() if name.startswith(("parquet", given.readers))}
            seconds: dict[str, dict[str, list[float]]] = {name: {work: [] for work in WORK} for name in frames}
            for turn in range(given.rounds + 1):
                for work, run in WORK.items():
                    for name, frame in frames.items():
                        began = time.perf_counter()
                        run(frame())
                        if turn:
                            seconds[name][work].append(time.perf_counter() - began)
        spark.stop()
    shown = Table("reader", *(f"{work} s" for work in WORK), *(f"{work} / parquet" for work in WORK))
    found = {}
    for name, times in seconds.items():
        ratios = {
            work: statistics.median(one / base for one, base in zip(times[work], seconds["parquet"][work], strict=True))
            for work in WORK
        }
        found[name] = {
            work: {"seconds": statistics.median(times[work]), "ratio": ratios[work], "all": times[work]}
            for work in WORK
        }
        target = TARGETS.get(name.partition(",")[0], {})
        shown.add_row(
            name,
            *(f"{statistics.median(times[work]):.2f}" for work in WORK),
            *(f"{ratios[work]:.2f}" + (f" (≤ {target[work]})" if work in target else "") for work in WORK),
        )
    console = Console(width=140)
    console.print(f"{given.rows:,} rows, {given.rounds} rounds")
    console.print(shown)
    results = Path(__file__).parent / "results" / "spark.json"
    results.write_text(json.dumps({"rows": given.rows, "rounds": given.rounds, "readers": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
