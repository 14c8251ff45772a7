"""Makes change records from the result of a merge, in the order of the operations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from logformat.log.change import ChangeType
from merge_engines.engine import Merged

_UPDATE = [ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE]
_WITH_INSERTS = np.array([[ChangeType.DELETE, ChangeType.INSERT], _UPDATE], np.uint8)
_WITHOUT_INSERTS = np.array([[ChangeType.DELETE, ChangeType.UPDATE_POSTIMAGE], _UPDATE], np.uint8)
"""Change types of a removed row and an added row, by whether they are one update."""


def records_of(
    merged: Merged, order: np.ndarray, *, preimages: bool = True, inserts: bool = True
) -> tuple[np.ndarray, pa.RecordBatch]:
    """Change records of one batch of operations.

    An operation leaves ``+I`` where there was no row, ``-D`` where there is none any more, ``-U`` and ``+U`` where one
    took the place of another, and nothing where nothing happened.

    Args:
        order: For each operation in the sequence of ``merged``, its place among the operations as they came.
        preimages: Whether there is ``-U``.
        inserts: Whether there is ``+I``; else it is ``+U`` too.

    Returns:
        Byte codes (uint8) of :class:`ChangeType`, and as many rows, which have zeros under their nulls.
    """
    places = np.empty((len(order), 2), np.int64)
    places[order, 0], places[order, 1] = merged.before, merged.after
    # For each operation, whether it has a record of the removed row, and one of the added row.
    recorded = (places >= 0) & (places[:, :1] != places[:, 1:])
    changed = recorded.all(axis=1)
    change_types = (_WITH_INSERTS if inserts else _WITHOUT_INSERTS)[changed.view(np.uint8)]
    if not preimages:
        recorded[:, 0] &= ~changed
    return change_types[recorded], merged.pool.take(pa.array(places[recorded]))
