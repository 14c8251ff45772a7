"""Exchanges rows: encodes them, and puts them in the place of those that are there."""

from __future__ import annotations

from itertools import compress

import numpy as np
import pyarrow as pa

from kvstore.index.index import Index
from kvstore.kernel import library, writes
from kvstore.memtable.memtable import Memtable
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from kvstore.request.sizes import bytes_of
from kvstore.request.take_rows import take_rows
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.ids import SchemaId


def exchange_values(index: Index | Memtable, keys: list[bytes], put: np.ndarray, values: list[bytes]) -> list[bytes]:
    """Store values of the keys that get one, remove the others, and return what each key had."""
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
        keys: Distinct keys, in order.
        put: For each key, whether it gets a row; otherwise its row is removed.
        rows, places: The row of each key is ``rows[place]``.

    Returns:
        The values and their hashes, of keys that get a row; and the sums of all keys.
    """
    layout, kernel = layout_of(definition), library.kernel()
    table = layout.flat if kernel is not None and schema_id == definition.schema_id else None
    made = None
    if kernel is not None and table is not None and rows.num_rows and rows.schema.equals(table.schema):
        made = writes.encode(kernel, table, rows, bytes_of(rows), np.where(put, places, -1), keys)
    if made is None:
        sums = key_sums(keys)
        values, hashes = layout.encode_values(take_rows(rows, places[put]), sums[put], schema_id)
    else:
        values, hashes, sums = made
    return values.without_empty(), hashes, sums
