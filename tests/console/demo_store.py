"""A store as one may find it after some days of use: for tests in a browser, and for the pictures in the docs."""

from __future__ import annotations

import datetime as dt
import math
import random
from pathlib import Path

import pyarrow as pa

import kvstore
from kvstore.errors import TaskFailed
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from kvstore.table.table import Table
from tests.support.clocks import SetClock

FILES = pa.schema(
    [
        pa.field("path", pa.string(), False),
        pa.field("size", pa.int64()),
        pa.field("mode", pa.string()),
        pa.field("author", pa.string()),
        pa.field("note", pa.string()),
    ]
)
AUTHORS = ("ada", "grace", "edsger", "barbara")
ROOMS = ("core", "io", "net", "ui", "tests", "docs")
HOUR_MS = 3_600_000
COMMITS = 240


def build(home: Path, begin_ms: int) -> Path:
    """Make a store of three days that begin at a time (ms), and a replica beside it that lacks something."""
    random_numbers, clock = random.Random(7), SetClock(begin_ms)
    path = home / "store"
    with Store(path, StoreOptions(), clock=clock) as store:
        files = store.create_table("files", FILES, primary_key="path", retention=dt.timedelta(days=30))
        for name, columns in (("commits", {"id": "int64", "author": "string"}), ("users", {"name": "string"})):
            store.create_table(name, columns, primary_key=next(iter(columns)))
        store.create_table("invoices", {"number": "int64", "total": "float64"}, primary_key="number", buckets=2)
        store.create_table("clicks", {"page": "string", "at": "int64"})
        store.add_replica(str(home / "replica"), "backup")
        store.consumer("search index").commit("files", {0: 0})
        store.consumer("report").commit("files", {0: 0})
        _days(store, files, clock, random_numbers)
        _import(store, home)
        files.lease("backup of the night", {0: files.offsets()[0][1] // 2})
        store.replica("backup").ship()
        oldest = sorted((home / "replica").rglob("tables/1/0/*.range"))
        oldest[len(oldest) // 2].unlink()
        store.replica("backup").check()
        files.upsert([_file(random_numbers, number) for number in range(30)])
    return path


def _days(store: kvstore.Store, files: Table, clock: SetClock, numbers: random.Random) -> None:
    commits = store.table("commits")
    with files.writer("git replay") as writer:
        for number in range(COMMITS):
            hour = 72 * number / COMMITS
            clock.now += int(HOUR_MS * 72 / COMMITS)
            busy = 1 + math.sin((hour - 6) / 24 * 2 * math.pi)
            for _ in range(1 + int(busy * numbers.randrange(2, 14))):
                writer.upsert(_file(numbers, number))
            if number % 9 == 5:
                writer.delete(_path(numbers))
            writer.flush()
            commits.upsert([{"id": number, "author": numbers.choice(AUTHORS)}])
            end = files.offsets()[0][1]
            if number % 6 == 0:
                store.consumer("search index").commit("files", {0: end})
            if number % 60 == 59:
                store.consumer("report").commit("files", {0: end // 2})
                store.replica("backup").ship()
                store.table("users").upsert([{"name": name} for name in AUTHORS])
                store.table("clicks").upsert([{"page": "/", "at": at} for at in range(number)])
    with files.writer("formatter") as writer:
        for path in ("core/part 1.py", "core/part 2.py", "io/part 3.py"):
            writer.upsert({"path": path, "size": 0, "mode": "100644", "author": "robot", "note": "emptied by mistake"})
    rows = pa.RecordBatch.from_pylist([_file(numbers, 0)], FILES)
    for epoch in range(3):
        files.apply_epoch(kvstore.Changes.upserts(rows), "stream of edits", epoch, run="8f1c0c1e-query")
    store.flush()


def _import(store: kvstore.Store, home: Path) -> None:
    (home / "inbox").mkdir()
    (home / "inbox/2026-01.csv").write_text("number,total\n" + "".join(f"{each},{each}.5\n" for each in range(40)))
    job = store.create_job("invoices import", source=str(home / "inbox"), format="csv", table="invoices")
    job.run()
    (home / "inbox/2026-02.csv").write_text("number,total\n41,twelve\n")
    try:
        job.run()
    except TaskFailed:
        return
    raise AssertionError("the second file was to be refused")


def _path(numbers: random.Random) -> str:
    return f"{numbers.choice(ROOMS)}/part {numbers.randrange(40)}.py"


def _file(numbers: random.Random, commit: int) -> dict[str, object]:
    return {
        "path": _path(numbers),
        "size": numbers.randrange(100, 20_000),
        "mode": numbers.choice(("100644", "100755")),
        "author": numbers.choice(AUTHORS),
        "note": f"commit {commit}",
    }
