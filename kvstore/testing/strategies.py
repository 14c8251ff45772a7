"""Strategies for schemas, columns and rows: every type a table stores, and foreign ones that are normalised to them.

Columns are as unpleasant as Arrow allows: they are slices, and under their nulls lies garbage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from logformat.rows.types.column_type import Layout
from logformat.rows.types.numbers import FLOATS as FLOAT_TYPES, INTEGERS as INTEGER_TYPES, UNSIGNED as UNSIGNED_TYPES
from logformat.rows.types.registry import FLAT_TYPES, carrier_of, column_type

_DAY_MS = 86_400_000
INTEGERS = [*INTEGER_TYPES.plain, *UNSIGNED_TYPES.plain]
FLOATS = list(FLOAT_TYPES.plain)
PLAIN_TYPES = [kind for each in FLAT_TYPES for kind in each.plain]
"""Stored types without parameters and children."""
SCALAR_TYPES = [*PLAIN_TYPES, *(kind for each in FLAT_TYPES for kind in each.examples)]
KEY_TYPES = [kind for kind in SCALAR_TYPES if column_type(kind).can_be_key]
_FOREIGN_TYPES = [
    *(pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view(), pa.date64()),
    *(pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns", "+05:30"), pa.decimal32(7, 2), pa.decimal64(16, 3)),
]
NAMES = ["a", "b", "é", "a.b", "c d", "NULL", "x" * 255, "_offset", "日本", "'; --"]
"""Names a column may have."""

_BOOLEANS = st.booleans()
_SIZES = st.integers(0, 2)
_FIELD_NAMES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
_MARGINS = st.sampled_from([(0, 0), (0, 0), (1, 0), (3, 2)])
_STORED = st.sampled_from(SCALAR_TYPES), st.sampled_from(["scalar", "scalar", "scalar", "list", "map", "struct"])
_LISTS = ["large_list", "list_view", "large_list_view", "fixed_size_list"]
_FOREIGN = (
    st.sampled_from([*_FOREIGN_TYPES, *SCALAR_TYPES]),
    st.sampled_from(["scalar", "list", "map", "struct", "dictionary", "dictionary", *_LISTS]),
)
_INDICES = st.sampled_from([pa.int8(), pa.int32(), pa.uint16(), pa.int64()])
TEXTS = st.text("\x00\x01\x02a\xffé日\U0001f600", max_size=4) | st.text(max_size=20)
BYTES = st.lists(st.sampled_from(b"\x00\x01\x02\xff"), max_size=4).map(bytes) | st.binary(max_size=20)


@st.composite
def stored_types(draw: st.DrawFn, *, depth: int = 2) -> pa.DataType:
    """Every type that a table stores."""
    return _type(draw, *_STORED, depth)


@st.composite
def foreign_types(draw: st.DrawFn, *, depth: int = 2) -> pa.DataType:
    """Types that a user's data may have and a table normalises, and stored ones among them."""
    return _type(draw, *_FOREIGN, depth)


def _type(draw: st.DrawFn, scalars: Any, shapes: Any, depth: int) -> pa.DataType:
    def inner(name: str) -> pa.Field:
        return pa.field(name, _type(draw, scalars, shapes, depth - 1), nullable=draw(_BOOLEANS))

    shape = draw(shapes) if depth else "scalar"
    if shape == "scalar":
        return draw(scalars)
    if shape == "map":
        return pa.map_(inner("key").with_nullable(False), inner("value"))
    if shape == "struct":
        return pa.struct([inner(name) for name in draw(_FIELD_NAMES)])
    if shape == "dictionary":
        return pa.dictionary(draw(_INDICES), inner("").type)
    if shape == "fixed_size_list":
        return pa.list_(inner("item"), draw(st.integers(1, 2)))
    return (pa.list_ if shape == "list" else getattr(pa, shape))(inner("item"))


@st.composite
def schemas(draw: st.DrawFn, types: st.SearchStrategy[pa.DataType] | None = None, *, columns_max: int = 3) -> pa.Schema:
    """Schemas as a table stores them, with names and types that are easily got wrong.

    Args:
        types: Types of the columns; by default every type that a table stores, nested ones too.
        columns_max: The largest number of columns.
    """
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=columns_max, unique=True))
    kinds = stored_types() if types is None else types
    return pa.schema([pa.field(name, draw(kinds), nullable=draw(_BOOLEANS)) for name in names])


@st.composite
def rows(
    draw: st.DrawFn, schema: pa.Schema | st.SearchStrategy[pa.Schema] | None = None, *, rows_max: int = 5
) -> pa.RecordBatch:
    """Rows of a schema, by default of any that a table stores.

    Args:
        schema: A schema, or a strategy for one.
        rows_max: The largest number of rows.
    """
    chosen = draw(schemas() if schema is None else schema) if not isinstance(schema, pa.Schema) else schema
    size = draw(st.integers(0, rows_max))
    parts = [_column(draw, field.type, size, nullable=field.nullable) for field in chosen]
    return pa.RecordBatch.from_arrays(parts, schema=chosen)


