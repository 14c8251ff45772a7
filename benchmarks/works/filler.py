"""``python -m benchmarks.works.filler SYSTEM DIRECTORY ROWS``: a process that fills a store and then updates it.

It says when the store is full; then, for each line it is given, the rows a second that it has updated since the last.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Thread

from benchmarks.peers import KvStore, Sqlite, Store
from benchmarks.rows import Rows

SYSTEMS: dict[str, type[Store]] = {KvStore.name: KvStore, Sqlite.name: Sqlite}
_INSERT_ROWS, _UPDATE_ROWS, _BATCHES = 50_000, 1_000, 200


def main() -> None:
    source = Rows(int(sys.argv[3]))
    store = SYSTEMS[sys.argv[1]](Path(sys.argv[2]))
    for batch in source.inserts(_INSERT_ROWS):
        store.apply(store.prepare(batch))
    updates = [store.prepare(batch) for batch in source.updates(_UPDATE_ROWS, _BATCHES)]
    print("full", flush=True)
    counts = [0]

    def answer() -> None:
        at, before = time.perf_counter(), 0
        for _ in sys.stdin:
            now, count = time.perf_counter(), counts[0]
            print((count - before) / (now - at), flush=True)
            at, before = now, count

    answering = Thread(target=answer)
    answering.start()
    while answering.is_alive():
        store.apply(updates[counts[0] // _UPDATE_ROWS % _BATCHES])
        counts[0] += _UPDATE_ROWS
    store.close()


if __name__ == "__main__":
    main()
