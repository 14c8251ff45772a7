"""Verifies, decodes and compares values of rows, a whole column in one pass; ``rows.c`` has its invariants.

It knows columns of fixed width, flags, strings and bytes. What it does not know, and what it finds wrong, is for
:class:`logformat.rows.rows.RowCodec`, to which it is held.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from logformat.binary_column import WORD, BinaryColumn, Places
from logformat.checksum import weights_of_keys, weights_of_values
from logformat.rows.schema import is_variable

_DONE = 0
_FIXED, _FLAG, _VARIABLE = range(3)
_NUMBER, _PLACE, _WIDTH, _KIND, _VALUES, _OFFSETS, _VALIDITY, _NULLS, _BYTES = range(9)
_OFFSET_BYTES = 4
"""Kinds of columns, and the fields of one, all of them uint64; ``rows.c`` has the same."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How values of a schema lie in memory.

    Attributes:
        types: Types of the columns.
        columns: uint64, a row of fields for each column, as they are before a measurement.
        bitmap, bitmap_bytes: Place and size of the null bitmap.
        fixed: Bytes of the fixed part.
    """

    types: Sequence[pa.DataType]
    columns: np.ndarray
    bitmap: int
    bitmap_bytes: int
    fixed: int

    @classmethod
    def of(cls, types: Sequence[pa.DataType], fixed: np.dtype) -> Shape | None:
        """The shape of records.

        Args:
            fixed: The fixed part; see :class:`logformat.rows.record.RecordCodec`.

        Returns:
            None if a column is nested.
        """
        if any(map(pa.types.is_nested, types)):
            return None
        columns = np.zeros((len(types), _BYTES + 1), np.uint64)
        places: Mapping[str, Any] = fixed.fields or {}
        for nth, type in enumerate(types):
            dtype, place = places[f"c{nth}"][:2]
            kind = _VARIABLE if is_variable(type) else _FLAG if pa.types.is_boolean(type) else _FIXED
            columns[nth, : _KIND + 1] = nth, place, dtype.itemsize, kind
        nulls, bitmap = places["nulls"][:2]
        return cls(types, columns, bitmap, nulls.itemsize, fixed.itemsize)


def verified_schema(kernel: ctypes.CDLL, values: Places, keys: Places) -> int | None:
    """Verify the checksums of rows; the id of the schema with which all were written.

    Args:
        values: Empty for a row that is not there.
        keys: The keys under which they were found.

    Returns:
        None if there is no row, if they were written with several schemas, or if one is damaged.
    """
    # Held until the call has ended: another thread that meets a longer row takes new ones into use.
    weights = weights_of_values(values.longest() // WORD + 1), weights_of_keys(keys.longest() // WORD + 1)
    schema_id = ctypes.c_int32()
    status = kernel.kv_verify(
        *_addresses(values.flat, values.starts, values.ends),
        len(values),
        *_addresses(keys.flat, keys.starts, keys.ends),
        *_addresses(*weights),
        ctypes.addressof(schema_id),
    )
    return schema_id.value if status == _DONE and schema_id.value >= 0 else None


def decode(kernel: ctypes.CDLL, values: Places, shape: Shape, wanted: Sequence[int]) -> list[pa.Array] | None:
    """Columns of rows that were verified; null where there is no row.

    Args:
        values: See :func:`verified_schema`.
        wanted: Numbers of columns.

    Returns:
        None if a value is not of this shape.
    """
    count = len(values)
    needed = shape.columns[:, _KIND] == _VARIABLE  # the values of one begin where those before it end
    needed[wanted] = True
    order = np.flatnonzero(needed)
    order = order[np.argsort(shape.columns[order, _KIND] != _VARIABLE, kind="stable")]
    columns = shape.columns[order]
    place_of = {number: place for place, number in enumerate(columns[:, _NUMBER].tolist())}
    wanted_places = [place_of[number] for number in wanted]
    variable = int((columns[:, _KIND] == _VARIABLE).sum())
    measured = (*_addresses(values.flat, values.starts, values.ends), count, shape.bitmap)
    sizes = shape.bitmap_bytes, shape.fixed, columns.ctypes.data, len(columns), variable
    if kernel.kv_measure(*measured, *sizes) != _DONE:
        return None
    buffers = {place: _buffers(columns[place], count) for place in wanted_places}
    is_variable_wanted = (columns[wanted_places, _KIND] == _VARIABLE).any()
    cursors = np.empty(count, np.int64) if is_variable_wanted else None
    kernel.kv_decode(
        *(*measured, shape.fixed, columns.ctypes.data, len(columns)), None if cursors is None else cursors.ctypes.data
    )
    nulls = columns[:, _NULLS].tolist()
    return [
        pa.Array.from_buffers(shape.types[number], count, buffers[place], null_count=nulls[place])
        for number, place in zip(wanted, wanted_places, strict=True)
    ]


def compared(shape: Shape, bits: Mapping[int, int]) -> tuple[np.ndarray, int]:
    """Columns for :func:`differences`, and how many of them have values whose sizes differ.

    Args:
        bits: The bit of each column that is compared, by its number.
    """
    is_variable = shape.columns[:, _KIND] == _VARIABLE
    needed = is_variable.copy()
    needed[list(bits)] = True
    order = np.flatnonzero(needed)
    order = order[np.argsort(~is_variable[order], kind="stable")]
    its_bits = np.array([bits.get(number, 0) for number in order.tolist()], np.uint64)
    return np.column_stack([shape.columns[order, : _KIND + 1], its_bits]), int(is_variable.sum())


def differences(
    kernel: ctypes.CDLL,
    keys: BinaryColumn,
    before: Places,
    after: Places,
    shape: Shape,
    columns: tuple[np.ndarray, int],
    schema_id: int,
) -> np.ndarray | None:
    """Which columns of rows have other values after a change: bits, uint64 ``(n,)``, all if there is only one row.

    Args:
        before, after: Rows of each key; empty where there is none.
        columns: See :func:`compared`.

    Returns:
        None if not all rows are of this schema, or one is damaged.
    """
    numbers, variable = columns
    differ = np.empty(len(keys), np.uint64)
    offsets = np.ascontiguousarray(keys.offsets)
    status = kernel.kv_differ(
        *_addresses(keys.flat, offsets),
        len(keys),
        *_addresses(before.flat, before.starts, before.ends, after.flat, after.starts, after.ends),
        *(schema_id, shape.bitmap, shape.fixed, numbers.ctypes.data, len(numbers), variable, differ.ctypes.data),
    )
    return differ if status == _DONE else None


def _buffers(column: np.ndarray, count: int) -> list[pa.Buffer | None]:
    """Buffers of an Arrow array, whose addresses go into a column."""
    _, _, width, kind, _, _, _, nulls, size = column.tolist()
    bits = -(-count // 8)
    # Arrow's memory is used again by the next rows; numpy's goes back to the system, which then has to clear its pages.
    value_bytes = size if kind == _VARIABLE else count * width
    values = _zeros(bits) if kind == _FLAG else pa.allocate_buffer(value_bytes)
    column[_VALUES] = values.address
    is_valid = None
    if nulls:
        is_valid = _zeros(bits)
        column[_VALIDITY] = is_valid.address
    if kind != _VARIABLE:
        return [is_valid, values]
    offsets = pa.allocate_buffer((count + 1) * _OFFSET_BYTES)
    column[_OFFSETS] = offsets.address
    return [is_valid, offsets, values]


def _zeros(size: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(size)
    np.frombuffer(buffer, np.uint8)[:] = 0
    return buffer


def _addresses(*arrays: np.ndarray) -> tuple[int, ...]:
    return tuple(array.ctypes.data for array in arrays)
