"""What small writes cost, beside sqlite3 and the bare disk, all in the same run: ``make bench``.

* One row, durable when the call returns: milliseconds, of one caller.
* Threads that each upsert one row at a time, and wait for it: rows a second of all together.
* Batches of 100 and of 1,000 rows: rows a second, beside sqlite3 and rocksdict, which keep a log of changes too.
* The same rows, handed over in several ways: rows a second.

Everything takes turns round by round; a figure is the median of the rounds, a ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import kvstore
from benchmarks.rows import SCHEMA, Rows
from benchmarks.run import RESULTS, Work, measure, shown, versions
from benchmarks.stores import KvStore, RawLimit, RocksDict, Sqlite

ONE_ROW = 300
THREADS = (1, 2, 4, 8)
SECONDS_OF_THREADS = 1.0
HANDED_OVER = 100_000
WORKS = [Work("update, batches of 1,000", 1_000, 100), Work("update, batches of 100", 100, 300)]

Row = dict[str, Any]
Rounds = dict[str, list[float]]
"""For each of those measured, its figure round by round."""


def sqlite_upsert(path: Path, journal: str) -> Callable[[Row], object]:
    """A plain table, without the log of changes that kvstore keeps."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA journal_mode = {journal}")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, a INTEGER, b REAL, c INTEGER, s TEXT)")
    return lambda row: db.execute("INSERT OR REPLACE INTO t VALUES (:k, :a, :b, :c, :s)", row)


def write_and_sync(path: Path, size: int = 512) -> Callable[[Row], object]:
    """As many bytes as the batch of an update takes in the log."""
    descriptor, data = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), os.urandom(size)
    return lambda _: (os.write(descriptor, data), os.fsync(descriptor))


def one_row(directory: Path, table: kvstore.Table, rows: list[Row], rounds: int) -> Rounds:
    """Median milliseconds of a call, round by round."""
    calls: dict[str, Callable[[Row], object]] = {
        "kvstore": table.upsert,
        "sqlite3, journal DELETE": sqlite_upsert(directory / "delete.db", "DELETE"),
        "sqlite3, journal WAL": sqlite_upsert(directory / "wal.db", "WAL"),
        "write + fsync": write_and_sync(directory / "bare"),
    }
    found: Rounds = {name: [] for name in calls}
    for number in range(rounds + 1):  # the first one only warms up
        for name, call in calls.items():
            taken = []
            for row in rows[:ONE_ROW]:
                began = time.perf_counter()
                call(row)
                taken.append(time.perf_counter() - began)
            if number:
                found[name].append(1000 * statistics.median(taken))
    return found


def by_threads(table: kvstore.Table, rows: list[Row], rounds: int) -> Rounds:
    """Rows a second, by the number of threads."""
    found: Rounds = {str(count): [] for count in THREADS}
    for number in range(rounds + 1):
        for count in THREADS:
            done = [0] * count
            until = time.perf_counter() + SECONDS_OF_THREADS

            def run(place: int, done: list[int] = done, until: float = until) -> None:
                while time.perf_counter() < until:
                    table.upsert(rows[(done[place] * len(done) + place) % len(rows)])
                    done[place] += 1

            threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if number:
                found[str(count)].append(sum(done) / SECONDS_OF_THREADS)
    return found


def handed_over(table: kvstore.Table, rows: Rows, rounds: int) -> Rounds:
    """Rows a second of the same rows, by how they are handed over; until the last is acknowledged."""

    def row_by_row(_: Any, listed: list[Row]) -> None:
        with table.writer() as writer:
            for row in listed:
                writer.upsert(row)

    ways: dict[str, Callable[[Any, list[Row]], object]] = {
        "one Arrow batch": lambda batch, _: table.upsert(batch),
        "one list of dicts": lambda _, listed: table.upsert(listed),
        "row by row, to a writer": row_by_row,
    }
    found: Rounds = {name: [] for name in ways}
    for number in range(rounds + 1):
        (batch,) = rows.updates(HANDED_OVER, 1)
        listed = batch.to_pylist()
        for name, way in ways.items():
            table.flush()
            began = time.perf_counter()
            way(batch, listed)
            if number:
                found[name].append(HANDED_OVER / (time.perf_counter() - began))
    return found


def told(title: str, unit: str, found: Rounds, to: str, console: Console) -> None:
    """A table of medians, and how many times that of ``to`` each of them is."""
    table = Table(title, unit, f"times {to}")
    for name, figures in found.items():
        ratio = statistics.median(mine / other for mine, other in zip(figures, found[to], strict=True))
        table.add_row(name, f"{statistics.median(figures):,.3g}", f"{ratio:.2f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    directory, console, rows = Path(tempfile.mkdtemp(prefix="kvstore-small-")), Console(width=140), Rows(arguments.rows)
    few: list[Row] = rows.batch(np.arange(1000)).to_pylist()
    try:
        with kvstore.open(directory / "store") as store:
            table = store.create_table("t", SCHEMA, "k")
            table.upsert(rows.batch(np.arange(arguments.rows)))
            single = one_row(directory, table, few, arguments.rounds)
            threads = by_threads(table, few, arguments.rounds)
            ways = handed_over(table, rows, arguments.rounds)
        told("one row, durable", "ms", single, "kvstore", console)
        told("threads, one row each", "rows/s", threads, "1", console)
        told(f"{HANDED_OVER:,} updates, given as", "rows/s", ways, "one Arrow batch", console)
        batches = measure([KvStore, Sqlite, RocksDict, RawLimit], directory, rows, WORKS, arguments.rounds)
        shown(batches, console)
    finally:
        shutil.rmtree(directory)
    RESULTS.mkdir(exist_ok=True)
    figures = {"one row, ms": single, "threads, rows/s": threads, "handed over, rows/s": ways}
    found = {"rows": arguments.rows, "versions": versions(), **figures, "batches": [asdict(each) for each in batches]}
    (RESULTS / "small.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
