"""Conversions of columns between Arrow and numpy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from logformat.rows.schema import is_variable

_BYTES_MAX = 2**31 - 1


def validity_of(column: pa.Array) -> np.ndarray:
    """Mask of the values that are not null: bool ``(n,)``."""
    return column.is_valid().to_numpy(zero_copy_only=False)


def is_fixed_number(kind: pa.DataType) -> bool:
    """Whether numpy represents values of the type as numbers: integers, floats, dates and times."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind))


def numbers_of(column: pa.Array) -> np.ndarray:
    """Values of a column of integers, floats, dates or times, not copied; undefined where the value is null."""
    kind = column.type
    dtype = np.dtype(f"i{kind.bit_width // 8}" if pa.types.is_temporal(kind) else kind.to_pandas_dtype())
    return _flat(column, dtype, 1)


def halves_of(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Low and high 64 bits (uint64) of decimals, not copied; undefined where the value is null."""
    words = _flat(column, np.dtype("<u8"), 2).reshape(len(column), 2)
    return words[:, 0], words[:, 1]


def column_of(values: np.ndarray, is_valid: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Builds a column of fixed-width values.

    Args:
        values: C-contiguous; rows of ``kind``'s width.
        is_valid: bool, true where the value is not null.
    """
    bits = None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(is_valid), [bits, pa.py_buffer(values)])


def take(column: pa.Array, places: np.ndarray) -> pa.Array:
    """Values at the given places, which may repeat; null where the place is -1.

    Raises:
        pa.ArrowInvalid: The values are more than one Arrow column can hold.
    """
    is_none = places < 0
    # Arrow detects this too, but only after it has allocated all the memory.
    if is_variable(column.type) and _bytes_at(column, places[~is_none]) > _BYTES_MAX:
        raise pa.ArrowInvalid("The values are too long for one column.")
    return column.take(pa.array(places, mask=is_none) if is_none.any() else pa.array(places))


def _bytes_at(column: pa.Array, places: np.ndarray) -> int:
    """Bytes of the values at the given places; an upper bound if values are nested and too few to matter."""
    if not len(places):
        return 0
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        cuts = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
        return int((cuts[places + 1] - cuts[places]).sum(dtype=np.int64))
    counts = np.bincount(places)
    repeated = np.flatnonzero(counts > 1)
    most = column.nbytes
    if most * (1 + int(counts.max())) <= _BYTES_MAX:
        return most
    return most + sum(column.slice(row, 1).nbytes * int(counts[row]) for row in repeated.tolist())


def at(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Values at the given indices; undefined where the index is -1."""
    # Indexing fails on an empty array, even if every index is -1.
    return values[indices] if len(values) else np.zeros(len(indices), values.dtype)


def _flat(column: pa.Array, dtype: np.dtype, width: int) -> np.ndarray:
    data = column.buffers()[1]
    if not len(column) or data is None:
        return np.zeros(len(column) * width, dtype)
    return np.frombuffer(data, dtype, len(column) * width, column.offset * width * dtype.itemsize)
