"""Conversion of Python values to columns of a stored type.

Each type takes values of a few Python types (``_TAKEN``), members of enumerations whose values are of these, numpy's
scalars of the same kind, and Arrow's scalars of what fits as Arrow data. Text and bytes take UUIDs, too. pyarrow is
asked only for what it does exactly: where it would round, cut or guess, the values become a column of a finer type
first.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import SchemaMismatch
from logformat.rows.arrow_values import as_type, list_of, map_of, struct_of

Kinds = tuple[type, ...]

MISFITS = (
    *(ArithmeticError, BufferError, LookupError, NotImplementedError, TypeError, ValueError),
    pa.ArrowCapacityError,
)
"""Errors that Python and pyarrow raise for values and types that do not fit."""


def column_of(values: list[Any], stored: pa.DataType) -> pa.Array:
    """Convert values to a column; None is null.

    Raises:
        SchemaMismatch: A value has the wrong type for the column, or does not fit.
        MISFITS: A value does not fit, as detected by pyarrow or Python.
    """
    kinds = set(map(type, values)) - {type(None)}
    if any(issubclass(kind, pa.Scalar) for kind in kinds):
        return _column_of_scalars(values, stored)
    if pa.types.is_string(stored) and any(issubclass(kind, float) for kind in kinds) and any(map(_is_nan, values)):
        raise SchemaMismatch("This column of text has NaN, which is a number; give None for null.")
    for is_one, taken, but, build in _TAKEN:
        if is_one(stored):
            if any(issubclass(kind, (Enum, UUID)) and not issubclass(kind, taken) for kind in kinds):
                values = [_standing_for(value, taken) for value in values]
                kinds = set(map(type, values)) - {type(None)}
            return build(values, stored, _checked(kinds, taken, but))
    raise SchemaMismatch("A column of this type can't be made of Python values.")


def few_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch | None:
    """Convert rows that have all columns with one Arrow call instead of one a column: each call costs microseconds.

    Returns:
        The same as :func:`column_of` for each column; None if a column needs that function, or a value does not fit.
    """
    try:
        for field in schema:
            kinds, stored = set(map(type, map(itemgetter(field.name), rows))), field.type
            if not kinds <= _ARROWS_OWN.get(stored, _NOTHING):
                return None
        return pa.RecordBatch.from_arrays(pa.array(rows, _struct_of(schema)).flatten(), schema=schema)
    except MISFITS:
        return None


def _standing_for(value: Any, taken: Kinds) -> Any:
    """The value of a member of an enumeration, and the text or bytes of a UUID, where they are taken."""
    if isinstance(value, Enum) and not isinstance(value, taken):
        value = value.value
    if isinstance(value, UUID) and not isinstance(value, taken):
        return str(value) if str in taken else value.bytes if bytes in taken else value
    return value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


@lru_cache(maxsize=64)
def _struct_of(schema: pa.Schema) -> pa.StructType:
    return pa.struct(list(schema))


def _column_of_scalars(values: list[Any], stored: pa.DataType) -> pa.Array:
    """Like :func:`column_of`, of values some of which are Arrow's scalars."""
    values = [None if isinstance(value, pa.Scalar) and not value.is_valid else value for value in values]
    there = [value for value in values if value is not None]
    types = {value.type if isinstance(value, pa.Scalar) else None for value in there}
    if len(types) == 1 and None not in types and not pa.types.is_dictionary(there[0].type):
        return as_type(pa.array(values, there[0].type), stored)  # exact, also where Python has no such value
    return column_of([value.as_py() if isinstance(value, pa.Scalar) else value for value in values], stored)


def _checked(kinds: set[type], taken: Kinds, but: Kinds = ()) -> set[type]:
    """Types of values, all of them among those taken."""
    for kind in kinds:
        if not issubclass(kind, taken) or issubclass(kind, but):
            hint = "; text is not parsed: convert it" if kind is str else ""
            raise SchemaMismatch(f"A value has a different type than the column{hint}.", given=kind.__name__)
    return kinds


def _plain(values: list[Any], stored: pa.DataType, _: set[type]) -> pa.Array:
    column = pa.array(values, stored)
    if isinstance(column, pa.ChunkedArray):
        raise SchemaMismatch("One batch can't hold more than 2 GiB of a column; write fewer rows at a time.")
    return column


def _decimals(values: list[Any], stored: pa.DataType, kinds: set[type]) -> pa.Array:
    if any(issubclass(kind, np.integer) for kind in kinds):
        values = [int(value) if isinstance(value, np.integer) else value for value in values]
    return pa.array(values, stored)


def _floats(values: list[Any], stored: pa.DataType, kinds: set[type]) -> pa.Array:
    """Convert to floats: a float becomes the nearest finite one of the type; an integer must convert exactly."""
    whole = any(issubclass(kind, (int, np.integer)) for kind in kinds)
    wide = pa.array([None if value is None else float(value) for value in values] if whole else values, pa.float64())
    column = wide if stored == wide.type else wide.cast(stored, safe=False)
    if column is not wide and not pc.is_inf(column).equals(pc.is_inf(wide)):
        raise SchemaMismatch("A number is too large for the column.")
    if whole:
        for value, found in zip(values, column.to_pylist(), strict=True):
            if isinstance(value, (int, np.integer)) and int(value) != found:
                raise SchemaMismatch("No float of the column equals this integer.", value=value)
    return column


