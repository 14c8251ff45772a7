"""Time that kvstore takes to rebuild a lost index, and to update an index that lags its log."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import kvstore
from benchmarks.rows import SCHEMA, Rows

BATCH_ROWS = 50_000
_LATER: dict[str, Any] = {"commit_idle_ms": 2**31 - 1, "commit_wait_ms": 2**31 - 1, "memtable_bytes": 1 << 40}


def rebuilt(work: Path, rows: int) -> dict[str, Any]:
    """Rebuild an index from the log and compare it with the lost one, row by row and by the store's own check."""
    path = work / "rebuilt"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        made = Rows(rows)
        for batch in [*made.inserts(BATCH_ROWS), *made.updates(BATCH_ROWS, 2)]:
            table.upsert(batch)
        before, changes = table.scan().read_all(), table.offsets()[0][1]
    for index in path.glob("tables/*/*/index"):
        shutil.rmtree(index)
    began = time.perf_counter()
    with kvstore.open(path) as store:
        store.table("t").count()
        took = time.perf_counter() - began
        same = bool(store.table("t").scan().read_all().equals(before)) and store.check().ok
    shutil.rmtree(path)
    return {"rows": rows, "changes": changes, "same": same, "changes_per_s": round(changes / took)}


def lagging(work: Path, megabytes: int) -> dict[str, Any]:
    """Kill a process whose index was never committed, and time the next open, by the size of the log."""
    path = work / "behind"

    def write(_: Any) -> None:
        store = kvstore.open(path, **_LATER)
        table, made = store.create_table("t", SCHEMA, "k", compression=None), Rows(BATCH_ROWS * 400)
        for batch in made.inserts(BATCH_ROWS):
            table.upsert(batch)
            if _log_bytes(path) >= megabytes << 20:
                break
        os._exit(0)

    pid = os.fork()
    if not pid:
        write(None)
    os.waitpid(pid, 0)
    size = _log_bytes(path)
    began = time.perf_counter()
    with kvstore.open(path) as store:
        count = store.table("t").count()
        took = time.perf_counter() - began
        state = store.check().ok
    shutil.rmtree(path)
    return {"log_bytes": size, "rows": count, "seconds": round(took, 3), "ok": state}


def _log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("tables/*/*/log/*.log"))
