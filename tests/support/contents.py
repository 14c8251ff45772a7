"""What columns hold, to be compared bit by bit, whatever their representation."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_DAY_MS = 86_400_000


def values_of(column: pa.Array) -> list[Any]:
    """What a column holds, whatever its representation, to be compared bit by bit.

    Numbers of any date or time, bits of floats, tuples of structs, lists of lists, lists of pairs of maps.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        words = values_of(column.dictionary)
        return [None if index is None else words[index] for index in column.indices.to_pylist()]
    if pa.types.is_struct(kind):
        rows = zip(*map(values_of, column.flatten()), strict=True)
        return [row if there else None for row, there in zip(rows, column.is_valid().to_pylist(), strict=True)]
    if pa.types.is_nested(kind):
        return [values_of(item.values) if item.is_valid else None for item in column]
    if pa.types.is_date64(kind):
        return [None if time is None else time // _DAY_MS for time in column.view(pa.int64()).to_pylist()]
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        return column.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]).to_pylist()
    return column.to_pylist()


def contents(rows: pa.RecordBatch) -> list[list[Any]]:
    """What the columns of some rows hold."""
    return [values_of(column) for column in rows.columns]