def _times(values: list[Any], stored: pa.DataType, kinds: set[type]) -> pa.Array:
    """Convert times and durations, through a column as fine as the values."""
    types = pa.types
    # Subclasses of Python's types, such as pandas', may be finer than these.
    unit = "us" if kinds <= _EXACT or not any(map(_nanoseconds, values)) else "ns"
    if kinds and all(issubclass(kind, np.generic) for kind in kinds):
        fine = None  # numpy's scalars have their own unit
    elif types.is_duration(stored):
        fine = pa.duration(unit)
    elif types.is_time(stored):
        fine = pa.time64(unit)
        _check_zones(values, zoned=False)
    else:
        fine = pa.timestamp(unit, stored.tz)
        _check_zones(values, zoned=stored.tz is not None)
    column = pa.array(values, fine)
    if column.null_count and column.null_count > values.count(None):
        raise SchemaMismatch("NaT is not a time; give None for null.")
    return as_type(column, stored)


def _nanoseconds(value: Any) -> Any:
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)


def _check_zones(values: list[Any], *, zoned: bool) -> None:
    if any(value is not None and (getattr(value, "tzinfo", None) is not None) != zoned for value in values):
        raise SchemaMismatch("Either every time of this column has a time zone or none has; its type decides.")


def _lists(values: list[Any], stored: pa.ListType, _: set[type]) -> pa.Array:
    lengths, nulls, items = _flattened(values)
    return list_of(lengths, nulls, column_of(items, stored.value_type), stored)


def _maps(values: list[Any], stored: pa.MapType, kinds: set[type]) -> pa.Array:
    if any(issubclass(kind, Mapping) for kind in kinds):
        values = [value.items() if isinstance(value, Mapping) else value for value in values]
    lengths, nulls, pairs = _flattened(values)
    _checked(set(map(type, pairs)), (tuple, list))
    keys, items = [key for key, _ in pairs], [item for _, item in pairs]
    return map_of(lengths, nulls, column_of(keys, stored.key_type), column_of(items, stored.item_type), stored)


def _structs(values: list[Any], stored: pa.StructType, _: set[type]) -> pa.Array:
    names = set(stored.names)
    if any(value is not None and value.keys() != names for value in values):
        raise SchemaMismatch("A struct must be a dict with exactly the fields of its type.", fields=stored.names)
    parts = [
        column_of([None if value is None else value[field.name] for value in values], field.type)
        for field in stored.fields
    ]
    return struct_of(parts, _nulls(values), stored)


def _flattened(values: list[Any]) -> tuple[pa.Array, pa.Array, list[Any]]:
    """The lengths of collections, which of them are null, and all their elements."""
    lengths = pa.array([0 if value is None else len(value) for value in values], pa.int64())
    return lengths, _nulls(values), [item for value in values if value is not None for item in value]


def _nulls(values: list[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


FEW = 8
"""Up to this number of rows, one call for all columns is faster."""
_NOTHING: frozenset[type] = frozenset()
_ARROWS_OWN = {
    pa.bool_(): frozenset((bool, type(None))),
    pa.string(): frozenset((str, type(None))),
    pa.binary(): frozenset((bytes, type(None))),
    pa.float64(): frozenset((float, type(None))),
    **{
        integer: frozenset((int, type(None)))
        for integer in (
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.uint8(),
            pa.uint16(),
            pa.uint32(),
            pa.uint64(),
        )
    },
}
"""Types of values that Arrow itself converts exactly or refuses."""

_EXACT = {dt.datetime, dt.time, dt.timedelta}
_INTEGERS = (int, np.integer)
_BYTES = (bytes, bytearray, memoryview)
_LISTS = (Sequence, np.ndarray)
# bool derives from int, datetime from date, and timedelta64 from numpy's integers.
_NO_NUMBERS = (bool, np.timedelta64)
_NO_LISTS = (str, *_BYTES)

_TAKEN: tuple[tuple[Callable[[pa.DataType], bool], Kinds, Kinds, Callable[..., pa.Array]], ...] = (
    (pa.types.is_integer, _INTEGERS, _NO_NUMBERS, _plain),
    (pa.types.is_string, (str,), (), _plain),
    (pa.types.is_floating, (float, np.float16, np.float32, *_INTEGERS), _NO_NUMBERS, _floats),
    (pa.types.is_boolean, (bool, np.bool_), (), _plain),
    (pa.types.is_timestamp, (dt.datetime, np.datetime64), (), _times),
    (pa.types.is_decimal, (Decimal, *_INTEGERS), _NO_NUMBERS, _decimals),
    (pa.types.is_binary, _BYTES, (), _plain),
    (pa.types.is_fixed_size_binary, _BYTES, (), _plain),
    (pa.types.is_date, (dt.date,), (dt.datetime,), _plain),
    (pa.types.is_time, (dt.time,), (), _times),
    (pa.types.is_duration, (dt.timedelta, np.timedelta64), (), _times),
    (pa.types.is_struct, (Mapping,), (), _structs),
    (pa.types.is_map, (Mapping, *_LISTS), _NO_LISTS, _maps),
    (pa.types.is_list, _LISTS, _NO_LISTS, _lists),
)
