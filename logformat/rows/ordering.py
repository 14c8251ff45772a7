"""Keys in order. numpy sorts numbers twenty times as fast as Arrow sorts strings, so numbers are made of the keys.

Only bytes in which keys differ at all say anything of their order: of URLs with running numbers a few, whatever else
they have in common. The first eight of them are one number. Where these are equal, the place among the others and the
next bytes make another one, and so on.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.binary_column import WORD, Octets, windows
from logformat.rows.keys import ROW

_PASSES_MAX = 4
_BYTES_MORE = 5
"""Of a later number, behind the place among the others,"""
_KEYS_MAX = 1 << 24
"""which has the other bytes."""
_SPREAD_MAX = 16
"""Between the shortest and the longest key; each byte more costs a pass over all keys."""


def in_order(keys: Octets) -> tuple[np.ndarray, np.ndarray]:
    """Where each key stands if they are sorted; those that are equal stay in the order they came.

    Args:
        keys: At least two, of the :class:`KeyCodec`. None is the beginning of another, unless they are equal.

    Returns:
        Their places (int64), and for each but the first of the sorted keys whether it differs from the one before.
    """
    matrix = _padded(keys)
    if matrix is not None:
        places = _telling(matrix)
        numbers = _numbers(matrix, places[:WORD])
        for nth in range(_PASSES_MAX):
            order = np.argsort(numbers)
            ordered = numbers[order]
            differs = ordered[1:] != ordered[:-1]
            if differs.all():
                return order, differs
            rest = places[WORD + _BYTES_MORE * nth :][:_BYTES_MORE]
            if not len(rest):
                # Slower, and of no use while every key is there once.
                return np.argsort(numbers, kind="stable"), differs
            ranks = np.zeros(len(order), np.uint64)
            ranks[order[1:]] = differs.cumsum()
            numbers = ranks << np.uint64(8 * _BYTES_MORE) | _numbers(matrix, rest)
    strings = keys.to_arrow()
    order = pc.array_sort_indices(strings).to_numpy().astype(np.int64)
    ordered = strings.take(pa.array(order))
    return order, pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)


def _padded(keys: Octets) -> np.ndarray | None:
    """Keys as rows of a matrix, zeros behind shorter ones; None if they are too many, or too different in length."""
    if len(keys) > _KEYS_MAX:
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
    for place in range(shortest, longest):
        matrix[lengths <= place, place] = 0
    return matrix


def _telling(matrix: np.ndarray) -> np.ndarray:
    """Columns that are not the same in all rows."""
    width = matrix.shape[1]
    if width <= len(ROW) + WORD:
        return np.arange(len(ROW), width)  # one number has them all, and every key begins alike
    return np.flatnonzero(np.bitwise_or.reduce(matrix ^ matrix[0], axis=0))


def _numbers(matrix: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Up to eight columns of a matrix of bytes as one column of numbers of the same order."""
    padded = np.zeros((len(matrix), WORD), np.uint8)
    padded[:, WORD - len(places) :] = matrix[:, places]
    return padded.view(">u8").reshape(len(matrix)).astype(np.uint64)
