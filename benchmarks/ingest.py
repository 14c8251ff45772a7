"""``make bench-ingest``: a job that loads many files, against a loop that reads and upserts them.

Both take turns with the same Parquet files, each time into an empty table; the loop has none of what a job knows after
it died. With ``--spark`` a job whose files Spark reads has its turn too, and must come to the same rows.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from rich.console import Console
from rich.table import Table

import kvstore
from benchmarks.rows import SCHEMA, Rows
from kvstore.ingest.engine import EmbeddedEngine, Engine

Load = Callable[[kvstore.Store, Path], None]


def loop(store: kvstore.Store, source: Path) -> None:
    table = store.table("t")
    for path in sorted(source.iterdir()):
        table.upsert(parquet.read_table(path))


def job_with(engine: Engine) -> Load:
    def job(store: kvstore.Store, source: Path) -> None:
        store.create_job("j", source=source, format="parquet", table="t").run(engine=engine)

    return job


def seconds(load: Load, source: Path, path: Path, buckets: int) -> tuple[float, pa.Table]:
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=buckets)
        started = time.perf_counter()
        load(store, source)
        table.flush()
        took = time.perf_counter() - started
        rows = table.scan().read_all()
    shutil.rmtree(path)
    return took, rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--buckets", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    loads: dict[str, Load] = {"loop": loop, "job": job_with(EmbeddedEngine())}
    if given.spark:
        from kvstore.spark.engine import engine

        loads["job, Spark"] = job_with(engine())
    taken: dict[str, list[float]] = {name: [] for name in loads}
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "in")
        source.mkdir()
        for place, batch in enumerate(Rows(given.rows).inserts(given.rows // given.files)):
            parquet.write_table(pa.Table.from_batches([batch]), source / f"{place:06}.parquet")
        for _ in range(given.rounds):
            found = []
            for name, load in loads.items():
                took, rows = seconds(load, source, Path(directory, "store"), given.buckets)
                taken[name].append(took)
                found.append(rows)
            assert all(rows.equals(found[0]) for rows in found), "not the same rows"
    table = Table("load", "rows/s", "of the loop")
    for name, each in taken.items():
        ratio = statistics.median(mine / own for mine, own in zip(taken["loop"], each, strict=True))
        table.add_row(name, f"{given.rows / statistics.median(each):,.0f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
