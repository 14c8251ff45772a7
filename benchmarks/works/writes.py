"""Inserts and updates of a table of five columns, in batches of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.measuring import Figure, Setting, fill, rates, stores
from benchmarks.peers import Durability
from benchmarks.rows import NARROW, Rows

BATCH_ROWS = 50_000
INSERT = "insert, batches of 50,000"
UPDATE_50K = "update, batches of 50,000"
UPDATE_1K = "update, batches of 1,000"
UPDATE_100 = "update, batches of 100"
_UPDATES = {UPDATE_50K: (BATCH_ROWS, 8), UPDATE_1K: (1_000, 200), UPDATE_100: (100, 300)}


def relaxed(line: str) -> str:
    return f"{line}, relaxed"


def figures(setting: Setting) -> Iterator[Figure]:
    yield from _writes(setting, "sync", str)


def relaxed_figures(setting: Setting) -> Iterator[Figure]:
    yield from _writes(setting, "relaxed", relaxed)


def _writes(setting: Setting, durability: Durability, named: Callable[[str], str]) -> Iterator[Figure]:
    rows = Rows(setting.rows)
    taking_turns = stores(setting, NARROW, durability)
    yield from fill(taking_turns, rows.inserts(BATCH_ROWS), named(INSERT), setting.rounds)
    for line, (batch_rows, batches) in _UPDATES.items():
        yield from rates(
            named(line), taking_turns, lambda size=batch_rows, count=batches: rows.updates(size, count), setting.rounds
        )
    for store in taking_turns:
        store.close()
