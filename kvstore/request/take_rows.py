"""Selection of a batch's rows by index."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def take_rows(rows: pa.RecordBatch, places: np.ndarray) -> pa.RecordBatch:
    """The rows at the given places, in that order; the batch itself if these are all rows in order."""
    count = len(places)
    if count == rows.num_rows and (places == np.arange(count)).all():
        return rows
    return rows.take(pa.array(places))
