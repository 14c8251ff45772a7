"""Dispatch: computes a column of the merged rows with its function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from merge_engines.functions import choices
from merge_engines.functions.bitmaps import unions
from merge_engines.functions.decimals import decimal_products, decimal_sums
from merge_engines.functions.function import Function
from merge_engines.functions.numbers import integer_products, integer_sums, results_of_numbers
from merge_engines.functions.pairs import merge_pairs
from merge_engines.functions.texts import joined
from merge_engines.history import Sources
from merge_engines.runs import Runs

_CHOICES: dict[str, Callable[[pa.Array, Runs, np.ndarray], pa.Array]] = {
    "max": choices.largest,
    "min": choices.smallest,
    "last_value": choices.last,
    "last_value_ignore_nulls": choices.last_not_null,
    "first_value": choices.first,
    "first_value_ignore_nulls": choices.first_not_null,
    "bool_and": choices.smallest,
    "bool_or": choices.largest,
}


def compute(function: Function, name: str, column: pa.Array, sources: Sources) -> list[pa.Array]:
    """Merge a column's values.

    Args:
        name: The column's name, for errors.
        column: The column of the pool.

    Returns:
        Pieces of a column, in its type: one for the pairs and one for the wanted elements of the runs.

    Raises:
        AggregateOverflow: A result does not fit the column.
        InvalidRequest: A value is damaged.
        pa.ArrowInvalid, pa.ArrowCapacityError: The results together are too large.
    """
    pieces = []
    if len(sources.stored):
        merged = merge_pairs(function, column, sources.stored, sources.incoming)
        pieces.append(_along(function, name, column, *sources.pairs_as_runs) if merged is None else merged)
    if len(sources.wanted):
        pieces.append(_along(function, name, column, sources.runs, sources.wanted))
    return pieces


def _along(function: Function, name: str, column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    kind = column.type
    match function.name:
        case "listagg":
            return joined(column, runs, wanted, function.delimiter)
        case "rbm32" | "rbm64":
            return unions(function.name, name, column, runs, wanted)
        case "sum" if pa.types.is_integer(kind):
            return integer_sums(name, column, runs, wanted)
        case "product" if pa.types.is_integer(kind):
            return integer_products(name, column, runs, wanted)
        case "sum" if pa.types.is_floating(kind):
            return results_of_numbers(np.add, column, runs, wanted)
        case "product" if pa.types.is_floating(kind):
            return results_of_numbers(np.multiply, column, runs, wanted)
        case "sum":
            return decimal_sums(name, column, runs, wanted)
        case "product":
            return decimal_products(name, column, runs, wanted)
    return _CHOICES[function.name](column, runs, wanted)
