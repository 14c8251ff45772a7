"""The default engine: an upsert replaces the row, a delete removes it."""

from __future__ import annotations

import numpy as np

from merge_engines.engine import Merged, Operations


class LastRow:
    """The last row wins."""

    def merge(self, operations: Operations) -> Merged:
        """See :class:`merge_engines.engine.MergeEngine`."""
        order = operations.order
        after = np.where(operations.is_delete[order], -1, order + operations.first_incoming)
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[operations.starts] = operations.stored
        return Merged(operations.pool, before, after)
