"""The JSON form of every value that a table can store, in both directions; docs/cli.md has a table of the forms.

* Reading is the inverse of writing: ``load`` reads what ``scan --json`` prints, and the values are the same.
* Nothing is guessed: a number is not text, and text is a number only where JSON has no such number (NaN, infinity).
* Cells of a CSV file and keys on the command line have the same form, with text as it is.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from decimal import Decimal
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import SchemaMismatch
from logformat.rows.arrow_values import as_type, list_of, map_of, struct_of
from logformat.rows.python_values import column_of

_types = pa.types
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Decimal places of a second."""
_NO_NUMBERS = {word: float(name) for name, word in _NAMES.items()}
_DURATION = re.compile(r"(-?)PT(\d+)(?:\.(\d{1,9}))?S")
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?")


def to_json(column: pa.Array) -> list[Any]:
    """Convert values to JSON, as Python objects: None, bool, number, text, list or dict."""
    kind = column.type
    if _types.is_list(kind):
        items = to_json(column.flatten())
        return _cut(items, pc.list_value_length(column).to_pylist())
    if _types.is_map(kind):
        offsets = column.offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        keys, values = to_json(column.keys[first:last]), to_json(column.items[first:last])
        pairs = [list(pair) for pair in zip(keys, values, strict=True)]
        ends = offsets - first
        there = column.is_valid().to_pylist()
        return [pairs[ends[at] : ends[at + 1]] if valid else None for at, valid in enumerate(there)]
    if _types.is_struct(kind):
        parts = [to_json(part) for part in column.flatten()]
        rows = (dict(zip(kind.names, row, strict=True)) for row in zip(*parts, strict=True))
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
    form = next((form for is_one, form in _WRITTEN if is_one(kind)), None)
    if form is None:
        return column.to_pylist()  # booleans, integers and text need no conversion
    there = iter(form(column.drop_null()))
    return [next(there) if valid else None for valid in column.is_valid().to_pylist()]


def from_json(values: list[Any], stored: pa.DataType) -> pa.Array:
    """Convert values decoded from JSON to a column of a stored type.

    Raises:
        SchemaMismatch: A value does not have the JSON form of the type.
        logformat.rows.python_values.MISFITS: A value does not fit.
    """
    if _types.is_list(stored):
        _all_of(values, list)
        items = from_json(list(chain.from_iterable(filter(None, values))), stored.value_type)
        return list_of(_lengths(values), _nulls(values), items, stored)
    if _types.is_map(stored):
        _all_of(values, list)
        pairs = list(chain.from_iterable(filter(None, values)))
        _all_of(pairs, list)
        if any(pair is None or len(pair) != 2 for pair in pairs):
            raise SchemaMismatch("A map must be a list of pairs, [key, value].")
        keys = from_json([key for key, _ in pairs], stored.key_type)
        return map_of(
            _lengths(values), _nulls(values), keys, from_json([item for _, item in pairs], stored.item_type), stored
        )
    if _types.is_struct(stored):
        _all_of(values, dict)
        if any(value is not None and value.keys() != set(stored.names) for value in values):
            raise SchemaMismatch("A struct must have exactly the fields of its type.", fields=stored.names)
        parts = [
            from_json([None if value is None else value[field.name] for value in values], field.type)
            for field in stored.fields
        ]
        return struct_of(parts, _nulls(values), stored)
    for is_one, form in _READ:
        if is_one(stored):
            return form(values, stored)
    return column_of(values, stored)


def from_text(cells: pa.StringArray, stored: pa.DataType) -> pa.Array:
    """Convert text, from a CSV file or a command line, to a column of a stored type.

    Raises:
        SchemaMismatch, logformat.rows.python_values.MISFITS: See :func:`from_json`.
    """
    if _types.is_string(stored):
        return cells
    if _types.is_integer(stored) or _types.is_floating(stored):
        return cells.cast(stored)
    listed = cells.to_pylist()
    if _types.is_boolean(stored):
        words = {None: None, "true": True, "false": False}
        if unknown := set(listed) - words.keys():
            raise SchemaMismatch("A boolean must be `true` or `false`.", given=min(map(repr, unknown)))
        return pa.array([words[cell] for cell in listed], stored)
    if _types.is_nested(stored):
        listed = [None if cell is None else msgspec.json.decode(cell) for cell in listed]
    return from_json(listed, stored)


def _cut(items: list[Any], lengths: list[int | None]) -> list[list[Any] | None]:
    place = 0
    cut: list[list[Any] | None] = []
    for length in lengths:
        cut.append(None if length is None else items[place : place + length])
        place += length or 0
    return cut


def _floats(column: pa.Array) -> list[float | str]:
    array = column.to_numpy(zero_copy_only=False)
    # The shortest digits that identify this value in its own width: 0.1, not 0.10000000149011612.
    values = array.tolist() if column.type.bit_width == 64 else [float(str(value)) for value in array]
    if np.isfinite(array).all():
        return values
    return [_NAMES.get(str(value), value) for value in values]


