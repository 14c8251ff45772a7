"""Python's values of stored numbers, one at a time: what Arrow's ``to_pylist`` gives for a whole column.

A value of a fixed width is stored as a number or as bytes (docs/format.md, Record); ``struct`` reads either. The tables
below say what Python makes of them, and back, so that a key in Python's types becomes a number.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import pyarrow as pa

_SIGNED = {pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q"}
_INTEGERS = {**_SIGNED, pa.uint8(): "B", pa.uint16(): "H", pa.uint32(): "I", pa.uint64(): "Q"}
_NUMBERS = {**_INTEGERS, pa.float16(): "e", pa.float32(): "f", pa.float64(): "d", pa.bool_(): "?"}
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MICROSECONDS = {"s": 10**6, "ms": 10**3, "us": 1}
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
_DAY_SECONDS = 86_400
_EXACT = Context(prec=100, Emax=MAX_EMAX, Emin=MIN_EMIN)
_SHIFT_MAX = 40
"""Powers of ten by which an unscaled value of 38 digits may be multiplied; no key needs more."""

ValueOf = Callable[[Any], Any]
NumberOf = Callable[[Any], "int | None"]


def struct_code(kind: pa.DataType) -> str:
    """How ``struct`` reads a stored value of a fixed width."""
    if kind in _NUMBERS:
        return _NUMBERS[kind]
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        return f"{kind.byte_width}s"
    return "i" if kind.bit_width == 32 else "q"


def value_of_number(kind: pa.DataType) -> ValueOf | None:
    """The function from what ``struct`` reads to Python's value; None if they are the same.

    It raises ValueError or OverflowError where Python has no such value.
    """
    types = pa.types
    if types.is_decimal(kind):
        return _decimals(kind.scale)
    if kind in _NUMBERS or types.is_fixed_size_binary(kind):
        return None
    if types.is_date(kind):
        return lambda days: dt.date.fromordinal(days + _EPOCH_DAY)
    if kind.bit_width == 64 and kind.unit == "ns":
        return _by_arrow(kind)  # its value is one of pandas if that is installed
    step = _MICROSECONDS[kind.unit]
    if types.is_duration(kind):
        return lambda number: dt.timedelta(0, 0, number * step)
    if types.is_time(kind):
        return lambda number: (_EPOCH + dt.timedelta(0, 0, number * step)).time()
    epoch = _epoch(kind)
    return lambda number: epoch + dt.timedelta(0, 0, number * step)


def number_of_value(kind: pa.DataType) -> NumberOf | None:
    """The function from Python's value to the stored number, for keys of a fixed width that are no plain bytes.

    It returns None for a value of another type than the column's own, or one that the column can't have as it is.
    """
    types = pa.types
    if kind in _INTEGERS:
        return lambda value: value if type(value) is int else None
    if types.is_boolean(kind):
        return lambda value: int(value) if type(value) is bool else None
    if types.is_decimal(kind):
        return _unscaled(kind.precision, kind.scale)
    if types.is_date(kind):
        return lambda value: value.toordinal() - _EPOCH_DAY if type(value) is dt.date else None
    if types.is_duration(kind):
        return lambda value: _units(value, kind.unit) if type(value) is dt.timedelta else None
    if types.is_time(kind):
        return lambda value: (
            _units(dt.datetime.combine(_EPOCH, value) - _EPOCH, kind.unit)
            if type(value) is dt.time and value.tzinfo is None
            else None
        )
    if types.is_timestamp(kind):
        return _since_epoch(kind)
    return None


def _by_arrow(kind: pa.DataType) -> ValueOf:
    def of_number(number: int) -> Any:
        stored = pa.py_buffer(number.to_bytes(8, "little", signed=True))
        return pa.Array.from_buffers(kind, 1, [None, stored])[0].as_py()

    return of_number


def _decimals(scale: int) -> ValueOf:
    return lambda stored: _EXACT.scaleb(Decimal(int.from_bytes(stored, "little", signed=True)), -scale)


def _epoch(kind: pa.DataType) -> dt.datetime:
    return _EPOCH if kind.tz is None else _EPOCH.replace(tzinfo=pa.scalar(0, pa.timestamp("s", kind.tz)).as_py().tzinfo)


def _since_epoch(kind: pa.DataType) -> NumberOf:
    epoch = _epoch(kind)

    def number_of_time(value: Any) -> int | None:
        if type(value) is not dt.datetime:
            return None
        zone = value.tzinfo
        # Other zones may have hours that are there twice: they are left to Arrow.
        if zone is not epoch.tzinfo and (zone is None or epoch.tzinfo is None or type(zone) is not dt.timezone):
            return None
        return _units(value - epoch, kind.unit)

    return number_of_time


def _units(given: dt.timedelta, unit: str) -> int | None:
    """A duration as a number of units; None if it has smaller parts."""
    microseconds = (given.days * _DAY_SECONDS + given.seconds) * 10**6 + given.microseconds
    number, rest = divmod(microseconds * _UNITS[unit], 10**6)
    return None if rest else number


def _unscaled(precision: int, scale: int) -> NumberOf:
    def number_of_decimal(value: Any) -> int | None:
        if type(value) is not Decimal or not value.is_finite():
            return None
        sign, digits, exponent = value.as_tuple()
        shift = int(exponent) + scale
        if not 0 <= shift <= _SHIFT_MAX or len(digits) + shift > precision:
            return None
        number = int("".join(map(str, digits))) * 10**shift
        return -number if sign else number

    return number_of_decimal
