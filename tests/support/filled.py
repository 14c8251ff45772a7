"""Values of any struct of ours in which no field has its default: what is saved and loaded again must have them all.

A field that is added tomorrow is filled, too, without a change here.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
from collections.abc import Iterator
from itertools import count
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import pyarrow as pa

from kvstore.meta.persistent_map import PersistentMap
from logformat.ids import TableId

TABLE = TableId(7)
"""The id of every table: what is about one is about this one."""


class Filler:
    """Makes values; each of them once."""

    def __init__(self) -> None:
        self._numbers = count(11)
        self.structs: set[type] = set()

    def of(self, kind: Any) -> Any:
        """A value of a type, and no default of anything."""
        if kind is TableId:
            return TABLE
        if isinstance(kind, NewType):
            return self.of(kind.__supertype__)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self.of(next(each for each in arguments if each is not type(None)))
        if origin is Literal:
            return arguments[-1]
        if origin in (tuple, list):
            made = [self.of(arguments[0]) for _ in range(3)]
            return tuple(made) if origin is tuple else made
        if origin is frozenset:
            return frozenset(self.of(arguments[0]) for _ in range(3))
        mapping = origin or kind
        if isinstance(mapping, type) and issubclass(mapping, collections.abc.Mapping):
            key, value = arguments or get_args(mapping.__orig_bases__[0])
            made = {self.of(key): self.of(value) for _ in range(1 if key is TableId else 3)}
            return mapping(made) if issubclass(mapping, PersistentMap) else made
        if kind is int:
            return next(self._numbers)
        if kind is float:
            return next(self._numbers) / 8
        if kind is str:
            return f"é{next(self._numbers)}"
        if kind is bytes:
            return f"\xff{next(self._numbers)}".encode("latin-1")
        if kind is bool:
            return True
        if kind is UUID:
            return UUID(int=next(self._numbers))
        if kind is Any:
            return next(self._numbers)
        if kind is pa.Schema:
            return pa.schema(
                [pa.field(f"c{next(self._numbers)}", pa.list_(pa.field("item", pa.int16(), False)), False)]
            )
        return self._struct(kind)

    def _struct(self, kind: type) -> Any:
        hints = get_type_hints(kind)
        values = {name: self.of(hints[name]) for name, _ in fields_of(kind)}
        for name, default in fields_of(kind):
            assert values[name] != default, f"{kind.__name__}.{name} has its default; teach this another value"
        self.structs.add(kind)
        return kind(**values)


def fields_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Fields of a struct with their defaults."""
    if issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield field.name, field.default
    else:
        for each in dataclasses.fields(kind):
            factory = each.default_factory
            yield each.name, each.default if factory is dataclasses.MISSING else factory()
