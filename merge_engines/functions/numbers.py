"""Sums and products of integers and floats."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from logformat.errors import AggregateOverflow
from merge_engines.columns import at, column_of, numbers_of
from merge_engines.runs import Runs, accumulate


def overflow(name: str, function: str, kind: pa.DataType) -> AggregateOverflow:
    """The error for a result that does not fit."""
    return AggregateOverflow(
        f"A {function} does not fit its column; write smaller values, or use a wider type in a new table.",
        column=name,
        function=function,
        type=kind,
    )


def integer_sums(name: str, column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """Sums of the values that are not null.

    Raises:
        AggregateOverflow: A sum does not fit.
    """
    there, results = runs.not_null(column, wanted)
    values = _widened(column, there)
    sums = accumulate(np.add, values, there)
    if _stay_within(values, there.longest, column.type):
        return _narrowed(sums, results, column.type)
    later = there.later
    # Each step starts from a correct value, or an earlier error was found: so checking each step finds every overflow.
    after, before, added = sums[later], sums[later - 1], values[later]
    wrapped = after < before if values.dtype.kind == "u" else ((before ^ after) & (added ^ after)) < 0
    if wrapped.any() or not _fits(after, column.type):
        raise overflow(name, "sum", column.type)
    return _narrowed(sums, results, column.type)


def integer_products(name: str, column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """Products of the values that are not null.

    Raises:
        AggregateOverflow: A product does not fit.
    """
    there, results = runs.not_null(column, wanted)
    values = _widened(column, there)
    products = accumulate(np.multiply, values, there)
    if column.type.bit_width == 64:
        later = there.later
        after, before, factors = products[later], products[later - 1], values[later]
        is_zero = before == 0
        # A wrapped product differs from the true one by 2^64 or more, too far to have the same quotient …
        with np.errstate(over="ignore"):
            wrapped = ~is_zero & (after // np.where(is_zero, 1, before) != factors)
        if values.dtype.kind == "i":
            # … except for the one quotient that wraps itself.
            wrapped |= (before == -1) & (factors == np.iinfo(np.int64).min)
        if wrapped.any():
            raise overflow(name, "product", column.type)
    # Narrow types can't wrap int64: at the first product that leaves its type, both factors still fit.
    elif not _fits(products, column.type):
        raise overflow(name, "product", column.type)
    return _narrowed(products, results, column.type)


def results_of_numbers(function: np.ufunc, column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """What a function makes of the values that are not null, one after the other, each step in the column's type."""
    there, results = runs.not_null(column, wanted)
    totals = accumulate(function, numbers_of(column)[there.places], there)
    return column_of(at(totals, results), results >= 0, column.type)


def _widened(column: pa.Array, runs: Runs) -> np.ndarray:
    values = numbers_of(column)[runs.places]
    return values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)


def _stay_within(values: np.ndarray, terms: int, kind: pa.DataType) -> bool:
    """Whether no sum of ``terms`` of these values can leave the type."""
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return low * terms >= limits.min and high * terms <= limits.max


def _fits(values: np.ndarray, kind: pa.DataType) -> bool:
    limits = np.iinfo(kind.to_pandas_dtype())
    return not len(values) or (int(values.min()) >= limits.min and int(values.max()) <= limits.max)


def _narrowed(values: np.ndarray, results: np.ndarray, kind: pa.DataType) -> pa.Array:
    return column_of(at(values, results).astype(kind.to_pandas_dtype()), results >= 0, kind)
