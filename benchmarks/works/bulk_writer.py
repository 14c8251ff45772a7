"""``python -m benchmarks.works.bulk_writer STORE``: a process that writes batches of random keys.

It reports the first batch, and ends after it has read a line.
"""

from __future__ import annotations

import sys
from threading import Thread

import numpy as np
import pyarrow as pa

import kvstore

_BATCH_ROWS = 100_000


def main() -> None:
    random, text = np.random.default_rng(1), pa.array([f"text of a row, number {n}" for n in range(_BATCH_ROWS)])
    ended = Thread(target=sys.stdin.readline)
    ended.start()
    with kvstore.open(sys.argv[1]) as store:
        table, is_first = store.table("t"), True
        while ended.is_alive():
            table.upsert(pa.table({"k": random.integers(0, 1 << 62, _BATCH_ROWS), "text": text}))
            if is_first:
                print("written", flush=True)
                is_first = False


if __name__ == "__main__":
    main()
