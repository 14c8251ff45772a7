"""Conversion of Arrow columns to a stored type, provided that every value survives.

A column of the stored type is used as it is. Otherwise nested types and dictionaries are taken apart, and the remaining
columns, which have no children, are cast within their kind: integers (including decimals without decimal places) to
integers or floats, floats to wider ones, text to text, bytes to bytes, times to times. Values under a null are ignored.
Floats of 16 bits, which not every library has, are also taken from wider ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import SchemaMismatch
from logformat.rows.schema import normalise_type
from logformat.rows.types.column_type import Layout
from logformat.rows.types.registry import LISTS, carrier_of


def as_type(column: pa.Array, stored: pa.DataType) -> pa.Array:
    """Convert a column to a stored type.

    Raises:
        SchemaMismatch: The types are of different kinds.
        pa.ArrowException: A value does not survive the conversion.
    """
    types = pa.types
    given = column.type
    if given == stored:
        return column
    if types.is_null(given) or (types.is_dictionary(given) and types.is_null(given.value_type)):
        return pa.nulls(len(column), stored)
    if types.is_dictionary(given):
        # Dictionary values that no row uses may not fit, so take the rows first; pyarrow can't do that with views.
        values = as_type(column.dictionary, normalise_type(given.value_type))
        return as_type(values.take(column.indices), stored)
    if carrier_of(given) is LISTS and types.is_list(stored):
        lengths = pc.if_else(column.is_valid(), pc.list_value_length(column), 0)
        return list_of(lengths, column.is_null(), as_type(column.flatten(), stored.value_type), stored)
    if types.is_map(given) and types.is_map(stored):
        entries = entries_of(column)
        lengths = pc.list_value_length(entries).fill_null(0)
        keys, items = entries.flatten().flatten()
        keys, items = as_type(keys, stored.key_type), as_type(items, stored.item_type)
        return map_of(lengths, column.is_null(), keys, items, stored)
    if types.is_struct(given) and types.is_struct(stored) and given.names == stored.names:
        parts = [as_type(part, field.type) for part, field in zip(column.flatten(), stored.fields, strict=True)]
        return struct_of(parts, column.is_null(), stored)
    if not _of_one_kind(given, stored):
        raise SchemaMismatch(_why_other(column, stored), given=given)
    if types.is_integer(given) and types.is_floating(stored):
        return _as_floats(column, stored)
    if types.is_floating(given) and given.bit_width > stored.bit_width:
        return _as_narrower(column, stored)
    if types.is_string_view(given) or types.is_binary_view(given):
        # pyarrow does not check whether the bytes of a view are too many for 32-bit offsets; for large types it does.
        column = column.cast(pa.large_string() if types.is_string_view(given) else pa.large_binary())
    return column.cast(stored)


def _why_other(column: pa.Array, stored: pa.DataType) -> str:
    """What is wrong with a column of another kind than the stored type."""
    types, given = pa.types, column.type
    if types.is_floating(given) and types.is_string(stored) and pc.all(pc.is_nan(column), min_count=0).as_py():
        return 'This column of text has only NaN or null, as floats; in pandas, convert it with astype("string").'
    if types.is_floating(given) and types.is_integer(stored):
        return (
            "A column of floats does not go into one of integers. pandas makes floats of integers with missing values:"
            ' convert it with astype("Int64").'
        )
    if types.is_decimal(stored) and (types.is_floating(given) or types.is_string(given)):
        return (
            "A column of floats or text does not become decimals, which are exact. Read the file with their type, such"
            f" as pyarrow.csv.ConvertOptions(column_types={{name: pyarrow.{stored}}}); or cast the column."
        )
    if types.is_timestamp(given) and types.is_timestamp(stored):
        rule = "Either every time of this column has a time zone or none has; its type decides. In pandas, "
        if given.tz is None:
            return rule + 'give times a zone with dt.tz_localize("UTC").'
        return rule + 'remove the zone with dt.tz_convert("UTC").dt.tz_localize(None).'
    return "A column has a different type than the table's; cast it first."


def nulls_within(column: pa.Array) -> int:
    """Number of nulls inside nested values, where the type does not allow them."""
    kind = column.type
    is_map = pa.types.is_map(kind)
    if pa.types.is_struct(kind):
        fields, outer = kind.fields, column.null_count
    else:
        # A key of a map is never null itself, but a struct or list in its place may contain a null.
        fields, outer = [kind.key_field.with_nullable(True), kind.item_field] if is_map else [kind.value_field], 0
    if all(field.nullable and not pa.types.is_nested(field.type) for field in fields):
        return 0
    nulls = 0
    for part, field in zip(_parts(column), fields, strict=True):
        if not field.nullable:
            nulls += part.null_count - outer
        if pa.types.is_nested(field.type):
            nulls += nulls_within(part)
    return nulls


def _parts(column: pa.Array) -> list[pa.Array]:
    """The fields of structs, null where the struct is; the items of lists; the keys and items of maps."""
    if pa.types.is_struct(column.type):
        return column.flatten()
    if pa.types.is_map(column.type):
        return entries_of(column).flatten().flatten()
    return [column.flatten()]


def entries_of(column: pa.MapArray) -> pa.ListArray:
    """A column of maps as one of lists of their entries, which are structs of a key and an item; nothing is copied."""
    # A cast would refuse a null struct whose fields are not nullable, because those are null, too.
    entries = column.values
    return pa.Array.from_buffers(
        pa.list_(entries.type), len(column), column.buffers()[:2], column.null_count, column.offset, [entries]
    )


def list_of(lengths: pa.Array, nulls: pa.Array, items: pa.Array, stored: pa.ListType) -> pa.Array:
    """A column of lists from their lengths, 0 where they are null, and all their items."""
    return pa.ListArray.from_arrays(_offsets(lengths), items, stored, mask=nulls)


def map_of(lengths: pa.Array, nulls: pa.Array, keys: pa.Array, items: pa.Array, stored: pa.MapType) -> pa.Array:
    """A column of maps from their lengths, 0 where they are null, and all their keys and items."""
    if keys.null_count:  # pyarrow would crash the process
        raise SchemaMismatch("A key of a map is null.", nulls=keys.null_count)
    return pa.MapArray.from_arrays(_offsets(lengths), keys, items, stored, mask=nulls)


def struct_of(parts: Sequence[pa.Array], nulls: pa.Array, stored: pa.StructType) -> pa.Array:
    """A column of structs from their fields, which are null where the struct is."""
    return pa.StructArray.from_arrays(parts, fields=stored.fields, mask=nulls)


def _offsets(lengths: pa.Array) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=offsets[1:])
    return pa.array(offsets).cast(pa.int32())


def _of_one_kind(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether a column of one type without children can be cast to another, if each value survives."""
    types = pa.types
    if types.is_floating(stored):
        wide = types.is_floating(given) and (given.bit_width <= stored.bit_width or types.is_float16(stored))
        return bool(types.is_integer(given) or wide)
    if types.is_decimal(given) and types.is_integer(stored):
        return bool(given.scale == 0)
    if types.is_timestamp(stored):
        return bool(types.is_timestamp(given) and (given.tz is None) == (stored.tz is None))
    one, other = carrier_of(given), carrier_of(stored)
    return one is not None and other is not None and one.python is other.python and one.layout is not Layout.NESTED


def _as_narrower(column: pa.Array, stored: pa.DataType) -> pa.Array:
    floats = column.cast(stored)
    same = pc.or_(pc.equal(floats.cast(column.type), column), pc.is_nan(column))
    if not pc.all(same, min_count=0).as_py():  # nulls don't count
        raise SchemaMismatch("No float of the column equals this float; cast it first.", given=column.type)
    return floats


def _as_floats(column: pa.Array, stored: pa.DataType) -> pa.Array:
    floats = column.cast(stored, safe=False)
    # The largest integers may round up out of their type; casting them back is then undefined by the processor.
    beyond = 2.0 ** (column.type.bit_width - pa.types.is_signed_integer(column.type))
    too_large = pc.any(pc.greater_equal(floats.cast(pa.float64()), beyond)).as_py()
    if too_large or not floats.cast(column.type).equals(column):
        raise SchemaMismatch("No float of the column equals this integer.")
    return floats
