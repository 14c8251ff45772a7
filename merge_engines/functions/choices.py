"""Functions whose result is one of the values: the first, last, largest or smallest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merge_engines.columns import at, column_of, halves_of, is_fixed_number, numbers_of, take
from merge_engines.runs import Runs, accumulate, choose

_Comparison = Callable[[np.ndarray, np.ndarray], np.ndarray]


def last(column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """The last value, even if null."""
    return take(column, runs.places[wanted])


def last_not_null(column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """The last value that is not null."""
    there, results = runs.not_null(column, wanted)
    return _taken(column, there.places, results)


def first(column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """The first value, even if null."""
    return take(column, runs.places[runs.firsts[wanted]])


def first_not_null(column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """The first value that is not null."""
    there, results = runs.not_null(column, wanted)
    return _taken(column, there.places[there.firsts], results)


def largest(column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """The largest value that is not null; of equal ones the first."""
    there, results = runs.not_null(column, wanted)
    if _is_integral(column.type):
        return _of_numbers(np.maximum, column, there, results)
    is_larger = _larger(column, there.places)
    return _taken(column, there.places[choose(is_larger, there)], results)


def smallest(column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """The smallest value that is not null; of equal ones the first."""
    there, results = runs.not_null(column, wanted)
    if _is_integral(column.type):
        return _of_numbers(np.minimum, column, there, results)
    is_larger = _larger(column, there.places)
    return _taken(column, there.places[choose(lambda own, earlier: is_larger(earlier, own), there)], results)


def _is_integral(kind: pa.DataType) -> bool:
    """Whether values of the type compare as integers do, and equal values are identical."""
    return is_fixed_number(kind) and not pa.types.is_floating(kind)


def _of_numbers(function: np.ufunc, column: pa.Array, runs: Runs, results: np.ndarray) -> pa.Array:
    best = accumulate(function, numbers_of(column)[runs.places], runs)
    return column_of(at(best, results), results >= 0, column.type)


def _taken(column: pa.Array, places: np.ndarray, results: np.ndarray) -> pa.Array:
    return take(column, np.where(results < 0, -1, at(places, results)))


def _larger(column: pa.Array, places: np.ndarray) -> _Comparison:
    """A comparison: whether some elements are larger than others; ``places`` are the elements' rows, none null."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    if pa.types.is_decimal128(kind):
        low, high = (half[places] for half in halves_of(column))
        signed = high.view(np.int64)
        return lambda one, other: (
            (signed[one] > signed[other]) | ((signed[one] == signed[other]) & (low[one] > low[other]))
        )
    if not is_fixed_number(column.type):
        # By rank, since one long string may take part in many comparisons.
        column = pc.rank(column.take(pa.array(places)), "ascending", tiebreaker="dense")
        places = np.arange(len(places))
    values = numbers_of(column)[places]
    if not pa.types.is_floating(kind):
        return lambda one, other: values[one] > values[other]
    is_nan = np.isnan(values)
    return lambda one, other: (values[one] > values[other]) | (is_nan[one] & ~is_nan[other])
