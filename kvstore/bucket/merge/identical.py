"""Updates that change nothing, which a table may leave out."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from kvstore.request.row_layout import TableLayout
from kvstore.request.take_rows import take_rows
from merge_engines.engine import Merged, Operations


def without_identical(merged: Merged, operations: Operations, layout: TableLayout) -> Merged:
    """Drop updates that change nothing: every value keeps its bytes."""
    updates = np.flatnonzero((merged.before >= 0) & (merged.after >= 0) & (merged.before != merged.after))
    before, after = (
        layout.encode_values(take_rows(merged.pool, places[updates]), np.zeros(len(updates), np.uint64),
                             layout.schema_id)[0].to_arrow()
        for places in (merged.before, merged.after)
    )  # fmt: skip
    identical = merged.before == merged.after  # an operation without effect keeps the row before it
    identical[updates] = pc.equal(before, after).to_numpy(zero_copy_only=False)
    kept = operations.kept(merged.after, identical)
    return Merged(merged.pool, operations.before(kept), kept)
