"""Whatever a user hands over, as record batches of a table's columns: converted only where nothing can be lost.

Python rows (a dict, a list of dicts) and Arrow data (anything with the Arrow PyCapsule interface) follow one rule:
the values must fit the column's type as they are. Integers may change width, times may change unit, integers may become
floats, if every value survives. Nothing is parsed, rounded or made null.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import SchemaMismatch
from logformat.schema import is_list_like

Data = Any
"""A dict, a list of dicts, or anything that speaks the Arrow PyCapsule interface."""


def record_batches(data: Data, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of ``data`` as record batches of exactly this schema.

    Raises:
        SchemaMismatch: A column is missing, unknown, of another type, or holds a null where there may be none.
    """
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, Sequence):
        yield _from_rows(data, schema)
    elif hasattr(data, "__arrow_c_stream__"):
        with pa.RecordBatchReader.from_stream(data) as reader:
            for batch in reader:
                yield conform(batch, schema)
    elif hasattr(data, "__arrow_c_array__"):
        yield conform(pa.record_batch(data), schema)
    else:
        raise SchemaMismatch(
            "Rows are a dict, a list of dicts, or Arrow data (pyarrow, pandas, polars, duckdb …).",
            given=type(data).__name__,
        )


def one_batch(data: Data, schema: pa.Schema) -> pa.RecordBatch:
    """Like :func:`record_batches`, all in one batch."""
    batches = list(record_batches(data, schema))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches) if batches else empty(schema)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """No rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema, not_null: Sequence[str] | None = None) -> pa.RecordBatch:
    """An Arrow batch with its columns ordered and typed as in ``schema``.

    Args:
        not_null: Columns that must hold no null; by default those that are not nullable.

    Raises:
        SchemaMismatch: See :func:`record_batches`.
    """
    if batch.schema.names != schema.names:
        _check_names(batch.schema.names, schema)
        batch = batch.select(schema.names)
    columns = [_conform_column(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    _check_nulls(columns, schema, not_null)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _from_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    names = schema.names
    wanted = set(names)
    for row in rows:
        if not isinstance(row, Mapping):
            raise SchemaMismatch("Every row is a dict from column name to value.", given=type(row).__name__)
        if row.keys() != wanted:
            _check_names(list(row), schema)
    columns = [_from_values([row[name] for row in rows], schema.field(name)) for name in names]
    _check_nulls(columns, schema, None)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_names(given: Sequence[str], schema: pa.Schema) -> None:
    missing = [name for name in schema.names if name not in given]
    unknown = [name for name in given if name not in schema.names]
    if missing:
        raise SchemaMismatch(
            "A column is missing; give it, if need be as null, or name the columns of a partial update.",
            missing=missing,
            given=list(given),
        )
    if unknown:
        raise SchemaMismatch("The table has no such column.", unknown=unknown, columns=schema.names)
    if len(given) > len(schema):
        raise SchemaMismatch("A column is given twice.", given=list(given))


def _check_nulls(columns: Sequence[pa.Array], schema: pa.Schema, not_null: Sequence[str] | None) -> None:
    for column, field in zip(columns, schema, strict=True):
        strict = not field.nullable if not_null is None else field.name in not_null
        if strict and column.null_count:
            raise SchemaMismatch("This column takes no nulls.", column=field.name, nulls=column.null_count)


# Arrow columns


def _conform_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    if not _fits(column.type, field.type):
        raise SchemaMismatch(
            "A column has another type than the table's; cast it first.",
            column=field.name,
            given=column.type,
            expected=field.type,
        )
    try:
        return _cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            "A value does not fit the column's type.", column=field.name, expected=field.type, reason=str(error)
        ) from error


def _fits(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether values of one type can stand in a column of another, if each of them survives."""
    types = pa.types
    if given == stored or types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _fits(given.value_type, stored)
    if types.is_integer(given):
        return bool(types.is_integer(stored) or types.is_floating(stored))
    if types.is_floating(given):
        return bool(types.is_floating(stored) and given.bit_width <= stored.bit_width)
    if types.is_timestamp(given):
        return bool(types.is_timestamp(stored) and (given.tz is None) == (stored.tz is None))
    if is_list_like(given) and types.is_list(stored):
        return _fits(given.value_type, stored.value_type)
    if types.is_map(given) and types.is_map(stored):
        return _fits(given.key_type, stored.key_type) and _fits(given.item_type, stored.item_type)
    if types.is_struct(given) and types.is_struct(stored):
        inner = [given.field(i) for i in range(given.num_fields)]
        return [field.name for field in inner] == [field.name for field in stored] and all(
            _fits(field.type, stored.field(i).type) for i, field in enumerate(inner)
        )
    return any(is_one(given) and is_one(stored) for is_one in _FAMILIES)


