"""Exchanges rows: finds those that are there, and encodes those that take their place."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kvstore.bucket.merge.exchanged import Exchanged
from kvstore.bucket.merge.native import native_writes
from kvstore.memtable.memtable import Memtable
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from kvstore.request.take_rows import take_rows
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.ids import SchemaId


def exchange(
    memtable: Memtable,
    definition: TableDefinition,
    schema_id: SchemaId,
    keys: BinaryColumn,
    put: np.ndarray,
    rows: pa.RecordBatch,
    places: np.ndarray,
) -> Exchanged:
    """What storing or removing the rows of keys would change; nothing is changed yet.

    Args:
        keys: Distinct keys, in order.
        put: For each key, whether it gets a row; otherwise its row is removed.
        rows, places: The row of each key is ``rows[place]``.
    """
    values, hashes, sums = values_of(definition, schema_id, keys, put, rows, places)
    listed = keys.to_list()
    lengths, old = memtable.find(keys, listed)
    return Exchanged(listed, sums, put, values, hashes, lengths, old)


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
    native = native_writes(definition) if schema_id == definition.schema_id else None
    made = None if native is None else native.values(keys, rows, np.where(put, places, -1))
    if made is None:
        sums = key_sums(keys)
        values, hashes = layout_of(definition).encode_values(take_rows(rows, places[put]), sums[put], schema_id)
    else:
        values, hashes, sums = made
    return values.without_empty(), hashes, sums
