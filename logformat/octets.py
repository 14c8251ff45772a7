"""Columns of byte strings: how keys and rows travel between Arrow, numpy and lists of bytes.

An *octets* column is a ``pa.FixedSizeBinaryArray`` (all of one width) or a ``pa.BinaryArray``, without nulls.
Nothing here loops over rows in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Octets: TypeAlias = Any  # pa.FixedSizeBinaryArray | pa.BinaryArray; pyarrow has no types

EMPTY = pa.scalar(b"", pa.binary())


def from_matrix(matrix: np.ndarray) -> pa.FixedSizeBinaryArray:
    """Rows of a C-contiguous uint8 matrix ``(n, width)`` as a fixed-width column; no copy."""
    rows, width = matrix.shape
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(matrix)])


def to_matrix(column: pa.FixedSizeBinaryArray) -> np.ndarray:
    """The uint8 matrix ``(n, width)`` behind a fixed-width column; no copy, read-only."""
    width = column.type.byte_width
    if not len(column):
        return np.zeros((0, width), np.uint8)
    flat = np.frombuffer(column.buffers()[1], np.uint8)
    return flat[column.offset * width : (column.offset + len(column)) * width].reshape(len(column), width)


def from_flat(flat: np.ndarray, offsets: np.ndarray) -> pa.BinaryArray:
    """Column over ``flat`` (uint8), cut at the ``n + 1`` ``offsets``; no copy of the bytes."""
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(flat)]
    )


def to_flat(column: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (uint8) and the ``n + 1`` offsets (int64) into them of a variable-width column; no copy of the bytes."""
    _, offsets_buffer, data = column.buffers()
    if offsets_buffer is None or not len(column):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    flat = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return flat, offsets.astype(np.int64)


def as_binary(column: pa.Array) -> pa.BinaryArray:
    """Any octets or string column as ``binary``."""
    return column if column.type == pa.binary() else column.cast(pa.binary())


def from_list(strings: Sequence[bytes]) -> pa.BinaryArray:
    """Column of a list of byte strings."""
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, strings), np.int64, len(strings)), out=offsets[1:])
    return from_flat(np.frombuffer(b"".join(strings), np.uint8), offsets)


def to_list(column: Octets) -> list[bytes]:
    """The byte strings of a column, each an object of its own: the form LMDB takes."""
    if pa.types.is_fixed_size_binary(column.type):
        matrix = to_matrix(column)
        strings: list[bytes] = matrix.view(f"V{matrix.shape[1]}").ravel().tolist()
    else:
        strings = column.to_numpy(zero_copy_only=False).tolist()
    return strings


def slices(flat: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.BinaryArray:
    """Column of ``flat[start:end]``; ranges lie in order and do not overlap."""
    # The gaps between the ranges become strings of their own, which the take leaves behind.
    bounds = np.empty(2 * len(starts) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2] if len(starts) else 0
    return from_flat(flat, bounds).take(pa.array(np.arange(0, 2 * len(starts), 2)))


def join(*columns: pa.Array) -> pa.BinaryArray:
    """Row by row, the columns' byte strings one behind the other."""
    return pc.binary_join_element_wise(*map(as_binary, columns), EMPTY)


def padded_to_words(column: Octets) -> pa.Array:
    """The same byte strings, zeros added up to the next multiple of 8 bytes."""
    if pa.types.is_fixed_size_binary(column.type):
        matrix = to_matrix(column)
        padding = -matrix.shape[1] % 8
        return column if not padding else from_matrix(np.pad(matrix, ((0, 0), (0, padding))))
    return join(column, word_padding(np.diff(to_flat(column)[1])))


def word_padding(lengths: np.ndarray) -> pa.BinaryArray:
    """For strings of these lengths, the zeros up to the next multiple of 8 bytes."""
    return _PADDINGS.take(pa.array(-lengths % 8))


_PADDINGS = pa.array([bytes(n) for n in range(8)], pa.binary())