def _is_text(given: pa.DataType) -> bool:
    return bool(pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given))


def _is_binary(given: pa.DataType) -> bool:
    return bool(pa.types.is_binary(given) or pa.types.is_large_binary(given) or pa.types.is_binary_view(given))


_FAMILIES = (_is_text, _is_binary, pa.types.is_decimal, pa.types.is_date, pa.types.is_time, pa.types.is_duration)


def _cast(column: pa.Array, stored: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_list_view(column.type) or types.is_large_list_view(column.type):
        # pyarrow casts a list view to a list with wrong offsets.
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        nulls = column.is_null() if column.null_count else None
        column = pa.ListArray.from_arrays(offsets, column.flatten(), mask=nulls)
    return column.cast(stored, safe=True)


# Columns of Python values


def _from_values(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        column = _array_of(values, field.type)
    except SchemaMismatch as error:
        raise SchemaMismatch(error.message, column=field.name, expected=field.type, **error.where) from error
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise SchemaMismatch(
            "A value does not fit the column's type.", column=field.name, expected=field.type, reason=str(error)
        ) from error
    return column


def _array_of(values: list[Any], stored: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_map(stored):
        return _maps_of(values, stored)
    if types.is_list(stored):
        return _lists_of(values, stored)
    if types.is_struct(stored):
        return _structs_of(values, stored)
    for is_one, allowed in _PYTHON_NUMBERS:
        if is_one(stored):
            _check_kinds(values, allowed)
            return pa.array(values, stored)
    if types.is_fixed_size_binary(stored):
        return pa.array(values, pa.binary()).cast(stored)
    if types.is_timestamp(stored):
        aware = {value.tzinfo is not None for value in values if isinstance(value, dt.datetime)}
        if aware - {stored.tz is not None}:
            raise SchemaMismatch("Times of this column have a time zone, or have none, throughout.")
    # Inferred first, so that pyarrow can't round or cut a value on its way into the column.
    column = pa.array(values)
    if len(column) and not _fits(column.type, stored):
        raise SchemaMismatch("A value has another type than the column.", given=column.type)
    return column.cast(stored)


def _check_kinds(values: list[Any], allowed: tuple[type, ...]) -> None:
    for kind in set(map(type, values)):
        if not issubclass(kind, (*allowed, type(None))) or issubclass(kind, bool):
            raise SchemaMismatch("A value has another type than the column.", given=kind.__name__)


_PYTHON_NUMBERS = (
    (pa.types.is_integer, (int, np.integer)),
    (pa.types.is_floating, (float, np.floating, int, np.integer)),  # a float is the nearest there is
    (pa.types.is_decimal, (Decimal, int, np.integer)),
)


def _lists_of(values: list[Any], stored: pa.ListType) -> pa.Array:
    offsets, items, nulls = _flattened(values)
    return pa.ListArray.from_arrays(offsets, _array_of(items, stored.value_type), type=stored, mask=nulls)


def _maps_of(values: list[Any], stored: pa.MapType) -> pa.Array:
    pairs = [value.items() if isinstance(value, Mapping) else value for value in values]
    offsets, items, nulls = _flattened(pairs)
    keys = _array_of([key for key, _ in items], stored.key_type)
    if keys.null_count:
        raise SchemaMismatch("A key of a map is null.")
    return pa.MapArray.from_arrays(
        offsets, keys, _array_of([item for _, item in items], stored.item_type), stored, mask=nulls
    )


def _structs_of(values: list[Any], stored: pa.StructType) -> pa.Array:
    fields = [stored.field(i) for i in range(stored.num_fields)]
    names = {field.name for field in fields}
    for value in values:
        if value is not None and (not isinstance(value, Mapping) or value.keys() != names):
            raise SchemaMismatch("A struct is a dict with exactly the fields of its type.", fields=sorted(names))
    inner = [
        _array_of([None if value is None else value[field.name] for value in values], field.type) for field in fields
    ]
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)


def _flattened(values: list[Any]) -> tuple[pa.Array, list[Any], pa.Array | None]:
    for value in values:
        if isinstance(value, (str, bytes, Mapping)):
            raise SchemaMismatch("A list or map can't be read from this value.", given=type(value).__name__)
    lists = [[] if value is None else list(value) for value in values]
    offsets = np.concatenate([[0], np.cumsum([len(items) for items in lists])])
    mask = [value is None for value in values]
    nulls = pa.array(mask, pa.bool_()) if any(mask) else None
    return pa.array(offsets, pa.int32()), [item for items in lists for item in items], nulls
