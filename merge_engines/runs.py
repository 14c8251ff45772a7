"""Runs: the rows that follow each other under one key, and what is computed along them for all at once.

A run begins with a row that is taken as it is: the stored one, or the first after none. Every further row is merged
with what the run came to so far, so each element of a run has a result of its own. Nothing here loops over rows:
runs are handled by their length, in powers of two.
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
    """Elements of runs, one run behind the other.

    Attributes:
        places: int64 ``(e,)``, each element's row in the pool; -1 for a row of nulls.
        firsts: int64 ``(e,)``, where each element's run begins.
    """

    places: np.ndarray
    firsts: np.ndarray

    # What follows is asked for by column after column.

    @cached_property
    def positions(self) -> np.ndarray:
        """int64 ``(e,)``, each element's number within its run, from 0."""
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
        """int64 ``(r,)``, elements of each run."""
        return np.diff(self.starts, append=len(self.firsts))

    @cached_property
    def longest(self) -> int:
        """Elements of the longest run."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def _has_nulls(self) -> bool:
        return bool((self.places < 0).any())

    def not_null(self, column: pa.Array, wanted: np.ndarray) -> tuple[Runs, np.ndarray]:
        """Only the elements whose value in a column is not null.

        Args:
            column: A column of the pool.
            wanted: int64 ``(c,)``, elements a result is asked for.

        Returns:
            The runs without the others, and for each element wanted the last one of its run, up to itself, that is
            left, -1 for none.
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
    """Results of a binary function along the runs, strictly one element after the other.

    So sums of floats are rounded as if rows came one by one, and integers are the true ones modulo 2^bits.

    Args:
        function: Of two values; its result has the same type.
        values: ``(e,)``, one for each element.

    Returns:
        ``(e,)``; for the first element of a run, its value.
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
            # What stands behind the end of a run is accumulated too, and left behind.
            rows = values[np.minimum(elements, len(values) - 1)]
            results[elements[is_inside]] = function.accumulate(rows, axis=1, dtype=values.dtype)[is_inside]
    return results


def choose(replaces: Callable[[np.ndarray, np.ndarray], np.ndarray], runs: Runs) -> np.ndarray:
    """Which element is the chosen one, at every element of a run.

    Args:
        replaces: For two arrays of elements, whether each of the first, which come later, is chosen instead of the one
            beside it in the second. MUST be transitive, so that neighbours can be compared before others.

    Returns:
        int64 ``(e,)``, an element of the same run, not later.
    """
    chosen, later, distance = np.arange(len(runs.firsts)), runs.later, 1
    chosen[later] = np.where(replaces(later, later - 1), later, later - 1)
    while len(later := later[runs.positions[later] >= 2 * distance]):
        distance *= 2
        if distance == _WINDOW:
            return _chosen_of_long(replaces, runs, chosen, later)
        # Each has the best of the last `distance` elements, and takes over the best of as many before those.
        own, earlier = chosen[later], chosen[later - distance]
        chosen[later] = np.where(replaces(own, earlier), own, earlier)
    return chosen


def _chosen_of_long(
    replaces: Callable[[np.ndarray, np.ndarray], np.ndarray], runs: Runs, chosen: np.ndarray, later: np.ndarray
) -> np.ndarray:
    """The rest of :func:`choose`, once each element has the best of the last ``_WINDOW``.

    Args:
        chosen: Changed.
        later: The elements that have more than those before them.
    """
    # Every so many elements, one has the best of all since the one before it: these are shorter runs of their own.
    ends = np.flatnonzero(runs.positions % _WINDOW == _WINDOW - 1)
    numbers = runs.positions[ends] // _WINDOW
    blocks = Runs(ends, np.arange(len(ends)) - numbers)
    best = ends[choose(lambda own, earlier: replaces(chosen[ends[own]], chosen[ends[earlier]]), blocks)]
    through = chosen[best]
    block_of = np.cumsum(runs.positions % _WINDOW == _WINDOW - 1) - 1
    own, earlier = chosen[later], through[block_of[later]]
    chosen[later] = np.where(replaces(own, earlier), own, earlier)
    return chosen
