"""Rows a second of each merge engine, beside ``last_row`` with the same batches in the same run: ``make bench``.

All tables hold the same rows. Versions grow, so that every update of ``versioned`` takes place.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import kvstore
from benchmarks.rows import SCHEMA, Rows
from benchmarks.run import RESULTS, versions

ENGINES: dict[str, Any] = {
    "last_row": "last_row",
    "first_row": "first_row",
    "versioned": kvstore.Versioned("c"),
    "aggregate": kvstore.Aggregate({"a": "sum", "b": "sum", "c": "max", "s": "last_value"}),
}
REPEATED = 0.1
"""Share of the rows of a batch whose key another row of it has."""


def repeated(rows: Rows, batch_rows: int, random: np.random.Generator) -> np.ndarray:
    """Keys of a batch, some of them more than once."""
    keys = random.choice(rows.count, batch_rows, replace=False)
    again = random.choice(batch_rows, int(batch_rows * REPEATED), replace=False)
    keys[again] = random.choice(keys, len(again))
    return keys


def one_hot(rows: Rows, batch_rows: int, random: np.random.Generator) -> np.ndarray:
    """One key makes up the whole batch."""
    return np.full(batch_rows, random.integers(rows.count))


WORKS: dict[str, tuple[Callable[[Rows, int, np.random.Generator], np.ndarray], int, int]] = {
    "50,000 a batch, 10% of keys again": (repeated, 50_000, 6),
    "1,000 a batch, 10% of keys again": (repeated, 1_000, 200),
    "50,000 a batch, all of one key": (one_hot, 50_000, 6),
}


def batches(rows: Rows, work: str, random: np.random.Generator, version: Iterator[int]) -> list[pa.RecordBatch]:
    keys_of, batch_rows, count = WORKS[work]
    made = []
    for _ in range(count):
        batch = rows.batch(keys_of(rows, batch_rows, random))
        first = next(version) * batch_rows
        made.append(batch.set_column(3, SCHEMA.field("c"), pa.array(np.arange(first, first + batch_rows))))
    return made


def measure(directory: Path, rows: Rows, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Rows a second by work and engine, round by round."""
    random, version = np.random.default_rng(3), iter(range(1 << 30))
    found: dict[str, dict[str, list[float]]] = {work: {engine: [] for engine in ENGINES} for work in WORKS}
    with kvstore.open(directory / "store") as store:
        tables = {name: store.create_table(name, SCHEMA, "k", merge_engine=given) for name, given in ENGINES.items()}
        for table in tables.values():
            for batch in rows.inserts(50_000):
                table.upsert(batch.set_column(3, SCHEMA.field("c"), pa.array(np.zeros(batch.num_rows, np.int64))))
        for work in WORKS:
            for number in range(rounds + 1):  # the first one only warms up
                made = batches(rows, work, random, version)
                for engine, table in tables.items():
                    started = time.perf_counter()
                    for batch in made:
                        table.upsert(batch)
                    table.flush()
                    if number:
                        rate = sum(batch.num_rows for batch in made) / (time.perf_counter() - started)
                        found[work][engine].append(rate)
    return found


def shown(found: dict[str, dict[str, list[float]]], console: Console) -> None:
    table = Table("upserts", *ENGINES, *(f"{engine} / last_row" for engine in list(ENGINES)[1:]))
    for work, rates in found.items():
        ratios = [
            statistics.median(mine / last for mine, last in zip(rates[engine], rates["last_row"], strict=True))
            for engine in list(ENGINES)[1:]
        ]
        table.add_row(
            work, *(f"{statistics.median(rates[engine]):,.0f}" for engine in ENGINES), *(f"{x:.2f}" for x in ratios)
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kvstore-engines-"))
    try:
        found = measure(directory, Rows(arguments.rows), arguments.rounds)
    finally:
        shutil.rmtree(directory)
    shown(found, Console(width=140))
    RESULTS.mkdir(exist_ok=True)
    told = {"rows": arguments.rows, "versions": versions(), "measured": found}
    (RESULTS / "engines.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
