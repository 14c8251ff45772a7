"""Edits of a catalog with no field at its default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect as mi


def filled(kind: type[msgspec.Struct], numbers: Iterator[int]) -> Any:
    """A struct with a non-default value in every field, and no number twice."""
    return kind(**{field.name: another(field.type, field.default, numbers) for field in mi.type_info(kind).fields})


def another(kind: mi.Type, default: object, numbers: Iterator[int]) -> Any:
    match kind:
        case mi.IntType():
            return next(numbers)
        case mi.FloatType():
            return next(numbers) / 8
        case mi.BoolType():
            return not default
        case mi.StrType():
            return f"é\n{next(numbers)}"
        case mi.BytesType():
            return b"\0\xff" * next(numbers)
        case mi.AnyType():
            return {"any": [next(numbers), None, True]}
        case mi.LiteralType(values=values):
            return next(value for value in values if value != default)
        case mi.UnionType(types=types):
            return another(next(inner for inner in types if not isinstance(inner, mi.NoneType)), default, numbers)
        case mi.ListType(item_type=inner):
            return [another(inner, None, numbers), another(inner, None, numbers)]
        case mi.DictType(key_type=key, value_type=value):
            return {another(key, None, numbers): another(value, None, numbers)}
        case mi.StructType(cls=inner):
            return filled(inner, numbers)
    raise NotImplementedError(kind)
