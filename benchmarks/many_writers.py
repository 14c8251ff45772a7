"""``python -m benchmarks.many_writers``: rows one by one, synced, from several processes, beside sqlite3.

The same rows, and a log of them, in both. Processes begin together, from behind a barrier. With kvstore one of them
owns the bucket, and the others send to it. ``--only`` chooses that, or one of these:

* ``forwarded``: the CPU of a row that is sent to an owner that does nothing else, over both processes, and of one that
  its process writes itself.
* ``batches``: batches of 1,000 rows of four processes, and of four threads of one process.
* ``takeover``: how long the write takes that notices that the owner was killed, with a tail of so many MiB in the log.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

import kvstore

KEYS = 10_000
WRITERS, BATCH = 4, 1_000
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


def own(path: Path, tail: int, pipe: Connection) -> None:
    """Own the bucket, with a tail of so many MiB; say what CPU it has taken, when asked."""
    late = {"commit_wait_ms": 10**6, "commit_idle_ms": 10**6} if tail else {}
    with kvstore.open(path / "store", **late) as store:
        table = store.table("t")
        for k in range(-1, -1 - tail, -1):
            table.upsert({"k": k, "name": "x" * (1 << 20), "n": 0})
        table.upsert({"k": -1000, "name": "owner", "n": 0})
        if not tail:
            table.flush()  # what the first merge imports takes as much as thousands of rows
        pipe.send(time.process_time())
        while pipe.recv():
            pipe.send(time.process_time())


def measure_forwarded(rows: int) -> None:
    context = multiprocessing.get_context("spawn")
    taken = {}
    for is_forwarded in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            created("kvstore", Path(directory))
            here, there = context.Pipe()
            owner = context.Process(target=own, args=(Path(directory), 0, there))
            if is_forwarded:
                owner.start()
                here.recv()

            def cpu(is_forwarded: bool = is_forwarded, here: Connection = here) -> float:
                if not is_forwarded:
                    return time.process_time()
                here.send(True)
                owned: float = here.recv()
                return time.process_time() + owned

            write, close = opened_kvstore(Path(directory))
            if not is_forwarded:
                write(0, 0)
                with kvstore.open(Path(directory) / "store") as same:
                    same.table("t").flush()
            for n in range(-200, rows):
                if n == 0:
                    before = cpu()
                write(n * 104_729 % KEYS, n)
            taken[is_forwarded] = (cpu() - before) / rows * 1e6
            close()
            if is_forwarded:
                here.send(False)
                owner.join()
    print(
        f"a row: {taken[False]:.0f} µs of CPU, forwarded {taken[True]:.0f}: {taken[True] / taken[False]:.2f}",
        flush=True,
    )


def write_batches(table: kvstore.Table, number: int, batches: int) -> None:
    for n in range(batches):
        keys = [(number * 7919 + (n * BATCH + m) * 104_729) % 1_000_000 for m in range(BATCH)]
        table.upsert(pa.table({"k": keys, "name": [f"name {k}" for k in keys], "n": pa.array([n] * BATCH, pa.int64())}))


def batches_of_a_process(path: Path, number: int, batches: int, barrier: Barrier, answers: Any) -> None:
    with kvstore.open(path / "store") as store:
        table = store.table("t")
        write_batches(table, number, 2)
        barrier.wait()
        began = time.monotonic()
        write_batches(table, number, batches)
        answers.put((began, time.monotonic()))
        barrier.wait()


def measure_batches(batches: int) -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        created("kvstore", Path(directory))
        barrier, answers = context.Barrier(WRITERS), context.Queue()
        given = [(Path(directory), number, batches, barrier, answers) for number in range(WRITERS)]
        workers = [context.Process(target=batches_of_a_process, args=each) for each in given]
        for each in workers:
            each.start()
        times = [answers.get() for _ in workers]
        for each in workers:
            each.join()
    seconds = max(ended for _, ended in times) - min(began for began, _ in times)
    with tempfile.TemporaryDirectory() as directory:
        created("kvstore", Path(directory))
        with kvstore.open(Path(directory) / "store") as store, ThreadPoolExecutor(WRITERS) as pool:
            table = store.table("t")
            write_batches(table, 0, 2)
            began = time.monotonic()
            list(pool.map(lambda number: write_batches(table, number, batches), range(WRITERS)))
            in_threads = time.monotonic() - began
    rows = WRITERS * batches * BATCH
    print(
        f"batches of {BATCH}: {rows / seconds:,.0f} rows/s of {WRITERS} processes, {rows / in_threads:,.0f} of as many"
        f" threads: {in_threads / seconds:.2f}",
        flush=True,
    )


def measure_takeover(tail: int, times: int) -> None:
    context = multiprocessing.get_context("spawn")
    waits = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as directory:
            created("kvstore", Path(directory))
            here, there = context.Pipe()
            owner = context.Process(target=own, args=(Path(directory), tail, there))
            owner.start()
            here.recv()
            write, close = opened_kvstore(Path(directory))
            write(1, 1)
            owner.kill()
            owner.join()
            began = time.monotonic()
            write(2, 2)
            waits.append((time.monotonic() - began) * 1000)
            close()
    print(f"takeover with {tail} MiB: {median(waits):.0f} ms, at most {max(waits):.0f}, of {times}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000, help="Rows of each process, batches, or times.")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--only", choices=["rows", "forwarded", "batches", "takeover"], default="rows")
    given = parser.parse_args()
    if given.only == "forwarded":
        measure_forwarded(given.rows)
    elif given.only == "batches":
        measure_batches(given.rows)
    elif given.only == "takeover":
        for tail in (0, 1, 6):  # with the images before, at most 8
            measure_takeover(tail, given.rows)
    else:
        for processes in given.processes:
            for name in OPENED:
                measure(name, processes, given.rows)


if __name__ == "__main__":
    main()
