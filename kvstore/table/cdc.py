"""From what a merge did to the change records it leaves, in the order of the operations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kvstore.table.pick import pick
from logformat.change import ChangeType
from merge_engines.engine import Merged

_OF_GAINED = np.array([ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE], np.uint8)
_OF_LOST = np.array([ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE], np.uint8)
"""What a row gained or lost is, by whether it is part of an update."""


def records_of(
    merged: Merged, order: np.ndarray, *, preimages: bool = True, inserts: bool = True
) -> tuple[np.ndarray, pa.RecordBatch, np.ndarray]:
    """Change records of one batch of operations.

    An operation leaves ``+I`` where there was no row, ``-D`` where there is none any more, ``-U`` and ``+U`` where one
    took the place of another, and nothing where nothing happened.

    Args:
        order: For each operation in the sequence of ``merged``, its place among the operations as they came.
        preimages: Whether there is ``-U``.
        inserts: Whether there is ``+I``; else it is ``+U`` too.

    Returns:
        Byte codes (uint8) of :class:`ChangeType`, and as many rows; and for each operation, as they came, how many
        there are up to it, its own included.
    """
    before, after = np.empty_like(merged.before), np.empty_like(merged.after)
    before[order], after[order] = merged.before, merged.after
    happened = before != after
    lost, gained = happened & (before >= 0), happened & (after >= 0)
    changed = lost & gained
    if not preimages:
        lost &= ~gained
    ends = np.cumsum(lost.astype(np.int64) + gained)
    total = int(ends[-1]) if len(ends) else 0
    # A row gained is the last record of its operation; a row lost is the one before it, or the last.
    gained_at = ends[gained] - 1
    lost_at = ends[lost] - 1 - gained[lost]
    change_types = np.empty(total, np.uint8)
    is_update = changed | (not inserts)
    change_types[gained_at] = _OF_GAINED[is_update[gained].view(np.uint8)]
    change_types[lost_at] = _OF_LOST[changed[lost].view(np.uint8)]
    places = np.empty(total, np.int64)
    places[gained_at], places[lost_at] = after[gained], before[lost]
    return change_types, pick(merged.pool, places), ends