@st.composite
def projections(draw: st.DrawFn, schema: pa.Schema) -> list[str]:
    """Some names of a schema's columns, in any order."""
    names = draw(st.permutations(schema.names))
    return names[: draw(st.integers(0, len(names)))]


@st.composite
def columns(draw: st.DrawFn, kind: pa.DataType, size: int, *, nullable: bool = True) -> pa.Array:
    """Columns of any stored or foreign type."""
    return _column(draw, kind, size, nullable=nullable)


def _column(draw: st.DrawFn, kind: pa.DataType, size: int, *, nullable: bool) -> pa.Array:
    before, after = draw(_MARGINS)
    column = _without_nulls(draw, kind, before + size + after)
    if nullable and draw(_BOOLEANS):
        column = under_nulls(column, draw(_many(_BOOLEANS, len(column))))
    return column.slice(before, size)


def under_nulls(column: pa.Array, null: Sequence[bool]) -> pa.Array:
    """The column, which is no slice, with nulls laid over its values; those remain underneath."""
    validity = pa.py_buffer(np.packbits(~np.array(null, bool), bitorder="little"))
    kind, rows, own = column.type, len(column), column.buffers()
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(under_nulls(column.indices, null), column.dictionary)
    if pa.types.is_struct(kind):
        return pa.Array.from_buffers(kind, rows, [validity], children=[column.field(i) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, rows, [validity, own[1]], children=[entries])
    if pa.types.is_nested(kind):
        return pa.Array.from_buffers(kind, rows, [validity, *own[1 : _own_buffers(kind)]], children=[column.values])
    return pa.Array.from_buffers(kind, rows, [validity, *own[1:]])


def _own_buffers(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return 1
    return 3 if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind) else 2


def _without_nulls(draw: st.DrawFn, kind: pa.DataType, size: int) -> pa.Array:
    types = pa.types
    if types.is_struct(kind):
        inner = [kind.field(i) for i in range(kind.num_fields)]
        parts = [_column(draw, field.type, size, nullable=field.nullable) for field in inner]
        return pa.StructArray.from_arrays(parts, fields=inner)
    if types.is_dictionary(kind):
        indices = draw(_many(_SIZES, size))
        return pa.DictionaryArray.from_arrays(
            pa.array(indices, kind.index_type), _column(draw, kind.value_type, 3, nullable=False)
        )
    if types.is_fixed_size_list(kind):
        items = _column(draw, kind.value_type, size * kind.list_size, nullable=kind.value_field.nullable)
        return pa.Array.from_buffers(kind, size, [None], children=[items])
    if types.is_nested(kind):
        return _lists(draw, kind, size)
    if types.is_boolean(kind):
        return pa.array(draw(_many(_BOOLEANS, size)), kind)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.array(draw(_many(TEXTS, size)), kind)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.array(draw(_many(BYTES, size)), kind)
    values = draw(_many(_values(kind), size))
    return pa.Array.from_buffers(kind, size, [None, pa.py_buffer(b"".join(values))])


def _lists(draw: st.DrawFn, kind: pa.DataType, size: int) -> pa.Array:
    types = pa.types
    sizes = draw(_many(_SIZES, size))
    offsets = [0, *np.cumsum(sizes).tolist()]
    if types.is_map(kind):
        keys = _column(draw, kind.key_type, offsets[-1], nullable=False)
        items = _column(draw, kind.item_type, offsets[-1], nullable=kind.item_field.nullable)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, kind)
    items = _column(draw, kind.value_type, offsets[-1], nullable=kind.value_field.nullable)
    if types.is_list(kind):
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, kind)
    if types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, kind)
    starts = offsets[:-1][::-1]  # the lists of a view lie in any order
    if types.is_list_view(kind):
        return pa.ListViewArray.from_arrays(
            pa.array(starts, pa.int32()), pa.array(sizes[::-1], pa.int32()), items, kind
        )
    return pa.LargeListViewArray.from_arrays(
        pa.array(starts, pa.int64()), pa.array(sizes[::-1], pa.int64()), items, kind
    )


@cache
def _values(kind: pa.DataType) -> st.SearchStrategy[bytes]:
    """Bytes of one value of a fixed width."""
    width = kind.bit_width // 8
    if pa.types.is_date64(kind):
        return _near(-(2**31), 2**31 - 1).map(lambda day: (day * _DAY_MS).to_bytes(width, "little", signed=True))
    carrier = carrier_of(kind)
    if carrier is None or carrier.layout is Layout.OPAQUE:
        return st.sampled_from([bytes(width), b"\xff" * width]) | st.binary(min_size=width, max_size=width)
    if (limits := carrier.numbers(kind)) is not None:
        return _near(*limits).map(lambda value: value.to_bytes(width, "little", signed=True))
    # Of floats any bits, so also every NaN.
    return _near(0, 2**kind.bit_width - 1).map(lambda value: value.to_bytes(width, "little"))


def _near(low: int, high: int) -> st.SearchStrategy[int]:
    """Any of these numbers, and often one of a few, so that equal ones meet."""
    middle = (low + high + 1) // 2
    return st.sampled_from([0, 1, low, high, middle, middle - 1]) | st.integers(low, high)


@cache
def _many(values: st.SearchStrategy[Any], size: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=size, max_size=size)
