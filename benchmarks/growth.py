"""``make bench-growth``: what a row costs as a table grows: CPU, pages written, memory, size of the files, seconds.

Random keys, batches of 50,000, each store in a process of its own. On the way, wherever ``--updates-at`` says so, as
many rows are updated as a step inserts. Each step ends with a flush within its clock, of both stores. CPU, pages and
memory are what Linux counts for the process: seconds of all its threads but for making the batches, pages of 4 KiB that
it wrote, and the most anonymous memory after a batch (without mapped files, which are page cache).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import growth_results
from benchmarks.machine import file_bytes, memory_bytes, pages_written, today, versions
from benchmarks.measuring import seconds
from benchmarks.peers import KvStore, RocksDict, Store
from benchmarks.rows import NARROW, Rows
from logformat.checksum import mix

BATCH_ROWS = 50_000
STORES: dict[str, Callable[..., Store]] = {store.name: store for store in (KvStore, RocksDict)}
KEPT_ROWS_MIN = 20_000_000
"""The figures of a smaller run are only shown."""
_SHOWN_MAX = 14
"""Steps that are shown; all are kept."""


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Different numbers without any order: the mixer maps every 64-bit word to another."""
    return mix(numbers.astype(np.uint64)).view(np.int64)


def grown(
    make: Callable[..., Store], rows: int, step: int, updates_at: list[int], memory: int | None = None
) -> Iterator[dict[str, Any]]:
    """Figures after each step of inserts, and after the updates."""
    directory = Path(tempfile.mkdtemp(prefix="kvstore-growth-"))
    source, random = Rows(rows), np.random.default_rng(2)
    store = make(directory, NARROW, "sync", memory_bytes=memory)
    try:
        for first in range(0, rows, step):
            there = first + step
            inserted = (np.arange(at, at + BATCH_ROWS) for at in range(first, there, BATCH_ROWS))
            yield {"rows": there, "is_update": False, **_step(store, source, inserted, directory)}
            if there in updates_at:
                chosen = (random.choice(there, BATCH_ROWS, replace=False) for _ in range(step // BATCH_ROWS))
                yield {"rows": there, "is_update": True, **_step(store, source, chosen, directory)}
    finally:
        store.close()
        shutil.rmtree(directory)


def _step(store: Store, source: Rows, batches: Iterator[np.ndarray], directory: Path) -> dict[str, float]:
    pages_before, rows, memory, prepared_in = pages_written(), 0, 0, 0.0
    times: list[float] = []
    cpu_began = time.process_time()
    for numbers in batches:
        began = time.thread_time()
        prepared = store.prepare(source.batch(keys_of(numbers)))
        prepared_in += time.thread_time() - began
        times.append(seconds(partial(store.apply, prepared)))
        rows += len(numbers)
        memory = max(memory, memory_bytes())
    flush = seconds(store.settle)
    cpu = time.process_time() - cpu_began - prepared_in
    half, most = np.percentile(times, [50, 99])
    return {
        "rate": rows / (sum(times) + flush),
        "cpu_us_a_row": 1e6 * cpu / rows,
        "pages_a_row": (pages_written() - pages_before) / rows,
        "memory_mb": max(memory, memory_bytes()) / 1e6,
        "files_mb": file_bytes(directory) / 1e6,
        "batch_ms_median": 1000 * half,
        "batch_ms_p99": 1000 * most,
        "batch_ms_worst": 1000 * max(times),
        "flush_ms": 1000 * flush,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--step", type=int, default=1_000_000)
    parser.add_argument("--updates-at", type=int, nargs="+", default=[1_000_000, 20_000_000, 50_000_000])
    parser.add_argument("--memory-mib", type=int, help="of memtables, of either store; without it the defaults")
    parser.add_argument("--store", choices=STORES, help="measure this one, and print a line of JSON a step")
    given = parser.parse_args()
    if given.store:
        memory = given.memory_mib and given.memory_mib << 20
        for figures in grown(STORES[given.store], given.rows, given.step, given.updates_at, memory):
            print(json.dumps(figures), flush=True)
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for name in STORES:
        command = [sys.executable, "-m", "benchmarks.growth", "--store", name, "--rows", str(given.rows)]
        command += ["--step", str(given.step), "--updates-at", *map(str, given.updates_at)]
        command += ["--memory-mib", str(given.memory_mib)] if given.memory_mib else []
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        results[name] = [json.loads(line) for line in lines]
    shown(results, Console(width=160))
    if given.rows < KEPT_ROWS_MIN or given.memory_mib:
        return
    about = {"day": today(), "rows": given.rows, "versions": versions()}
    growth_results.FILE.write_text(json.dumps({**about, "measured": results}, indent=1) + "\n")


_COLUMNS = {
    "CPU µs/row": ("cpu_us_a_row", "{:.2f}"),
    "pages/row": ("pages_a_row", "{:.2f}"),
    "rows/s": ("rate", "{:,.0f}"),
    "batch median": ("batch_ms_median", "{:.0f} ms"),
    "p99": ("batch_ms_p99", "{:.0f} ms"),
    "worst": ("batch_ms_worst", "{:.0f} ms"),
    "memory": ("memory_mb", "{:,.0f} MB"),
    "files": ("files_mb", "{:,.0f} MB"),
}


def shown(results: dict[str, list[dict[str, Any]]], console: Console) -> None:
    table = Table("rows", "by", *_COLUMNS)
    together = list(zip(*results.values(), strict=True))
    every = -(-len(together) // _SHOWN_MAX)
    for nth, steps in enumerate(together):
        if nth % every and not steps[0]["is_update"]:
            continue
        rows = f"{'update at ' if steps[0]['is_update'] else ''}{steps[0]['rows'] / 1e6:g}M"
        for name, figures in zip(results, steps, strict=True):
            table.add_row(rows, name, *(form.format(figures[key]) for key, form in _COLUMNS.values()))
    console.print(table)


if __name__ == "__main__":
    main()
