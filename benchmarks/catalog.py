"""What a checkpoint of the catalog costs the process that writes, and how long a store takes to open.

* Upserts of 1,000 rows: processor time of the writing process for each, alone and while checkpoints are made one after
  the other; in turns, round by round. The catalog has the edits asked for after its newest image before each.
* Memory of the writing process that is its own (not of files), before the first checkpoint and after the last.
* Seconds from ``kvstore.open`` to the first answer of the catalog: with no image, and with one of all edits.

The worker is another process: with fewer processors than both need, upserts take longer by the clock; this is shown.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import kvstore
from benchmarks.machine import versions
from benchmarks.report import RESULTS
from benchmarks.rows import SCHEMA, Rows
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import AllocateWriter, Payload, SetConsumer
from logformat.ids import Offset, TableId

CONSUMERS = 1_000
BATCH_ROWS = 1_000
ALONE_SECONDS = 3.0


def add_edits(path: Path, count: int) -> None:
    """Consumers that go on, and writer ids that are given out: every second edit makes the catalog no larger."""
    identity = store_file.decode((path / paths.STORE_FILE).read_bytes())
    journal = Journal(path, Files(), SystemClock(), identity.store_id, leadership=CatalogLeadership())
    for number in range(count):
        name, offset = f"consumer-{number % CONSUMERS}", Offset(0)
        moved: Payload = SetConsumer(table_id=TableId(1), name=name, offsets=[offset])
        edit = moved if number % 2 else None
        journal.append(lambda state, edit=edit: edit or AllocateWriter(writer_id=state.next_writer_id))  # type: ignore[misc]
    journal.close()


def own_memory() -> float:
    """MiB of this process that are of no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def opened_in(path: Path) -> float:
    """Seconds until the catalog is there."""
    began = time.perf_counter()
    with kvstore.open(path, read_only=True) as store:
        store.list_tables()
        return time.perf_counter() - began


def upserts(table: kvstore.Table, rows: Rows, random: np.random.Generator, until: threading.Event) -> dict[str, float]:
    """Upsert until it is time to stop; milliseconds for each, of the processor and by the clock."""
    count, began, used = 0, time.perf_counter(), time.process_time()
    while not until.is_set():
        table.upsert(rows.batch(random.integers(0, rows.count, BATCH_ROWS)))
        count += 1
    return {
        "processor ms": 1000 * (time.process_time() - used) / count,
        "clock ms": 1000 * (time.perf_counter() - began) / count,
    }


def alone(*arguments: Any) -> dict[str, float]:
    stop = threading.Event()
    timer = threading.Timer(ALONE_SECONDS, stop.set)
    timer.start()
    return upserts(*arguments, stop)


def beside(store: kvstore.Store, *arguments: Any) -> tuple[dict[str, float], kvstore.Checkpoint]:
    stop, made = threading.Event(), []

    def checkpoint() -> None:
        made.append(store.checkpoint())
        stop.set()

    thread = threading.Thread(target=checkpoint)
    thread.start()
    found = upserts(*arguments, stop)
    thread.join()
    return found, made[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    directory, rows, random = Path(tempfile.mkdtemp(prefix="kvstore-catalog-")), Rows(100_000), np.random.default_rng(1)
    path = directory / "store"
    found: dict[str, Any] = {"edits": arguments.edits, "versions": versions(), "rounds": []}
    try:
        with kvstore.open(path) as store:
            store.create_table("t", SCHEMA, "k")
        add_edits(path, arguments.edits)
        found["open without image, s"] = opened_in(path)
        with kvstore.open(path) as store:
            table = store.table("t")
            table.upsert(rows.batch(np.arange(rows.count)))
            alone(table, rows, random)
            before = own_memory()
            for number in range(arguments.rounds):
                if number:
                    add_edits(path, arguments.edits // arguments.rounds)
                    store.list_tables()  # or the first upsert would replay them
                alone_ms = alone(table, rows, random)
                beside_ms, made = beside(store, table, rows, random)
                of_image = {"image bytes": made.bytes, "seconds": made.seconds, "dropped": made.dropped_edits}
                found["rounds"].append({"alone": alone_ms, "beside": beside_ms, "checkpoint": of_image})
            found["memory, MiB"] = {"before": before, "after": own_memory()}
        found["open with image, s"] = opened_in(path)
    finally:
        shutil.rmtree(directory)
    ratios = [each["beside"]["processor ms"] / each["alone"]["processor ms"] for each in found["rounds"]]
    found["processor time of an upsert, beside / alone"] = statistics.median(ratios)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "catalog.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
