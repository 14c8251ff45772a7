"""All types that a column may have; docs/types.md lists them, and "A column type" in CONTRIBUTING.md adds one.

* A stored type belongs to exactly one :class:`ColumnType`, found by its id in Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from logformat.rows.types.column_type import ColumnType, Layout
from logformat.rows.types.numbers import BOOLEANS, DECIMALS, FLOATS, INTEGERS, UNSIGNED, WIDE_DECIMALS
from logformat.rows.types.texts import BYTES, FIXED_BYTES, TEXTS
from logformat.rows.types.times import DATES, DURATIONS, TIMES, TIMESTAMPS

_MANY = (Sequence, np.ndarray)
_NOT_MANY = (str, bytes, bytearray, memoryview)
_LISTS = (pa.large_list, pa.list_view, pa.large_list_view, lambda item: pa.list_(item, 1))
LISTS = ColumnType(
    examples=(pa.list_(pa.int8()),),
    carried=tuple(make(pa.int8()) for make in _LISTS),
    layout=Layout.NESTED,
    taken=_MANY,
    but=_NOT_MANY,
)
MAPS = ColumnType(
    examples=(pa.map_(pa.int8(), pa.int8()),), layout=Layout.NESTED, taken=(Mapping, *_MANY), but=_NOT_MANY
)
STRUCTS = ColumnType(examples=(pa.struct({"a": pa.int8()}),), layout=Layout.NESTED, taken=(Mapping,))

FLAT_TYPES = (
    *(INTEGERS, UNSIGNED, FLOATS, BOOLEANS, TEXTS, BYTES, DATES, TIMES, TIMESTAMPS, DURATIONS),
    *(FIXED_BYTES, DECIMALS, WIDE_DECIMALS),
)
_TYPES = (*FLAT_TYPES, LISTS, MAPS, STRUCTS)
_OF_STORED = {kind.id: each for each in _TYPES for kind in (*each.plain, *each.examples)}
_OF_GIVEN = {kind.id: each for each in _TYPES for kind in each.carried} | _OF_STORED
VARIABLE_IDS = frozenset(id for id, each in _OF_STORED.items() if each.layout in (Layout.VARIABLE, Layout.NESTED))
"""Ids of the stored types whose values differ in length."""


def column_type(stored: pa.DataType) -> ColumnType:
    """What the store knows of a stored type."""
    return _OF_STORED[stored.id]


def carrier_of(given: pa.DataType) -> ColumnType | None:
    """What the store knows of the types that carry the values of this one; None if no stored type does."""
    return _OF_GIVEN.get(given.id)


def layout_of(stored: pa.DataType) -> Layout:
    """How values of a stored type lie in a row and in a key."""
    return _OF_STORED[stored.id].layout
