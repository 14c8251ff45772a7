"""Time to rebuild a lost index from the log, and to open a store that was closed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting, rate, seconds
from benchmarks.peers import KvStore
from benchmarks.rows import SCHEMA, Rows
from benchmarks.works.writes import BATCH_ROWS

RECOVERY = "rebuild of the index from the log"
UPDATE = "update"
OPEN_SMALL = "open and one get, 1 row"
OPEN_LARGE = "open and one get, 1M rows"
_OPENED = 15


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
