"""Input and output of a merge engine. Rows are identified by their place in a pool and are not copied.

A pool is a record batch: the stored rows, then the incoming rows, then the rows that the engine computes. For every
operation the engine returns the row of its key before and after the operation, -1 for none. The same place before and
after means that the operation changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa

DeleteBehavior = Literal["allow", "ignore", "disable"]


@dataclass(frozen=True, slots=True)
class Operations:
    """One batch of operations, grouped by key: *n* operations on *m* different keys.

    Attributes:
        pool: Stored rows, then the *n* incoming rows.
        stored: int64 ``(m,)``, for each key its stored row's place in the pool, -1 if it has none.
        order: int64 ``(n,)``, incoming rows grouped by key; rows of one key keep their order of arrival.
        starts, lasts: int64 ``(m,)``, the positions in ``order`` of each key's first and last operation.
        is_delete: bool ``(n,)``, for each incoming row.
        targets: Columns that upserts set and deletes make null, including all key columns. Incoming rows have nulls in
            the other columns. None: all columns, and a delete removes the row.
        key_names: Key columns. May be left out if ``targets`` is None.
        automatic: A column that the table fills itself, never a target: a row with no other value left counts as empty.
    """

    pool: pa.RecordBatch
    stored: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    lasts: np.ndarray
    is_delete: np.ndarray
    targets: frozenset[str] | None = None
    key_names: tuple[str, ...] = ()
    automatic: str | None = None

    @property
    def first_incoming(self) -> int:
        """Place of the first incoming row in the pool."""
        return int(self.pool.num_rows) - len(self.order)

    @property
    def incoming(self) -> np.ndarray:
        """int64 ``(n,)``, the incoming rows' places in the pool, in the order of ``order``."""
        return self.order + self.first_incoming

    @property
    def is_partial(self) -> bool:
        """Whether some column is not a target."""
        return self.targets is not None and not self.targets.issuperset(self.pool.schema.names)

    @property
    def is_single(self) -> np.ndarray:
        """Bool ``(m,)``, true for keys with exactly one operation."""
        return self.starts == self.lasts

    def by_key(self, of_keys: np.ndarray) -> np.ndarray:
        """Expands ``of_keys`` ``(m,)`` to one value for each operation, in the order of ``order``."""
        if len(of_keys) == len(self.order):
            return of_keys
        return np.repeat(of_keys, self.lasts - self.starts + 1)

    def before(self, after: np.ndarray) -> np.ndarray:
        """Rows before each operation, derived from the rows after."""
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[self.starts] = self.stored
        return before

    def kept(self, after: np.ndarray, does_nothing: np.ndarray) -> np.ndarray:
        """Replaces ``after`` of each operation that does nothing with the row that was there before."""
        starts = self.by_key(self.starts)
        source = np.maximum.accumulate(np.where(does_nothing, starts - 1, np.arange(len(after))))
        return np.where(source < starts, self.by_key(self.stored), after[source])


@dataclass(frozen=True, slots=True)
class Merged:
    """Result of a batch of operations.

    Attributes:
        pool: The pool, with the rows that the engine computed at its end.
        before, after: int64 ``(n,)`` in the order of ``Operations.order``: places in the pool, -1 for no row.
    """

    pool: pa.RecordBatch
    before: np.ndarray
    after: np.ndarray


class MergeEngine(Protocol):
    """The merge rule of a table.

    Attributes:
        delete_behaviors: Delete behaviors that a table of this rule may have, the default first. Only with ``allow`` do
            deletes reach :meth:`merge`.
        takes_targets: Whether operations may be partial.
    """

    delete_behaviors: ClassVar[tuple[DeleteBehavior, ...]]
    takes_targets: ClassVar[bool]

    def check(self, schema: pa.Schema, key_names: Sequence[str]) -> None:
        """Check that a table of this schema and key can use this rule.

        Raises:
            InvalidRequest: It can't: a column is missing or has the wrong type.
        """

    def merge(self, operations: Operations) -> Merged:
        """Apply every operation to the current row of its key; operations on one key apply in order.

        Raises:
            InvalidRequest: An operation is not allowed, or its result can't be stored.
        """
