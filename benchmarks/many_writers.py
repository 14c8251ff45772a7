"""``python -m benchmarks.many_writers``: rows one by one, synced, from several processes, beside sqlite3.

The same rows, and a log of them, in both. Processes begin together, from behind a barrier. With kvstore one of them
owns the bucket, and the others send to it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sqlite3
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import kvstore

KEYS = 10_000
SQLITE = """
CREATE TABLE t (k INTEGER PRIMARY KEY, name TEXT, n INTEGER) WITHOUT ROWID;
CREATE TABLE log (at INTEGER PRIMARY KEY, change TEXT, k INTEGER, name TEXT, n INTEGER);
CREATE TRIGGER inserted AFTER INSERT ON t BEGIN
    INSERT INTO log (change, k, name, n) VALUES ('insert', new.k, new.name, new.n); END;
CREATE TRIGGER updated AFTER UPDATE ON t BEGIN
    INSERT INTO log (change, k, name, n) VALUES ('before', old.k, old.name, old.n);
    INSERT INTO log (change, k, name, n) VALUES ('after', new.k, new.name, new.n); END;
"""
Write = Callable[[int, int], object]


def opened_sqlite(path: Path) -> tuple[Write, Callable[[], object]]:
    connection = sqlite3.connect(path / "rows.db", timeout=60, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=60000"):
        connection.execute(f"PRAGMA {pragma}")
    statement = "INSERT INTO t VALUES (?, ?, ?) ON CONFLICT (k) DO UPDATE SET name = excluded.name, n = excluded.n"
    return lambda k, n: connection.execute(statement, (k, f"name {k}", n)), connection.close


def opened_kvstore(path: Path) -> tuple[Write, Callable[[], object]]:
    store = kvstore.open(path / "store")
    table = store.table("t")
    return lambda k, n: table.upsert({"k": k, "name": f"name {k}", "n": n}), store.close


OPENED = {"kvstore": opened_kvstore, "sqlite3": opened_sqlite}


def created(name: str, path: Path) -> None:
    if name == "kvstore":
        with kvstore.open(path / "store") as store:
            store.create_table("t", {"k": "int64", "name": "string", "n": "int64"}, primary_key="k")
    else:
        with sqlite3.connect(path / "rows.db") as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(SQLITE)


def work(name: str, path: Path, number: int, rows: int, barrier: Barrier, answers: Any) -> None:
    write, close = OPENED[name](path)
    for n in range(3):  # connections are there, and an owner
        write(number, n)
    barrier.wait()
    waited, cpu, began = [], time.process_time(), time.monotonic()
    for n in range(rows):
        one = time.monotonic()
        write((number * 7919 + n * 104_729) % KEYS, n)
        waited.append(time.monotonic() - one)
    ended = time.monotonic()
    barrier.wait()  # an owner goes on until the last has written
    answers.put((began, ended, time.process_time() - cpu, waited))
    close()


def measure(name: str, processes: int, rows: int) -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        created(name, Path(directory))
        barrier, answers = context.Barrier(processes), context.Queue()
        workers = [
            context.Process(target=work, args=(name, Path(directory), number, rows, barrier, answers))
            for number in range(processes)
        ]
        for worker in workers:
            worker.start()
        found = [answers.get() for _ in workers]
        for worker in workers:
            worker.join()
    seconds = max(ended for _, ended, *_ in found) - min(began for began, *_ in found)
    waits = sorted(one for *_, each in found for one in each)
    cpu = sum(each for *_, each, _ in found)
    total = processes * rows
    print(
        f"{name}, {processes} processes: {total / seconds:,.0f} rows/s, p50 {waits[total // 2] * 1000:.2f} ms, p99"
        f" {waits[total * 99 // 100] * 1000:.2f} ms, {cpu / total * 1e6:.0f} µs of CPU a row",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000, help="Rows of each process.")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4, 8])
    given = parser.parse_args()
    for processes in given.processes:
        for name in OPENED:
            measure(name, processes, given.rows)


if __name__ == "__main__":
    main()
