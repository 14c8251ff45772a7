"""``make bench-spark``: Spark reads a table and its changelog, beside its own reader of the same rows in Parquet.

* Two buckets; every row is written once, then a third of them again: the changelog has five records for three rows.
* Spark writes the Parquet files, from the DataFrames of the connector: of the changelog, and of the table's rows. So
  they are as Spark reads them best, and each reader is compared with the Parquet of what it reads.
* One session, one run: readers take turns, round by round. A figure is the median of its rounds, a ratio the median of
  the rounds' ratios to Parquet. CPU is that of all processes: the driver, Spark's Java, helpers and workers;
  it is counted in ticks of 10 ms, so that short reads are coarse.
* The first round warms up and does not count. In it all readers must come to what Parquet comes to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import kvstore
from benchmarks.machine import Cpu, machine, today
from benchmarks.rows import SCHEMA, Rows
from kvstore.spark import KvStoreSource, configure

BATCH_ROWS = 50_000
BUCKETS = 2
UPDATED = 3
"""One row of so many is updated."""
SUMMED = ["a", "c"]
WORK: dict[str, Callable[[DataFrame], object]] = {
    "count": lambda frame: frame.count(),
    "one column": lambda frame: frame.agg({"a": "sum"}).collect(),
    "sum of 2": lambda frame: frame.agg({"a": "sum", "c": "sum"}).collect(),
    "all columns": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}
CHANGES, ROWS = "Parquet of the changelog", "Parquet of the rows"
TARGETS = {
    "connector: changelog": {"count": 0.4, "one column": 0.9, "sum of 2": 0.8, "all columns": 0.7},
    "connector: rows": {"sum of 2": 0.9, "all columns": 0.6},
    "source": {"count": 4.5, "sum of 2": 1.2, "all columns": 0.4},
    "frame": {"count": 2.5, "sum of 2": 0.8, "all columns": 0.25},
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
    """A table with so many rows, of which a third was updated once."""
    table = store.create_table("t", SCHEMA, "k", buckets=BUCKETS)
    given = Rows(rows)
    inserts = given.inserts(BATCH_ROWS)
    for batch in inserts:
        table.upsert(batch)
    for batch in inserts:
        table.upsert(given.batch(batch.column("k").to_numpy()[::UPDATED]))
    table.flush()
    return table


@dataclass
class Reader:
    """One way to read, and what its works took in each round.

    Attributes:
        beside: The name of the Parquet that it is compared with.
        frame: A new DataFrame each time: Spark plans it again.
    """

    beside: str
    frame: Callable[[], DataFrame]
    took: dict[str, list[Cpu]] = field(default_factory=lambda: {work: [] for work in WORK})

    def median(self, work: str, of: Callable[[Cpu], float]) -> float:
        return statistics.median(map(of, self.took[work]))

    def ratio(self, work: str, of: Callable[[Cpu], float], parquet: Reader) -> float:
        """In times what Parquet took in the same rounds."""
        pairs = zip(self.took[work], parquet.took[work], strict=True)
        return statistics.median(of(mine) / of(other) for mine, other in pairs)


def wall(took: Cpu) -> float:
    return took.wall


def cpu(took: Cpu) -> float:
    return took.all


def readers_of(spark: SparkSession, table: kvstore.Table, directory: Path) -> dict[str, Reader]:
    """All readers; Parquet first, which Spark writes here."""
    place = {"path": str(directory / "store")}

    def read(way: str, name: str, **options: str) -> Callable[[], DataFrame]:
        return lambda: spark.read.format(way).options(**place, table=name, **options).load()

    def parquet(of: str, frame: DataFrame) -> Callable[[], DataFrame]:
        target = str(directory / of)
        frame.write.parquet(target)
        return lambda: spark.read.parquet(target)

    changes, rows = read("kvstore", "t$changelog"), read("kvstore", "t")
    summed = ",".join(SUMMED)
    return {
        CHANGES: Reader(CHANGES, parquet("changelog", changes())),
        ROWS: Reader(ROWS, parquet("rows", rows())),
        "connector: changelog": Reader(CHANGES, changes),
        "connector: rows": Reader(ROWS, rows),
        "source": Reader(CHANGES, read("kvstore_python", "t$changelog")),
        "source, 2 columns": Reader(CHANGES, read("kvstore_python", "t$changelog", columns=summed)),
        "frame": Reader(CHANGES, lambda: table.changelog_to_spark(spark)),
        "frame, 2 columns": Reader(CHANGES, lambda: table.changelog_to_spark(spark, columns=SUMMED)),
        "frame of rows, 2 columns": Reader(ROWS, lambda: table.to_spark(spark, SUMMED)),
    }


def measure(readers: dict[str, Reader], rounds: int) -> None:
    """Let all do all works in turns; what each of the first works comes to must be what Parquet comes to."""
    for turn in range(rounds + 1):
        for work, run in WORK.items():
            results = {}
            for name, reader in readers.items():
                before = Cpu.now()
                results[name] = run(reader.frame())
                if turn:
                    reader.took[work].append(Cpu.now().since(before))
            for name, reader in readers.items():
                assert results[name] == results[reader.beside], (name, work)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument(
        "--readers", default="", help="beginning of the names of the readers beside Parquet; all if empty"
    )
    given, about = arguments.parse_args(), machine() | {"day": today()}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        spark = session(directory)
        with kvstore.open(directory / "store") as store:
            table = written(store, given.rows)
            changes = sum(end for _, end in table.offsets().values())
            readers = readers_of(spark, table, directory)
            readers = {name: each for name, each in readers.items() if name.startswith(("Parquet", given.readers))}
            measure(readers, given.rounds)
        spark.stop()
    console = Console(width=120)
    console.print(
        f"{given.rows:,} rows, {changes:,} records of the changelog, {BUCKETS} buckets, {given.rounds} rounds"
    )
    found: dict[str, dict[str, dict[str, object]]] = {name: {} for name in readers}
    for work in WORK:
        shown = Table(work, "s", "CPU s", "s / Parquet", "CPU / Parquet", "target")
        for name, reader in readers.items():
            parquet, target = readers[reader.beside], TARGETS.get(name.partition(",")[0], {}).get(work)
            found[name][work] = {
                "seconds": reader.median(work, wall),
                "cpu_seconds": reader.median(work, cpu),
                "ratio": reader.ratio(work, wall, parquet),
                "cpu_ratio": reader.ratio(work, cpu, parquet),
                "all": [took.wall for took in reader.took[work]],
                "all_cpu": [took.all for took in reader.took[work]],
            }
            ratios = (reader.ratio(work, of, parquet) for of in (wall, cpu))
            figures = (reader.median(work, wall), reader.median(work, cpu), *ratios)
            shown.add_row(name, *(f"{figure:.2f}" for figure in figures), "" if target is None else f"≤ {target}")
        console.print(shown)
    results = Path(__file__).parent / "results" / "spark.json"
    sizes = {"rows": given.rows, "changes": changes, "buckets": BUCKETS, "rounds": given.rounds}
    results.write_text(json.dumps({"machine": about, **sizes, "readers": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
