"""The file of an index as the native kernel reads it, for lookups of many keys.

* It is mapped when it is first needed, and again when a page lies beyond the end of the map.
* A call that reads the map keeps it: closing the index takes it from nobody.
* A process whose address space is limited has no such map: LMDB's own need the room.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from kvstore.disk.address_space import is_limited
from kvstore.disk.environment import Environment, Transaction
from kvstore.kernel import library, pages
from logformat.binary_column import BinaryColumn

KEYS_MIN, FEW_KEYS_MIN = 32, 8
"""For fewer keys in a column, or in a list, LMDB's ``get`` is as fast."""

T = TypeVar("T")


class MappedFile:
    """The file of an environment.

    Args:
        environment: Its owner closes it, and calls :meth:`close` as well.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._map: np.ndarray | None = None

    def find(self, transaction: Transaction, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn] | None:
        """Values of keys; see :func:`kvstore.kernel.pages.find`.

        Args:
            transaction: A read transaction of the environment.

        Returns:
            None if LMDB has to be asked.

        Raises:
            CorruptData: A page is damaged.
            lmdb.Error: The transaction ended meanwhile.
        """
        return None if len(keys) < KEYS_MIN else self._ask(pages.find, transaction, keys)

    def get(self, transaction: Transaction, keys: Sequence[bytes]) -> list[bytes] | None:
        """Values of a few keys, empty where there is none; see :meth:`find`."""
        return None if len(keys) < FEW_KEYS_MIN else self._ask(pages.get, transaction, keys)

    def _ask(self, way: Callable[..., T], transaction: Transaction, keys: Any) -> T | None:
        kernel = library.kernel()
        if kernel is None:
            return None
        number = transaction.id()
        known = self._map
        if known is None:
            known = self._mapped()
        while known is not None:
            try:
                return way(kernel, known, number, keys)
            except pages.BeyondMap as beyond:
                larger = self._mapped()
                if larger is not None and len(larger) <= len(known):
                    raise pages.damaged(beyond.page) from beyond
                known = larger
            finally:
                transaction.id()  # raises if the transaction was not held until now
        return None

    def close(self) -> None:
        """Give the map back as soon as no call reads it."""
        self._map = None

    def _mapped(self) -> np.ndarray | None:
        """A new map of the whole file; None if there can't be one."""
        if is_limited():
            return None
        try:
            with self._environment.file() as descriptor:
                if descriptor is None:
                    return None
                taken = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):  # no descriptor or room is left, or the file is empty
            return None
        taken.madvise(mmap.MADV_RANDOM)  # what the kernel reads are single pages of any places
        self._map = np.frombuffer(taken, np.uint8)
        return self._map
