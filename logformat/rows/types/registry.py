"""All types that a column may have; docs/types.md lists them, and "A column type" in CONTRIBUTING.md adds one.

* A stored type belongs to exactly one :class:`ColumnType`, found by its id in Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from logformat.rows.types.column_type import ColumnType, Layout, ids_of
from logformat.rows.types.numbers import BOOLEANS, DECIMALS, FLOATS, INTEGERS, UNSIGNED
from logformat.rows.types.texts import BYTES, FIXED_BYTES, TEXTS
from logformat.rows.types.times import DATES, DURATIONS, TIMES, TIMESTAMPS

_MANY = (Sequence, np.ndarray)
_NOT_MANY = (str, bytes, bytearray, memoryview)
LISTS = ColumnType(
    group="",
    ids=ids_of(pa.list_(pa.null())),
    carried=ids_of(
        *(pa.large_list(pa.null()), pa.list_(pa.null(), 1), pa.list_view(pa.null()), pa.large_list_view(pa.null()))
    ),
    layout=Layout.NESTED,
    taken=_MANY,
    but=_NOT_MANY,
)
MAPS = ColumnType(
    group="",
    ids=ids_of(pa.map_(pa.int8(), pa.null())),
    layout=Layout.NESTED,
    taken=(Mapping, *_MANY),
    but=_NOT_MANY,
)
STRUCTS = ColumnType(group="", ids=ids_of(pa.struct({})), layout=Layout.NESTED, taken=(Mapping,))

FLAT_TYPES = (
    *(INTEGERS, UNSIGNED, FLOATS, BOOLEANS, TEXTS, BYTES, DATES, TIMES, TIMESTAMPS, DURATIONS),
    *(FIXED_BYTES, DECIMALS),
)
_OF_STORED = {id: each for each in (*FLAT_TYPES, LISTS, MAPS, STRUCTS) for id in each.ids}
_OF_GIVEN = {id: each for each in (*FLAT_TYPES, LISTS) for id in each.carried} | _OF_STORED
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
