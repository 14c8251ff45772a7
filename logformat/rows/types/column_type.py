"""A kind of types that a column may have, such as timestamps of every unit, and all that the store knows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa

from logformat.errors import SchemaMismatch

ValueOf = Callable[[Any], Any]
NumberOf = Callable[[Any], "int | None"]


class Layout(Enum):
    """How values lie in a row (docs/format.md, Record) and in a key (docs/format.md, Key)."""

    FLAG = "a byte, 0 or 1; a bit in Arrow"
    UNSIGNED = "a little-endian number; in a key big-endian"
    SIGNED = "a little-endian number; in a key big-endian, its highest bit flipped"
    FLOAT = "a little-endian float; not in a key"
    OPAQUE = "bytes of one width, the same in a key"
    VARIABLE = "bytes and their length; in a key escaped, with an end"
    NESTED = "records and their length; not in a key"


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


_CODES = {
    (Layout.FLAG, 1): "?",
    **{(Layout.SIGNED, 1 << nth): code for nth, code in enumerate("bhiq")},
    **{(Layout.UNSIGNED, 1 << nth): code for nth, code in enumerate("BHIQ")},
    **{(Layout.FLOAT, 2 << nth): code for nth, code in enumerate("efd")},
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnType:
    """One kind of types. ``stored`` in the signatures below is one of these types, as a table stores it.

    Attributes:
        plain: Stored types without parameters; their JSON form in a schema is their name.
        examples: Some stored types with parameters or children, at least one with each id in Arrow.
        carried: Some types of each id in Arrow whose values go into a stored type.
        stored_as: The stored type for one of any of these ids; None if a table can't store it.
        layout: How values lie in a row and in a key.
        name: Key of the JSON form of a type with parameters.
        parameters: What is under that key.
        made: The type of these parameters; None if a table can't store it.
        numbers: The smallest and the largest number of a value; None if all numbers of the width are values.
        taken: Types of Python values that a column takes, first the one that reads give. Columns of types that have
            the same first are cast to each other, if every value survives.
        but: Types derived from ``taken`` that a column does not take.
        column_of: ``(values, stored, their types)`` to a column of the stored type or of one that is cast to it.
        to_json: A column without nulls to JSON; None if Python's values are JSON.
        from_json: ``(values, stored)`` from JSON, to Python values or to a column that is cast to the stored type;
            None if the JSON values are Python's.
        value_of: The function from what ``struct`` reads to Python's value; None if they are the same. It raises
            ValueError or OverflowError where Python has no such value.
        number_of: The function from Python's value to the stored number, where ``struct`` does not make it. It returns
            None for a value of another type than ``python``, or one that the column can't have as it is.
    """

    plain: tuple[pa.DataType, ...] = ()
    examples: tuple[pa.DataType, ...] = ()
    carried: tuple[pa.DataType, ...] = ()
    stored_as: Callable[[pa.DataType], pa.DataType | None] = lambda given: given
    layout: Layout
    name: str = ""
    parameters: Callable[[pa.DataType], Any] = str
    made: Callable[[Any], pa.DataType | None] = str
    numbers: Callable[[pa.DataType], tuple[int, int] | None] = lambda _: None
    taken: tuple[type, ...]
    but: tuple[type, ...] = ()
    column_of: Callable[[list[Any], pa.DataType, set[type]], pa.Array] = plain_column
    to_json: Callable[[pa.Array], list[Any]] | None = None
    from_json: Callable[[list[Any], pa.DataType], pa.Array | list[Any]] | None = None
    value_of: Callable[[pa.DataType], ValueOf | None] = lambda _: None
    number_of: Callable[[pa.DataType], NumberOf | None] = lambda _: None

    @property
    def python(self) -> type:
        """The type of Python values that reads give."""
        return self.taken[0]

    @property
    def is_number(self) -> bool:
        """Whether values can be added."""
        return self.python in (int, float, Decimal)

    @property
    def can_be_key(self) -> bool:
        """Whether a key may have a column of these types."""
        return self.layout not in (Layout.FLOAT, Layout.NESTED)

    def struct_code(self, stored: pa.DataType) -> str:
        """How ``struct`` reads and writes a stored value of a fixed width."""
        width = max(1, stored.bit_width // 8)
        return _CODES.get((self.layout, width), f"{width}s")

    def packs(self, stored: pa.DataType) -> bool:
        """Whether ``struct`` makes the stored value of a Python value, or raises an error."""
        # Of a NaN with bits of its own it makes another one of 16 bits than Arrow.
        return self.python in (bool, int, float) and self.struct_code(stored) != "e"
