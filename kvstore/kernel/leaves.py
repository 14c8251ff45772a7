"""Reads leaves of an index and finds the rows in them, a whole batch in one call; ``leaves.c`` has its invariants.

What the kernel can't read, and what it finds wrong, is for :class:`kvstore.index.leaves.Leaves`, to which it is held.
"""

from __future__ import annotations

import ctypes

import numpy as np

_DONE = 0
_HEAD_BYTES, _ROW_BYTES_MIN = 16, 12
"""Bytes of a page before its rows, and of the shortest row with its pointer."""


class LeafReader:
    """Reads leaves into one buffer after the other's use, so that their memory stays in the processor's cache.

    Args:
        pages_max: Most leaves at a time.
    """

    def __init__(self, kernel: ctypes.CDLL, page_bytes: int, pages_max: int) -> None:
        self._kernel = kernel
        self._page_bytes = page_bytes
        self._rows_max = pages_max * (page_bytes - _HEAD_BYTES) // _ROW_BYTES_MIN
        self._found = np.empty((3, self._rows_max), np.int64)

    def read(self, descriptor: int, numbers: np.ndarray, target: np.ndarray) -> bool:
        """Read pages, one after the other.

        Args:
            numbers: int64, rising.
            target: uint8, with room for all.

        Returns:
            False if the disk refused, or if the file is shorter.
        """
        numbers = np.ascontiguousarray(numbers, np.int64)
        arguments = descriptor, self._page_bytes, numbers.ctypes.data, len(numbers), target.ctypes.data
        return int(self._kernel.kv_read(*arguments)) == _DONE

    def find(
        self, flat: np.ndarray, places: np.ndarray, numbers: np.ndarray, last: bytes
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Rows of leaves, in key order.

        Args:
            flat: uint8, the leaves.
            places: int64, where in it each begins.
            numbers: int64, their numbers.
            last: The key before the first row.

        Returns:
            Where in ``flat`` the key of each row begins, where its value does, and where that ends: int64, and only
            until the next call. None if a page is damaged or has a value with its own pages.
        """
        rows = ctypes.c_uint64()
        numbers, places = np.ascontiguousarray(numbers, np.int64), np.ascontiguousarray(places, np.int64)
        status = self._kernel.kv_leaves(
            *(flat.ctypes.data, self._page_bytes, places.ctypes.data, numbers.ctypes.data, len(numbers)),
            *(last, len(last), self._rows_max),
            *(column.ctypes.data for column in self._found),
            ctypes.addressof(rows),
        )
        if status != _DONE:
            return None
        keys, values, ends = self._found[:, : rows.value]
        return keys, values, ends
