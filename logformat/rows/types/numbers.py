"""Booleans, integers, floats and decimals."""

from __future__ import annotations

from dataclasses import replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import SchemaMismatch
from logformat.rows.types.column_type import ColumnType, Layout, NumberOf, ValueOf, ids_of, plain_column

_SIGNED = {pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q"}
_UNSIGNED = {pa.uint8(): "B", pa.uint16(): "H", pa.uint32(): "I", pa.uint64(): "Q"}
_FLOATS = {pa.float16(): "e", pa.float32(): "f", pa.float64(): "d"}
_CODES = {kind.id: code for kind, code in (_SIGNED | _UNSIGNED | _FLOATS).items()}
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
        for value, found in zip(values, column.to_pylist(), strict=True):
            if isinstance(value, _WHOLE) and int(value) != found:
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


def _decimal(parameters: Any) -> pa.DataType | None:
    match parameters:
        case [int(precision), int(scale)] if 0 < precision <= 38 and -(2**31) <= scale < 2**31:
            return pa.decimal128(precision, scale)
    return None


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
    group="booleans",
    ids=ids_of(pa.bool_()),
    layout=Layout.FLAG,
    plain=(pa.bool_(),),
    taken=(bool, np.bool_),
    column_of=plain_column,
    python=bool,
    struct_code=lambda _: "?",
    is_packed=lambda _: True,
    number_of=lambda _: lambda value: int(value) if type(value) is bool else None,
)
INTEGERS = ColumnType(
    group="integers",
    ids=ids_of(*_SIGNED),
    layout=Layout.SIGNED,
    plain=tuple(_SIGNED),
    is_number=True,
    taken=_WHOLE,
    but=_NOT_WHOLE,
    column_of=plain_column,
    python=int,
    struct_code=lambda kind: _CODES[kind.id],
    is_packed=lambda _: True,
    number_of=lambda _: lambda value: value if type(value) is int else None,
)
UNSIGNED = replace(INTEGERS, ids=ids_of(*_UNSIGNED), layout=Layout.UNSIGNED, plain=tuple(_UNSIGNED))
FLOATS = ColumnType(
    group="floats",
    ids=ids_of(*_FLOATS),
    layout=Layout.FLOAT,
    plain=tuple(_FLOATS),
    is_number=True,
    taken=(float, np.float16, np.float32, *_WHOLE),
    but=_NOT_WHOLE,
    column_of=_float_column,
    to_json=_floats_to_json,
    from_json=_floats_from_json,
    python=float,
    struct_code=lambda kind: _CODES[kind.id],
    # struct rounds to 16 bits otherwise than Arrow.
    is_packed=lambda kind: not pa.types.is_float16(kind),
)
DECIMALS = ColumnType(
    group="decimals",
    ids=ids_of(pa.decimal128(1)),
    carried=ids_of(pa.decimal32(1), pa.decimal64(1), pa.decimal256(1)),
    layout=Layout.SIGNED,
    examples=(
        *(pa.decimal128(1), pa.decimal128(5, 2), pa.decimal128(18, 18), pa.decimal128(20, -3), pa.decimal128(38, 10)),
    ),
    name="decimal128",
    parameters=lambda stored: [stored.precision, stored.scale],
    made=_decimal,
    stored_as=lambda given: None if given.bit_width > 128 else pa.decimal128(given.precision, given.scale),
    is_number=True,
    taken=(Decimal, *_WHOLE),
    but=_NOT_WHOLE,
    column_of=_decimal_column,
    to_json=lambda column: [format(value, "f") for value in column.to_pylist()],
    from_json=_decimals_from_json,
    python=Decimal,
    struct_code=lambda kind: f"{kind.byte_width}s",
    value_of=_decimal_of,
    number_of=_unscaled_of,
    numbers=_largest,
)
