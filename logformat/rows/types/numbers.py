"""Booleans, integers, floats and decimals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import SchemaMismatch
from logformat.rows.types.column_type import ColumnType, Layout, NumberOf, ValueOf

_EXACT = Context(prec=100, Emax=MAX_EMAX, Emin=MIN_EMIN)
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NO_NUMBERS = {word: float(name) for name, word in _NAMES.items()}
_WHOLE = (int, np.integer)
# bool derives from int, and timedelta64 from numpy's integers.
_NOT_WHOLE = (bool, np.timedelta64)


def _float_column(values: list[Any], stored: pa.DataType, kinds: set[type]) -> pa.Array:
    """Convert to floats: a float becomes the nearest finite one of the type; an integer must convert exactly."""
    whole = any(issubclass(kind, _WHOLE) for kind in kinds)
    wide = pa.array([None if value is None else float(value) for value in values] if whole else values, pa.float64())
    column = wide if stored == wide.type else wide.cast(stored, safe=False)
    if column is not wide and not pc.is_inf(column).equals(pc.is_inf(wide)):
        raise SchemaMismatch("A number is too large for the column.")
    if whole:
        for value, stored_value in zip(values, column.to_pylist(), strict=True):
            if isinstance(value, _WHOLE) and int(value) != stored_value:
                raise SchemaMismatch("No float of the column equals this integer.", value=value)
    return column


def _floats_to_json(column: pa.Array) -> list[float | str]:
    array = column.to_numpy(zero_copy_only=False)
    # The shortest digits that identify this value in its own width: 0.1, not 0.10000000149011612.
    values = array.tolist() if column.type.bit_width == 64 else [float(str(value)) for value in array]
    if np.isfinite(array).all():
        return values
    return [_NAMES.get(str(value), value) for value in values]


def _floats_from_json(values: list[Any], _: pa.DataType) -> list[Any]:
    return [_NO_NUMBERS.get(value, value) if isinstance(value, str) else value for value in values]


def _decimal_column(values: list[Any], stored: pa.DataType, kinds: set[type]) -> pa.Array:
    if any(issubclass(kind, np.integer) for kind in kinds):
        values = [int(value) if isinstance(value, np.integer) else value for value in values]
    return pa.array(values, stored)


def _decimals_from_json(values: list[Any], _: pa.DataType) -> list[Any]:
    return [Decimal(value) if isinstance(value, str) else value for value in values]


def _decimal_type(make: Callable[[int, int], pa.DataType], digits: range) -> Callable[[Any], pa.DataType | None]:
    def made(parameters: Any) -> pa.DataType | None:
        match parameters:
            case [int(precision), int(scale)] if precision in digits and -(2**31) <= scale < 2**31:
                return make(precision, scale)
        return None

    return made


_decimal128 = _decimal_type(pa.decimal128, range(1, 39))


def _decimal_of(kind: pa.DataType) -> ValueOf:
    scale = -kind.scale
    return lambda stored: _EXACT.scaleb(Decimal(int.from_bytes(stored, "little", signed=True)), scale)


def _unscaled_of(kind: pa.DataType) -> NumberOf:
    precision, scale = kind.precision, kind.scale

    def number_of_decimal(value: Any) -> int | None:
        if type(value) is not Decimal or not value.is_finite():
            return None
        sign, digits, exponent = value.as_tuple()
        shift = int(exponent) + scale
        if shift < 0 or len(digits) + shift > precision:
            return None
        number = int("".join(map(str, digits))) * 10**shift
        return -number if sign else number

    return number_of_decimal


def _largest(kind: pa.DataType) -> tuple[int, int]:
    limit = 10**kind.precision - 1
    return -limit, limit


BOOLEANS = ColumnType(
    layout=Layout.FLAG,
    plain=(pa.bool_(),),
    taken=(bool, np.bool_),
)
INTEGERS = ColumnType(
    layout=Layout.SIGNED,
    plain=(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    taken=_WHOLE,
    but=_NOT_WHOLE,
)
UNSIGNED = replace(INTEGERS, layout=Layout.UNSIGNED, plain=(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()))
FLOATS = ColumnType(
    layout=Layout.FLOAT,
    plain=(pa.float16(), pa.float32(), pa.float64()),
    taken=(float, np.float16, np.float32, *_WHOLE),
    but=_NOT_WHOLE,
    column_of=_float_column,
    to_json=_floats_to_json,
    from_json=_floats_from_json,
)
DECIMALS = ColumnType(
    carried=(pa.decimal32(1), pa.decimal64(1)),
    layout=Layout.SIGNED,
    examples=tuple(itertools.starmap(pa.decimal128, ((1, 0), (5, 2), (18, 18), (20, -3), (38, 10)))),
    name="decimal128",
    parameters=lambda stored: [stored.precision, stored.scale],
    made=_decimal128,
    stored_as=lambda given: _decimal128([given.precision, given.scale]) or given,
    taken=(Decimal, *_WHOLE),
    but=_NOT_WHOLE,
    column_of=_decimal_column,
    to_json=lambda column: [format(value, "f") for value in column.to_pylist()],
    from_json=_decimals_from_json,
    value_of=_decimal_of,
    number_of=_unscaled_of,
    numbers=_largest,
)
WIDE_DECIMALS = replace(
    DECIMALS,
    carried=(),
    examples=tuple(itertools.starmap(pa.decimal256, ((39, 0), (50, 2), (60, -3), (76, 76)))),
    name="decimal256",
    made=_decimal_type(pa.decimal256, range(39, 77)),
)
