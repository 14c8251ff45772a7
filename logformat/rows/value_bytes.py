"""Size of rows in bytes, independent of the buffers that hold them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.rows.arrow_values import entries_of
from logformat.rows.schema import fixed_width, is_variable


def row_bytes(batch: pa.RecordBatch, *, nulls: bool = True) -> np.ndarray:
    """Approximate bytes of each row; depends only on its values, not on their buffers.

    Args:
        nulls: Whether a null counts as many bytes as the smallest value, otherwise none.
    """
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        lengths = _bytes_of(column)
        sizes += lengths if nulls or not column.null_count else np.where(column.is_valid(), lengths, 0)
    return sizes


def _bytes_of(column: pa.Array) -> np.ndarray:
    kind = column.type
    if not is_variable(kind):
        return np.full(len(column), fixed_width(kind), np.int64)
    if pa.types.is_struct(kind):
        return np.sum([_bytes_of(part) for part in column.flatten()], axis=0)
    if not pa.types.is_nested(kind):
        return 4 + pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    if pa.types.is_map(kind):
        column = entries_of(column)
    lengths = pc.list_value_length(column).fill_null(0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(_bytes_of(column.flatten()))])
    places = np.concatenate([[0], np.cumsum(lengths)])
    return 4 + np.diff(ends[places])