def _moments(column: pa.Array) -> list[str]:
    kind = column.type
    unit = "D" if _types.is_date(kind) else kind.unit
    numbers = column.cast(pa.int32() if unit == "D" else pa.int64()).to_numpy().astype(np.int64)
    zone = "Z" if _types.is_timestamp(kind) and kind.tz is not None else ""
    return [text + zone for text in np.datetime_as_string(numbers.view(f"M8[{unit}]")).tolist()]


def _times_of_day(column: pa.Array) -> list[str]:
    return column.cast(pa.string()).to_pylist()


def _durations(column: pa.Array) -> list[str]:
    places = _UNITS[column.type.unit]
    return [_seconds(number, places) for number in column.cast(pa.int64()).to_pylist()]


def _seconds(number: int, places: int) -> str:
    whole, part = divmod(abs(number), 10**places)
    fraction = f".{part:0{places}d}" if places else ""
    return f"{'-' if number < 0 else ''}PT{whole}{fraction}S"


def _bytes(column: pa.Array) -> list[str]:
    return [base64.b64encode(value).decode("ascii") for value in column.to_pylist()]


def _decimals(column: pa.Array) -> list[str]:
    return [format(value, "f") for value in column.to_pylist()]


def _from_floats(values: list[Any], stored: pa.DataType) -> pa.Array:
    if any(isinstance(value, str) for value in values):
        values = [_NO_NUMBERS.get(value, value) if isinstance(value, str) else value for value in values]
    return column_of(values, stored)


def _from_decimals(values: list[Any], stored: pa.DataType) -> pa.Array:
    return column_of([Decimal(value) if isinstance(value, str) else value for value in values], stored)


def _from_moments(values: list[Any], stored: pa.DataType) -> pa.Array:
    _all_of(values, str)
    return pa.array(values, pa.string()).cast(stored)


def _from_bytes(values: list[Any], stored: pa.DataType) -> pa.Array:
    _all_of(values, str)
    return column_of([None if value is None else base64.b64decode(value, validate=True) for value in values], stored)


def _from_durations(values: list[Any], stored: pa.DataType) -> pa.Array:
    _all_of(values, str)
    return _of_nanoseconds([_nanoseconds(value, _DURATION) for value in values], pa.duration("ns"), stored)


def _from_times(values: list[Any], stored: pa.DataType) -> pa.Array:
    _all_of(values, str)
    return _of_nanoseconds([_nanoseconds(value, _TIME) for value in values], pa.time64("ns"), stored)


def _of_nanoseconds(numbers: list[int | None], fine: pa.DataType, stored: pa.DataType) -> pa.Array:
    if _types.is_duration(stored) and any(number is not None and abs(number) >= 2**63 for number in numbers):
        # Too long for a 64-bit number of nanoseconds.
        step = 10 ** (9 - _UNITS[stored.unit])
        if any(number is not None and number % step for number in numbers):
            raise SchemaMismatch("A duration is finer than the column.")
        return pa.array([None if number is None else number // step for number in numbers], pa.int64()).cast(stored)
    return as_type(pa.array(numbers, pa.int64()).cast(fine), stored)


def _nanoseconds(text: str | None, form: re.Pattern[str]) -> int | None:
    if text is None:
        return None
    found = form.fullmatch(text)
    if found is None:
        example = "PT1.5S" if form is _DURATION else "23:59:59.999"
        raise SchemaMismatch(f"A value does not have the form {example}.", given=text[:50])
    fraction = int((found[found.re.groups] or "").ljust(9, "0"))
    if form is _DURATION:
        number = int(found[2]) * 10**9 + fraction
        return -number if found[1] else number
    return ((int(found[1]) * 60 + int(found[2])) * 60 + int(found[3])) * 10**9 + fraction


def _all_of(values: list[Any], wanted: type) -> None:
    for kind in set(map(type, values)) - {type(None)}:
        if kind is not wanted:
            raise SchemaMismatch("A value does not have the JSON form of the column's type.", given=kind.__name__)


def _lengths(values: list[Any]) -> pa.Array:
    return pa.array([len(value) if value else 0 for value in values], pa.int64())


def _nulls(values: list[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _is_bytes(kind: pa.DataType) -> bool:
    return _types.is_binary(kind) or _types.is_fixed_size_binary(kind)


def _is_moment(kind: pa.DataType) -> bool:
    return _types.is_timestamp(kind) or _types.is_date(kind)


_Kind = Callable[[pa.DataType], bool]
_WRITTEN: list[tuple[_Kind, Callable[[pa.Array], list[Any]]]] = [
    (_types.is_floating, _floats),
    (_types.is_decimal, _decimals),
    (_is_moment, _moments),
    (_types.is_time, _times_of_day),
    (_types.is_duration, _durations),
    (_is_bytes, _bytes),
]
_READ: list[tuple[_Kind, Callable[[list[Any], pa.DataType], pa.Array]]] = [
    (_types.is_floating, _from_floats),
    (_types.is_decimal, _from_decimals),
    (_is_moment, _from_moments),
    (_types.is_time, _from_times),
    (_types.is_duration, _from_durations),
    (_is_bytes, _from_bytes),
]
