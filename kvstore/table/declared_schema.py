"""Python's types as schemas, and rows as objects of them.

* A schema is declared by a dict of types, a dataclass, a pydantic model or a TypedDict. A declaration says everything
  or is refused: a type of Python that could be stored in more than one way, such as ``Decimal``, is annotated with the
  type to store, as in ``Annotated[Decimal, pa.decimal128(10, 2)]``.
* A row that was written as an object of a class can be made one again: :func:`made_of`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest, SchemaMismatch
from logformat.rows.python_values import MISFITS, column_of
from logformat.rows.schema import check_name, dict_of, normalise_type

Made = TypeVar("Made")
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
    UUID: pa.string(),
}
_LISTS = (list, tuple, Sequence)
_DICTS = (dict, Mapping)
_CURES: dict[Any, str] = {
    Decimal: "A Decimal has no number of digits; name it, as in Annotated[Decimal, pa.decimal128(10, 2)].",
    set: "A set is not stored; declare a list, as in list[str].",
    frozenset: "A frozenset is not stored; declare a list, as in list[str].",
    list: "A list of one type is stored; name that, as in list[str].",
    tuple: "A tuple of one type is stored as a list; name that, as in tuple[str, ...], or declare a class.",
    dict: "A dict of one type is stored; name those of keys and values, as in dict[str, int]. Keys are flat, not null.",
}
_CURE = (
    "This type of Python can be stored in several ways, or not at all; name the type to store, as in"
    " Annotated[Decimal, pa.decimal128(10, 2)]."
)
_WITH_NUMBERS: dict[str, Callable[..., pa.DataType]] = {
    r"decimal128\((\d+), ?(-?\d+)\)": lambda precision, scale: pa.decimal128(int(precision), int(scale)),
    r"decimal256\((\d+), ?(-?\d+)\)": lambda precision, scale: pa.decimal256(int(precision), int(scale)),
    r"fixed_size_binary\[(\d+)\]": lambda width: pa.binary(int(width)),
    r"timestamp\[(s|ms|us|ns), ?tz=UTC\]": lambda unit: pa.timestamp(unit, "UTC"),
}
_AROUND = ("Required", "ReadOnly")
_EXAMPLES: dict[Any, Any] = {
    bool: True,
    int: 1,
    float: 0.5,
    str: "a",
    Decimal: Decimal(1),
    UUID: UUID(int=0),
    dt.date: dt.date(2000, 1, 1),
    dt.time: dt.time(),
    dt.timedelta: dt.timedelta(),
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
    *("bool", "string", "binary", "halffloat", "float", "double", "date32", "decimal128(10, 2)", "decimal256(50, 2)"),
    *("time32[s]", "time64[us]", "timestamp[us]", "timestamp[us, tz=UTC]", "duration[us]", "fixed_size_binary[16]"),
]


def schema_of(declared: Any) -> pa.Schema:
    """The schema of a declaration.

    Args:
        declared: A ``pyarrow.Schema``; a dict from column name to type, which is a name such as ``int64`` or
            ``string not null``, a ``pyarrow.DataType`` or a type of Python; or a dataclass, pydantic model or
            TypedDict, whose fields take nulls if their type has ``| None``.

    Raises:
        InvalidRequest: It is none of these, a type is unknown, or can't be stored as it is declared.
    """
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, Mapping):
        return pa.schema([_column(name, kind) for name, kind in declared.items()])
    check_class(declared, "A schema is a pyarrow.Schema, a dict from column name to type,")
    return pa.schema(_fields_of(declared, ()))


def check_class(given: Any, are: str = "A row is made as") -> None:
    """Check that this is a class whose objects are rows.

    Args:
        are: Beginning of the message: what is one, too.

    Raises:
        InvalidRequest: It is not.
    """
    if not _is_class(given):
        raise InvalidRequest(f"{are} a dataclass, a pydantic model or a TypedDict.", given=shown(given))


def made_of(row: Mapping[str, Any], into: type[Made]) -> Made:
    """A row as an object of a class; columns that the class does not have are left out.

    Raises:
        SchemaMismatch: The class refuses the row, or has a field without a column and without a default.
        InvalidRequest: The types of the class can't be resolved.
    """
    try:
        made: Made = _made(row, into)
    except (LookupError, TypeError, ValueError) as error:
        raise SchemaMismatch("The row does not fit into this class.", into=shown(into), reason=str(error)) from error
    return made


def type_named(name: str) -> pa.DataType:
    """The type of a name, as ``kvstore describe`` prints it.

    Raises:
        InvalidRequest: There is no type of this name; the message has the one that may be meant.
    """
    try:
        for pattern, make in _WITH_NUMBERS.items():
            if match := re.fullmatch(pattern, name):
                return make(*match.groups())
        return pa.type_for_alias(name)
    except (ValueError, OverflowError) as error:
        close = get_close_matches(name, _NAMES, 1)
        meant = _MEANT.get(name.lower(), close[0] if close else None)
        hint = f"Did you mean `{meant}`?" if meant else f"Types are {', '.join(_NAMES)}."
        raise InvalidRequest(f"Unknown type `{name}`. {hint}", type=name) from error


def _column(name: Any, kind: Any) -> pa.Field:
    if not isinstance(name, str):
        raise InvalidRequest("The name of a column is text.", column=shown(name))
    check_name(name)
    if isinstance(kind, str):
        return pa.field(name, type_named(kind.removesuffix(NOT_NULL)), not kind.endswith(NOT_NULL))
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    return _field(name, kind)


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or _is_typed_dict(kind) or _is_model(kind))


def _is_typed_dict(kind: Any) -> bool:
    return hasattr(kind, "__required_keys__")  # that of typing_extensions, too


def _is_model(kind: Any) -> bool:
    return isinstance(getattr(kind, "model_fields", None), Mapping)


@lru_cache(maxsize=256)
def _kinds(declared: Any) -> dict[str, Any]:
    """The types of a class's fields, by name."""
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except NameError as error:
        raise InvalidRequest(
            "The types of this class can't be resolved; declare it at the top level of a module.",
            given=shown(declared),
            reason=str(error),
        ) from error
    names: Iterable[str] = hints
    if dataclasses.is_dataclass(declared):
        names = [field.name for field in dataclasses.fields(declared)]
    elif _is_model(declared):
        fields: Mapping[str, Any] = declared.model_fields
        names = [name for name, field in fields.items() if not field.exclude]
    return {name: hints[name] for name in names}


