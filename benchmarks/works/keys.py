"""Updates of tables that differ in their keys only."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measuring import Figure, Setting, rate
from benchmarks.peers import KvStore
from benchmarks.rows import COMPOSITE_KEYS, NARROW, STRING_KEYS, Rows
from benchmarks.works.writes import BATCH_ROWS

KEYS = "update, batches of 50,000, by key"
INT64 = "an int64"
_SHAPES = {INT64: NARROW, STRING_KEYS.name: STRING_KEYS, COMPOSITE_KEYS.name: COMPOSITE_KEYS}


def figures(setting: Setting) -> Iterator[Figure]:
    tables = []
    for nth, (name, shape) in enumerate(_SHAPES.items()):
        rows, store = Rows(setting.rows // 2, shape=shape), KvStore(setting.place(str(nth)), shape)
        rate(store, rows.inserts(BATCH_ROWS), float("inf"))
        tables.append((name, rows, store))
    for number in range(setting.rounds + 1):
        for name, rows, store in tables:
            value = rate(store, rows.updates(BATCH_ROWS, 8))
            if number:
                yield Figure(KEYS, name, value)
    for _, _, store in tables:
        store.close()
