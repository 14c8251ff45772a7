"""History of each key's row within one batch: which rows are computed, and from which rows.

Most keys have a stored row and one upsert: such pairs are kept separate, since one call merges them all. All other keys
are runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from merge_engines.engine import Operations
from merge_engines.runs import Runs


@dataclass(frozen=True)
class Sources:
    """Inputs of the computed rows: first *p* rows from a pair each, then *c* rows along runs.

    Attributes:
        stored, incoming: int64 ``(p,)``, places in the pool.
        runs: Runs of other keys.
        wanted: int64 ``(c,)``, the elements of runs that need a computed row; includes every element that is not the
            first of its run.
    """

    stored: np.ndarray
    incoming: np.ndarray
    runs: Runs
    wanted: np.ndarray

    @cached_property
    def pairs_as_runs(self) -> tuple[Runs, np.ndarray]:
        """The pairs as runs of two, and the wanted elements of those runs."""
        count = len(self.stored)
        places = np.stack([self.stored, self.incoming], 1).reshape(2 * count)
        firsts = np.arange(count) * 2
        return Runs(places, np.repeat(firsts, 2)), firsts + 1


@dataclass(frozen=True, slots=True)
class History:
    """The sequence of rows of some keys.

    Attributes:
        runs: The stored row of a key, if there is one, and all its operations; a delete is a row of nulls and begins
            a run.
        operations: int64 ``(q,)``, the keys' operations, in the order of ``Operations.order``.
        elements: int64 ``(q,)``, the element of each operation.
    """

    runs: Runs
    operations: np.ndarray
    elements: np.ndarray


def history_of(operations: Operations, keys: np.ndarray, is_delete: np.ndarray, exists: np.ndarray) -> History:
    """Builds the history of some keys.

    Args:
        keys: bool ``(m,)``, true for these keys.
        is_delete, exists: bool ``(n,)`` in the order of ``order``: whether an operation is a delete, and whether its
            key has a row before it.
    """
    stored, counts = operations.stored[keys], (operations.lasts - operations.starts + 1)[keys]
    of_keys = np.flatnonzero(operations.by_key(keys))
    has_stored = stored >= 0
    stored_up_to = np.cumsum(has_stored)
    elements = np.arange(len(of_keys)) + np.repeat(stored_up_to, counts)
    of_stored = (np.cumsum(counts) - counts + stored_up_to - 1)[has_stored]
    total = len(elements) + len(of_stored)
    places, begins = np.empty(total, np.int64), np.ones(total, bool)
    places[elements] = np.where(is_delete[of_keys], -1, operations.incoming[of_keys])
    begins[elements] = is_delete[of_keys] | ~exists[of_keys]
    places[of_stored] = stored[has_stored]
    starts = np.flatnonzero(begins)
    return History(Runs(places, np.repeat(starts, np.diff(starts, append=total))), of_keys, elements)
