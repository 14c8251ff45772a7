"""The default engine: an upsert replaces the row, a delete removes it; partial ones touch only their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from merge_engines.engine import DeleteBehavior, Merged, Operations
from merge_engines.functions.function import LAST_VALUE
from merge_engines.update import update_columns


@dataclass(frozen=True, slots=True)
class LastRow:
    """The last row wins."""

    delete_behaviors: ClassVar[tuple[DeleteBehavior, ...]] = ("allow", "ignore", "disable")
    takes_targets: ClassVar[bool] = True

    def check(self, schema: pa.Schema, key_names: Sequence[str]) -> None:
        """See :class:`merge_engines.engine.MergeEngine`."""

    def merge(self, operations: Operations) -> Merged:
        """See :class:`merge_engines.engine.MergeEngine`."""
        if operations.is_partial:
            return update_columns(operations, lambda _: LAST_VALUE)
        after = np.where(operations.is_delete[operations.order], -1, operations.incoming)
        return Merged(operations.pool, operations.before(after), after)
