"""Ranges of keys and conditions on the key, beside sqlite3 that reads the same rows: CPU time and wall time.

They take turns, with other keys each time. kvstore gives Arrow, sqlite3 tuples. What both read is verified first.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting
from benchmarks.peers import Sqlite
from benchmarks.rows import NARROW, STRING_KEYS, Rows, Shape
from benchmarks.works.writes import BATCH_ROWS

RANGE_ROWS = 100
SHAPES = (NARROW, STRING_KEYS)
_TURNS, _CALLS = 10, 50
Read = Callable[[Any], "pa.Table | list[tuple[Any, ...]]"]


def range_line_of(shape: str, *, of: str = "CPU") -> str:
    """The name in tables of a range that begins at a key."""
    return f"range of {RANGE_ROWS} rows, {shape}, {of}"


def condition_line_of(shape: str, *, of: str = "CPU") -> str:
    """The name in tables of a read with a condition that one key fulfils."""
    return f"condition on the key, {shape}, {of}"


def figures(setting: Setting) -> Iterator[Figure]:
    for nth, shape in enumerate(SHAPES):
        rows, place = Rows(setting.rows, shape=shape), setting.place(str(nth))
        with kvstore.open(place / "kvstore") as store:
            table = store.create_table("t", shape.schema, primary_key=list(shape.key))
            for batch in rows.inserts(BATCH_ROWS):
                table.upsert(batch)
            table.flush()
            key = pc.field(shape.key[0])
            ranges: dict[str, Read] = {KVSTORE: lambda at, table=table: table.to_arrow(start=at, limit=RANGE_ROWS)}
            conditions: dict[str, Read] = {KVSTORE: lambda at, key=key, table=table: table.to_arrow(filter=key == at)}
            if setting.with_others:
                ranges[Sqlite.name], conditions[Sqlite.name] = _in_sqlite(table, shape, place / "sqlite.db")
            for line, ways, count in (
                (range_line_of, ranges, RANGE_ROWS),
                (condition_line_of, conditions, 1),
            ):
                _verify(ways, _keys(rows))
                for number in range(setting.rounds + 1):
                    for way, (cpu, wall) in _round(ways, rows).items() if number else ():
                        yield Figure(line(shape.name), way, count / cpu, "rows/s")
                        yield Figure(line(shape.name, of="wall"), way, count / wall, "rows/s")


def _round(ways: dict[str, Read], rows: Rows) -> dict[str, tuple[float, float]]:
    """Seconds of CPU and of the wall clock for each call, by way."""
    spent = dict.fromkeys(ways, (0.0, 0.0))
    for _ in range(_TURNS):
        keys = _keys(rows)
        for name, read in ways.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for key in keys:
                read(key)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            spent[name] = spent[name][0] + cpu, spent[name][1] + wall
    return {name: (cpu / _TURNS / _CALLS, wall / _TURNS / _CALLS) for name, (cpu, wall) in spent.items()}


def _keys(rows: Rows) -> list[Any]:
    keys: list[Any] = rows.batch(np.array(rows.keys(_CALLS))).column(rows.shape.key[0]).to_pylist()
    return keys


def _in_sqlite(table: kvstore.Table, shape: Shape, path: Path) -> tuple[Read, Read]:
    (key,) = shape.key
    without = "" if pa.types.is_integer(shape.schema.field(key).type) else " WITHOUT ROWID"
    kind = "TEXT" if without else "INTEGER"
    execute = sqlite3.connect(path, isolation_level=None).execute
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA cache_size = -262144")
    columns = ", ".join(f"{name} {kind} PRIMARY KEY" if name == key else name for name in shape.schema.names)
    execute(f"CREATE TABLE t ({columns}){without}")
    execute("BEGIN")
    for batch in table.scan():
        for row in batch.to_pylist():
            execute(f"INSERT INTO t VALUES ({', '.join('?' * len(row))})", list(row.values()))
    execute("COMMIT")
    some = f"SELECT * FROM t WHERE {key} >= ? ORDER BY {key} LIMIT {RANGE_ROWS}"
    one = f"SELECT * FROM t WHERE {key} = ?"
    return (lambda at: execute(some, (at,)).fetchall()), (lambda at: execute(one, (at,)).fetchall())


def _verify(ways: dict[str, Read], keys: list[Any]) -> None:
    for key in keys:
        first, *others = ([*map(tuple, _rows_of(read(key)))] for read in ways.values())
        assert first
        assert all(each == first for each in others), key


def _rows_of(found: pa.Table | list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return found if isinstance(found, list) else [tuple(row.values()) for row in found.to_pylist()]
