"""What a batch changes in the index, and what it takes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np

from kvstore.index.index import Index
from logformat.binary_column import BinaryColumn


class Effect(NamedTuple):
    """Change of the row count and of the digest (modulo 2^64) by a batch."""

    added_rows: int
    digest: int = 0


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Values stored in the index and values returned from it, for each key.

    Attributes:
        keys, sums: The keys, and their ``checksum.key_sums``.
        put: Whether a row was stored for the key.
        hashes: Hashes of the stored rows.
        old: Values that the index held; empty where there was none.
        lengths: int64, bytes of these values.
    """

    keys: list[bytes]
    sums: np.ndarray
    put: np.ndarray
    hashes: np.ndarray
    old: list[bytes]
    lengths: np.ndarray

    @property
    def there(self) -> np.ndarray:
        """Whether the index held a value."""
        there: np.ndarray = self.lengths > 0
        return there

    @property
    def values(self) -> BinaryColumn:
        """The values that the index held."""
        return BinaryColumn.from_list(self.old).without_empty()

    def effect(self, old_digest: int) -> Effect:
        """Change of the count and the digest, given the sum of the hashes of the old rows."""
        added = np.count_nonzero(self.put) - np.count_nonzero(self.lengths)
        return Effect(int(added), digest_of(self.hashes) - old_digest)

    def put_back(self, index: Index) -> None:
        """Undo the exchange."""
        there = [bool(value) for value in self.old]
        index.replace(list(compress(self.keys, there)), list(filter(None, self.old)))
        index.remove([key for key, was_there in zip(self.keys, there, strict=True) if not was_there])


def digest_of(hashes: np.ndarray) -> int:
    """Sum of hashes, modulo 2^64."""
    return int(hashes.sum(dtype=np.uint64))
