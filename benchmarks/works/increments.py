"""Increments of one row by one thread, durable one by one, beside an upsert of the row and sqlite3 (WAL, FULL).

They take turns. sqlite3 has ``UPDATE … RETURNING *``, which gives the row after it, as an increment does.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting
from benchmarks.peers import Sqlite

LINE = "increment of a row, durable"
UPSERT = "upsert of the row"
_ROWS, _TURNS, _CALLS = 1_000, 10, 50
Write = Callable[[str], object]


def figures(setting: Setting) -> Iterator[Figure]:
    keys = [f"counter {number:05}" for number in range(_ROWS)]
    rows = [{"k": key, "n": number, "about": "x" * 40} for number, key in enumerate(keys)]
    place = setting.place("increments")
    with kvstore.open(place / "kvstore") as store:
        table = store.create_table("t", {"k": "string", "n": "int64", "about": "string"}, "k")
        table.upsert(rows)
        ways: dict[str, Write] = {
            KVSTORE: lambda key: table.increment(key, {"n": 1}),
            UPSERT: lambda key: table.upsert({"k": key, "n": 1, "about": "y" * 40}),
        }
        if setting.with_others:
            execute = sqlite3.connect(place / "sqlite.db", isolation_level=None).execute
            execute("PRAGMA journal_mode = WAL")
            execute("PRAGMA synchronous = FULL")
            execute("CREATE TABLE t (k TEXT PRIMARY KEY, n INTEGER, about TEXT) WITHOUT ROWID")
            for row in rows:
                execute("INSERT INTO t VALUES (:k, :n, :about)", row)
            add = "UPDATE t SET n = n + 1 WHERE k = ? RETURNING *"
            ways[Sqlite.name] = lambda key: execute(add, (key,)).fetchall()
        for number in range(setting.rounds + 1):
            seconds = dict.fromkeys(ways, 0.0)
            for turn in range(_TURNS):
                for way, write in ways.items():
                    began = time.perf_counter()
                    for call in range(_CALLS):
                        write(keys[(turn * _CALLS + call * 7) % _ROWS])
                    seconds[way] += time.perf_counter() - began
            for way, spent in seconds.items() if number else ():
                yield Figure(LINE, way, _TURNS * _CALLS / spent, "rows/s")
