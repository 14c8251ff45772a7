"""Lookups of many keys, and scans, with the native kernel and without it: CPU time of the process, and wall time.

The two take turns, with other keys and in another order each time. Without the kernel, LMDB finds each key, numpy the
rows of a scan, and numpy and Arrow decode the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import fmean

import numpy as np
import pyarrow as pa

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting
from benchmarks.rows import NARROW, STRING_KEYS, WIDE, Rows, Shape
from benchmarks.works.writes import BATCH_ROWS
from kvstore.kernel import library

WITHOUT = "without the kernel"
FOUR_BUCKETS = "five columns, four buckets"
_TURNS = 12
_SCANS = 3
_KEYS = 10_000


def line_of(shape: str, keys: int = _KEYS, *, of: str = "CPU") -> str:
    """The work's name in tables."""
    return f"lookup of {keys:,} keys, {shape}, {of}"


NARROW_LINE = line_of(NARROW.name)
_WORKS: list[tuple[Shape, int, int]] = [
    (NARROW, 1, _KEYS),
    (NARROW, 1, 1_000),
    (NARROW, 1, 100),
    (NARROW, 4, _KEYS),
    (STRING_KEYS, 1, _KEYS),
    (WIDE, 1, _KEYS),
]


def scan_line_of(shape: str, columns: int | None = None, *, of: str = "CPU") -> str:
    """The name of a scan of some columns, or of all."""
    return f"scan, {shape}{'' if columns is None else f', {columns} of them'}, {of}"


def figures(setting: Setting) -> Iterator[Figure]:
    assert library.kernel() is not None, "make setup builds the kernel, where there is a C compiler"
    tables: dict[tuple[Shape, int], tuple[kvstore.Table, Rows]] = {}
    with kvstore.open(setting.place("store")) as store:
        for shape, buckets, count in _WORKS:
            if (shape, buckets) not in tables:
                rows = Rows(setting.rows, shape=shape)
                table = store.create_table(f"t{len(tables)}", shape.schema, list(shape.key), buckets=buckets)
                for batch in rows.inserts(BATCH_ROWS):
                    table.upsert(batch)
                table.flush()
                tables[shape, buckets] = table, rows
            table, rows = tables[shape, buckets]
            name = FOUR_BUCKETS if buckets > 1 else shape.name
            for number in range(setting.rounds + 1):
                found = _round(_lookups(table, rows, count))
                for way, (cpu, wall) in found.items() if number else ():
                    yield Figure(line_of(name, count), way, count / cpu, "keys/s")
                    yield Figure(line_of(name, count, of="wall"), way, count / wall, "keys/s")
        for (shape, buckets), (table, _) in tables.items():
            for columns in (None, 2) if buckets == 1 else ():
                for number in range(setting.rounds + 1):
                    names = shape.schema.names if columns is None else shape.schema.names[1 : columns + 1]
                    found = _round(_scans(table, names))
                    for way, (cpu, wall) in found.items() if number else ():
                        yield Figure(scan_line_of(shape.name, columns), way, setting.rows / cpu, "rows/s")
                        line = scan_line_of(shape.name, columns, of="wall")
                        yield Figure(line, way, setting.rows / wall, "rows/s")


def _lookups(table: kvstore.Table, rows: Rows, count: int) -> Iterator[Callable[[], pa.Table]]:
    for _ in range(_TURNS):
        yield partial(table.lookup, rows.batch(np.array(rows.keys(count))).select(list(rows.shape.key)))


def _scans(table: kvstore.Table, columns: Sequence[str]) -> Iterator[Callable[[], pa.Table]]:
    for _ in range(_SCANS):
        yield lambda: table.scan(columns).read_all()


def _round(reads: Iterable[Callable[[], pa.Table]]) -> dict[str, tuple[float, float]]:
    """Seconds of CPU and of the wall clock for a read, by way."""
    spent: dict[str, list[tuple[float, float]]] = {KVSTORE: [], WITHOUT: []}
    for turn, read in enumerate(reads):
        answers: list[pa.Table] = []
        for way in sorted(spent, reverse=turn % 2 == 0):  # the second one finds warm pages
            context: AbstractContextManager[None] = nullcontext() if way == KVSTORE else library.switched_off()
            with context:
                cpu, wall = time.process_time(), time.perf_counter()
                answers.append(read())
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            spent[way].append((cpu, wall))
        assert answers[0].equals(answers[1])
    return {way: (fmean(cpu for cpu, _ in each), fmean(wall for _, wall in each)) for way, each in spent.items()}
