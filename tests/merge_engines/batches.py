"""Batches of operations for the engines, and the model's results."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from kvstore.testing.engine_model import EngineModel, Row
from merge_engines.engine import Merged, Operations

KEY = ("k",)
Change = tuple[Row | None, Row | None]
"""The row before and after an operation."""


@dataclass(frozen=True)
class Batch:
    """Stored rows, one for each key, and operations on them: a row and whether it is a delete."""

    schema: pa.Schema
    stored: list[Row]
    incoming: list[tuple[Row, bool]]
    targets: frozenset[str] | None = None

    def operations(self, margin: int = 0) -> Operations:
        """The input of an engine; the pool is a slice with other rows before it."""
        keys = [row["k"] for row, _ in self.incoming]
        order = np.argsort(np.array(keys, np.int64), kind="stable")
        ordered = np.array(keys, np.int64)[order]
        is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(keys)]
        starts = np.flatnonzero(is_first)
        lasts = np.append(starts[1:], len(keys))[: len(starts)] - 1
        used = set(keys)
        there = [row for row in self.stored if row["k"] in used]
        place_of = {row["k"]: place for place, row in enumerate(there)}
        rows = [row for row, _ in self.incoming]
        pool = rows_to_arrow([*([*there, *rows][:1] * margin), *there, *rows], self.schema).slice(margin)
        stored = np.array([place_of.get(key, -1) for key in ordered[starts].tolist()], np.int64)
        is_delete = np.array([deletes for _, deletes in self.incoming], bool)
        return Operations(pool, stored, order, starts, lasts, is_delete, self.targets, KEY)

    def changes(self, model: EngineModel) -> list[Change]:
        """Effects of the operations in order; None before and after means no effect."""
        rows: dict[Any, Row | None] = {row["k"]: row for row in self.stored}
        found: list[Change] = []
        for row, deletes in self.incoming:
            old = rows.get(row["k"])
            new = model.delete(old, self.targets) if deletes else model.upsert(old, row, self.targets)
            found.append((None, None) if new is old else (old, new))
            rows[row["k"]] = new
        return found


def changes_of(merged: Merged, operations: Operations) -> list[Change]:
    """The same, from an engine's result."""
    merged.pool.validate(full=True)
    rows: list[Row | None] = [*plain_rows(merged.pool), None]
    found: list[Change] = [(None, None)] * len(operations.order)
    for place, before, after in zip(operations.order, merged.before, merged.after, strict=True):
        if before != after:
            found[place] = (rows[before], rows[after])
    return found


def rows_to_arrow(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows with dates and times as numbers."""
    return pa.RecordBatch.from_arrays(
        [pa.array([row[field.name] for row in rows], field.type) for field in schema], schema=schema
    )


def plain_rows(batch: pa.RecordBatch) -> list[Row]:
    """Rows with dates and times as numbers."""
    values = [
        column.view({32: pa.int32(), 64: pa.int64()}[column.type.bit_width]).to_pylist()
        if pa.types.is_temporal(column.type)
        else column.to_pylist()
        for column in batch.columns
    ]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def samples(kind: pa.DataType) -> list[Any]:
    """Values of a column, few enough that values repeat and large enough that sums overflow."""
    types = pa.types
    if types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        low, high = int(limits.min), int(limits.max)
        return [*(0, 1, 2, 3, 1, 0, low, high, low // 2, int(high**0.5) + 1), *((-1, -1, -2) if low else ())]
    if types.is_floating(kind):
        return [0.0, -0.0, 1.0, -1.5, 0.1 if kind == pa.float64() else 0.25, 3.0, float("nan"), float("inf"), 60_000.0]
    if types.is_decimal(kind):
        limit = 10**kind.precision - 1
        unscaled = [0, 1, -1, 5, 15, -25, limit, -limit, min(limit, 10 ** max(kind.scale, 0)), 3, -7]
        return [Decimal((value < 0, tuple(map(int, str(abs(value)))), -kind.scale)) for value in unscaled]
    if types.is_boolean(kind):
        return [False, True]
    if types.is_string(kind):
        return ["", "a", "b", "ab", "é", "\U0001f600", "a\x00", "日本" * 9]
    if types.is_fixed_size_binary(kind):
        return [bytes([digit]) * kind.byte_width for digit in (0, 1, 0x7F, 0x80, 0xFF)]
    if types.is_binary(kind):
        return [b"", b"a", b"\xff", b"\x00", b"a\x00"]
    if types.is_list(kind):
        return [[], [1], [None, 2]]
    return [0, 1, 2, 86_399]


@cache
def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a column, with nulls."""
    some = st.sampled_from([None, *samples(kind)])
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        return some | st.integers(int(limits.min), int(limits.max))
    if pa.types.is_floating(kind):
        return some | st.floats(width=kind.bit_width)
    return some


def seeded(schema: pa.Schema, rows: int, keys: int, share_of_deletes: float) -> Batch:
    """A longer batch, always the same one."""
    chance = random.Random(rows)
    names = [name for name in schema.names if name != "k"]
    choices = {name: [None, *samples(schema.field(name).type)] for name in names}

    def row(key: int) -> Row:
        return {"k": key, **{name: chance.choice(choices[name]) for name in names}}

    stored = [row(key) for key in range(0, keys, 2)]
    incoming = [(row(chance.randrange(keys)), chance.random() < share_of_deletes) for _ in range(rows)]
    return Batch(schema, stored, incoming)


def batches(
    schema: pa.Schema, *, deletes: bool, targets: Collection[frozenset[str] | None] = (None,), rows_max: int = 9
) -> st.SearchStrategy[Batch]:
    """Batches of few keys, so that keys repeat; the key is ``k``, an integer."""
    rest = {field.name: values(field.type) for field in schema if field.name != "k"}

    def rows(names: frozenset[str]) -> st.SearchStrategy[Row]:
        null = {name: st.none() for name in rest if name not in names}
        return st.fixed_dictionaries({"k": st.integers(0, 3), **{name: rest[name] for name in rest} | null})

    def of(chosen: frozenset[str] | None) -> st.SearchStrategy[Batch]:
        everything = frozenset(schema.names)
        stored = st.lists(rows(everything), max_size=4, unique_by=lambda row: row["k"])
        operation = st.tuples(rows(chosen or everything), st.booleans() if deletes else st.just(False))
        return st.builds(Batch, st.just(schema), stored, st.lists(operation, max_size=rows_max), st.just(chosen))

    return st.sampled_from(list(targets)).flatmap(of)
