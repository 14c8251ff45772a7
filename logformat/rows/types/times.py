"""Dates, times of day, timestamps and durations.

* All are stored as signed numbers of the type's unit; nothing is rounded to another unit.
* With a time zone a timestamp is a moment, stored in UTC; without one it is what a clock on a wall shows.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from logformat.errors import SchemaMismatch
from logformat.rows.types.column_type import ColumnType, Layout, NumberOf, ValueOf, all_of

_PLACES = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Decimal places of a second."""
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
_DAY_SECONDS = 86_400
_NAT = -(2**63)
"""As a duration of Python, Arrow refuses it."""
_ZONES = (dt.timezone, ZoneInfo)
_DURATION = re.compile(r"(-?)PT(\d+)(?:\.(\d{1,9}))?S")
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?")
_EXACT = {dt.datetime, dt.time, dt.timedelta}


def _column_through(
    finer: Callable[[str, pa.DataType], pa.DataType], *, has_zone: Callable[[pa.DataType], bool] | None
) -> Callable[[list[Any], pa.DataType, set[type]], pa.Array]:
    """The function from Python values to a column as fine as the values.

    Args:
        finer: Its type, of a unit and the stored type.
        has_zone: Whether values have a time zone; None if they never have one.
    """

    def column_of(values: list[Any], stored: pa.DataType, kinds: set[type]) -> pa.Array:
        # Subclasses of Python's types, such as pandas', may be finer than these.
        unit = "us" if kinds <= _EXACT or not any(map(_nanoseconds, values)) else "ns"
        fine = None  # numpy's scalars have their own unit
        if not kinds or not all(issubclass(kind, np.generic) for kind in kinds):
            fine = finer(unit, stored)
            if has_zone is not None:
                _check_zones(values, zoned=has_zone(stored))
        column = pa.array(values, fine)
        if column.null_count and column.null_count > values.count(None):
            raise SchemaMismatch("NaT is not a time; give None for null.")
        return column

    return column_of


def _nanoseconds(value: Any) -> Any:
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)


def _check_zones(values: list[Any], *, zoned: bool) -> None:
    if any(value is not None and (getattr(value, "tzinfo", None) is not None) != zoned for value in values):
        raise SchemaMismatch("Either every time of this column has a time zone or none has; its type decides.")


def _moments_to_json(column: pa.Array) -> list[str]:
    kind = column.type
    unit = "D" if pa.types.is_date(kind) else kind.unit
    numbers = column.cast(pa.int32() if unit == "D" else pa.int64()).to_numpy().astype(np.int64)
    zone = "Z" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
    return [text + zone for text in np.datetime_as_string(numbers.view(f"M8[{unit}]")).tolist()]


def _moments_from_json(values: list[Any], stored: pa.DataType) -> pa.Array:
    all_of(values, str)
    return pa.array(values, pa.string()).cast(stored)


def _times_from_json(values: list[Any], _: pa.DataType) -> pa.Array:
    all_of(values, str)
    return pa.array([_number_in(value, _TIME) for value in values], pa.int64()).cast(pa.time64("ns"))


def _durations_to_json(column: pa.Array) -> list[str]:
    places = _PLACES[column.type.unit]
    return [_seconds(number, places) for number in column.cast(pa.int64()).to_pylist()]


def _seconds(number: int, places: int) -> str:
    whole, part = divmod(abs(number), 10**places)
    fraction = f".{part:0{places}d}" if places else ""
    return f"{'-' if number < 0 else ''}PT{whole}{fraction}S"


