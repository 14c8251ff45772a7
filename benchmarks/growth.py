"""``make bench-growth``: what happens as a table grows: rate, pages written a row, memory and size of the files.

Random keys, batches of 50,000, each store in a process of its own. Pages and memory are what Linux counts for the
process: pages of 4 KiB that went towards the disk, and anonymous memory (without mapped files, which are page cache).
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

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.rows import Rows
from benchmarks.run import RESULTS, versions
from benchmarks.stores import KvStore, RocksDict, Store
from logformat.checksum import mix

BATCH_ROWS = 50_000
STORES: dict[str, type[Store]] = {store.name: store for store in (KvStore, RocksDict)}
PAGE_BYTES = 4096


class Measures:
    """What Linux counts for this process, and what lies in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def pages_written(self) -> int:
        return self._number("/proc/self/io", "write_bytes") // PAGE_BYTES

    def memory_bytes(self) -> int:
        return 1024 * self._number("/proc/self/status", "RssAnon")

    def file_bytes(self) -> int:
        return sum(512 * path.stat().st_blocks for path in self._directory.rglob("*") if path.is_file())

    def _number(self, file: str, name: str) -> int:
        line = next(line for line in Path(file).read_text().splitlines() if line.startswith(name))
        return int(line.split(":")[1].split()[0])


def keys_of(first: int, count: int) -> np.ndarray:
    """Different numbers without any order: the mixer maps every 64-bit word to another."""
    return mix(np.arange(first, first + count, dtype=np.uint64)).view(np.int64)


def grown(make: type[Store], rows: int, step: int) -> Iterator[dict[str, float]]:
    """Figures after each step of inserts, and after as many updates of the full table as a step has rows."""
    directory = Path(tempfile.mkdtemp(prefix="kvstore-growth-"))
    source, random = Rows(rows), np.random.default_rng(2)
    measures = Measures(directory)
    store = make(directory)
    try:
        for first in range(0, rows + step, step):
            begun, pages, seconds = measures.pages_written(), 0, 0.0
            is_update = first >= rows
            for batch_first in range(first, first + step, BATCH_ROWS):
                keys = keys_of(batch_first, BATCH_ROWS)
                if is_update:
                    chosen = random.choice(rows, BATCH_ROWS, replace=False).astype(np.uint64)
                    keys = mix(chosen).view(np.int64)
                prepared = store.prepare(source.batch(keys))
                started = time.perf_counter()
                store.apply(prepared)
                seconds += time.perf_counter() - started
            started = time.perf_counter()
            store.settle()
            seconds += time.perf_counter() - started
            pages = measures.pages_written() - begun
            yield {
                "rows": min(first + step, rows),
                "is_update": is_update,
                "rate": step / seconds,
                "pages_a_row": pages / step,
                "memory_mb": measures.memory_bytes() / 1e6,
                "files_mb": measures.file_bytes() / 1e6,
            }
    finally:
        store.close()
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--step", type=int, default=1_000_000)
    parser.add_argument("--store", choices=STORES, help="measure this one, and print a line of JSON a step")
    arguments = parser.parse_args()
    if arguments.store:
        for figures in grown(STORES[arguments.store], arguments.rows, arguments.step):
            print(json.dumps(figures), flush=True)
        return
    told: dict[str, list[dict[str, float]]] = {}
    for name in STORES:
        command = [sys.executable, "-m", "benchmarks.growth", "--store", name]
        command += ["--rows", str(arguments.rows), "--step", str(arguments.step)]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        told[name] = [json.loads(line) for line in lines]
    shown(told, Console(width=140))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "growth.json").write_text(json.dumps({"versions": versions(), "measured": told}, indent=1) + "\n")


def shown(told: dict[str, list[dict[str, float]]], console: Console) -> None:
    table = Table("rows", *(f"{name}: {what}" for name in told for what in ("rows/s", "pages/row", "memory", "files")))
    for steps in zip(*told.values(), strict=True):
        cells = [f"{'update at ' if steps[0]['is_update'] else ''}{steps[0]['rows'] / 1e6:.0f}M"]
        for figures in steps:
            cells += [f"{figures['rate']:,.0f}", f"{figures['pages_a_row']:.2f}"]
            cells += [f"{figures['memory_mb']:,.0f} MB", f"{figures['files_mb']:,.0f} MB"]
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    main()
