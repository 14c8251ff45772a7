"""Encoding of rows as byte strings, whole columns at a time (docs/format.md, Record).

A record is ``null bitmap | fixed part | variable part``: every column has its place in the fixed part, where a variable
one (string, binary, list, map, struct) stores its length; its bytes follow in the variable part. Nested values are
themselves records, so one codec serves every type. Equal rows have equal bytes: values under a null are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat import binary_column as binary_column
from logformat.binary_column import WORD, BinaryColumn
from logformat.errors import CorruptData
from logformat.rows.arrow_values import entries_of
from logformat.rows.schema import fixed_width, is_variable

_LENGTH = np.dtype("<u4")


class RecordCodec:
    """Codec of records with these column types.

    Args:
        types: Stored types (``logformat.rows.schema``), in order.
        head: Names and dtypes of fields before the bitmap, for callers that embed records in something larger.
        aligned: Records begin at multiples of 8 bytes; without a variable column, their size is also such a multiple.

    Attributes:
        types: The argument.
        dtype: The fixed part: the head, ``nulls``, and the columns ``c0``, ``c1`` …
    """

    def __init__(
        self, types: Sequence[pa.DataType], head: Sequence[tuple[str, str]] = (), *, aligned: bool = False
    ) -> None:
        self.types = list(types)
        self._variable = [i for i, kind in enumerate(types) if is_variable(kind)]
        self._names = [f"c{i}" for i in range(len(types))]
        bitmap_bytes = (len(self.types) + 7) // 8
        plain = np.dtype(
            [*head, ("nulls", np.uint8, (bitmap_bytes,))]
            + [(f"c{i}", _LENGTH if is_variable(kind) else _dtype(kind)) for i, kind in enumerate(types)]
        )
        self.dtype = _in_words(plain) if aligned and not self._variable else plain

    def encode(self, columns: Sequence[pa.Array], rows: int) -> tuple[np.ndarray, list[BinaryColumn]]:
        """Encode the fixed parts of ``rows`` records, with a zero head, and the columns of the variable part."""
        fixed = np.zeros(rows, self.dtype)
        variable = []
        for i, column in enumerate(columns):
            if column.null_count:
                fixed["nulls"][:, i >> 3] |= _null_mask(column).astype(np.uint8) << np.uint8(i & 7)
            if i in self._variable:
                encoded = _encode_variable(column)
                fixed[self._names[i]] = encoded.lengths
                variable.append(encoded)
            else:
                fixed[self._names[i]] = _encode_fixed(column)
        return fixed, variable

    def encode_whole(self, columns: Sequence[pa.Array]) -> BinaryColumn:
        """Encode whole records, one byte string for each row; there is at least one column."""
        fixed, variable = self.encode(columns, len(columns[0]))
        heads = BinaryColumn.from_matrix(fixed.view(np.uint8).reshape(len(fixed), self.dtype.itemsize))
        if not variable:
            return heads
        return binary_column.join(heads, *variable)

    def decode(
        self, flat: np.ndarray, starts: np.ndarray, ends: np.ndarray, wanted: Iterable[int] | None = None
    ) -> list[pa.Array]:
        """Decode the columns of the records at ``flat[start:end]``, which lie in order and do not overlap.

        Args:
            flat: uint8.
            starts, ends: int64 ``(n,)``.
            wanted: Columns to decode, all of them if None.

        Raises:
            CorruptData: A length points outside its record.
        """
        size = self.dtype.itemsize
        fixed_ends = starts + size
        if (fixed_ends > ends).any():
            raise CorruptData("A stored record is cut short; run `kvstore check`.")
        rows = len(starts)
        step = int(starts[1] - starts[0]) if rows > 1 else size
        if rows and (starts[1:] - starts[:-1] == step).all():
            fixed = np.ndarray((rows,), self.dtype, flat, int(starts[0]), (step,))
        else:
            fixed = binary_column.windows(flat, size)[starts].view(self.dtype)
        ranges, positions = {}, fixed_ends
        for i in self._variable:
            following = positions + fixed[self._names[i]]
            ranges[i] = (positions, following)
            positions = following
        if (positions > ends).any():
            raise CorruptData("A stored record's lengths do not add up; run `kvstore check`.")
        bitmap = fixed["nulls"] if fixed["nulls"].any() else None
        columns = []
        for i in range(len(self.types)) if wanted is None else wanted:
            nulls = None if bitmap is None else (bitmap[:, i >> 3] & np.uint8(1 << (i & 7))).astype(bool)
            if i in ranges:
                columns.append(_decode_variable(self.types[i], flat, *ranges[i], nulls))
            else:
                columns.append(_decode_fixed(self.types[i], np.ascontiguousarray(fixed[self._names[i]]), nulls))
        return columns


def _in_words(dtype: np.dtype) -> np.dtype:
    """The same fields in an item padded to whole words."""
    fields: Any = dtype.fields or {}
    formats, offsets = [field[0] for field in fields.values()], [field[1] for field in fields.values()]
    size = dtype.itemsize + -dtype.itemsize % WORD
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size})


@cache
def _dtype(kind: pa.DataType) -> np.dtype:
    width = fixed_width(kind)
    return np.dtype(f"<u{width}" if width in (1, 2, 4, 8) else f"V{width}")


def _null_mask(column: pa.Array) -> np.ndarray:
    mask: np.ndarray = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def _validity(nulls: np.ndarray | None) -> pa.Buffer | None:
    return None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _encode_fixed(column: pa.Array) -> np.ndarray:
    kind = column.type
    if pa.types.is_boolean(kind):
        flags: np.ndarray = column.fill_null(False).cast(pa.uint8()).to_numpy(zero_copy_only=False)
        return flags
    if not len(column):
        return np.zeros(0, _dtype(kind))
    # A buffer may be longer than its values: Arrow pads them.
    dtype = _dtype(kind)
    values = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    if column.null_count:
        values = values.copy()
        values[_null_mask(column)] = np.zeros(1, values.dtype)[0]
    return values


def _decode_fixed(kind: pa.DataType, values: np.ndarray, nulls: np.ndarray | None) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(values != 0, mask=nulls)
    if values.__array_interface__["data"][0] % 8:
        # One row is decoded in place, at any address; Arrow prints a warning to stderr when it computes with that.
        values = values.copy()
    return pa.Array.from_buffers(kind, len(values), [_validity(nulls), pa.py_buffer(values)])


def _encode_variable(column: pa.Array) -> BinaryColumn:
    kind = column.type
    if pa.types.is_struct(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        encoded = RecordCodec(inner).encode_whole(column.flatten())
    elif pa.types.is_map(kind):
        encoded = _encode_list(entries_of(column))
    elif pa.types.is_list(kind):
        encoded = _encode_list(column)
    else:
        encoded = BinaryColumn.from_arrow(column)
    if column.null_count:
        encoded = BinaryColumn.from_arrow(pc.if_else(column.is_valid(), encoded.to_arrow(), binary_column.EMPTY))
    return encoded


def _decode_variable(
    kind: pa.DataType, flat: np.ndarray, starts: np.ndarray, ends: np.ndarray, nulls: np.ndarray | None
) -> pa.Array:
    rows = len(starts)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _decode_list(kind, flat, starts, ends, nulls)
    if pa.types.is_struct(kind):
        there = np.ones(rows, bool) if nulls is None else ~nulls
        fields = [kind.field(i) for i in range(kind.num_fields)]
        inner = RecordCodec([field.type for field in fields]).decode(flat, starts[there], ends[there])
        if nulls is None:
            return pa.StructArray.from_arrays(inner, fields=fields)
        spread = pa.array(np.cumsum(there) - 1, mask=nulls)
        optional = [field.with_nullable(True) for field in fields]
        padded = pa.StructArray.from_arrays(
            [part.take(spread) for part in inner], fields=optional, mask=pa.array(nulls)
        )
        return pa.Array.from_buffers(
            kind, rows, [padded.buffers()[0]], children=[padded.field(i) for i in range(len(fields))]
        )
    values = binary_column.slices(flat, starts, ends)
    return pa.Array.from_buffers(kind, rows, [_validity(nulls), *values.buffers()[1:]])


# A list is ``count u32 | end of each element u32 | elements``, an element being a record of one column.


def _encode_list(column: pa.ListArray) -> BinaryColumn:
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    elements = RecordCodec([column.type.value_type]).encode_whole([column.flatten()])
    ends = (elements.offsets[1:] - np.repeat(elements.offsets[bounds[:-1]], counts)).astype(_LENGTH)
    parts = (
        BinaryColumn.from_matrix(counts.astype(_LENGTH).view(np.uint8).reshape(-1, 4)),
        BinaryColumn(ends.view(np.uint8), bounds * 4),
        BinaryColumn(elements.flat, elements.offsets[bounds]),
    )
    return binary_column.join(*parts)


def _decode_list(
    kind: pa.DataType, flat: np.ndarray, starts: np.ndarray, ends: np.ndarray, nulls: np.ndarray | None
) -> pa.Array:
    there = np.ones(len(starts), bool) if nulls is None else ~nulls
    starts, ends = starts[there], ends[there]
    if (starts + 4 > ends).any():
        raise CorruptData("A stored list is cut short; run `kvstore check`.")
    counts = np.frombuffer(binary_column.slices(flat, starts, starts + 4).buffers()[2] or b"", _LENGTH).astype(np.int64)
    elements = starts + 4 + 4 * counts
    if (elements > ends).any():
        raise CorruptData("A stored list is cut short; run `kvstore check`.")
    total = int(counts.sum())
    inner_ends = np.repeat(elements, counts)
    inner_ends += np.frombuffer(binary_column.slices(flat, starts + 4, elements).buffers()[2] or b"", _LENGTH, total)
    firsts = np.cumsum(counts) - counts
    inner_starts = np.empty(total, np.int64)
    inner_starts[1:] = inner_ends[:-1]
    inner_starts[firsts[counts > 0]] = elements[counts > 0]
    if (inner_ends < inner_starts).any() or (inner_ends > np.repeat(ends, counts)).any():
        raise CorruptData("A stored list's lengths do not add up; run `kvstore check`.")
    offsets = np.zeros(len(there) + 1, np.int32)
    offsets[1:][there] = counts
    offsets = np.cumsum(offsets, dtype=np.int32)
    value_type = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    (values,) = RecordCodec([value_type]).decode(flat, inner_starts, inner_ends)
    if pa.types.is_map(kind):
        keys, items = values.flatten()
        if keys.null_count:  # pyarrow would crash the process
            raise CorruptData("A key of a stored map is null; run `kvstore check`.")
        values = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(there), [_validity(nulls), pa.py_buffer(offsets)], children=[values])
