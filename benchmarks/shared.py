"""``make bench-shared``: Spark writes a shared table, beside ``Table.upsert``: the CPU time of all Python processes.

* The same updates of all rows, in turns: one write of a shared table in a directory, and upserts in batches of 50,000
  into a table of a store. Both have four buckets. A figure is the median of the rounds, a ratio that of their ratios.
* The driver is this process; the tasks run in the workers that Spark has started, which the first rounds warm up.
* The same with 64 buckets and as many tasks, for what a cluster of 64 cores would take: see docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import kvstore
import kvstore.spark
from benchmarks.machine import Cpu, machine
from benchmarks.rows import SCHEMA, Rows
from benchmarks.spark import session

RESULTS = Path(__file__).with_name("results") / "shared.json"
BATCH_ROWS = 50_000
SIZES = (125_000, 250_000, 500_000, 1_000_000)
BUCKETS = TASKS = 4
MANY = CORES = 64
WARM_UP = 2
RATIO_TARGET, SERIAL_TARGET = 1.3, 0.05


@dataclass(frozen=True)
class Setting:
    """A size of a table, and what its writes took, round by round."""

    rows: int
    buckets: int
    tasks: int
    writes: list[Cpu]
    upserts: list[float]

    @property
    def ratio(self) -> float:
        """CPU of a write of all Python processes, in times that of the upserts."""
        return statistics.median(write.python / upsert for write, upsert in zip(self.writes, self.upserts, strict=True))

    @property
    def serial(self) -> float:
        """Share of the driver."""
        return statistics.median(write.driver / write.python for write in self.writes)

    def median(self, part: str) -> float:
        """Of a part of the writes, in seconds."""
        return statistics.median(asdict(write)[part] for write in self.writes)


def measured(spark: SparkSession, place: Path, size: tuple[int, int, int], rounds: int) -> Setting:
    """Writes of all rows, one after the other: the first inserts them, the others update them."""
    count, buckets, tasks = size
    rows, name, url = Rows(count), "-".join(map(str, size)), (place / "shared").as_uri()
    with kvstore.open(place / "store") as store:
        store.create_table(name, SCHEMA, "k", buckets=buckets)
    kvstore.spark.create_table(url, name, SCHEMA, "k", buckets=buckets)
    writes, upserts = [], []
    for number in range(WARM_UP + rounds):
        batches = rows.inserts(BATCH_ROWS)
        parquet = place / f"{name}-{number}"
        _as_files(batches, parquet, tasks)
        frame = spark.read.schema(spark.read.parquet(str(parquet)).schema).parquet(str(parquet))
        # It is closed before the write: what it does in the background is not the driver's.
        with kvstore.open(place / "store") as store:
            table, began = store.table(name), time.process_time()
            for batch in batches:
                table.upsert(batch)
            table.flush()
            took = time.process_time() - began
            assert table.count() == count
        before = Cpu.now()
        kvstore.spark.write(frame, url, name)
        if number >= WARM_UP:
            writes.append(Cpu.now().since(before))
            upserts.append(took)
    with kvstore.open(url, read_only=True) as shared:
        assert shared.table(name).count() == count
    with kvstore.open(place / "store") as store:
        store.drop_table(name)
    return Setting(*size, writes, upserts)


def _as_files(batches: list[pa.RecordBatch], directory: Path, count: int) -> None:
    """Write rows as Parquet files, each of which is one task of Spark's: the session has that setting."""
    directory.mkdir()
    rows = pa.Table.from_batches(batches)
    each = -(-rows.num_rows // count)
    for number in range(count):
        pq.write_table(rows.slice(number * each, each), directory / f"{number:03}.parquet")


def seconds_of_cluster(setting: Setting, cores: int) -> float:
    """What a write would take with as many cores: the driver alone, then tasks and Spark spread over all of them."""
    spread = setting.median("workers") + setting.median("java")
    return setting.median("driver") + spread / cores


def _row(each: Setting) -> str:
    parts = (f"{part} {each.median(part):.3f}" for part in ("driver", "workers", "java", "wall"))
    return (
        f"{each.rows:,} rows, {each.buckets} buckets, seconds: {', '.join(parts)}, upserts "
        f"{statistics.median(each.upserts):.3f}; ratio {each.ratio:.2f} (≤ {RATIO_TARGET}), "
        f"driver {each.serial:.1%} (≤ {SERIAL_TARGET:.0%})"
    )


def main() -> None:
    """Measure, print and keep."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, nargs="*", default=SIZES)
    arguments.add_argument("--rounds", type=int, default=3)
    given, about, found = arguments.parse_args(), machine(), []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        os.environ["KVSTORE_CACHE_DIR"] = str(place / "cache")
        spark = session(place)
        spark.conf.set("spark.sql.files.openCostInBytes", str(1 << 40))  # each file is a task
        for size in [*((rows, BUCKETS, TASKS) for rows in given.rows), (max(given.rows), MANY, MANY)]:
            found.append(measured(spark, place, size, given.rounds))
            print(_row(found[-1]), flush=True)
        spark.stop()
    seconds = {cores: seconds_of_cluster(found[-1], cores) for cores in (2, CORES)}
    for cores, taken in seconds.items():
        print(f"model of {cores} cores: {taken:.2f} s, {found[-1].rows / taken:,.0f} rows/s")
    settings = [asdict(each) | {"ratio": each.ratio, "serial": each.serial} for each in found]
    RESULTS.write_text(json.dumps({"machine": about, "settings": settings, "model": seconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
