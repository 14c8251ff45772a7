"""Merge engines beside ``last_row``. All tables hold the same rows; versions grow, so that every update takes place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import kvstore
from benchmarks.measuring import Figure, Setting
from benchmarks.rows import SCHEMA, Rows

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


_WORKS: dict[str, tuple[Callable[[Rows, int, np.random.Generator], np.ndarray], int, int]] = {
    "merge, batches of 50,000, 10% of keys again": (repeated, 50_000, 4),
    "merge, batches of 1,000, 10% of keys again": (repeated, 1_000, 50),
    "merge, batches of 50,000, all of one key": (one_hot, 50_000, 6),
}


def figures(setting: Setting) -> Iterator[Figure]:
    rows, random, version = Rows(setting.rows // 4), np.random.default_rng(3), iter(range(1 << 30))

    def batches(line: str) -> list[pa.RecordBatch]:
        keys_of, batch_rows, count = _WORKS[line]
        made = []
        for _ in range(count):
            batch_keys = keys_of(rows, min(batch_rows, rows.count), random)
            first = next(version) * batch_rows
            versions = pa.array(np.arange(first, first + len(batch_keys)))
            made.append(rows.batch(batch_keys).set_column(3, SCHEMA.field("c"), versions))
        return made

    with kvstore.open(setting.place("store")) as store:
        tables = {name: store.create_table(name, SCHEMA, "k", merge_engine=given) for name, given in ENGINES.items()}
        for table in tables.values():
            for batch in rows.inserts(50_000):
                table.upsert(batch.set_column(3, SCHEMA.field("c"), pa.array(np.zeros(batch.num_rows, np.int64))))
        for line in _WORKS:
            for number in range(setting.rounds + 1):
                made = batches(line)
                for engine, table in tables.items():
                    began = time.perf_counter()
                    for batch in made:
                        table.upsert(batch)
                    table.flush()
                    if number:
                        count = sum(batch.num_rows for batch in made)
                        yield Figure(line, engine, count / (time.perf_counter() - began))
