"""Sums and products of decimals (128 bits)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from merge_engines.columns import at, column_of, halves_of
from merge_engines.functions.numbers import overflow
from merge_engines.runs import Runs, accumulate

_WORD = 2**64


def decimal_sums(name: str, column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """Sums of the values that are not null.

    Raises:
        AggregateOverflow: A sum has too many digits.
    """
    there, results = runs.not_null(column, wanted)
    low, high = (half[there.places] for half in halves_of(column))
    low_sums = accumulate(np.add, low, there)
    later, carries = there.later, np.zeros(len(low), np.uint64)
    carries[later] = low_sums[later] < low[later]
    high_sums = accumulate(np.add, high + carries, there)
    # Two decimals of 38 digits add up to less than 2^128 - 10^38: a sum that wraps around is still detected as too
    # large.
    if _too_large(low_sums, high_sums, column.type.precision).any():
        raise overflow(name, "sum", column.type)
    return _from_halves(low_sums, high_sums, results, column.type)


def decimal_products(name: str, column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """Products of the values that are not null, rounded at every step.

    Raises:
        AggregateOverflow: A product has too many digits.
    """
    there, results = runs.not_null(column, wanted)
    low, high = (half[there.places] for half in halves_of(column))
    _multiply(name, column.type, low, high, there.later)
    return _from_halves(low, high, results, column.type)


def _multiply(name: str, kind: pa.DataType, low: np.ndarray, high: np.ndarray, later: np.ndarray) -> None:
    """Replace each value at ``later`` by its product with the value before it; Arrow's numbers are too short."""
    unit, limit = 10 ** max(kind.scale, 0), 10**kind.precision
    enlarge = 10 ** max(-kind.scale, 0)
    signed = high.view(np.int64)
    values = dict(zip(later.tolist(), _integers(low[later], signed[later]), strict=True))
    befores = dict(zip((later - 1).tolist(), _integers(low[later - 1], signed[later - 1]), strict=True))
    total = 0
    for element, value in values.items():
        if element - 1 not in values:
            total = befores[element - 1]
        product = total * value * enlarge
        size = (2 * abs(product) + unit) // (2 * unit)  # rounds half away from zero
        if size >= limit:
            raise overflow(name, "product", kind)
        total = size if product >= 0 else -size
        low[element], signed[element] = total % _WORD, total // _WORD


def _integers(low: np.ndarray, high: np.ndarray) -> list[int]:
    return [above * _WORD + below for below, above in zip(low.tolist(), high.tolist(), strict=True)]


def _too_large(low: np.ndarray, high: np.ndarray, precision: int) -> np.ndarray:
    """Whether values have more than ``precision`` digits."""
    is_negative = high >> np.uint64(63) == 1
    size_low = np.where(is_negative, ~low + np.uint64(1), low)
    size_high = np.where(is_negative, ~high + (low == 0), high)
    above, below = divmod(10**precision, _WORD)
    return (size_high > np.uint64(above)) | ((size_high == np.uint64(above)) & (size_low >= np.uint64(below)))


def _from_halves(low: np.ndarray, high: np.ndarray, results: np.ndarray, kind: pa.DataType) -> pa.Array:
    words = np.empty((len(results), 2), np.uint64)
    words[:, 0], words[:, 1] = at(low, results), at(high, results)
    return column_of(words, results >= 0, kind)
