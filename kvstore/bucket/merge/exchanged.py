"""What a batch changes: the rows that it stores, and those that were there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np

from kvstore.memtable.memtable import Memtable
from logformat.binary_column import BinaryColumn


class Effect(NamedTuple):
    """Change of the row count and of the digest (modulo 2^64) by a batch."""

    added_rows: int
    digest: int = 0


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Values to store and values that are there, for each key.

    Attributes:
        keys, sums: The keys, and their ``checksum.key_sums``.
        put: Whether a row is stored for the key; else its row is removed.
        values, hashes: The rows to store, and their hashes.
        lengths: int64, bytes of the row that is there, 0 if there is none.
        old: The rows that are there.
    """

    keys: list[bytes]
    sums: np.ndarray
    put: np.ndarray
    values: BinaryColumn
    hashes: np.ndarray
    lengths: np.ndarray
    old: BinaryColumn

    @property
    def there(self) -> np.ndarray:
        """Whether there is a row."""
        there: np.ndarray = self.lengths > 0
        return there

    def effect(self, old_digest: int) -> Effect:
        """Change of the count and the digest, given the sum of the hashes of the old rows."""
        added = np.count_nonzero(self.put) - np.count_nonzero(self.lengths)
        return Effect(int(added), digest_of(self.hashes) - old_digest)

    def store(self, memtable: Memtable) -> None:
        """Store and remove the rows."""
        if self.put.all():
            memtable.put(self.keys, self.values.to_list())
        else:
            memtable.put(list(compress(self.keys, self.put)), self.values.to_list())
            memtable.delete(list(compress(self.keys, ~self.put)))


def digest_of(hashes: np.ndarray) -> int:
    """Sum of hashes, modulo 2^64."""
    return int(hashes.sum(dtype=np.uint64))
