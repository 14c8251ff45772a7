"""What a merge engine is given and what it answers. Rows are named by their place in a pool, and not copied.

A pool is a record batch: first the stored rows, then the incoming ones, then any an engine computes. For every
operation an engine answers with the row its key had before and the row it has after, -1 for none. The same place
before and after means that nothing happened.
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
        pool: Stored rows, and behind them the *n* incoming ones.
        stored: int64 ``(m,)``, for each key its stored row's place in the pool, -1 if it has none.
        order: int64 ``(n,)``, incoming rows by key; of one key in the order they came.
        starts, lasts: int64 ``(m,)``, where in ``order`` each key's first and last operation are.
        is_delete: bool ``(n,)``, for each incoming row.
        targets: Columns that upserts set and deletes make null, all key columns among them. Incoming rows have nulls
            in the other columns. None: every column, and a delete removes the row.
        key_names: Key columns. May be left out if ``targets`` is None.
        automatic: A column that the table fills itself, no target: it alone is nothing that is left of a row.
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
        """int64 ``(n,)``, the incoming rows' places in the pool, in the sequence of ``order``."""
        return self.order + self.first_incoming

    @property
    def is_partial(self) -> bool:
        """Whether there is a column that is no target."""
        return self.targets is not None and not self.targets.issuperset(self.pool.schema.names)

    @property
    def is_single(self) -> np.ndarray:
        """Bool ``(m,)``, which keys have one operation only."""
        return self.starts == self.lasts

    def by_key(self, of_keys: np.ndarray) -> np.ndarray:
        """For each operation in the sequence of ``order``, what its key has in ``of_keys`` ``(m,)``."""
        if len(of_keys) == len(self.order):
            return of_keys
        return np.repeat(of_keys, self.lasts - self.starts + 1)

    def before(self, after: np.ndarray) -> np.ndarray:
        """Rows before each operation, given those after."""
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[self.starts] = self.stored
        return before

    def kept(self, after: np.ndarray, does_nothing: np.ndarray) -> np.ndarray:
        """``after``, and behind an operation that does nothing the row there was."""
        starts = self.by_key(self.starts)
        source = np.maximum.accumulate(np.where(does_nothing, starts - 1, np.arange(len(after))))
        return np.where(source < starts, self.by_key(self.stored), after[source])


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
    """The rule of a table.

    Attributes:
        delete_behaviors: What may become of deletes in a table of this rule, the default first. Only ``allow`` lets
            them reach :meth:`merge`.
        takes_targets: Whether operations may be partial.
    """

    delete_behaviors: ClassVar[tuple[DeleteBehavior, ...]]
    takes_targets: ClassVar[bool]

    def check(self, schema: pa.Schema, key_names: Sequence[str]) -> None:
        """Check that a table of this schema and key can have this rule.

        Raises:
            InvalidRequest: It can't; a column is missing, or its type is wrong.
        """

    def merge(self, operations: Operations) -> Merged:
        """Apply every operation to the row its key has then; several on one key one after the other.

        Raises:
            InvalidRequest: An operation is not allowed, or its result can't be stored.
        """
