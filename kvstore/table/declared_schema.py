"""Schemas that are declared without pyarrow: by a dict of type names, a dataclass or a pydantic model.

A declaration says everything or is refused: a type of Python that could be stored in more than one way, such as
``Decimal``, is annotated with the type to store, as in ``Annotated[Decimal, pa.decimal128(10, 2)]``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import types
import typing
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

import pyarrow as pa

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest
from logformat.rows.schema import normalise_type

SchemaGiven = Any
"""See :func:`schema_of`."""
NOT_NULL = " not null"

_TYPES: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.datetime: pa.timestamp("us", "UTC"),
    dt.timedelta: pa.duration("us"),
}
_WITH_NUMBERS: dict[str, Callable[..., pa.DataType]] = {
    r"decimal128\((\d+), ?(-?\d+)\)": lambda precision, scale: pa.decimal128(int(precision), int(scale)),
    r"fixed_size_binary\[(\d+)\]": lambda width: pa.binary(int(width)),
    r"timestamp\[(s|ms|us|ns), ?tz=UTC\]": lambda unit: pa.timestamp(unit, "UTC"),
}
_MEANT = {
    "int": "int64",
    "integer": "int64",
    "bigint": "int64",
    "long": "int64",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "boolean": "bool",
    "number": "double",
    "real": "float",
    "bytes": "binary",
    "blob": "binary",
    "date": "date32",
    "datetime": "timestamp[us, tz=UTC]",
    "timestamp": "timestamp[us, tz=UTC]",
    "time": "time64[us]",
    "decimal": "decimal128(10, 2)",
}
_NAMES = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("bool", "string", "binary", "halffloat", "float", "double", "date32", "decimal128(10, 2)"),
    *("time32[s]", "time64[us]", "timestamp[us]", "timestamp[us, tz=UTC]", "duration[us]", "fixed_size_binary[16]"),
]


def schema_of(declared: Any) -> pa.Schema:
    """The schema of a declaration.

    Args:
        declared: A ``pyarrow.Schema``; a dict from column name to type, which is a name such as ``int64`` or
            ``string not null``, a ``pyarrow.DataType`` or a type of Python; or a dataclass or pydantic model, whose
            fields take nulls if their type has ``| None``.

    Raises:
        InvalidRequest: It is none of these, or a type is unknown.
    """
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, Mapping):
        return pa.schema([_column(name, kind) for name, kind in declared.items()])
    return pa.schema(_fields_of(declared))


def type_named(name: str) -> pa.DataType:
    """The type of a name, as ``kvstore describe`` prints it.

    Raises:
        InvalidRequest: There is no type of this name; the message has the one that may be meant.
    """
    try:
        for pattern, make in _WITH_NUMBERS.items():
            if found := re.fullmatch(pattern, name):
                return make(*found.groups())
        return pa.type_for_alias(name)
    except (ValueError, OverflowError) as error:
        close = get_close_matches(name, _NAMES, 1)
        meant = _MEANT.get(name.lower(), close[0] if close else None)
        hint = f"Did you mean `{meant}`?" if meant else f"Types are {', '.join(_NAMES)}."
        raise InvalidRequest(f"Unknown type `{name}`. {hint}", type=name) from error


def _column(name: Any, kind: Any) -> pa.Field:
    if not isinstance(name, str):
        raise InvalidRequest("The name of a column is text.", column=shown(name))
    if isinstance(kind, str):
        return pa.field(name, type_named(kind.removesuffix(NOT_NULL)), not kind.endswith(NOT_NULL))
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    return _field(name, kind)


def _fields_of(declared: Any) -> list[pa.Field]:
    """Fields of a dataclass or a pydantic model."""
    modelled = getattr(declared, "model_fields", None)
    if isinstance(declared, type) and isinstance(modelled, Mapping):
        names = list(modelled)
    elif isinstance(declared, type) and dataclasses.is_dataclass(declared):
        names = [field.name for field in dataclasses.fields(declared)]
    else:
        raise InvalidRequest(
            "A schema is a pyarrow.Schema, a dict from column name to type, a dataclass or a pydantic model.",
            given=shown(declared),
        )
    try:
        kinds = typing.get_type_hints(declared, include_extras=True)
    except NameError as error:
        raise InvalidRequest(
            "The types of this class can't be resolved; declare it at the top level of a module.",
            given=shown(declared),
            reason=str(error),
        ) from error
    return [_field(name, kinds[name]) for name in names]


def _field(name: str, kind: Any) -> pa.Field:
    kind, *about = typing.get_args(kind) if typing.get_origin(kind) is typing.Annotated else (kind,)
    kinds = [each for each in typing.get_args(kind) if each is not types.NoneType]
    nullable = typing.get_origin(kind) in (typing.Union, types.UnionType) and len(kinds) == 1
    stored = [each for each in about if isinstance(each, pa.DataType)]
    return pa.field(name, stored[0] if stored else _type(name, kinds[0] if nullable else kind), nullable)


def _type(name: str, kind: Any) -> pa.DataType:
    """The stored type of a type of Python."""
    of, inner = typing.get_origin(kind), typing.get_args(kind)
    if of is typing.Annotated:
        stored = [each for each in inner[1:] if isinstance(each, pa.DataType)]
        return stored[0] if stored else _type(name, inner[0])
    if isinstance(kind, type) and kind in _TYPES:
        return _TYPES[kind]
    if of is list and len(inner) == 1:
        return pa.list_(_field("item", inner[0]))
    if of is dict and len(inner) == 2:
        return pa.map_(_type(name, inner[0]), _field("value", inner[1]))
    if of is typing.Literal and len({type(each) for each in inner}) == 1:
        return _type(name, type(inner[0]))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return pa.string()
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields")):
        return normalise_type(pa.struct(_fields_of(kind)), name)
    raise InvalidRequest(
        "This type of Python can be stored in several ways, or not at all; name the type to store, as in"
        " Annotated[Decimal, pa.decimal128(10, 2)].",
        column=name,
        type=shown(kind),
    )
