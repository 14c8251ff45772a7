"""``make bench-replicas``: what shipping costs a writer, how much a replica lags, what a restore and a copy take.

* Updates of a table, alone and beside ``kvstore replicate`` in a process of its own, in turns.
* Rows that come steadily; every tenth of a second, how old what the replica has is.
* A restore, beside reading all objects, writing their bytes to files, and building the indexes from the logs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import kvstore
from benchmarks.rows import SCHEMA, Rows
from logformat import paths

RESULTS = Path(__file__).with_name("results") / "replicas.json"
STEADY_ROWS = 2_000
STEADY_SECONDS = 20.0


@contextmanager
def shipping(store: Path, *, there: bool) -> Iterator[None]:
    """``kvstore replicate`` beside it, if it is to be there."""
    if not there:
        yield
        return
    command = [sys.executable, "-m", "kvstore", "replicate", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(2.0)  # it has started
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def rate(table: kvstore.Table, batches: list[pa.RecordBatch]) -> float:
    """Rows a second, all of them committed."""
    began = time.perf_counter()
    for batch in batches:
        table.upsert(batch)
    table.flush()
    return sum(batch.num_rows for batch in batches) / (time.perf_counter() - began)


def lags(store: kvstore.Store, rows: Rows) -> list[float]:
    """Seconds by which a replica lags, while rows come steadily."""
    table, replica, found = store.table("t"), store.replica("r"), []
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < STEADY_SECONDS:
        table.upsert(rows.updates(STEADY_ROWS, 1)[0])
        report = replica.report()
        if passed > STEADY_SECONDS / 4:
            found.append(time.time() - (report.as_of_ms or 0) / 1000 if report.behind["t"] else 0.0)
        time.sleep(0.1)
    return found


def plain(place: Path, store: Path, scratch: Path) -> float:
    """Seconds to read and write as many bytes, and to build the indexes of a store from its logs."""
    began = time.perf_counter()
    for path in place.rglob("*"):
        if path.is_file():
            with (scratch / str(len(list(scratch.iterdir())))).open("wb") as file:
                file.write(path.read_bytes())
    for index in store.glob(f"tables/*/*/{paths.INDEX}"):
        shutil.rmtree(index)
    with kvstore.open(store) as opened:
        opened.table("t").flush()
        assert sum(batch.num_rows for batch in opened.table("t").scan(limit=1)) == 1
    return time.perf_counter() - began


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rows, console = Rows(given.rows), Console()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        path, place = directory / "s", directory / "r"
        alone, beside = [], []
        with kvstore.open(path) as store:
            table = store.create_table("t", SCHEMA, "k")
            store.add_replica(str(place), "r")
            rate(table, rows.inserts(50_000))
            store.replica("r").ship()
            for _ in range(given.rounds):
                for found, there in ((alone, False), (beside, True)):
                    store.replica("r").ship()
                    with shipping(path, there=there):
                        found.append(rate(table, rows.updates(50_000, given.batches)))
            with shipping(path, there=True):
                seconds_of_lag = sorted(lags(store, rows))
            store.flush()
            store.replica("r").ship()
        restores, plains, copies, pulls = [], [], [], []
        for number in range(given.rounds):
            back, copy, scratch = (directory / f"{name}{number}" for name in ("back", "copy", "scratch"))
            scratch.mkdir()
            began = time.perf_counter()
            kvstore.restore(str(place), back)
            restores.append(time.perf_counter() - began)
            plains.append(plain(place, back, scratch))
            began = time.perf_counter()
            kvstore.follow(str(place), copy).close()
            copies.append(time.perf_counter() - began)
            for used in (back, scratch):
                shutil.rmtree(used)
        with kvstore.open(path) as store, kvstore.follow(str(place), copy) as follower:
            for _ in range(given.rounds):
                written = rate(store.table("t"), rows.updates(50_000, given.batches))
                store.replica("r").ship()
                began = time.perf_counter()
                changes = follower.pull().changes
                pulls.append(changes / 2 / (time.perf_counter() - began) / written)
    ratios = {
        "updates beside shipping / alone": statistics.median(b / a for a, b in zip(alone, beside, strict=True)),
        "lag, median s": statistics.median(seconds_of_lag),
        "lag, longest s": seconds_of_lag[-1],
        "plain download and build / restore": statistics.median(p / r for p, r in zip(plains, restores, strict=True)),
        "plain download and build / copy": statistics.median(p / c for p, c in zip(plains, copies, strict=True)),
        "following / updates": statistics.median(pulls),
    }
    shown = Table("what", "figure", "target")
    targets = {"updates beside shipping / alone": "≥ 0.9", "lag, longest s": "≤ 2"}
    targets["plain download and build / restore"] = "≥ 0.5"
    for what, figure in ratios.items():
        shown.add_row(what, f"{figure:.2f}", targets.get(what, ""))
    console.print(shown)
    raw = {"alone": alone, "beside": beside, "restore": restores, "plain": plains, "copy": copies}
    RESULTS.write_text(json.dumps({"rows": given.rows, **ratios, "seconds_or_rates": raw}, indent=1) + "\n")


if __name__ == "__main__":
    main()
