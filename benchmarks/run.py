"""``make bench``: rows a second of kvstore, its peers and the raw limit, and the ratios between them.

The stores take turns round by round, so that a machine that slows down slows all of them; every figure is a median over
the rounds, and every ratio a median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.rows import Rows
from benchmarks.stores import PEERS, DeltaLake, KvStore, RawLimit, Store

RESULTS = Path(__file__).with_name("results")
TURN_SECONDS_MAX = 5.0
VERSIONS = ("lmdb", "pyarrow", "numpy", "rocksdict", "duckdb", "deltalake")


@dataclass(frozen=True)
class Work:
    """One kind of work: batches of a size, so many in a round."""

    name: str
    batch_rows: int
    batches: int


@dataclass
class Measured:
    """Rows a second of each store, round by round."""

    work: str
    rates: dict[str, list[float]] = field(default_factory=dict)

    def median(self, store: str) -> float:
        return statistics.median(self.rates[store])

    def ratio(self, store: str, other: str) -> float:
        """How many times as fast as another, in the same round."""
        pairs = zip(self.rates[store], self.rates[other], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def best_peer(self) -> str:
        return max((peer.name for peer in PEERS if peer.name in self.rates), key=self.median)


def rate(store: Store, batches: Sequence[pa.RecordBatch], seconds_max: float = 60.0) -> float:
    """Rows a second, of as many of the batches as there is time for."""
    prepared = [store.prepare(batch) for batch in batches]
    rows, started = 0, time.perf_counter()
    for batch, each in zip(batches, prepared, strict=True):
        store.apply(each)
        rows += batch.num_rows
        if time.perf_counter() - started > seconds_max:
            break
    store.settle()
    return rows / (time.perf_counter() - started)


def measure(
    makers: Sequence[Callable[[Path], Store]], directory: Path, rows: Rows, works: Sequence[Work], rounds: int
) -> list[Measured]:
    """Fill every store, then let them take turns."""
    inserted = Measured("insert, batches of 50,000")
    stores = []
    for number, make in enumerate(makers):
        path = directory / str(number)
        path.mkdir()
        store = make(path)
        inserted.rates[store.name] = [rate(store, rows.inserts(50_000))]
        stores.append(store)
    found = [inserted]
    for work in works:
        measured = Measured(work.name)
        for number in range(rounds + 1):  # the first one only warms up
            batches = rows.updates(work.batch_rows, work.batches)
            for store in stores:
                once = rate(store, batches, TURN_SECONDS_MAX)
                if number:
                    measured.rates.setdefault(store.name, []).append(once)
        found.append(measured)
    for store in stores:
        store.close()
    return found


def shown(found: Sequence[Measured], console: Console) -> None:
    table = Table("work", *found[0].rates, "best peer", "kvstore / best peer", "kvstore / raw limit")
    for measured in found:
        best = measured.best_peer()
        table.add_row(
            measured.work,
            *(f"{measured.median(store):,.0f}" for store in measured.rates),
            best,
            f"{measured.ratio('kvstore', best):.2f}",
            f"{measured.ratio('kvstore', 'raw limit'):.2f}",
        )
    console.print(table)


def versions() -> dict[str, str]:
    there = {"python": platform.python_version()}
    for package in VERSIONS:
        try:
            there[package] = version(package)
        except PackageNotFoundError:
            continue
    return there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=None, help="names of stores to run")
    arguments = parser.parse_args()
    console = Console(width=160)
    works = [
        Work("update, batches of 50,000", 50_000, 16),
        Work("update, batches of 1,000", 1_000, 500),
        Work("update, batches of 100", 100, 1000),
    ]
    makers: list[Any] = [KvStore, *PEERS, RawLimit]
    if arguments.only:
        makers = [maker for maker in makers if maker.name in arguments.only]
    for maker in makers:
        console.print(f"{maker.name}: {maker.settings}", highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="kvstore-bench-"))
    try:
        found = measure(makers, directory, Rows(arguments.rows), works, arguments.rounds)
        shown(found, console)
        if not arguments.only:
            apart = directory / "apart"
            apart.mkdir()
            delta = DeltaLake(apart)
            few = Rows(min(arguments.rows, 200_000))
            inserted, updated = rate(delta, few.inserts(50_000)), rate(delta, few.updates(50_000, 2))
            console.print(
                f"apart: {delta.name} ({delta.settings}), {few.count:,} rows:"
                f" insert {inserted:,.0f} rows/s, update {updated:,.0f} rows/s"
            )
            RESULTS.mkdir(exist_ok=True)
            told = {"rows": arguments.rows, "versions": versions(), "measured": [asdict(each) for each in found]}
            (RESULTS / "writes.json").write_text(json.dumps(told, indent=1) + "\n")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
