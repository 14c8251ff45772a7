"""What a merge engine is given and what it answers. Rows are named by their place in a pool, and not copied.

A pool is a record batch: first the stored rows, then the incoming ones, then any an engine computes. For every
operation an engine answers with the row its key had before and the row it has after, -1 for none. The same place
before and after means that nothing happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Operations:
    """One batch of operations, grouped by key: *n* operations on *m* different keys.

    Attributes:
        pool: Stored rows, and behind them the *n* incoming ones.
        stored: int64 ``(m,)``, for each key its stored row's place in the pool, -1 if it has none.
        order: int64 ``(n,)``, incoming rows by key; of one key in the order they came.
        starts, lasts: int64 ``(m,)``, where in ``order`` each key's first and last operation are.
        is_delete: bool ``(n,)``, for each incoming row.
    """

    pool: pa.RecordBatch
    stored: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    lasts: np.ndarray
    is_delete: np.ndarray

    @property
    def first_incoming(self) -> int:
        """Place of the first incoming row in the pool."""
        return int(self.pool.num_rows) - len(self.order)


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of a batch of operations.

    Attributes:
        pool: The pool, with rows the engine computed behind.
        before, after: int64 ``(n,)`` in the sequence of ``Operations.order``: places in the pool, -1 for no row.
    """

    pool: pa.RecordBatch
    before: np.ndarray
    after: np.ndarray


class MergeEngine(Protocol):
    """The rule of a table."""

    def merge(self, operations: Operations) -> Merged:
        """Apply every operation to the row its key has then; several on one key one after the other.

        Raises:
            InvalidRequest: An operation is not allowed, or its result can't be stored.
        """
