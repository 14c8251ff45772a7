"""Transactions of a read and two rows by one thread, durable one by one, beside sqlite3 (WAL, FULL) with the same rows.

They take turns. The rows are in two tables, or in one table of one bucket, where a transaction is an ordinary write.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting
from benchmarks.peers import Sqlite

LINE = "transaction over two tables, durable"
ONE_BUCKET = "transaction in one bucket, durable"
_ROWS, _TURNS, _CALLS = 1_000, 5, 40
Move = Callable[[str, int], object]
"""Adds one to a row of the first table, and stores a row of the second table, which is named."""


def figures(setting: Setting) -> Iterator[Figure]:
    place = setting.place("transactions")
    with kvstore.open(place / "kvstore") as store:
        for name in ("a", "b"):
            table = store.create_table(name, {"k": "int64", "v": "int64"}, "k")
            table.upsert([{"k": key, "v": 0} for key in range(_ROWS)])

        def move(other: str, key: int) -> None:
            with store.transaction() as tx:
                row = tx.get("a", key)
                assert row is not None
                tx.upsert("a", {"k": key, "v": row["v"] + 1})
                tx.upsert(other, {"k": key + _ROWS, "v": key})

        ways: dict[str, Move] = {KVSTORE: move}
        if setting.with_others:
            execute = sqlite3.connect(place / "sqlite.db", isolation_level=None).execute
            execute("PRAGMA journal_mode = WAL")
            execute("PRAGMA synchronous = FULL")
            for name in ("a", "b"):
                execute(f"CREATE TABLE {name} (k INTEGER PRIMARY KEY, v INTEGER)")
                for key in range(_ROWS):
                    execute(f"INSERT INTO {name} VALUES (?, 0)", (key,))

            def moved(other: str, key: int) -> None:
                execute("BEGIN IMMEDIATE")
                (value,) = execute("SELECT v FROM a WHERE k = ?", (key,)).fetchone()
                execute("INSERT OR REPLACE INTO a VALUES (?, ?)", (key, value + 1))
                execute(f"INSERT OR REPLACE INTO {other} VALUES (?, ?)", (key + _ROWS, key))
                execute("COMMIT")

            ways[Sqlite.name] = moved
        for number in range(setting.rounds + 1):
            for line, other in ((LINE, "b"), (ONE_BUCKET, "a")):
                seconds = dict.fromkeys(ways, 0.0)
                for turn in range(_TURNS):
                    for way, work in ways.items():
                        began = time.perf_counter()
                        for call in range(_CALLS):
                            work(other, (turn * _CALLS + call * 7) % _ROWS)
                        seconds[way] += time.perf_counter() - began
                for way, spent in seconds.items() if number else ():
                    yield Figure(line, way, _TURNS * _CALLS / spent, "transactions/s")
