"""CPU of synced updates, from one row to 50,000: each store in a process of its own, and flushed within its clock."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.measuring import Figure, Setting, in_turns
from benchmarks.peers import KvStore, LmdbByHand, RawLimit, RocksDict, Sqlite, Store
from benchmarks.rows import NARROW, Rows

CPU_ONE, CPU_TEN, CPU_HUNDRED, CPU_THOUSAND, CPU_50K = _LINES = [
    f"CPU of an update of {rows}, synced" for rows in ("1 row", "10 rows", "100 rows", "1,000 rows", "50,000 rows")
]
_WORK = dict(zip(_LINES, [(1, 2000), (10, 1000), (100, 500), (1000, 100), (50_000, 4)], strict=True))
"""Rows of an update, and updates of a turn."""
_MEASURED: list[type[Store]] = [KvStore, Sqlite, RocksDict, LmdbByHand, RawLimit]
_FILLED_BY = 50_000

_opened: list[tuple[Store, Rows]] = []
"""What a process of its own measures."""


def figures(setting: Setting) -> Iterator[Figure]:
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        ways = {}
        for make in _MEASURED if setting.with_others else [KvStore]:
            given = (make, setting.place(f"updates, {make.name}"), setting.rows // 5)
            of_its_own = stack.enter_context(ProcessPoolExecutor(1, spawn, initializer=_open, initargs=given))
            stack.callback(lambda process=of_its_own: process.submit(_close).result())
            ways[make.name] = lambda *work, process=of_its_own: process.submit(_cpu_each, *work).result()
        for line, work in _WORK.items():
            turns = {name: partial(way, *work) for name, way in ways.items()}
            yield from in_turns(line, turns, setting.rounds, unit="µs")


def _open(make: type[Store], directory: Path, rows: int) -> None:
    store, source = make(directory, NARROW, "sync"), Rows(rows)
    for batch in source.inserts(_FILLED_BY):
        store.apply(store.prepare(batch))
    store.settle()
    _opened.append((store, source))


def _cpu_each(count: int, number: int) -> float:
    """Microseconds of all threads of this process."""
    ((store, source),) = _opened
    prepared = [store.prepare(batch) for batch in source.updates(count, number)]
    began = time.process_time()
    for each in prepared:
        store.apply(each)
    store.settle()
    return 1e6 * (time.process_time() - began) / number


def _close() -> None:
    ((store, _),) = _opened
    store.close()
