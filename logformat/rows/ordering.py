"""Sorting of keys. numpy sorts numbers twenty times as fast as Arrow sorts strings, so keys are turned into numbers.

Only byte positions in which keys differ affect their order: for URLs with running numbers these are few, however long
the common parts. The first eight such bytes form one number. Where these numbers are equal, the rank so far and the
next bytes form another number, and so on.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.binary_column import WORD, BinaryColumn, windows
from logformat.rows.keys import ROW

_PASSES_MAX = 4
_BYTES_MORE = 5
"""Bytes of a later number after the rank of its key."""
KEYS_MAX = 1 << 24
"""Number of keys whose rank fits into the other bytes; more are ordered by their bytes."""
_SPREAD_MAX = 16
"""Largest difference of key lengths; each byte of it costs a pass over all keys."""


def in_order(keys: BinaryColumn) -> tuple[np.ndarray, np.ndarray]:
    """Sort keys; equal keys keep their order.

    Args:
        keys: At least two, from :class:`KeyCodec`. No key is a proper prefix of another.

    Returns:
        The places of the keys in sorted order (int64), and for each sorted key but the first, whether it differs from
        the one before.
    """
    matrix = _padded(keys)
    if matrix is not None:
        places = _varying_columns(matrix)
        numbers = _numbers(matrix, places[:WORD])
        for nth in range(_PASSES_MAX):
            order = np.argsort(numbers)
            ordered = numbers[order]
            differs = ordered[1:] != ordered[:-1]
            if differs.all():
                return order, differs
            rest = places[WORD + _BYTES_MORE * nth :][:_BYTES_MORE]
            if not len(rest):
                # Stable sorting is slower, and only needed for equal keys.
                return np.argsort(numbers, kind="stable"), differs
            ranks = np.zeros(len(order), np.uint64)
            ranks[order[1:]] = differs.cumsum()
            numbers = ranks << np.uint64(8 * _BYTES_MORE) | _numbers(matrix, rest)
    strings = keys.to_arrow()
    order = pc.array_sort_indices(strings).to_numpy().astype(np.int64)
    ordered = strings.take(pa.array(order))
    return order, pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)


def _padded(keys: BinaryColumn) -> np.ndarray | None:
    """Keys as rows of a matrix, padded with zeros; None if there are too many, or if their lengths differ too much."""
    if len(keys) > KEYS_MAX:
        return None
    if keys.width is not None:
        return keys.matrix()
    lengths = keys.lengths
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest - shortest > _SPREAD_MAX:
        return None
    flat = keys.flat
    if keys.offsets[-2] + longest > len(flat):
        flat = np.append(flat, np.zeros(_SPREAD_MAX, np.uint8))
    matrix = windows(flat, longest)[keys.offsets[:-1]].view(np.uint8).reshape(len(keys), longest)
    for position in range(shortest, longest):
        matrix[lengths <= position, position] = 0
    return matrix


def _varying_columns(matrix: np.ndarray) -> np.ndarray:
    """Columns that differ between rows."""
    width = matrix.shape[1]
    if width <= len(ROW) + WORD:
        return np.arange(len(ROW), width)  # one number holds all bytes after the common first byte
    return np.flatnonzero(np.bitwise_or.reduce(matrix ^ matrix[0], axis=0))


def _numbers(matrix: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Up to eight columns of a byte matrix as one column of numbers of the same order."""
    padded = np.zeros((len(matrix), WORD), np.uint8)
    padded[:, WORD - len(places) :] = matrix[:, places]
    return padded.view(">u8").reshape(len(matrix)).astype(np.uint64)
