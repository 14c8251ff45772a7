"""``make bench-spark``, third part: queries and statements of Spark that name keys of a table.

* A table of two buckets, and its rows in Parquet that Spark wrote from it: ``k = 5``, ``k IN`` 100 keys, and a join
  with 10,000 rows. A figure is the CPU time of all processes in times what Parquet takes. So is the least that Spark
  takes: for the same query on nothing but the rows that are looked up, which it has in memory, or for the join in a
  second file.
* Statements that write 10,000 rows whose keys are there: ``MERGE`` that updates and inserts, or only updates, and
  ``DELETE … WHERE k IN (SELECT …)``, in times what ``INSERT INTO`` takes.
* They take turns, round by round; a figure is the median of the rounds' ratios. The first round does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import kvstore
from benchmarks.machine import Cpu, machine, today
from benchmarks.rows import SCHEMA, Rows
from benchmarks.spark import BUCKETS, session

BATCH_ROWS = 50_000
KEYS = 10_000
SOME = 100
QUERIES = {
    "k = 5": ("SELECT sum(c), count(*) FROM {} t WHERE k = 5", 0.2),
    f"k IN ({SOME} keys)": ("SELECT sum(c), count(*) FROM {} t WHERE k IN ({some})", 0.2),
    f"join with {KEYS:,} rows": ("SELECT sum(t.c), count(*) FROM {} t JOIN given ON t.k = given.k", 0.3),
}
MERGE = "MERGE INTO kv.t t USING given ON t.k = given.k WHEN MATCHED THEN UPDATE SET *"
INSERT = "INSERT INTO kv.t SELECT * FROM given"
STATEMENTS = {
    "MERGE": (f"{MERGE} WHEN NOT MATCHED THEN INSERT *", 2.5),
    "MERGE that only updates": (MERGE, 2.5),
    "DELETE of the keys": ("DELETE FROM kv.t WHERE k IN (SELECT k FROM given)", 2.5),
}


def measured(spark: SparkSession, some: str, rounds: int) -> dict[str, list[float]]:
    """The ratio of each query and statement, round by round; of queries also of the least that Spark takes."""
    found: dict[str, list[float]] = defaultdict(list)

    def rows(sql: str, table: str) -> list[object]:
        return [*spark.sql(sql.replace("{}", table).replace("{some}", some)).collect()]

    for turn in range(rounds + 1):
        for name, (sql, _) in QUERIES.items():
            results, took = {}, {}
            for of in ("kv.t", "parquet_rows", "found" if "JOIN" in sql else "in_memory"):
                before = Cpu.now()
                results[of] = rows(sql, of)
                took[of] = Cpu.now().since(before).all
            assert results["kv.t"] == results["parquet_rows"], name
            if turn:
                least = took.get("found", took.get("in_memory", 0.0))
                found[name].append(took["kv.t"] / took["parquet_rows"])
                found[f"{name}, least"].append(least / took["parquet_rows"])
        for name, (sql, _) in STATEMENTS.items():
            before = Cpu.now()
            spark.sql(INSERT)
            between = Cpu.now()
            spark.sql(sql)
            if turn:
                found[name].append(Cpu.now().since(between).all / between.since(before).all)
        spark.sql("INSERT INTO kv.t SELECT p.* FROM parquet_rows p LEFT SEMI JOIN given ON p.k = given.k")
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    began = machine()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        rows = Rows(given.rows)
        with kvstore.open(directory / "store") as store:
            table = store.create_table("t", SCHEMA, "k", buckets=BUCKETS)
            for batch in rows.inserts(BATCH_ROWS):
                table.upsert(batch)
        spark = session(directory)
        spark.conf.set("spark.sql.catalog.kv", "kvstore.spark.StoreCatalog")
        spark.conf.set("spark.sql.catalog.kv.path", str(directory / "store"))
        keys = rows.keys(KEYS)
        pq.write_table(pa.Table.from_batches([rows.batch(pa.array(keys).to_numpy())]), directory / "given.parquet")
        spark.read.parquet(str(directory / "given.parquet")).createOrReplaceTempView("given")
        spark.table("kv.t").write.parquet(str(directory / "rows"))
        spark.read.parquet(str(directory / "rows")).createOrReplaceTempView("parquet_rows")
        pq.write_table(pq.read_table(directory / "given.parquet"), directory / "found.parquet")
        spark.read.parquet(str(directory / "found.parquet")).createOrReplaceTempView("found")
        values = ", ".join(f"({k}L, {k}L)" for k in (5, *keys[:SOME]))
        spark.sql(f"SELECT * FROM VALUES {values} AS t(k, c)").createOrReplaceTempView("in_memory")
        found = measured(spark, ", ".join(map(str, keys[:SOME])), given.rounds)
        spark.stop()
    shown = Table("what", "ratio", "target", "least")
    for name, (_, target) in {**QUERIES, **STATEMENTS}.items():
        least = found.get(f"{name}, least")
        shown.add_row(
            name,
            f"{statistics.median(found[name]):.2f}",
            f"≤ {target}",
            f"{statistics.median(least):.2f}" if least else "",
        )
    Console(width=120).print(shown)
    results = Path(__file__).parent / "results" / "spark_lookups.json"
    results.write_text(
        json.dumps({"date": today(), "rows": given.rows, "machine": began, "ratios": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
