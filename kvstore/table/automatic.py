"""Auto-increment: a new row gets the next id, and keeps it for as long as it is there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import InvalidRequest
from merge_engines.engine import Merged, Operations


def numbered(merged: Merged, operations: Operations, column: str, next_id: int) -> Merged:
    """Fill an auto-increment column: of rows that are new in the order they came, of others from the row before.

    Args:
        next_id: What the first new row gets.

    Raises:
        InvalidRequest: The ids leave the column's type. Nothing was changed.
    """
    order = operations.order
    place = merged.pool.schema.get_field_index(column)
    values = merged.pool.column(place)
    changed = (merged.before != merged.after) & (merged.after >= 0)
    is_new = changed & (merged.before < 0)
    if not changed.any():
        return merged
    given = values.is_valid().to_numpy(zero_copy_only=False)
    is_new &= ~given[merged.after]  # only a write that overwrites brings one of its own
    ids = pc.fill_null(values, 0).cast(pa.int64()).to_numpy().copy()
    news = np.flatnonzero(is_new)
    _check(values.type, column, next_id + len(news) - 1)
    new_ids = np.zeros(len(order), np.int64)
    new_ids[news[np.argsort(order[news])]] = next_id + np.arange(len(news))
    # Of one key, a row has the id of the operation that made it new, else that of the stored row.
    starts = operations.by_key(operations.starts)
    stored = operations.by_key(operations.stored)
    overwritten = changed & ~is_new & given[merged.after] & (merged.after >= operations.first_incoming)
    overwritten &= merged.after < operations.pool.num_rows
    source = np.maximum.accumulate(np.where(is_new | overwritten, np.arange(len(order)), starts - 1))
    own = np.where(overwritten, ids[merged.after], new_ids)
    filled = np.where(source < starts, ids[np.maximum(stored, 0)], own[source])
    ids[merged.after[changed]] = filled[changed]
    pool = merged.pool.set_column(place, merged.pool.schema.field(place), pa.array(ids).cast(values.type))
    return Merged(pool, merged.before, merged.after)


def next_id_after(rows: pa.RecordBatch, column: str, next_id: int) -> int:
    """The next id once these rows are in the log."""
    highest = pc.max(rows.column(column)).as_py()
    return next_id if highest is None else max(next_id, highest + 1)


def _check(kind: pa.DataType, column: str, last: int) -> None:
    highest = 2 ** (kind.bit_width - 1) - 1
    if last > highest:
        raise InvalidRequest(
            "The ids of an auto-increment column are used up; make a table with a wider one.",
            column=column,
            highest=highest,
        )
