"""Updates of a table whose changelog has the new rows only, which need no old row: beside LMDB's puts and the file."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measuring import Figure, Setting, fill, rates
from benchmarks.peers import KvStore, RawLimit, Store
from benchmarks.rows import Rows
from benchmarks.works.writes import BATCH_ROWS

WAL_UPDATE = "update, wal image, batches of 50,000"


def figures(setting: Setting) -> Iterator[Figure]:
    rows = Rows(setting.rows)
    taking_turns: list[Store] = [KvStore(setting.place("kvstore"), changelog_image="wal")]
    if setting.with_others:
        taking_turns.append(RawLimit(setting.place("raw"), image="wal"))
    for _ in fill(taking_turns, rows.inserts(BATCH_ROWS), "", 0):
        """Only its end counts."""
    yield from rates(WAL_UPDATE, taking_turns, lambda: rows.updates(BATCH_ROWS, 8), setting.rounds)
    for store in taking_turns:
        store.close()
