"""Types of a table's columns, normalisation of given types, and the JSON form of a schema.

* A stored schema has only types of :mod:`logformat.rows.types.registry`: other types that carry the same values
  (dictionary, large, view …) are normalised to these, all others are refused by name.
* Key columns are never null. Timestamps with a time zone are UTC.
* A dropped column keeps its place, under a name that no user can give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from logformat.errors import InvalidRequest, UnsupportedVersion
from logformat.rows.types.registry import FLAT_TYPES, LISTS, MAPS, STRUCTS, VARIABLE_IDS, carrier_of, column_type

COLUMNS_MAX = 4096
NAME_BYTES_MAX = 255
NESTING_MAX = 8

RESERVED_NAMES = frozenset(
    (
        *("_bucket", "_log_offset", "_change_type", "_commit_timestamp", "_commit_version", "_found"),
        "_schema_id",
        *("__offset", "__timestamp", "__bucket"),  # Fluss's names, so that a table can be copied there and back
    )
)

PLAIN_TYPES = {str(plain): plain for each in FLAT_TYPES for plain in each.plain}
"""Stored types without parameters and children, by their names."""
_WITH_PARAMETERS = {each.name: each for each in FLAT_TYPES if each.name}

DICT_KEY = "dict_key"
"""Name of the keys' field of a map that was declared as a ``dict`` of Python, which reads give back as a dict."""

_DROPPED = "\x7f"
"""Not printable, so no column that is there begins with it."""


def normalise(schema: pa.Schema, primary_key: Sequence[str] = ()) -> pa.Schema:
    """The schema that a table stores for a given one.

    Args:
        schema: Columns as the user names and types them.
        primary_key: Names of the key columns, which become not null.

    Raises:
        InvalidRequest: A name or type can't be stored, or the key names a missing, float or nested column.
    """
    if not isinstance(schema, pa.Schema):
        raise InvalidRequest("A table's schema must be a pyarrow.Schema.", given=type(schema).__name__)
    names = schema.names
    if not names or len(names) > COLUMNS_MAX:
        raise InvalidRequest(f"A table must have 1 to {COLUMNS_MAX} columns.", columns=len(names))
    for name in names:
        check_name(name)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest("Column names must be unique.", column=twice)
    if len(set(primary_key)) < len(primary_key):
        raise InvalidRequest("The primary key names a column twice.", primary_key=list(primary_key))
    for name in primary_key:
        if name not in names:
            raise InvalidRequest(
                "The primary key names a column that the schema does not have.", column=name, columns=schema.names
            )
    fields = []
    for field in schema:
        stored = pa.field(field.name, normalise_type(field.type, field.name), field.nullable)
        if field.name in primary_key:
            if not column_type(stored.type).can_be_key:
                raise InvalidRequest(
                    "A key column can't be a float, list, map or struct; key by another column.",
                    column=field.name,
                    type=stored.type,
                )
            stored = stored.with_nullable(False)
        fields.append(stored)
    return pa.schema(fields)


def normalise_type(given: pa.DataType, column: str = "", depth: int = 0) -> pa.DataType:
    """The stored type that carries the values of ``given``.

    Raises:
        InvalidRequest: No stored type does.
    """
    if depth > NESTING_MAX:
        raise InvalidRequest(f"Types can nest at most {NESTING_MAX} deep.", column=column)
    if pa.types.is_dictionary(given):
        return normalise_type(given.value_type, column, depth)
    carrier = carrier_of(given)
    if carrier is MAPS:
        return pa.map_(
            _normalise_field(given.key_field, column, depth), _normalise_field(given.item_field, column, depth)
        )
    if carrier is LISTS:
        return pa.list_(_normalise_field(given.value_field, column, depth))
    if carrier is STRUCTS:
        if given.fields and len(set(given.names)) == len(given.names):
            return pa.struct([_normalise_field(field, column, depth) for field in given.fields])
    elif carrier is not None and (stored := carrier.stored_as(given)) is not None:
        return stored
    raise InvalidRequest("A table can't store this type; docs/types.md lists the types.", column=column, type=given)


def dict_of(key: pa.DataType, value: pa.Field) -> pa.MapType:
    """The type of maps that are read as dicts."""
    return pa.map_(pa.field(DICT_KEY, key, False), value)


def is_dict(kind: pa.DataType) -> bool:
    """Whether this is such a type."""
    return bool(pa.types.is_map(kind)) and kind.key_field.name == DICT_KEY


def is_variable(stored: pa.DataType) -> bool:
    """Whether values of a stored type differ in length."""
    return stored.id in VARIABLE_IDS


