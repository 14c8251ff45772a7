"""The JSON form of every value that a table can store, in both directions; docs/cli.md has a table of the forms.

* Reading is the inverse of writing: ``load`` reads what ``scan --json`` prints, and the values are the same.
* Nothing is guessed: a number is not text, and text is a number only where JSON has no such number (NaN, infinity).
* Cells of a CSV file and keys on the command line have the same form, with text as it is.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import SchemaMismatch
from logformat.rows.arrow_values import as_type, list_of, map_of, struct_of
from logformat.rows.python_values import column_of
from logformat.rows.types.column_type import all_of
from logformat.rows.types.registry import column_type

_types = pa.types


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
    form = column_type(kind).to_json
    if form is None:
        return column.to_pylist()  # booleans, integers and text need no conversion
    there = iter(form(column.drop_null()))
    return [next(there) if valid else None for valid in column.is_valid().to_pylist()]


def shown_values(column: pa.Array) -> list[Any]:
    """Python values for the text of an error; in their JSON form if Python has none, as for a time out of its range."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        return to_json(column)
    return values


def from_json(values: list[Any], stored: pa.DataType) -> pa.Array:
    """Convert values decoded from JSON to a column of a stored type.

    Raises:
        SchemaMismatch: A value does not have the JSON form of the type.
        logformat.rows.python_values.MISFITS: A value does not fit.
    """
    if _types.is_list(stored):
        all_of(values, list)
        items = from_json(list(chain.from_iterable(filter(None, values))), stored.value_type)
        return list_of(_lengths(values), _nulls(values), items, stored)
    if _types.is_map(stored):
        all_of(values, list)
        pairs = list(chain.from_iterable(filter(None, values)))
        all_of(pairs, list)
        if any(pair is None or len(pair) != 2 for pair in pairs):
            raise SchemaMismatch("A map must be a list of pairs, [key, value].")
        keys = from_json([key for key, _ in pairs], stored.key_type)
        return map_of(
            _lengths(values), _nulls(values), keys, from_json([item for _, item in pairs], stored.item_type), stored
        )
    if _types.is_struct(stored):
        all_of(values, dict)
        if any(value is not None and value.keys() != set(stored.names) for value in values):
            raise SchemaMismatch("A struct must have exactly the fields of its type.", fields=stored.names)
        parts = [
            from_json([None if value is None else value[field.name] for value in values], field.type)
            for field in stored.fields
        ]
        return struct_of(parts, _nulls(values), stored)
    form = column_type(stored).from_json
    converted = values if form is None else form(values, stored)
    return as_type(converted, stored) if isinstance(converted, pa.Array) else column_of(converted, stored)


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
    position = 0
    cut: list[list[Any] | None] = []
    for length in lengths:
        cut.append(None if length is None else items[position : position + length])
        position += length or 0
    return cut


def _lengths(values: list[Any]) -> pa.Array:
    return pa.array([len(value) if value else 0 for value in values], pa.int64())


def _nulls(values: list[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())
