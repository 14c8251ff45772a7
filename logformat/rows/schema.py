"""Types of a table's columns, normalisation of given types, and the JSON form of a schema.

* A stored schema has only the types of ``PLAIN_TYPES`` and lists, maps and structs of them: other types that carry the
  same values (dictionary, large, view …) are normalised to these, all others are refused by name.
* Key columns are never null. Timestamps with a time zone are UTC.
* A dropped column keeps its place, under a name that no user can give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from logformat.errors import InvalidRequest, UnsupportedVersion

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

PLAIN_TYPES = {
    str(plain): plain
    for plain in [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32()),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    ]
}
"""Stored types that are neither lists, maps nor structs, by their names."""

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
        _check_name(name)
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
            if pa.types.is_floating(stored.type) or pa.types.is_nested(stored.type):
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
    types = pa.types
    if depth > NESTING_MAX:
        raise InvalidRequest(f"Types can nest at most {NESTING_MAX} deep.", column=column)
    if str(given) in PLAIN_TYPES:
        return given
    if types.is_dictionary(given):
        return normalise_type(given.value_type, column, depth)
    if types.is_large_string(given) or types.is_string_view(given):
        return pa.string()
    if types.is_large_binary(given) or types.is_binary_view(given):
        return pa.binary()
    if types.is_fixed_size_binary(given) and given.byte_width > 0:
        return given
    if types.is_date64(given):
        return pa.date32()
    if types.is_timestamp(given):
        return pa.timestamp(given.unit, "UTC")
    if types.is_decimal32(given) or types.is_decimal64(given) or types.is_decimal128(given):
        return pa.decimal128(given.precision, given.scale)
    if types.is_map(given):
        return pa.map_(
            _normalise_field(given.key_field, column, depth), _normalise_field(given.item_field, column, depth)
        )
    if is_list_like(given):
        return pa.list_(_normalise_field(given.value_field, column, depth))
    if types.is_struct(given):
        inner = [given.field(i) for i in range(given.num_fields)]
        if inner and len({field.name for field in inner}) == len(inner):
            return pa.struct([_normalise_field(field, column, depth) for field in inner])
    raise InvalidRequest("A table can't store this type; docs/types.md lists the types.", column=column, type=given)


def is_list_like(given: pa.DataType) -> bool:
    """Whether the type is one of Arrow's list types; a map is not."""
    types = pa.types
    return bool(
        types.is_list(given)
        or types.is_large_list(given)
        or types.is_fixed_size_list(given)
        or types.is_list_view(given)
        or types.is_large_list_view(given)
    )


def dict_of(key: pa.DataType, value: pa.Field) -> pa.MapType:
    """The type of maps that are read as dicts."""
    return pa.map_(pa.field(DICT_KEY, key, False), value)


def is_dict(kind: pa.DataType) -> bool:
    """Whether this is such a type."""
    return bool(pa.types.is_map(kind)) and kind.key_field.name == DICT_KEY


def is_variable(stored: pa.DataType) -> bool:
    """Whether values of a stored type differ in length."""
    return bool(pa.types.is_string(stored) or pa.types.is_binary(stored) or pa.types.is_nested(stored))


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
    return pa.schema([_column_from_json(column, place) for place, column in enumerate(columns)])


def dropped_name(place: int) -> str:
    """The name that the column at this place of a schema has once it is dropped."""
    return f"{_DROPPED}{place}"


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
    return pa.schema([newer.field(place) for place in range(len(schema))])


def new_names(then: Sequence[str], now: Sequence[str]) -> dict[str, str | None]:
    """For the names of columns at one time those at a later time; None for a dropped one."""
    pairs = zip(then, now, strict=True)
    return {old: None if is_dropped(new) else new for old, new in pairs if not is_dropped(old)}


def _column_from_json(column: dict[str, Any], place: int) -> pa.Field:
    match column:
        case {"name": None, "nullable": True}:
            return _field_from_json({**column, "name": dropped_name(place)}, 0)
    return _field_from_json(column, 0)


def _normalise_field(field: pa.Field, column: str, depth: int) -> pa.Field:
    _check_name(field.name, nested=True)
    return pa.field(field.name, normalise_type(field.type, column, depth + 1), field.nullable)


def _check_name(name: str, *, nested: bool = False) -> None:
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
    types = pa.types
    if str(stored) in PLAIN_TYPES:
        return str(stored)
    if types.is_fixed_size_binary(stored):
        return {"fixed_size_binary": stored.byte_width}
    if types.is_decimal128(stored):
        return {"decimal128": [stored.precision, stored.scale]}
    if types.is_map(stored):
        return {"map": [_field_to_json(stored.key_field), _field_to_json(stored.item_field)]}
    if types.is_list(stored):
        return {"list": _field_to_json(stored.value_field)}
    return {"struct": [_field_to_json(stored.field(i)) for i in range(stored.num_fields)]}


def _field_from_json(column: Any, depth: int) -> pa.Field:
    match column:
        case {"name": str(name), "type": written, "nullable": bool(nullable)} if depth <= NESTING_MAX:
            return pa.field(name, _type_from_json(written, depth + 1), nullable)
    raise UnsupportedVersion("A stored schema has a column unknown to this version; upgrade kvstore.", depth=depth)


def _type_from_json(written: Any, depth: int) -> pa.DataType:
    match written:
        case str() if written in PLAIN_TYPES:
            return PLAIN_TYPES[written]
        case {"fixed_size_binary": int(width)} if 0 < width < 2**31:
            return pa.binary(width)
        case {"decimal128": [int(precision), int(scale)]} if 0 < precision <= 38 and -(2**31) <= scale < 2**31:
            return pa.decimal128(precision, scale)
        case {"map": [{"nullable": False} as key, item]}:
            return pa.map_(_field_from_json(key, depth), _field_from_json(item, depth))
        case {"list": item}:
            return pa.list_(_field_from_json(item, depth))
        case {"struct": [*fields]}:
            return pa.struct([_field_from_json(field, depth) for field in fields])
    raise UnsupportedVersion(
        "A stored schema has a type unknown to this version; upgrade kvstore.", type=repr(written)[:100]
    )
