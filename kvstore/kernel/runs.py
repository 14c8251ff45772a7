"""Runs of rows: brings two together, and finds keys in one, in one call: ``runs.c``."""

from __future__ import annotations

import ctypes
from typing import TypeAlias

import numpy as np

from kvstore.kernel.writes import address_of
from logformat.binary_column import WORD, BinaryColumn

Columns: TypeAlias = tuple[BinaryColumn, BinaryColumn]
"""Keys, sorted and each once; and a row of each."""
_RUN_WORDS = 5


def merge(kernel: ctypes.CDLL, older: Columns, newer: Columns) -> Columns:
    """The rows of both; of a key that both have, the newer one."""
    words: list[int] = []
    kept = []  # until the end
    for run in (older, newer):
        parts = [np.ascontiguousarray(part) for part in (run[0].flat, run[1].flat, run[0].offsets, run[1].offsets)]
        words += [*map(address_of, parts), len(run[0])]
        kept.append(parts)
    room = len(older[0]) + len(newer[0]) + 1
    keys, rows = (
        np.empty(_bytes_of(one) + _bytes_of(other), np.uint8) for one, other in zip(older, newer, strict=True)
    )
    ends = np.empty((2, room), np.int64)
    given = np.array([*words, address_of(keys), address_of(rows), *(map(address_of, ends))], np.uint64)
    address = address_of(given)
    count = kernel.kv_merge(address, address + _RUN_WORDS * WORD, address + 2 * _RUN_WORDS * WORD)
    key_ends, row_ends = (each[: count + 1] for each in ends)
    width = older[0].width if older[0].width == newer[0].width else None
    return BinaryColumn(keys, key_ends, width), BinaryColumn(rows, row_ends)


def places(kernel: ctypes.CDLL, keys: BinaryColumn, asked: BinaryColumn) -> np.ndarray:
    """The place of each asked key, -1 if it is not there: int64 ``(n,)``.

    Args:
        keys: Sorted, each once.
        asked: In any order; best sorted.
    """
    found = np.empty(len(asked), np.int64)
    parts = [np.ascontiguousarray(part) for each in (keys, asked) for part in (each.flat, each.offsets)]
    flat, ends, asked_flat, asked_ends = map(address_of, parts)
    kernel.kv_places(flat, ends, len(keys), asked_flat, asked_ends, len(asked), address_of(found))
    return found


def _bytes_of(column: BinaryColumn) -> int:
    return int(column.offsets[-1] - column.offsets[0])
