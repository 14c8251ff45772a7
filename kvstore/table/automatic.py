"""Auto-increment: a new row gets the next id, and keeps it for as long as it is there.

Each bucket counts its new rows for itself. Of several buckets each has every so many segments of ids, so that no id is
given twice; of one bucket, ids are the count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import InvalidRequest
from logformat.ids import BucketId
from merge_engines.engine import Merged, Operations

SEGMENT_IDS = 100_000
"""Ids of a bucket that follow one another before another bucket's come."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids of the new rows of one bucket of several, by their count from 1."""

    bucket: BucketId
    buckets: int

    def of(self, counts: np.ndarray) -> np.ndarray:
        """The id of each new row."""
        segments, places = np.divmod(counts - 1, SEGMENT_IDS)
        return (segments * self.buckets + self.bucket) * SEGMENT_IDS + places + 1

    def next_count(self, ids: np.ndarray) -> int:
        """The count after the highest of these ids that is the bucket's own; 1 if none is."""
        segments, places = np.divmod(ids - 1, SEGMENT_IDS)
        own = (segments % self.buckets == self.bucket) & (ids > 0)
        return int((segments[own] // self.buckets * SEGMENT_IDS + places[own] + 2).max(initial=1))


def numbered(merged: Merged, operations: Operations, column: str, ids_of: Ids, next_count: int) -> Merged:
    """Fill an auto-increment column: of rows that are new in the order they came, of others from the row before.

    Args:
        next_count: That of the first new row.

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
    given_out = ids_of.of(next_count + np.arange(len(news)))
    _check(values.type, column, given_out)
    new_ids = np.zeros(len(order), np.int64)
    new_ids[news[np.argsort(order[news])]] = given_out
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


def next_count_after(rows: pa.RecordBatch, column: str, ids_of: Ids, next_count: int) -> int:
    """The count of the next new row once these rows are in the log."""
    ids = rows.column(column).drop_null().cast(pa.int64()).to_numpy()
    return max(next_count, ids_of.next_count(ids))


def _check(kind: pa.DataType, column: str, ids: np.ndarray) -> None:
    highest = 2 ** (kind.bit_width - 1) - 1
    if ids.max(initial=0) > highest:
        raise InvalidRequest(
            f'Reached maximum value of sequence "{column}" ({highest}); make a table with a wider column.',
            column=column,
        )
