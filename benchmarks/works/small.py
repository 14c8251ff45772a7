"""Small writes: one row a call, threads that each wait for their row, and rows handed over in several ways."""

from __future__ import annotations

import os
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting, in_turns, seconds
from benchmarks.rows import SCHEMA, Rows
from kvstore.request import encoded

ONE_ROW = "one row, durable when the call returns"
BY_THREADS = "one row a call, by threads"
HANDED_OVER = "100,000 updates, by how they are handed over"
CPU_ONE_UNSYNCED, CPU_TEN_UNSYNCED = (f"CPU of an update of {rows}, not synced" for rows in ("1 row", "10 rows"))
LONG_WAY = "kvstore, the long way"
_CALLS = 300
_THREADS = (1, 2, 4, 8)
_SECONDS_OF_THREADS = 0.5
_HANDED_OVER_ROWS = 100_000
_CPU_WORK = {CPU_ONE_UNSYNCED: (1, 3000), CPU_TEN_UNSYNCED: (10, 1500)}
"""Rows of an update, and updates of a turn."""

Row = dict[str, Any]


def figures(setting: Setting) -> Iterator[Figure]:
    rows = Rows(setting.rows // 5)
    few: list[Row] = rows.batch(np.arange(1000)).to_pylist()
    with kvstore.open(setting.place("store")) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(rows.batch(np.arange(rows.count)))
        yield from _one_row(setting, table, few)
        ways = {f"{count} threads": _threads(table, few, count) for count in _THREADS}
        yield from in_turns(BY_THREADS, ways, setting.rounds)
        yield from _handed_over(setting, table, rows)
    yield from _cpu(setting, rows)


def _one_row(setting: Setting, table: kvstore.Table, few: list[Row]) -> Iterator[Figure]:
    calls: dict[str, Callable[[Row], object]] = {KVSTORE: table.upsert}
    if setting.with_others:
        calls["sqlite3, journal DELETE"] = _sqlite_upsert(setting.directory / "delete.db", "DELETE")
        calls["sqlite3, journal WAL"] = _sqlite_upsert(setting.directory / "wal.db", "WAL")
        calls["write + fsync"] = _write_and_sync(setting.directory / "bare")
    ways = {
        name: lambda call=call: 1000 * statistics.median(seconds(partial(call, row)) for row in few[:_CALLS])
        for name, call in calls.items()
    }
    yield from in_turns(ONE_ROW, ways, setting.rounds, unit="ms")


def _sqlite_upsert(path: Path, journal: str) -> Callable[[Row], object]:
    """A plain table, without the log of changes that kvstore keeps."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA journal_mode = {journal}")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, a INTEGER, b REAL, c INTEGER, s TEXT)")
    return lambda row: db.execute("INSERT OR REPLACE INTO t VALUES (:k, :a, :b, :c, :s)", row)


def _write_and_sync(path: Path, size: int = 512) -> Callable[[Row], object]:
    """As many bytes as the batch of an update takes in the log."""
    descriptor, data = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), os.urandom(size)
    return lambda _: (os.write(descriptor, data), os.fsync(descriptor))


def _threads(table: kvstore.Table, rows: list[Row], count: int) -> Callable[[], float]:
    def turn() -> float:
        done = [0] * count
        until = time.perf_counter() + _SECONDS_OF_THREADS

        def run(place: int) -> None:
            while time.perf_counter() < until:
                table.upsert(rows[(done[place] * count + place) % len(rows)])
                done[place] += 1

        threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done) / _SECONDS_OF_THREADS

    return turn


def _handed_over(setting: Setting, table: kvstore.Table, rows: Rows) -> Iterator[Figure]:
    (batch,) = rows.updates(_HANDED_OVER_ROWS, 1)
    listed: list[Row] = batch.to_pylist()

    def row_by_row() -> None:
        with table.writer() as writer:
            for row in listed:
                writer.upsert(row)

    def timed(way: Callable[[], object]) -> Callable[[], float]:
        def turn() -> float:
            table.flush()
            return len(listed) / seconds(way)

        return turn

    ways = {
        "one Arrow batch": timed(lambda: table.upsert(batch)),
        "one list of dicts": timed(lambda: table.upsert(listed)),
        "row by row, to a writer": timed(row_by_row),
    }
    yield from in_turns(HANDED_OVER, ways, setting.rounds)


def _cpu(setting: Setting, rows: Rows) -> Iterator[Figure]:
    """CPU time of all threads; each turn ends with a flush, or the next one would pay for it."""
    with kvstore.open(setting.place("unsynced"), durability="none") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(rows.batch(np.arange(rows.count)))
        table.flush()
        for line, (count, number) in _CPU_WORK.items():
            given = cycle([batch.to_pylist() for batch in rows.updates(count, 2 * number)])
            each = _cpu_each(table.upsert, given, number, table.flush)
            yield from in_turns(line, {KVSTORE: each, LONG_WAY: _long(each)}, setting.rounds, unit="µs")


def _cpu_each(
    write: Callable[[Any], object], given: Iterator[Any], number: int, settle: Callable[[], None]
) -> Callable[[], float]:
    """Writes what comes next: the same rows once more would be found in the processor's caches."""

    def turn() -> float:
        these = list(islice(given, number))
        began = time.process_time()
        for each in these:
            write(each)
        settle()
        return 1e6 * (time.process_time() - began) / number

    return turn


def _long(turn: Callable[[], float]) -> Callable[[], float]:
    def without_small_writes() -> float:
        rows_max, encoded.ROWS_MAX = encoded.ROWS_MAX, 0
        try:
            return turn()
        finally:
            encoded.ROWS_MAX = rows_max

    return without_small_writes
