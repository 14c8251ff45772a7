"""Runs: consecutive rows of one key, and functions that compute along all runs at once.

A run begins with a row that is taken as it is: the stored row, or the first incoming row if there is none. Each further
row is merged with the result so far, so each element of a run has its own result. Nothing here loops over rows: runs
are grouped by length, in powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from merge_engines.columns import validity_of

_WINDOW = 32


@dataclass(frozen=True)
class Runs:
    """Elements of runs, run after run.

    Attributes:
        places: int64 ``(e,)``, each element's row in the pool; -1 for a row of nulls.
        firsts: int64 ``(e,)``, where each element's run begins.
    """

    places: np.ndarray
    firsts: np.ndarray

    # Cached, since each column asks for them.

    @cached_property
    def positions(self) -> np.ndarray:
        """int64 ``(e,)``, each element's position in its run, from 0."""
        return np.arange(len(self.firsts)) - self.firsts

    @cached_property
    def later(self) -> np.ndarray:
        """int64, the elements that are not the first of their run."""
        return np.flatnonzero(self.positions)

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 ``(r,)``, the first element of each run."""
        return np.flatnonzero(self.positions == 0)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 ``(r,)``, the number of elements of each run."""
        return np.diff(self.starts, append=len(self.firsts))

    @cached_property
    def longest(self) -> int:
        """Number of elements of the longest run."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def _has_nulls(self) -> bool:
        return bool((self.places < 0).any())

    def not_null(self, column: pa.Array, wanted: np.ndarray) -> tuple[Runs, np.ndarray]:
        """The runs without elements whose value in a column is null.

        Args:
            column: A column of the pool.
            wanted: int64 ``(c,)``, the elements that need a result.

        Returns:
            The remaining runs, and for each wanted element the last remaining element of its run up to itself, -1 for
            none.
        """
        if not column.null_count and not self._has_nulls:
            return self, wanted
        is_valid = validity_of(column)[self.places] & (self.places >= 0)
        ends = np.cumsum(is_valid)
        kept = np.flatnonzero(is_valid)
        before_run = ends[self.firsts] - is_valid[self.firsts]
        last = np.where(ends[wanted] > before_run[wanted], ends[wanted] - 1, -1)
        return Runs(self.places[kept], before_run[kept]), last


def accumulate(function: np.ufunc, values: np.ndarray, runs: Runs) -> np.ndarray:
    """Results of a binary function along the runs, strictly one element after another.

    Sums of floats round as if rows arrived one by one, and integers are correct modulo 2^bits.

    Args:
        function: Takes two values; its result has the same type.
        values: ``(e,)``, one for each element.

    Returns:
        ``(e,)``; for the first element of a run, its own value.
    """
    results, starts, lengths = values.copy(), runs.starts, runs.lengths
    with np.errstate(all="ignore"):
        # Most keys have a stored row and one operation.
        results[runs.later] = function(values[runs.later - 1], values[runs.later])
        width = 2
        while width < runs.longest:
            shorter, width = width, 2 * width
            some = (lengths > shorter) & (lengths <= width)
            if not some.any():
                continue
            elements = starts[some][:, None] + np.arange(width)
            is_inside = np.arange(width) < lengths[some][:, None]
            # Values past the end of a run are accumulated too, and dropped.
            rows = values[np.minimum(elements, len(values) - 1)]
            results[elements[is_inside]] = function.accumulate(rows, axis=1, dtype=values.dtype)[is_inside]
    return results


def choose(replaces: Callable[[np.ndarray, np.ndarray], np.ndarray], runs: Runs) -> np.ndarray:
    """The chosen element of each run up to each element.

    Args:
        replaces: For two arrays of elements, whether each element of the first, which comes later, replaces its
            counterpart in the second. MUST be transitive, so that neighbours can be compared first.

    Returns:
        int64 ``(e,)``, an element of the same run, at or before this one.
    """
    chosen, later, distance = np.arange(len(runs.firsts)), runs.later, 1
    chosen[later] = np.where(replaces(later, later - 1), later, later - 1)
    while len(later := later[runs.positions[later] >= 2 * distance]):
        distance *= 2
        if distance == _WINDOW:
            return _chosen_of_long(replaces, runs, chosen, later)
        # Each element has the best of the last `distance` elements, and takes the best of as many before those.
        own, earlier = chosen[later], chosen[later - distance]
        chosen[later] = np.where(replaces(own, earlier), own, earlier)
    return chosen


def _chosen_of_long(
    replaces: Callable[[np.ndarray, np.ndarray], np.ndarray], runs: Runs, chosen: np.ndarray, later: np.ndarray
) -> np.ndarray:
    """Finishes :func:`choose` once each element has the best of the last ``_WINDOW``.

    Args:
        chosen: Modified in place.
        later: The elements with more than ``_WINDOW`` elements up to themselves in their run.
    """
    # Every _WINDOW-th element has the best of its window: these elements form shorter runs of their own.
    ends = np.flatnonzero(runs.positions % _WINDOW == _WINDOW - 1)
    numbers = runs.positions[ends] // _WINDOW
    blocks = Runs(ends, np.arange(len(ends)) - numbers)
    best = ends[choose(lambda own, earlier: replaces(chosen[ends[own]], chosen[ends[earlier]]), blocks)]
    through = chosen[best]
    block_of = np.cumsum(runs.positions % _WINDOW == _WINDOW - 1) - 1
    own, earlier = chosen[later], through[block_of[later]]
    chosen[later] = np.where(replaces(own, earlier), own, earlier)
    return chosen
