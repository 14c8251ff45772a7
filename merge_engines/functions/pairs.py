"""Merges pairs of a stored and an incoming value with Arrow's own kernels: by far the most frequent case."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merge_engines.columns import validity_of
from merge_engines.functions.function import Function

_Kernel = Callable[[pa.Array, pa.Array], pa.Array]
_PRECISION_MAX = 38
"""Maximum precision of a 128-bit decimal; a 256-bit one has twice as many digits."""


def merge_pairs(function: Function, column: pa.Array, stored: np.ndarray, incoming: np.ndarray) -> pa.Array | None:
    """Merge pairs of values.

    Args:
        stored, incoming: int64 ``(p,)``, places in the column.

    Returns:
        ``(p,)``, in the column's type. None if Arrow has no kernel for it, or if a result does not fit.
    """
    match function.name:
        case "last_value":
            return column.take(pa.array(incoming))
        case "last_value_ignore_nulls":
            return column.take(pa.array(_first_valid(column, incoming, stored)))
        case "first_value":
            return column.take(pa.array(stored))
        case "first_value_ignore_nulls":
            return column.take(pa.array(_first_valid(column, stored, incoming)))
    kernel = _kernel_of(function, column.type)
    if kernel is None:
        return None
    old, new = column.take(pa.array(stored)), column.take(pa.array(incoming))
    try:
        merged = kernel(old, new)
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        return None
    # A kernel returns null for null and a value.
    return pc.coalesce(merged, old, new) if column.null_count else merged


def _first_valid(column: pa.Array, places: np.ndarray, instead: np.ndarray) -> np.ndarray:
    """``places``, replaced by ``instead`` where the value is null."""
    return np.where(validity_of(column)[places], places, instead) if column.null_count else places


def _kernel_of(function: Function, kind: pa.DataType) -> _Kernel | None:
    match function.name:
        case "bool_and":
            return pc.and_
        case "bool_or":
            return pc.or_
        case "listagg":
            return lambda old, new: pc.binary_join_element_wise(old, new, function.delimiter)
        case "sum" | "product" | "max" | "min":
            return _number_kernel(function.name, kind)
    return None


def _number_kernel(name: str, kind: pa.DataType) -> _Kernel | None:
    types = pa.types
    if (types.is_decimal(kind) and kind.scale < 0) or types.is_float16(kind):
        return None
    if name in ("max", "min"):
        return _choice(name, may_be_nan=types.is_floating(kind))
    if types.is_decimal(kind):
        return _decimal_kernel(name, kind)
    if types.is_integer(kind):
        return pc.add_checked if name == "sum" else pc.multiply_checked
    return pc.add if name == "sum" else pc.multiply


def _choice(function: str, *, may_be_nan: bool) -> _Kernel:
    def choose(old: pa.Array, new: pa.Array) -> pa.Array:
        larger, smaller = (new, old) if function == "max" else (old, new)
        is_larger = pc.greater(larger, smaller)
        if may_be_nan:
            is_larger = pc.or_(is_larger, pc.and_not(pc.is_nan(larger), pc.is_nan(smaller)))
        return pc.if_else(is_larger, new, old)

    return choose


def _decimal_kernel(function: str, kind: pa.DataType) -> _Kernel | None:
    if function == "sum":
        # The type of a sum has one more digit; the cast back detects a sum that does not fit.
        return None if kind.precision == _PRECISION_MAX else lambda old, new: pc.add(old, new).cast(kind)
    # The type of a product has as many digits as both factors and one more.
    wide = pa.decimal256(min(kind.precision, _PRECISION_MAX - 1), kind.scale)

    def multiply(old: pa.Array, new: pa.Array) -> pa.Array:
        product = pc.multiply(old.cast(wide), new.cast(wide))
        return pc.round(product, kind.scale, "half_towards_infinity").cast(kind)

    return multiply
