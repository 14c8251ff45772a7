"""Conversion of Python values to columns of a stored type.

Each type takes values of a few Python types (``ColumnType.taken``), members of enumerations whose values are of these,
numpy's scalars of the same kind, and Arrow's scalars of what fits as Arrow data. Text and bytes take UUIDs, too.
pyarrow is asked only for what it does exactly: where it would round, cut or guess, the values become a column of a
finer type first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import Any
from uuid import UUID

import pyarrow as pa

from logformat.errors import SchemaMismatch
from logformat.rows.arrow_values import as_type, list_of, map_of, struct_of
from logformat.rows.given import row_of
from logformat.rows.types.column_type import ColumnType
from logformat.rows.types.numbers import BOOLEANS, FLOATS, INTEGERS, UNSIGNED
from logformat.rows.types.registry import LISTS, MAPS, STRUCTS, column_type
from logformat.rows.types.texts import BYTES, TEXTS

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
    if pa.types.is_struct(stored) and not all(issubclass(kind, Mapping) for kind in kinds):
        values = list(map(row_of, values))
        kinds = set(map(type, values)) - {type(None)}
    column_kind = column_type(stored)
    taken, but, build = column_kind.taken, column_kind.but, _NESTED.get(column_kind) or column_kind.column_of
    if any(issubclass(kind, (Enum, UUID)) and not issubclass(kind, taken) for kind in kinds):
        values = [_value_stored_for(value, taken) for value in values]
        kinds = set(map(type, values)) - {type(None)}
    return as_type(build(values, stored, _checked(kinds, taken, but)), stored)


def few_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch | None:
    """Convert rows that have all columns with one Arrow call instead of one a column: each call costs microseconds.

    Returns:
        The same as :func:`column_of` for each column; None if a column needs that function, or a value does not fit.
    """
    try:
        for field in schema:
            kinds, stored = set(map(type, map(itemgetter(field.name), rows))), field.type
            if not kinds <= _ARROWS_OWN.get(stored.id, _NOTHING):
                return None
        return pa.RecordBatch.from_arrays(pa.array(rows, _struct_of(schema)).flatten(), schema=schema)
    except MISFITS:
        return None


def _value_stored_for(value: Any, taken: tuple[type, ...]) -> Any:
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


def _checked(kinds: set[type], taken: tuple[type, ...], but: tuple[type, ...] = ()) -> set[type]:
    """Types of values, all of them among those taken."""
    for kind in kinds:
        if not issubclass(kind, taken) or issubclass(kind, but):
            hint = "; text is not parsed: convert it" if kind is str else ""
            raise SchemaMismatch(f"A value has a different type than the column{hint}.", given=kind.__name__)
    return kinds


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
    kind.id: frozenset((each.python, type(None)))
    for each in (BOOLEANS, INTEGERS, UNSIGNED, TEXTS, BYTES, FLOATS)
    for kind in each.plain
    if not pa.types.is_floating(kind) or kind == pa.float64()
}
"""Types of values that Arrow itself converts exactly or refuses, by the id of the column's type."""
_NESTED: dict[ColumnType, Callable[..., pa.Array]] = {LISTS: _lists, MAPS: _maps, STRUCTS: _structs}