def fixed_width(stored: pa.DataType) -> int:
    """Bytes of one value of a stored type that is not variable."""
    return max(1, stored.bit_width // 8)


def to_json(schema: pa.Schema) -> list[dict[str, Any]]:
    """A stored schema as JSON: one ``{name, type, nullable}`` for each column; the name of a dropped one is null."""
    return [_field_to_json(field) | ({"name": None} if is_dropped(field.name) else {}) for field in schema]


def from_json(columns: Sequence[dict[str, Any]]) -> pa.Schema:
    """Decode a stored schema.

    Raises:
        UnsupportedVersion: A newer version wrote it.
    """
    return pa.schema([_column_from_json(column, number) for number, column in enumerate(columns)])


def dropped_name(number: int) -> str:
    """The name that the column at this place of a schema has once it is dropped."""
    return f"{_DROPPED}{number}"


def is_dropped(name: str) -> bool:
    """Whether this is the name of a dropped column."""
    return name.startswith(_DROPPED)


def without_dropped(schema: pa.Schema) -> pa.Schema:
    """The columns of a stored schema that are not dropped; the schema itself if none is."""
    kept = [field for field in schema if not is_dropped(field.name)]
    return schema if len(kept) == len(schema) else pa.schema(kept)


def named_as(schema: pa.Schema, newer: pa.Schema) -> pa.Schema:
    """A stored schema with the names of a newer one; the schema itself if they are the same."""
    if schema.names == newer.names[: len(schema)]:
        return schema
    return pa.schema([newer.field(number) for number in range(len(schema))])


def new_names(then: Sequence[str], now: Sequence[str]) -> dict[str, str | None]:
    """For the names of columns at one time those at a later time; None for a dropped one."""
    pairs = zip(then, now, strict=True)
    return {old: None if is_dropped(new) else new for old, new in pairs if not is_dropped(old)}


def _column_from_json(column: dict[str, Any], number: int) -> pa.Field:
    match column:
        case {"name": None, "nullable": True}:
            return _field_from_json({**column, "name": dropped_name(number)}, 0)
    return _field_from_json(column, 0)


def _normalise_field(field: pa.Field, column: str, depth: int) -> pa.Field:
    check_name(field.name, nested=True)
    return pa.field(field.name, normalise_type(field.type, column, depth + 1), field.nullable)


def check_name(name: str, *, nested: bool = False) -> None:
    """Check the name of a column, or of a field in one.

    Raises:
        InvalidRequest: It is empty, reserved, too long or not printable. Arrow raises other errors for some of these.
    """
    if not nested and (not name or name in RESERVED_NAMES):
        raise InvalidRequest("This column name is reserved or empty; choose another.", column=name)
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX or not name.isprintable():
        raise InvalidRequest(
            f"A column name must be at most {NAME_BYTES_MAX} bytes of printable text; choose another.",
            column=ascii(name),
        )


def _field_to_json(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": _type_to_json(field.type), "nullable": field.nullable}


def _type_to_json(stored: pa.DataType) -> str | dict[str, Any]:
    kind = column_type(stored)
    if kind is MAPS:
        return {"map": [_field_to_json(stored.key_field), _field_to_json(stored.item_field)]}
    if kind is LISTS:
        return {"list": _field_to_json(stored.value_field)}
    if kind is STRUCTS:
        return {"struct": list(map(_field_to_json, stored.fields))}
    return {kind.name: kind.parameters(stored)} if kind.name else str(stored)


def _field_from_json(column: Any, depth: int) -> pa.Field:
    match column:
        case {"name": str(name), "type": written, "nullable": bool(nullable)} if depth <= NESTING_MAX:
            return pa.field(name, _type_from_json(written, depth + 1), nullable)
    raise UnsupportedVersion("A stored schema has a column unknown to this version; upgrade kvstore.", depth=depth)


def _type_from_json(written: Any, depth: int) -> pa.DataType:
    match written:
        case str() if written in PLAIN_TYPES:
            return PLAIN_TYPES[written]
        case {"map": [{"nullable": False} as key, item]}:
            return pa.map_(_field_from_json(key, depth), _field_from_json(item, depth))
        case {"list": item}:
            return pa.list_(_field_from_json(item, depth))
        case {"struct": [*fields]}:
            return pa.struct([_field_from_json(field, depth) for field in fields])
        case {**parameters} if len(parameters) == 1:
            ((name, given),) = parameters.items()
            if name in _WITH_PARAMETERS and (made := _WITH_PARAMETERS[name].made(given)) is not None:
                return made
    raise UnsupportedVersion(
        "A stored schema has a type unknown to this version; upgrade kvstore.", type=repr(written)[:100]
    )
