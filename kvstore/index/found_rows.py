"""Rows that a scan has found: copied, or where they lie in the pages that were read."""

from __future__ import annotations

import numpy as np

from logformat.binary_column import BinaryColumn, Places, gather, gather_padded


class FoundRows:
    """Rows in key order, at least one.

    Args:
        copied: Their keys and values, if these were copied.

    Attributes:
        key_places, value_places: Where they lie. The next rows may be read into the same memory, unless these were
            copied.
    """

    def __init__(
        self, key_places: Places, value_places: Places, copied: tuple[BinaryColumn, BinaryColumn] | None = None
    ) -> None:
        self.key_places = key_places
        self.value_places = value_places
        self._copied = copied

    @classmethod
    def of(cls, keys: BinaryColumn, values: BinaryColumn) -> FoundRows:
        """Rows that were copied."""
        return cls(Places.of(keys), Places.of(values), (keys, values))

    def keys(self) -> BinaryColumn:
        """Their keys, copied."""
        if self._copied is not None:
            return self._copied[0]
        places = self.key_places
        return gather((places.flat,), places.starts, places.lengths)

    def values(self) -> BinaryColumn:
        """Their values, copied.

        Zero words may follow a value: they change neither its checksum nor its content, and give all values one width.
        """
        if self._copied is not None:
            return self._copied[1]
        places = self.value_places
        padded = gather_padded(places.flat, places.starts, places.lengths)
        return gather((places.flat,), places.starts, places.lengths) if padded is None else padded


class PlacedRows:
    """Rows of leaves that lie in memory, for a search by key.

    Args:
        flat: uint8, the leaves, and as many bytes after them as a page has.
        page_bytes: Size of a leaf.
        keys, values, ends: int64 ``(n,)``, where in it the key of each row begins, its value, and where that ends.
    """

    def __init__(
        self, flat: np.ndarray, page_bytes: int, keys: np.ndarray, values: np.ndarray, ends: np.ndarray
    ) -> None:
        self._flat = flat
        self._page_bytes = page_bytes
        self._keys = keys
        self._values = values
        self._ends = ends

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, place: int) -> bytes:
        return self._flat[self._keys[place] : self._values[place]].tobytes()

    def value_bytes(self) -> np.ndarray:
        """Size of each value: int64 ``(n,)``."""
        return self._ends - self._values

    def some(self, start: int, stop: int) -> FoundRows:
        """The rows from ``start`` to ``stop`` (exclusive)."""
        keys, values, ends = self._keys[start:stop], self._values[start:stop], self._ends[start:stop]
        page_bytes = self._page_bytes
        return FoundRows(Places(self._flat, keys, values, page_bytes), Places(self._flat, values, ends, page_bytes))
