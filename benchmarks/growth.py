"""``make bench-growth``: what happens as a table grows: rate, pages written a row, memory and size of the files.

Random keys, batches of 50,000, each store in a process of its own. On the way, wherever ``--updates-at`` says so, as
many rows are updated as a step inserts. Pages and memory are what Linux counts for the process: pages of 4 KiB that
it wrote, and anonymous memory (without mapped files, which are page cache).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import growth_results
from benchmarks.machine import file_bytes, memory_bytes, pages_written, today, versions
from benchmarks.peers import KvStore, RocksDict, Store
from benchmarks.rows import NARROW, Rows
from logformat.checksum import mix

BATCH_ROWS = 50_000
STORES: dict[str, type[Store]] = {store.name: store for store in (KvStore, RocksDict)}
KEPT_ROWS_MIN = 20_000_000
"""The figures of a smaller run are only shown."""
_SHOWN_MAX = 14
"""Steps that are shown; all are kept."""


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Different numbers without any order: the mixer maps every 64-bit word to another."""
    return mix(numbers.astype(np.uint64)).view(np.int64)


def grown(make: type[Store], rows: int, step: int, updates_at: list[int]) -> Iterator[dict[str, Any]]:
    """Figures after each step of inserts, and after the updates."""
    directory = Path(tempfile.mkdtemp(prefix="kvstore-growth-"))
    source, random = Rows(rows), np.random.default_rng(2)
    store = make(directory, NARROW, "sync")
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
    pages_before, seconds, rows = pages_written(), 0.0, 0
    for numbers in batches:
        prepared = store.prepare(source.batch(keys_of(numbers)))
        began = time.perf_counter()
        store.apply(prepared)
        seconds += time.perf_counter() - began
        rows += len(numbers)
    began = time.perf_counter()
    store.settle()
    seconds += time.perf_counter() - began
    return {
        "rate": rows / seconds,
        "pages_a_row": (pages_written() - pages_before) / rows,
        "memory_mb": memory_bytes() / 1e6,
        "files_mb": file_bytes(directory) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--step", type=int, default=1_000_000)
    parser.add_argument("--updates-at", type=int, nargs="+", default=[1_000_000, 20_000_000, 50_000_000])
    parser.add_argument("--store", choices=STORES, help="measure this one, and print a line of JSON a step")
    given = parser.parse_args()
    if given.store:
        for figures in grown(STORES[given.store], given.rows, given.step, given.updates_at):
            print(json.dumps(figures), flush=True)
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for name in STORES:
        command = [sys.executable, "-m", "benchmarks.growth", "--store", name, "--rows", str(given.rows)]
        command += ["--step", str(given.step), "--updates-at", *map(str, given.updates_at)]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        results[name] = [json.loads(line) for line in lines]
    shown(results, Console(width=160))
    if given.rows < KEPT_ROWS_MIN:
        return
    about = {"day": today(), "rows": given.rows, "versions": versions()}
    growth_results.FILE.write_text(json.dumps({**about, "measured": results}, indent=1) + "\n")


def shown(results: dict[str, list[dict[str, Any]]], console: Console) -> None:
    table = Table(
        "rows", *(f"{name}: {what}" for name in results for what in ("rows/s", "pages/row", "memory", "files"))
    )
    together = list(zip(*results.values(), strict=True))
    every = -(-len(together) // _SHOWN_MAX)
    for nth, steps in enumerate(together):
        if nth % every and not steps[0]["is_update"]:
            continue
        cells = [f"{'update at ' if steps[0]['is_update'] else ''}{steps[0]['rows'] / 1e6:g}M"]
        for figures in steps:
            cells += [f"{figures['rate']:,.0f}", f"{figures['pages_a_row']:.2f}"]
            cells += [f"{figures['memory_mb']:,.0f} MB", f"{figures['files_mb']:,.0f} MB"]
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    main()
