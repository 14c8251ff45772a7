"""Rows of lookups and scans, decoded by the native kernel where it can."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from kvstore.index.found_rows import FoundRows
from kvstore.request.row_layout import TableLayout
from logformat.binary_column import BinaryColumn, Places
from logformat.ids import SchemaId

if TYPE_CHECKING:
    from kvstore.kernel.few import FewRows
    from kvstore.kernel.rows import Shape

Bits: TypeAlias = tuple[tuple[str, int], ...]
_BITS_MAX = 64


def native_columns(
    layout: TableLayout, values: BinaryColumn, places: np.ndarray, keys: BinaryColumn, names: Sequence[str]
) -> list[pa.Array] | None:
    """Columns outside the key, one row for each key, null where there is none.

    Args:
        places: Which of the keys are there, in the order of their values.

    Returns:
        None if Python has to decode the rows, or to say what is wrong with them.
    """
    return _decoded(layout, Places.of(keys), _places_of(values, places, len(keys)), names)


def native_differences(
    layout: TableLayout, keys: BinaryColumn, there: np.ndarray, before: BinaryColumn, after: BinaryColumn, bits: Bits
) -> np.ndarray | None:
    """Which columns of rows have other values after a change; see :func:`kvstore.kernel.rows.differences`.

    Args:
        there: Whether each key has a row before the change: bool ``(n,)``.
        before: These rows.
        after: The row of each key, empty if it has none.
        bits: Names of columns, each with its bit.

    Returns:
        None if Python has to compare the rows, or to say what is wrong with them.
    """
    from kvstore.kernel import library
    from kvstore.kernel.rows import differences

    kernel = library.kernel()
    known = None if kernel is None else _compared(layout, bits)
    if kernel is None or known is None:
        return None
    places = _places_of(before, np.flatnonzero(there), len(keys))
    return differences(kernel, keys, places, Places.of(after), *known, layout.schema_id)


def _places_of(values: BinaryColumn, places: np.ndarray, count: int) -> Places:
    """Where the value of each key is, empty where there is none."""
    if len(values) == count:
        return Places.of(values)
    starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
    starts[places], ends[places] = values.offsets[:-1], values.offsets[1:]
    return Places(values.flat, starts, ends)


def rows_found(layout: TableLayout, stored: FoundRows, names: Sequence[str] | None = None) -> pa.RecordBatch:
    """Rows that a scan has found, in the current schema.

    Args:
        names: Columns to return; None for all that are not dropped.

    Raises:
        CorruptData: A row is damaged.
    """
    schema = layout.columns(names)
    of_key = set(layout.key_names)
    others = [name for name in schema.names if name not in of_key]
    # An empty value would be a row that is not there; a row that a scan has found is damaged then.
    is_whole = bool(stored.value_places.lengths.all())
    columns = _decoded(layout, stored.key_places, stored.value_places, others) if is_whole else None
    if columns is None:
        return layout.decode_found(stored.keys(), stored.values(), names)[0]
    decoded = iter(columns)
    keys = (
        dict(zip(layout.key_names, layout.keys.decode(stored.keys()), strict=True))
        if of_key & set(schema.names)
        else {}
    )
    return pa.RecordBatch.from_arrays(
        [keys[name] if name in keys else next(decoded) for name in schema.names], schema=schema
    )


def rows_of_pairs(
    layout: TableLayout, pairs: Sequence[tuple[bytes, bytes]], names: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Like :func:`rows_found`, of a few rows, at least one: keys and values, in any order."""
    from kvstore.kernel import library

    if library.kernel() is not None:
        known = few_rows_of(layout, _schema_of(pairs[0][1]), None if names is None else tuple(names))
        batch = None if known is None else known.decode(pairs)
        if batch is not None:
            return batch
    keys, values = zip(*pairs, strict=True)
    return rows_found(layout, FoundRows.of(BinaryColumn.from_list(keys), BinaryColumn.from_list(values)), names)


def _decoded(layout: TableLayout, keys: Places, values: Places, names: Sequence[str]) -> list[pa.Array] | None:
    """Columns outside the key; None if Python has to decode the rows, or to say what is wrong with them."""
    from kvstore.kernel import library
    from kvstore.kernel.rows import decode, verified_schema

    kernel = library.kernel()
    if kernel is None:
        return None
    written = verified_schema(kernel, values, keys)
    shape_of = None if written is None else _shape(layout, SchemaId(written))
    if shape_of is None:
        return None
    columns_of, shape = shape_of
    columns = decode(kernel, values, shape, [columns_of[name] for name in names if name in columns_of])
    if columns is None or len(columns) == len(names):
        return columns
    decoded, types = iter(columns), layout.columns(names)
    return [next(decoded) if name in columns_of else pa.nulls(len(values), types.field(name).type) for name in names]


def _schema_of(value: bytes) -> SchemaId:
    return SchemaId(int.from_bytes(value[4:6], "little"))


@lru_cache(maxsize=256)
def few_rows_of(layout: TableLayout, schema_id: SchemaId, names: tuple[str, ...] | None) -> FewRows | None:
    """The decoder of rows of a stored schema; None if there is no such schema, or the kernel can't."""
    from kvstore.kernel.few import FewRows
    from kvstore.kernel.library import few_decoder

    decode, record = few_decoder(), layout.record(schema_id)
    if record is None or decode is None:
        return None
    columns, codec = record
    schema, stored = layout.columns(names), dict(zip(columns, codec.types, strict=True))
    if not FewRows.supports(schema, layout.key_schema, stored):
        return None
    return FewRows(decode, schema, layout.key_schema, stored, codec.dtype, schema_id)


@lru_cache(maxsize=256)
def _compared(layout: TableLayout, bits: Bits) -> tuple[Shape, tuple[np.ndarray, int]] | None:
    """How rows of the current schema are compared; None if the kernel can't."""
    from kvstore.kernel.rows import compared

    shape_of = _shape(layout, layout.schema_id)
    if shape_of is None or len(bits) > _BITS_MAX:
        return None
    columns_of, shape = shape_of
    return shape, compared(shape, {columns_of[name]: bit for name, bit in bits if name in columns_of})


@lru_cache(maxsize=256)
def _shape(layout: TableLayout, schema_id: SchemaId) -> tuple[dict[str, int], Shape] | None:
    """Columns of a stored schema by name, and their shape; None if there is no such schema, or the kernel can't."""
    from kvstore.kernel.rows import Shape

    record = layout.record(schema_id)
    if record is None:
        return None
    names, codec = record
    shape = Shape.of(codec.types, codec.dtype)
    return None if shape is None else ({name: place for place, name in enumerate(names)}, shape)
