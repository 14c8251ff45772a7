"""Conversion of filters that Spark pushes down to Arrow expressions on stored columns.

* Spark evaluates each filter again, so the only requirement is that no expression drops a row that Spark keeps. Where
  Arrow returns false and Spark null, a ``Not`` around it keeps more rows, never fewer; the opposite does not occur.
* A value is compared only if the stored type has exactly that value; otherwise the filter is left to Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from kvstore.errors import UnsupportedOperation
from kvstore.spark.types import spark_type

_CHARACTER_MAX, _SURROGATES = 0x10FFFF, range(0xD7FF, 0xE000)


def expression_of(filters: Iterable[Filter], schema: pa.Schema) -> pc.Expression | None:
    """An expression that is true for all rows that pass the filters; None if no filter can be converted.

    Args:
        schema: Stored columns.
    """
    expressions = [each for each in (_expression(filter, schema) for filter in filters) if each is not None]
    return reduce(and_, expressions) if expressions else None


def exact_expression_of(filters: Sequence[Filter], schema: pa.Schema, given: int) -> pc.Expression:
    """An expression that is true for the rows that pass all filters, and for no others.

    Args:
        schema: Stored columns.
        given: Number of filters that there were.

    Raises:
        UnsupportedOperation: One can't be converted, or Arrow and Spark differ on it.
    """
    possible = [_expression(filter, schema) for filter in filters if not _differs(filter)]
    expressions = [each for each in possible if each is not None]
    if expressions and len(expressions) == given:
        return reduce(and_, expressions)
    raise UnsupportedOperation(
        "Rows can't be replaced by a condition like this; compare columns with values, joined by AND, or DELETE the "
        "rows and INSERT the others.",
        condition=[str(each) for each in filters],
    )


def _differs(filter: Filter) -> bool:
    """Whether Arrow returns false where Spark returns null, and a ``Not`` is around it."""
    return isinstance(filter, Not) and (isinstance(filter.child, In | EqualNullSafe) or _differs(filter.child))


def lists_of(filters: Iterable[Filter], schema: pa.Schema, columns: Sequence[str]) -> list[pa.Array] | None:
    """For each column, the values that it can have in rows that pass the filters; None if one can have any.

    Args:
        columns: Columns of a key: their types have no values that are equal and differ, as 0.0 and -0.0 do.
    """
    lists: dict[str, pa.Array] = {}
    for filter in filters:
        if not isinstance(filter, (EqualTo, EqualNullSafe, In)) or len(filter.attribute) > 1:
            continue
        (name,) = filter.attribute
        given = filter.value if isinstance(filter, In) else (filter.value,)
        values = _array(given, schema.field(name).type) if name in columns else None
        if values is not None and (name not in lists or len(values) < len(lists[name])):
            lists[name] = values
    return [lists[name] for name in columns] if lists.keys() >= set(columns) else None


def _array(values: Iterable[Any], kind: pa.DataType) -> pa.Array | None:
    """Values of Spark as those of a stored type, without nulls, each once; None if the type lacks one of them."""
    try:
        items = [bytes(value) if isinstance(value, bytearray) else value for value in values if value is not None]
        return pa.array(items, spark_type(kind)).cast(kind).unique()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def values_of(filters: Iterable[Filter], schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Columns with the same value in all rows that pass the filters, and these values."""
    values = {}
    for filter in filters:
        if isinstance(filter, (EqualTo, EqualNullSafe)) and len(filter.attribute) == 1:
            kind = _type_of(filter.attribute, schema)
            value = None if kind is None else _scalar(filter.value, kind)
            if value is not None:
                values[filter.attribute[0]] = value
    return values


def _expression(filter: Filter, schema: pa.Schema) -> pc.Expression | None:
    if isinstance(filter, Not):
        inner = _expression(filter.child, schema)
        return None if inner is None else ~inner
    kind = _type_of(filter.attribute, schema)
    if kind is None:
        return None
    field = pc.field(*filter.attribute)
    if isinstance(filter, IsNull):
        return field.is_null()
    if isinstance(filter, IsNotNull):
        return field.is_valid()
    if isinstance(filter, In):
        if not pa.types.is_floating(kind):
            items = _array(filter.value, kind)
            return None if items is None else field.isin(items)
        values = [_scalar(value, kind) for value in filter.value if value is not None]
        items_given = [value.as_py() for value in values if value is not None]
        if len(items_given) < len(values):
            return None
        if 0.0 in items_given:
            items_given += [0.0, -0.0]  # Arrow's isin tells them apart, Spark does not
        return field.isin(pa.array(items_given, kind))
    if isinstance(filter, (StringStartsWith, StringEndsWith, StringContains)):
        return _of_text(filter, field) if pa.types.is_string(kind) else None
    value = _scalar(filter.value, kind)
    return None if value is None else _comparison(filter, field, value)


def _comparison(filter: Filter, field: pc.Expression, value: pa.Scalar) -> pc.Expression | None:
    if isinstance(filter, EqualTo):
        return field == value
    if isinstance(filter, EqualNullSafe):
        return (field == value) & field.is_valid()
    if isinstance(filter, LessThan):
        return field < value
    if isinstance(filter, LessThanOrEqual):
        return field <= value
    # For Spark, NaN is the largest number.
    more = pc.is_nan(field) if pa.types.is_floating(value.type) else None
    if isinstance(filter, GreaterThan):
        return field > value if more is None else (field > value) | more
    if isinstance(filter, GreaterThanOrEqual):
        return field >= value if more is None else (field >= value) | more
    return None


def _of_text(filter: Filter, field: pc.Expression) -> pc.Expression:
    if isinstance(filter, StringEndsWith):
        return pc.ends_with(field, filter.value)
    if isinstance(filter, StringContains):
        return pc.match_substring(field, filter.value)
    condition = pc.starts_with(field, filter.value)
    # The same as a range, which limits the keys to read.
    last = ord(filter.value[-1]) if filter.value else _CHARACTER_MAX
    if last < _CHARACTER_MAX and last not in _SURROGATES:
        condition = condition & (field >= filter.value) & (field < filter.value[:-1] + chr(last + 1))
    return condition


def _type_of(path: Sequence[str], schema: pa.Schema) -> pa.DataType | None:
    """Type of a column or nested field; None if it does not exist, or if Arrow compares it unlike Spark."""
    kind: Any = pa.struct(list(schema))
    for name in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return None if pa.types.is_float16(kind) else kind


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A value of Spark as one of a stored type; None if the type does not have exactly this value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        return pa.scalar(bytes(value) if isinstance(value, bytearray) else value, spark_type(kind)).cast(kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
