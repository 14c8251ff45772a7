"""``python -m benchmarks.history``: what the history of one row costs in a long log.

CPU seconds of a key that every batch has, and of one that a single batch has, beside reading the key column of the
whole changelog in the same run. The store is in memory where that is possible, so nothing waits for a disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import kvstore

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int32()), ("b", pa.float64()), ("c", pa.int64()), ("s", pa.string())])
HOT, RARE, KEYS = -1, -2, 1_000_000


def rows_of(keys: np.ndarray) -> pa.Table:
    texts = pa.array(np.char.mod("name %d", keys % 1000))
    return pa.table([keys, keys.astype(np.int32), keys * 1.5, keys, texts], schema=SCHEMA)


def filled(store: kvstore.Store, changes: int, batch_rows: int) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, "k")
    choose = np.random.default_rng(1)
    table.upsert(rows_of(np.array([RARE])))
    end = 0
    while end < changes:
        keys = choose.integers(0, KEYS, batch_rows)
        keys[0] = HOT
        end = table.upsert(rows_of(keys)).last_offset
    table.flush()
    return table


def seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """CPU seconds of the fastest of some rounds."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def measure(table: kvstore.Table, log: str) -> None:
    keys = seconds(lambda: table.changelog(columns=["k"]).read_all())
    for name, key in (("in every batch", HOT), ("in one batch", RARE)):
        took = seconds(partial(table.history, key))
        versions = table.history(key).num_rows
        print(f"{log}, a key {name}: {versions:,} versions, {took:.2f} s, {took / keys:.1f} of reading all keys")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=10_000_000)
    parser.add_argument("--batch-rows", type=int, nargs="*", default=[50_000, 1_000])
    given = parser.parse_args()
    memory = Path("/dev/shm")
    for batch_rows in given.batch_rows:
        with (
            tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory,
            kvstore.open(Path(directory) / "store", durability="none") as store,
        ):
            measure(filled(store, given.changes, batch_rows), f"{given.changes:,} changes, batches of {batch_rows:,}")


if __name__ == "__main__":
    main()
