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
"""Number of consecutive ids of one bucket before the ids of the next bucket."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Maps the counts (from 1) of a bucket's new rows to ids, and back."""

    bucket: BucketId
    buckets: int

    def of(self, counts: np.ndarray) -> np.ndarray:
        """Ids of new rows as int64; the highest must fit into it."""
        segments, places = np.divmod(counts - 1, SEGMENT_IDS)
        return (segments * self.buckets + self.bucket) * SEGMENT_IDS + places + 1

    def highest(self, count: int) -> int:
        """Id of one new row, of any size."""
        segment, place = divmod(count - 1, SEGMENT_IDS)
        return (segment * self.buckets + self.bucket) * SEGMENT_IDS + place + 1

    def counts(self, ids: np.ndarray) -> np.ndarray:
        """Counts of the new rows with these ids; 0 for ids of other buckets, and for ids that are never given out."""
        segments, places = np.divmod(ids - 1, SEGMENT_IDS)
        is_own = (ids > 0) & (segments % self.buckets == self.bucket)
        return np.where(is_own, segments // self.buckets * SEGMENT_IDS + places + 1, 0)


def numbered(merged: Merged, operations: Operations, column: str, ids_of: Ids, next_count: int) -> Merged:
    """Fill an auto-increment column: new rows get ids in the order of their operations, others keep their id.

    Args:
        next_count: That of the first new row, unless an overwriting write brings a higher id before it.

    Raises:
        InvalidRequest: The ids leave the column's type. Nothing was changed.
    """
    order = operations.order
    place = merged.pool.schema.get_field_index(column)
    values = merged.pool.column(place)
    changed = (merged.before != merged.after) & (merged.after >= 0)
    if not changed.any():
        return merged
    is_given = values.is_valid().to_numpy(zero_copy_only=False)[merged.after]
    ids = pc.fill_null(values, 0).cast(pa.int64()).to_numpy().copy()
    is_new = changed & (merged.before < 0) & ~is_given
    # Only a write with `overwrite` has ids of its own; computed rows have the ids of the rows before.
    is_own = changed & is_given & (merged.after >= operations.first_incoming)
    is_own &= merged.after < operations.pool.num_rows
    own = np.where(is_own, ids[merged.after], 0)
    counts, last = _new_counts(is_new, np.where(is_own, ids_of.counts(own), 0), order, next_count)
    limit = 2 ** (values.type.bit_width - 1) - 1
    if len(counts) and ids_of.highest(last) > limit:
        raise InvalidRequest(
            f'Reached maximum value of sequence "{column}" ({limit}); make a table with a wider column.', column=column
        )
    own[is_new] = ids_of.of(counts)
    # A row has the id of the operation that made its key new or that has an id, otherwise that of the stored row.
    starts = operations.by_key(operations.starts)
    stored = operations.by_key(operations.stored)
    source = np.maximum.accumulate(np.where(is_new | is_own, np.arange(len(order)), starts - 1))
    filled = np.where(source < starts, ids[np.maximum(stored, 0)], own[source])
    ids[merged.after[changed]] = filled[changed]
    pool = merged.pool.set_column(place, merged.pool.schema.field(place), pa.array(ids).cast(values.type))
    return Merged(pool, merged.before, merged.after)


def next_count_after(rows: pa.RecordBatch, column: str, ids_of: Ids, next_count: int) -> int:
    """Count of the next new row once these rows are in the log."""
    ids = rows.column(column).drop_null().cast(pa.int64()).to_numpy()
    return max(next_count, int(ids_of.counts(ids).max(initial=0)) + 1)


def _new_counts(is_new: np.ndarray, brought: np.ndarray, order: np.ndarray, next_count: int) -> tuple[np.ndarray, int]:
    """Counts of new rows: each is one more than the highest count before its operation.

    Args:
        brought: For each operation the count of the id it brings, 0 for none.

    Returns:
        The counts, and the last of them; if it is more than an int64 holds, only it is right.
    """
    arrived = np.empty(len(order), np.int64)
    arrived[order] = is_new
    given = np.cumsum(arrived)
    # Minus the number of counts given out so far, the highest count changes only where a write has a higher one.
    highest = np.full(len(order), next_count - 1)
    brings = brought > 0
    if brings.any():
        highest[order[brings]] = np.maximum(brought[brings] - given[order[brings]], next_count - 1)
        highest = np.maximum.accumulate(highest)
    news = order[is_new]
    latest = int(news.max(initial=0))
    return highest[news] + given[news], int(highest[latest]) + int(given[latest])