def _fields_of(declared: Any, within: tuple[Any, ...]) -> list[pa.Field]:
    """Fields of a class.

    Args:
        within: Classes that have it as a field, or their fields have.
    """
    if declared in within:
        raise InvalidRequest(
            "A class can't be a field of itself: a column has one depth. Store the objects as rows that name each"
            " other by key.",
            type=shown(declared),
        )
    optional: frozenset[str] = getattr(declared, "__optional_keys__", frozenset())
    fields = []
    for name, kind in _kinds(declared).items():
        if name in optional or typing.get_origin(kind) is typing.NotRequired:
            raise InvalidRequest(
                "Every row has every column; declare the key as one that is always there, of a type with | None.",
                column=name,
                type=shown(declared),
            )
        fields.append(_field(name, kind, (*within, declared)))
    return fields


def _field(name: str, kind: Any, within: tuple[type[Any], ...] = ()) -> pa.Field:
    kind, stored, nullable = _unwrapped(kind)
    if stored is None:
        return pa.field(name, _type(name, kind, within), nullable)
    _check_stored(name, kind, normalise_type(stored, name))
    return pa.field(name, stored, nullable)


def _unwrapped(kind: Any) -> tuple[Any, pa.DataType | None, bool]:
    """A type without what is around it, the type to store that is named there, and whether it takes nulls."""
    stored, nullable = None, False
    while True:
        of, inner = typing.get_origin(kind), typing.get_args(kind)
        kinds = [each for each in inner if each not in (None, types.NoneType)]
        if of is typing.Annotated:
            stored = next((each for each in inner[1:] if isinstance(each, pa.DataType)), stored)
            kind = inner[0]
        elif of in (typing.Union, types.UnionType) and len(kinds) == 1:
            kind, nullable = kinds[0], True
        elif of is typing.Literal and len({type(each) for each in kinds}) == 1:
            kind, nullable = type(kinds[0]), nullable or len(kinds) < len(inner)
        elif getattr(of, "_name", None) in _AROUND:
            kind = inner[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":  # of Python 3.12
            kind = kind.__value__
        else:
            return kind, stored, nullable


def _type(name: str, kind: Any, within: tuple[type[Any], ...]) -> pa.DataType:
    """The stored type of a type of Python."""
    of, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and kind in _TYPES:
        return _TYPES[kind]
    if of in _LISTS and (len(inner) == 1 if of is not tuple else inner[1:] == (...,)):
        return pa.list_(_field("item", inner[0], within))
    if of in _DICTS and len(inner) == 2:
        key = _field(name, inner[0], within)
        if not key.nullable and not pa.types.is_nested(key.type):
            return dict_of(key.type, _field("value", inner[1], within))
    if isinstance(kind, type) and issubclass(kind, Enum):
        kinds = {type(member.value) for member in kind}
        if len(kinds) == 1 and kinds <= _TYPES.keys():
            return _TYPES[kinds.pop()]
        raise InvalidRequest(
            "Members of an Enum are stored as their values, which have no type in common here; name the type to store,"
            " as in Annotated[Color, pa.string()].",
            column=name,
            type=shown(kind),
        )
    if _is_class(kind):
        return normalise_type(pa.struct(_fields_of(kind, within)), name)
    cure = _CURES.get(of or kind, _CURE) if isinstance(of or kind, type) else _CURE
    raise InvalidRequest(cure, column=name, type=shown(kind))


def _check_stored(name: str, kind: Any, stored: pa.DataType) -> None:
    """Check that values of a type of Python go into a stored type that is named for them."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        examples = [member.value for member in kind]
    elif kind is bytes:
        examples = [bytes(stored.byte_width if pa.types.is_fixed_size_binary(stored) else 0)]
    elif kind is dt.datetime:
        examples = [dt.datetime(2000, 1, 1, tzinfo=None if getattr(stored, "tz", None) is None else dt.UTC)]
    else:
        examples = [_EXAMPLES[kind]] if isinstance(kind, type) and kind in _EXAMPLES else []
    try:
        column_of(examples, stored)
    except (SchemaMismatch, *MISFITS) as error:
        raise InvalidRequest(
            "Values of this type don't go into the type that is named to store them; docs/types.md says which do.",
            column=name,
            type=shown(kind),
            stored=stored,
        ) from error


def _made(row: Mapping[str, Any], into: Any) -> Any:
    values = {name: _value(row[name], kind) for name, kind in _kinds(into).items() if name in row}
    if _is_typed_dict(into):
        if missing := sorted(into.__required_keys__ - values.keys()):
            raise LookupError(f"the row has no {', '.join(missing)}")
        return values
    if dataclasses.is_dataclass(into):
        make: Any = into
        later = [field.name for field in dataclasses.fields(into) if not field.init and field.name in values]
        made = make(**{name: value for name, value in values.items() if name not in later})
        for name in later:
            object.__setattr__(made, name, values[name])  # the class may be frozen
        return made
    has_aliases = any(field.validation_alias is not None for field in into.model_fields.values())
    return into.model_validate(values, **{"by_name": True} if has_aliases else {})


def _value(value: Any, kind: Any) -> Any:
    """A value of a row as one of a type of Python."""
    kind, _, _ = _unwrapped(kind)
    of, inner = typing.get_origin(kind), typing.get_args(kind)
    if value is None:
        return None
    if of in _LISTS and isinstance(value, list):
        items = [_value(each, inner[0]) for each in value]
        return tuple(items) if of is tuple else items
    if of in _DICTS and isinstance(value, (dict, list)):  # a list of pairs, if Annotated names a map to store
        return {_value(key, inner[0]): _value(each, inner[1]) for key, each in dict(value).items()}
    if not isinstance(kind, type) or (not _is_class(kind) and isinstance(value, kind)):
        return value
    if _is_class(kind):
        return _made(value, kind)
    if kind is UUID:
        return UUID(bytes=value) if isinstance(value, bytes) else UUID(value)
    return kind(value) if issubclass(kind, Enum) else value
