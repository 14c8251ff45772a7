"""Rows by one key as dicts, beside sqlite3 that gives the same dicts: CPU time of the process, and wall time.

They take turns every few hundred keys, so that other work on the machine slows down both. sqlite3 selects by its
primary key with a statement that it has prepared before; lists are text of JSON there. The lookup of one key is what
rows of most types took before a row was decoded by itself.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting
from benchmarks.peers import Sqlite
from benchmarks.rows import NARROW, NESTED, STRING_KEYS, WIDE, Rows
from benchmarks.works.writes import BATCH_ROWS

LOOKUP = "lookup of one key"
FOUR_BUCKETS = "five columns, four buckets"
_SHAPES = ((NARROW, 1), (NARROW, 4), (STRING_KEYS, 1), (WIDE, 1), (NESTED, 1))
SHAPES = [FOUR_BUCKETS if buckets > 1 else shape.name for shape, buckets in _SHAPES]
_TURNS, _KEYS, _LOOKUPS = 20, 300, 5
_SQL_TYPES = {pa.string(): "TEXT", pa.float64(): "REAL"}
Get = Callable[[Any], "dict[str, Any] | None"]


def line_of(shape: str, *, of: str = "CPU") -> str:
    """The work's name in tables."""
    return f"get as a dict, {shape}, {of}"


def figures(setting: Setting) -> Iterator[Figure]:
    for name, (shape, buckets) in zip(SHAPES, _SHAPES, strict=True):
        rows = Rows(setting.rows // 10, shape=shape)
        place = setting.place(f"{len(shape.schema)}-{buckets}-{name.replace(' ', '-')}")
        with kvstore.open(place / "kvstore") as store:
            table = store.create_table("t", shape.schema, primary_key=list(shape.key), buckets=buckets)
            for batch in rows.inserts(BATCH_ROWS):
                table.upsert(batch)
            table.flush()
            ways: dict[str, Get] = {KVSTORE: table.get}
            if setting.with_others:
                ways[Sqlite.name] = _in_sqlite(table, place / "sqlite.db")
            slow: dict[str, Get] = {LOOKUP: lambda key, table=table: _looked_up(table, key)}
            _verify(ways | slow, _keys(rows, 50))
            for number in range(setting.rounds + 1):
                found = _round(ways, rows, _KEYS) | _round(slow, rows, _LOOKUPS)
                for way, (cpu, wall) in found.items() if number else ():
                    yield Figure(line_of(name), way, 1 / cpu, "rows/s")
                    yield Figure(line_of(name, of="wall"), way, 1 / wall, "rows/s")


def _round(ways: dict[str, Get], rows: Rows, count: int) -> dict[str, tuple[float, float]]:
    """Seconds of CPU and of the wall clock for each key, by way."""
    spent = dict.fromkeys(ways, (0.0, 0.0))
    for _ in range(_TURNS):
        keys = _keys(rows, count)
        for name, get in ways.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for key in keys:
                get(key)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            spent[name] = spent[name][0] + cpu, spent[name][1] + wall
    return {name: (cpu / _TURNS / count, wall / _TURNS / count) for name, (cpu, wall) in spent.items()}


def _keys(rows: Rows, count: int) -> list[Any]:
    keys: list[Any] = rows.batch(np.array(rows.keys(count))).column(rows.shape.key[0]).to_pylist()
    return keys


def _in_sqlite(table: kvstore.Table, path: Path) -> Get:
    """The same rows in sqlite3; gives them as dicts."""
    names, schema, (key, *_) = table.schema.names, table.schema, table.primary_key or ()
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    flags = [field.name for field in schema if pa.types.is_boolean(field.type)]
    columns = ", ".join(f"{field.name} {_SQL_TYPES.get(field.type, 'INTEGER')}" for field in schema)
    without = "" if pa.types.is_integer(schema.field(key).type) else " WITHOUT ROWID"
    execute = sqlite3.connect(path, isolation_level=None).execute
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA cache_size = -262144")
    execute(f"CREATE TABLE t ({columns}, PRIMARY KEY ({key})){without}")
    execute("BEGIN")
    for batch in table.scan():
        for row in batch.to_pylist():
            values = [json.dumps(row[name]) if name in nested else row[name] for name in names]
            execute(f"INSERT INTO t VALUES ({', '.join('?' * len(names))})", values)
    execute("COMMIT")
    select = f"SELECT * FROM t WHERE {key} = ?"

    def get(key: Any) -> dict[str, Any] | None:
        found = execute(select, (key,)).fetchone()
        if found is None:
            return None
        row = dict(zip(names, found, strict=True))
        for name in nested:
            row[name] = json.loads(row[name])
        for name in flags:
            row[name] = bool(row[name])
        return row

    return get


def _looked_up(table: kvstore.Table, key: Any) -> dict[str, Any]:
    (row,) = table.lookup([key]).to_pylist()
    found: dict[str, Any] = row
    del found["_found"]
    return found


def _verify(ways: dict[str, Get], keys: list[Any]) -> None:
    for key in keys:
        first, *others = (get(key) for get in ways.values())
        assert first is not None
        assert all(each == first for each in others), key
