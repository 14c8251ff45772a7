"""What a batch changes in the index, and what it takes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kvstore.index.index import Index
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from kvstore.request.take_rows import take_rows
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.ids import SchemaId


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


def exchange(
    index: Index,
    definition: TableDefinition,
    schema_id: SchemaId,
    keys: BinaryColumn,
    put: np.ndarray,
    rows: pa.RecordBatch,
    places: np.ndarray,
) -> Exchanged:
    """Store or remove the rows of keys, and return the values that the index held: one pass does both.

    Args:
        keys: Distinct keys, in order.
        put: For each key, whether it gets a row; otherwise its row is removed.
        rows, places: The row of each key is ``rows[place]``.
    """
    values, hashes, sums = values_of(definition, schema_id, keys, put, rows, places)
    listed = keys.to_list()
    old = exchange_values(index, listed, put, values.to_list())
    return Exchanged(listed, sums, put, hashes, old, np.fromiter(map(len, old), np.int64, len(old)))


def exchange_values(index: Index, keys: list[bytes], put: np.ndarray, values: list[bytes]) -> list[bytes]:
    """Store values of the keys that get one, remove the others, and return what the index held for each key."""
    if put.all():
        return index.replace(keys, values)
    old_of_put = index.replace(list(compress(keys, put)), values)
    old_of_removed = index.remove(list(compress(keys, ~put)))
    both = np.empty(len(keys), object)
    both[put], both[~put] = old_of_put, old_of_removed
    old: list[bytes] = both.tolist()
    return old


def values_of(
    definition: TableDefinition,
    schema_id: SchemaId,
    keys: BinaryColumn,
    put: np.ndarray,
    rows: pa.RecordBatch,
    places: np.ndarray,
) -> tuple[BinaryColumn, np.ndarray, np.ndarray]:
    """Values to store, by the kernel where it can.

    Args:
        put, rows, places: See :func:`exchange`.

    Returns:
        The values and their hashes, of keys that get a row; and the sums of all keys.
    """
    from kvstore.bucket.merge.native import native_writes

    native = native_writes(definition) if schema_id == definition.schema_id else None
    made = None if native is None else native.values(keys, rows, np.where(put, places, -1))
    if made is None:
        sums = key_sums(keys)
        values, hashes = layout_of(definition).encode_values(take_rows(rows, places[put]), sums[put], schema_id)
    else:
        values, hashes, sums = made
    return values.without_empty(), hashes, sums
