"""A kind of types that a column may have, such as timestamps of every unit, and all that the store knows of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from logformat.errors import SchemaMismatch

ValueOf = Callable[[Any], Any]
NumberOf = Callable[[Any], "int | None"]
PythonTypes = tuple[type, ...]


class Layout(Enum):
    """How values lie in a row and in a key (docs/format.md, Record and Key)."""

    FLAG = "a byte, 0 or 1; a bit in Arrow"
    UNSIGNED = "a little-endian number; in a key big-endian"
    SIGNED = "a little-endian number; in a key big-endian, its highest bit flipped"
    FLOAT = "a little-endian float; not in a key"
    OPAQUE = "bytes of one width, the same in a key"
    VARIABLE = "bytes and their length; in a key escaped, with an end"
    NESTED = "records and their length; not in a key"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnType:
    """One kind of types. ``stored`` in the signatures below is one of these types, as a table stores it.

    Attributes:
        group: A column is cast to a type of the same group, if every value survives; empty for types with children.
        ids: Arrow's ids of the stored types.
        carried: Arrow's ids of other types whose values go into a stored one.
        layout: How values lie in a row and in a key.
        plain: Stored types without parameters; their JSON form in a schema is their name.
        examples: Some stored types with parameters, for tests.
        name: Key of the JSON form of a type with parameters.
        parameters: What is under that key.
        made: The type of these parameters; None if a table can't store it.
        stored_as: The stored type for one of ``ids`` or ``carried``; None if a table can't store it.
        is_number: Whether it can be incremented, and summed by a merge engine.
        taken, but: Types of Python values that a column takes, and types derived from these that it does not take.
        column_of: ``(values, stored, their types)`` to a column of the stored type or of one that is cast to it.
        to_json: A column without nulls to JSON; None if Python's values are JSON.
        from_json: ``(values, stored)`` from JSON, to Python values or to a column of a type that is cast to the stored
            one; None if the JSON values are Python's.
        python: The type of the Python values that ``number_of`` takes, and of bytes and text.
        struct_code: How ``struct`` reads and writes a stored value of a fixed width.
        is_packed: Whether ``struct`` makes the stored value of a Python value, or raises an error.
        value_of: The function from what ``struct`` reads to Python's value; None if they are the same. It raises
            ValueError or OverflowError where Python has no such value.
        number_of: The function from Python's value to the stored number. It returns None for a value of another type
            than ``python``, or one that the column can't have as it is.
        numbers: The smallest and the largest number of a value; None if all numbers of the width are values.
    """

    group: str
    ids: Collection[int]
    carried: Collection[int] = ()
    layout: Layout
    plain: tuple[pa.DataType, ...] = ()
    examples: tuple[pa.DataType, ...] = ()
    name: str = ""
    parameters: Callable[[pa.DataType], Any] = str
    made: Callable[[Any], pa.DataType | None] = str
    stored_as: Callable[[pa.DataType], pa.DataType | None] = lambda given: given
    is_number: bool = False
    taken: PythonTypes
    but: PythonTypes = ()
    column_of: Callable[[list[Any], pa.DataType, set[type]], pa.Array] | None = None
    to_json: Callable[[pa.Array], list[Any]] | None = None
    from_json: Callable[[list[Any], pa.DataType], pa.Array | list[Any]] | None = None
    python: type | None = None
    struct_code: Callable[[pa.DataType], str] = str
    is_packed: Callable[[pa.DataType], bool] = lambda _: False
    value_of: Callable[[pa.DataType], ValueOf | None] = lambda _: None
    number_of: Callable[[pa.DataType], NumberOf | None] = lambda _: None
    numbers: Callable[[pa.DataType], tuple[int, int] | None] = lambda _: None

    @property
    def can_be_key(self) -> bool:
        """Whether a key may have a column of these types."""
        return self.layout not in (Layout.FLOAT, Layout.NESTED)


def ids_of(*types: pa.DataType) -> frozenset[int]:
    """Arrow's ids of some types."""
    return frozenset(kind.id for kind in types)


def all_of(values: list[Any], wanted: type) -> None:
    """Check that JSON values are of one type, or None.

    Raises:
        SchemaMismatch: One is of another.
    """
    for kind in set(map(type, values)) - {type(None)}:
        if kind is not wanted:
            raise SchemaMismatch("A value does not have the JSON form of the column's type.", given=kind.__name__)


def plain_column(values: list[Any], stored: pa.DataType, _: set[type]) -> pa.Array:
    """A column of values that Arrow converts exactly or refuses."""
    column = pa.array(values, stored)
    if isinstance(column, pa.ChunkedArray):
        raise SchemaMismatch("One batch can't hold more than 2 GiB of a column; write fewer rows at a time.")
    return column
