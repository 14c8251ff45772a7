"""Undoing some changes of rows while others stay, column by column. Pure: it knows no log and no table.

* An insert and a delete change every column, an update those whose stored bytes differ.
* A selected change marks the columns that it changes. If another change changes a marked column later, its key is in
  conflict, and the row stays as it is.
* Otherwise each marked column gets the value it had before the change that marked it. The others stay as they are now.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.request.request import Grouping
from logformat.rows.record import RecordCodec


@dataclass(frozen=True, slots=True)
class Unpicked:
    """Rows without the selected changes.

    Attributes:
        rows: A row for each key that changes; of a removed one, the row as it is now.
        removed: For each of these rows, whether it is removed.
        conflicts: The keys in conflict, as places of their last change.
    """

    rows: pa.RecordBatch
    removed: np.ndarray
    conflicts: np.ndarray


def unpicked(
    before: pa.RecordBatch,
    after: pa.RecordBatch,
    existed: np.ndarray,
    exists: np.ndarray,
    selected: np.ndarray,
    grouping: Grouping,
) -> Unpicked:
    """Undo the selected changes.

    Args:
        before, after: For each change, the row before it and after it; nulls where there is none.
        existed, exists: For each change, whether there was a row before it, and whether there is one after it.
        selected: For each change, whether it is undone.
        grouping: The changes by key, those of a key in order.
    """
    order, starts, lasts = grouping.order, grouping.starts, grouping.lasts
    count, keys = len(order), len(starts)
    key_of = np.repeat(np.arange(keys), lasts - starts + 1)
    chosen = selected[order]
    whole = ~(existed & exists)
    in_conflict = np.zeros(keys, bool)
    marked_at = np.full((len(before.schema), keys), -1)
    for nth, (old, new) in enumerate(zip(before.columns, after.columns, strict=True)):
        changed = (whole | ~_equal(old, new))[order]
        marks = chosen & changed
        is_marked = _earlier(marks, starts, key_of)
        in_conflict[key_of[changed & ~chosen & is_marked]] = True
        first = np.flatnonzero(marks & ~is_marked)
        marked_at[nth, key_of[first]] = first
    latest = order[lasts]
    there = exists[latest]
    marks_at = np.where(marked_at < 0, count, marked_at).min(axis=0, initial=count)
    is_touched = (marks_at < count) & ~in_conflict
    removed = is_touched & ~existed[order[np.minimum(marks_at, max(count - 1, 0))]]
    columns, differs = [], removed != ~there
    for nth, (old, new) in enumerate(zip(before.columns, after.columns, strict=True)):
        restores = (marked_at[nth] >= 0) & ~removed
        places = np.where(restores, order[marked_at[nth]], count + latest)
        columns.append(pa.concat_arrays([old, new]).take(pa.array(places)))
        differs |= ~removed & ~_equal(columns[-1], new.take(pa.array(latest)))
    kept = np.flatnonzero(is_touched & differs)
    rows = pa.RecordBatch.from_arrays(columns, schema=after.schema).take(pa.array(kept))
    return Unpicked(rows, removed[kept], latest[in_conflict])


def _earlier(flags: np.ndarray, starts: np.ndarray, key_of: np.ndarray) -> np.ndarray:
    """For each change, whether an earlier one of its key is flagged."""
    before = np.cumsum(flags) - flags
    was_there: np.ndarray = before > before[starts][key_of]
    return was_there


def _equal(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Where two columns hold the same value, as stored: NaN is equal to itself, and -0.0 is not 0.0."""
    codec = RecordCodec([one.type])
    left, right = codec.encode_whole([one]).to_arrow(), codec.encode_whole([other]).to_arrow()
    return pc.equal(left, right).to_numpy(zero_copy_only=False)
