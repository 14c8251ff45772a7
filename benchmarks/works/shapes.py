"""Updates of wide rows, and of rows with a list of structs."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measuring import Figure, Setting, fill, rates, stores
from benchmarks.rows import NESTED, WIDE, Rows

_BATCH_ROWS = 10_000
WIDE_UPDATE = "update, 50 columns, batches of 10,000"
NESTED_UPDATE = "update, a list of structs, batches of 10,000"


def figures(setting: Setting) -> Iterator[Figure]:
    for line, shape, share, batches in ((WIDE_UPDATE, WIDE, 20, 3), (NESTED_UPDATE, NESTED, 5, 8)):
        within = Setting(setting.place(shape.name), setting.rows // share, setting.rounds, setting.with_others)
        rows, taking_turns = Rows(within.rows, shape=shape), stores(within, shape, "sync")
        for _ in fill(taking_turns, rows.inserts(_BATCH_ROWS), "", 0):
            """Only its end counts."""
        yield from rates(
            line, taking_turns, lambda rows=rows, count=batches: rows.updates(_BATCH_ROWS, count), within.rounds
        )
        for store in taking_turns:
            store.close()
