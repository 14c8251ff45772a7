"""Brings sorted runs of keys and rows together, and finds keys in one: ``runs.c``, which has the invariants."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from kvstore.kernel.writes import address_of
from logformat.binary_column import BinaryColumn

_HEAD_WORDS = 4


def merged(kernel: ctypes.CDLL, runs: Sequence[tuple[BinaryColumn, BinaryColumn]]) -> tuple[BinaryColumn, BinaryColumn]:
    """Keys of all runs, sorted, each once, and of each the row of the last run that has it.

    Args:
        runs: Keys and rows of each; none is empty.
    """
    arrays = [[np.ascontiguousarray(each) for c in run for each in (c.flat, c.offsets)] for run in runs]
    table = np.array([[*map(address_of, run), len(run[1]) - 1, 0] for run in arrays], np.uint64)
    sizes = [sum(int(run[nth][-1] - run[nth][0]) for run in arrays) for nth in (1, 3)]
    flats = [np.empty(size, np.uint8) for size in sizes]
    count = sum(len(keys) for keys, _ in runs)
    numbers = np.empty((2, count + 1), np.int64)
    heap = np.empty(_HEAD_WORDS * len(runs), np.uint64)
    addresses = [address_of(array) for array in (flats[0], numbers[0], flats[1], numbers[1])]
    made = kernel.kv_merge(address_of(table), len(runs), address_of(heap), *addresses)
    widths = [{run[side].width for run in runs} for side in (0, 1)]
    return (
        BinaryColumn(flats[0], numbers[0, : made + 1], widths[0].pop() if len(widths[0]) == 1 else None),
        BinaryColumn(flats[1], numbers[1, : made + 1], widths[1].pop() if len(widths[1]) == 1 else None),
    )


def places(kernel: ctypes.CDLL, keys: BinaryColumn, asked: BinaryColumn) -> np.ndarray:
    """The place of each asked key, -1 if it is not there: int64 ``(n,)``.

    Args:
        keys: Sorted, each once.
        asked: In any order; best sorted.
    """
    positions = np.empty(len(asked), np.int64)
    parts = [np.ascontiguousarray(part) for each in (keys, asked) for part in (each.flat, each.offsets)]
    flat, ends, asked_flat, asked_ends = map(address_of, parts)
    kernel.kv_places(flat, ends, len(keys), asked_flat, asked_ends, len(asked), address_of(positions))
    return positions
