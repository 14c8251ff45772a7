"""Finds keys in LMDB's committed pages, many in one call; LMDB's ``get`` takes one call and one object for each key.

* The pages are in a map, whose bytes the kernel does not trust (``find.c`` has its invariants).
* What it finds is right only if a read transaction was held from before the call until after it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from kvstore.errors import CorruptData
from kvstore.kernel.writes import address_of, numbers_of
from logformat.binary_column import WORD, BinaryColumn

_DONE, _OTHER_COMMIT, _BEYOND, _DAMAGED = range(4)
"""How a search ends; ``find.c`` has the same."""
_FEW_WORDS = 4
"""Numbers for each key that ``kv_few_find`` returns, or needs; and as many more."""


class BeyondMap(Exception):
    """A page is beyond the end of the map.

    Attributes:
        page: Its number.
    """

    def __init__(self, page: int) -> None:
        super().__init__(page)
        self.page = page


def find(
    kernel: ctypes.CDLL, mapped: np.ndarray, transaction: int, keys: BinaryColumn
) -> tuple[np.ndarray, BinaryColumn] | None:
    """Values of keys, as of a transaction.

    Args:
        mapped: The file of the index, or its beginning: uint8.

    Returns:
        For each key whether it is there, and the values of those that are, in their order. None if the tree of the
        transaction is not known any more.

    Raises:
        BeyondMap: The map ends before a page that is needed.
        CorruptData: A page is damaged.
    """
    count = len(keys)
    places, lengths = np.empty(count, np.uint64), np.empty(count, np.uint32)
    flat, ends = np.ascontiguousarray(keys.flat), np.ascontiguousarray(keys.offsets)
    page = ctypes.c_uint64()
    file, its_places, its_lengths = address_of(mapped), address_of(places), address_of(lengths)
    status = kernel.kv_find(
        *(file, len(mapped), transaction, address_of(flat), address_of(ends), count),
        *(its_places, its_lengths, ctypes.addressof(page)),
    )
    if not _is_known(status, page.value):
        return None
    there = lengths > 0
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = np.empty(int(offsets[-1]), np.uint8)
    kernel.kv_copy(file, its_places, its_lengths, count, address_of(values))
    return there, BinaryColumn(values, offsets if there.all() else np.append(offsets[:-1][there], offsets[-1]))


def get(kernel: ctypes.CDLL, mapped: np.ndarray, transaction: int, keys: Sequence[bytes]) -> list[bytes] | None:
    """Like :func:`find`, of a few keys: their values, empty where there is none."""
    count = len(keys)
    memory = b"".join([numbers_of(count).pack(*map(len, keys)), *keys])
    target = bytes(_FEW_WORDS * WORD * (count + 1))  # new, and known here only, so the kernel may fill it
    status = kernel.kv_few_find(address_of(mapped), len(mapped), transaction, memory, count, target)
    numbers, file = numbers_of(2 * count + 1).unpack_from(target), mapped.data
    if not _is_known(status, numbers[-1] % 2**64):
        return None
    return [bytes(file[place : place + size]) for place, size in zip(numbers[:count], numbers[count:-1], strict=True)]


def _is_known(status: int, page: int) -> bool:
    if status == _BEYOND:
        raise BeyondMap(page)
    if status == _DAMAGED:
        raise damaged(page)
    return status != _OTHER_COMMIT


def damaged(page: int) -> CorruptData:
    """The error for a page that is not what LMDB writes."""
    return CorruptData("A page of an index is damaged; run `kvstore check`.", page=page)