def _durations_from_json(values: list[Any], stored: pa.DataType) -> pa.Array:
    all_of(values, str)
    numbers = [_number_in(value, _DURATION) for value in values]
    if all(number is None or abs(number) < 2**63 for number in numbers):
        return pa.array(numbers, pa.int64()).cast(pa.duration("ns"))
    # Too long for a 64-bit number of nanoseconds.
    step = 10 ** (9 - _PLACES[stored.unit])
    if any(number is not None and number % step for number in numbers):
        raise SchemaMismatch("A duration is finer than the column.")
    return pa.array([None if number is None else number // step for number in numbers], pa.int64()).cast(stored)


def _number_in(text: str | None, form: re.Pattern[str]) -> int | None:
    """Nanoseconds that a text says."""
    if text is None:
        return None
    match = form.fullmatch(text)
    if match is None:
        example = "PT1.5S" if form is _DURATION else "23:59:59.999"
        raise SchemaMismatch(f"A value does not have the form {example}.", given=text[:50])
    fraction = int((match[match.re.groups] or "").ljust(9, "0"))
    if form is _DURATION:
        number = int(match[2]) * 10**9 + fraction
        return -number if match[1] else number
    return ((int(match[1]) * 60 + int(match[2])) * 60 + int(match[3])) * 10**9 + fraction


def _time_of(kind: pa.DataType) -> ValueOf:
    step = _microseconds(kind)
    return _by_arrow(kind) if step is None else lambda number: (_EPOCH + dt.timedelta(0, 0, number * step)).time()


def _timestamp_of(kind: pa.DataType) -> ValueOf:
    step, epoch = _microseconds(kind), _epoch(kind)
    return _by_arrow(kind) if step is None else lambda number: epoch + dt.timedelta(0, 0, number * step)


def _duration_of(kind: pa.DataType) -> ValueOf:
    step = _microseconds(kind)
    return _by_arrow(kind) if step is None else lambda number: dt.timedelta(0, 0, number * step)


def _microseconds(kind: pa.DataType) -> int | None:
    """Microseconds of a type's unit; None if it is shorter than one."""
    return None if kind.unit == "ns" else int(10 ** (6 - _PLACES[kind.unit]))


def _by_arrow(kind: pa.DataType) -> ValueOf:
    """Values of nanoseconds are those of pandas if that is installed."""

    def of_number(number: int) -> Any:
        stored = pa.py_buffer(number.to_bytes(8, "little", signed=True))
        return pa.Array.from_buffers(kind, 1, [None, stored])[0].as_py()

    return of_number


def _epoch(kind: pa.DataType) -> dt.datetime:
    return _EPOCH if kind.tz is None else _EPOCH.replace(tzinfo=pa.scalar(0, pa.timestamp("s", kind.tz)).as_py().tzinfo)


def _number_of_time(kind: pa.DataType) -> NumberOf:
    units = _units(kind)
    return lambda value: (
        units(dt.datetime.combine(_EPOCH, value) - _EPOCH) if type(value) is dt.time and value.tzinfo is None else None
    )


def _number_of_timestamp(kind: pa.DataType) -> NumberOf:
    epoch, units = _epoch(kind), _units(kind)
    zone = epoch.tzinfo

    def number_of(value: Any) -> int | None:
        if type(value) is not dt.datetime:
            return None
        given = value.tzinfo
        # Classes of zones that are not Python's own are left to Arrow.
        if given is not zone and (given is None or zone is None or type(given) not in _ZONES):
            return None
        return units(value - epoch)

    return number_of


def _number_of_duration(kind: pa.DataType) -> NumberOf:
    units = _units(kind)
    return lambda value: units(value) if type(value) is dt.timedelta else None


def _units(kind: pa.DataType) -> Callable[[dt.timedelta], int | None]:
    """The function from a duration to a number of units; None if it has smaller parts."""
    per_second = 10 ** _PLACES[kind.unit]

    def units_of(given: dt.timedelta) -> int | None:
        number, rest = divmod(given.microseconds * per_second, 10**6)
        number_of_units = (given.days * _DAY_SECONDS + given.seconds) * per_second + number
        return None if rest or number_of_units == _NAT else number_of_units

    return units_of


def _day(kind: pa.DataType) -> tuple[int, int]:
    return 0, _DAY_SECONDS * 10 ** _PLACES[kind.unit] - 1


DATES = ColumnType(
    carried=(pa.date64(),),
    layout=Layout.SIGNED,
    plain=(pa.date32(),),
    stored_as=lambda _: pa.date32(),
    taken=(dt.date,),
    but=(dt.datetime,),
    to_json=_moments_to_json,
    from_json=_moments_from_json,
    value_of=lambda _: lambda days: dt.date.fromordinal(days + _EPOCH_DAY),
    number_of=lambda _: lambda value: value.toordinal() - _EPOCH_DAY if type(value) is dt.date else None,
)
TIMES = ColumnType(
    layout=Layout.SIGNED,
    plain=(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    taken=(dt.time,),
    column_of=_column_through(lambda unit, _: pa.time64(unit), has_zone=lambda _: False),
    to_json=lambda column: column.cast(pa.string()).to_pylist(),
    from_json=_times_from_json,
    value_of=_time_of,
    number_of=_number_of_time,
    numbers=_day,
)
TIMESTAMPS = ColumnType(
    layout=Layout.SIGNED,
    plain=tuple(pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in _PLACES),
    stored_as=lambda given: pa.timestamp(given.unit, None if given.tz is None else "UTC"),
    taken=(dt.datetime, np.datetime64),
    column_of=_column_through(
        lambda unit, stored: pa.timestamp(unit, stored.tz), has_zone=lambda stored: stored.tz is not None
    ),
    to_json=_moments_to_json,
    from_json=_moments_from_json,
    value_of=_timestamp_of,
    number_of=_number_of_timestamp,
)
DURATIONS = ColumnType(
    layout=Layout.SIGNED,
    plain=tuple(map(pa.duration, _PLACES)),
    taken=(dt.timedelta, np.timedelta64),
    column_of=_column_through(lambda unit, _: pa.duration(unit), has_zone=None),
    to_json=_durations_to_json,
    from_json=_durations_from_json,
    value_of=_duration_of,
    number_of=_number_of_duration,
)
