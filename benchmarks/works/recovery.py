"""Time to rebuild a lost index from the log, to replay a log that the index lags, and to open a store that was closed.

The log is replayed with the native kernel and without it, in turns: CPU time of the process, and wall time, until the
first write is done. A reader has the rows before: it reads the log when it needs it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting, rate, seconds
from benchmarks.peers import KvStore
from benchmarks.rows import NARROW, SCHEMA, WIDE, Rows, Shape
from benchmarks.works.lookups import WITHOUT
from benchmarks.works.writes import BATCH_ROWS
from kvstore.kernel import library

RECOVERY = "rebuild of the index from the log"
UPDATE = "update"
OPEN_SMALL = "open and one get, 1 row"
OPEN_LARGE = "open and one get, 1M rows"
_OPENED = 15
_BEHIND_BYTES = 257
"""Bytes of log that an index lags by, for each row of the setting."""
_ROW_BYTES = {NARROW.name: 40, WIDE.name: 340}
_STORED_ROWS = {NARROW.name: 1, WIDE.name: 0.2}
"""Rows that are updated, for each row of the setting."""
_NEVER: dict[str, Any] = {"commit_idle_ms": 2**31 - 1, "commit_wait_ms": 2**31 - 1, "memtable_bytes": 1 << 40}


def line_of(shape: str, kind: str, *, of: str = "CPU") -> str:
    """The work's name in tables."""
    return f"replay of {kind}, {shape}, {of}"


def figures(setting: Setting) -> Iterator[Figure]:
    place = setting.place("kvstore")
    rows, store = Rows(setting.rows // 2), KvStore(place)
    changes = rows.count
    rate(store, rows.inserts(BATCH_ROWS), float("inf"))
    for number in range(setting.rounds + 1):
        batches = rows.updates(BATCH_ROWS, 8)
        changes += sum(batch.num_rows for batch in batches)
        updated = rate(store, batches, float("inf"))
        store.close()
        rebuilt = changes / seconds(lambda: _rebuild(place / "kvstore"))
        store = _reopened(place)
        if number:
            yield Figure(RECOVERY, UPDATE, updated)
            yield Figure(RECOVERY, KVSTORE, rebuilt)
    store.close()
    yield from _opening(setting)
    for shape in (NARROW, WIDE):
        for kind in ("inserts", "updates"):
            yield from _behind(setting, shape, kind)


def _behind(setting: Setting, shape: Shape, kind: str) -> Iterator[Figure]:
    """An index that was never committed, or not since the rows that are updated; MiB of log a second."""
    assert library.kernel() is not None, "make setup builds the kernel, where there is a C compiler"
    place = setting.place(f"{kind}-{shape.name}")
    child = os.fork()
    if not child:
        try:
            _write_and_never_commit(place / "store", setting.rows, shape, kind)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    (index,) = (place / "store").glob("tables/*/*/index")
    shutil.copytree(index, place / "index")
    size = int((place / "lag").read_text()) / (1 << 20)
    (row,) = Rows(1, shape=shape).inserts(1)
    for number in range(setting.rounds + 1):
        for way in (KVSTORE, WITHOUT):
            shutil.rmtree(index)
            shutil.copytree(place / "index", index)
            with nullcontext() if way == KVSTORE else library.switched_off():
                cpu, wall = time.process_time(), time.perf_counter()
                with kvstore.open(place / "store") as store:
                    store.table("t").upsert(row)
                    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if number:
                yield Figure(line_of(shape.name, kind), way, size / cpu, "MiB/s")
                yield Figure(line_of(shape.name, kind, of="wall"), way, size / wall, "MiB/s")
    shutil.rmtree(place)


def _write_and_never_commit(path: Path, rows: int, shape: Shape, kind: str) -> None:
    lag = rows * _BEHIND_BYTES
    stored = int(rows * _STORED_ROWS[shape.name] if kind == "updates" else lag / _ROW_BYTES[shape.name])
    made = Rows(stored, shape=shape)
    table = kvstore.open(path, **_NEVER).create_table("t", shape.schema, list(shape.key), compression=None)
    before, batches = 0, iter(made.inserts(BATCH_ROWS))
    if kind == "updates":
        for batch in batches:
            table.upsert(batch)
        table.flush()
        before = _log_bytes(path)
        batches = (batch for size in repeat(BATCH_ROWS) for batch in made.updates(size, 1))
    for batch in batches:
        table.upsert(batch)
        if _log_bytes(path) - before >= lag:
            break
    (path.parent / "lag").write_text(str(_log_bytes(path) - before))


def _log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("tables/*/*/log/*.log"))


def _rebuild(path: Path) -> None:
    for index in path.glob("tables/*/*/index"):
        shutil.rmtree(index)
    with kvstore.open(path) as store:
        store.table("t").count()


def _reopened(place: Path) -> KvStore:
    store = KvStore.__new__(KvStore)
    store.store = kvstore.open(place / "kvstore")
    store.table = store.store.table("t")
    return store


def _opening(setting: Setting) -> Iterator[Figure]:
    for line, count in ((OPEN_SMALL, 1), (OPEN_LARGE, setting.rows)):
        path = setting.directory / line
        with kvstore.open(path) as store:
            table = store.create_table("t", SCHEMA, "k")
            for batch in Rows(count).inserts(BATCH_ROWS):
                table.upsert(batch)

        def opened(path: Path = path) -> None:
            with kvstore.open(path) as store:
                assert store.table("t").get(0) is not None

        for number in range(setting.rounds + 1):
            value = 1000 * median(seconds(opened) for _ in range(_OPENED))
            if number:
                yield Figure(line, KVSTORE, value, "ms")
