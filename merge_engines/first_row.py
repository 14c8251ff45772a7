"""The engine that keeps the first row: an upsert of an existing key does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from merge_engines.engine import DeleteBehavior, Merged, Operations
from merge_engines.refusals import refuse_deletes, refuse_targets


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The first row wins."""

    delete_behaviors: ClassVar[tuple[DeleteBehavior, ...]] = ("ignore", "disable")
    takes_targets: ClassVar[bool] = False

    def check(self, schema: pa.Schema, key_names: Sequence[str]) -> None:
        """See :class:`merge_engines.engine.MergeEngine`."""

    def merge(self, operations: Operations) -> Merged:
        """See :class:`merge_engines.engine.MergeEngine`."""
        refuse_targets(operations, "first_row")
        refuse_deletes(operations, "first_row")
        firsts = operations.incoming[operations.starts]
        after = operations.by_key(np.where(operations.stored >= 0, operations.stored, firsts))
        before = after.copy()
        before[operations.starts] = operations.stored
        return Merged(operations.pool, before, after)
