"""Roaring bitmaps: sets of 32- or 64-bit numbers, as bytes. They need the package pyroaring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from logformat.errors import InvalidRequest, UnsupportedOperation
from merge_engines.columns import at, take
from merge_engines.runs import Runs


def require_pyroaring(name: str, function: str) -> Any:
    """Imports the package.

    Raises:
        UnsupportedOperation: It is not installed.
    """
    try:
        import pyroaring
    except ImportError as error:
        raise UnsupportedOperation(
            "This function needs the package pyroaring; install kvstore[roaring].", column=name, function=function
        ) from error
    return pyroaring


def unions(function: str, name: str, column: pa.Array, runs: Runs, wanted: np.ndarray) -> pa.Array:
    """Unions of the values that are not null; computed row by row, since each is an object.

    Raises:
        InvalidRequest: A value is not a roaring bitmap.
        UnsupportedOperation: pyroaring is not installed.
    """
    pyroaring = require_pyroaring(name, function)
    bitmap = pyroaring.BitMap if function == "rbm32" else pyroaring.BitMap64
    there, results = runs.not_null(column, wanted)
    values = take(column, there.places).to_pylist()
    total = None
    try:
        for element in there.later.tolist():
            if there.firsts[element] == element - 1:
                total = bitmap.deserialize(values[element - 1])
            total |= bitmap.deserialize(values[element])
            values[element] = total.serialize()
    except (ValueError, EOFError) as error:
        raise InvalidRequest("A value is not a roaring bitmap.", column=name, function=function) from error
    places = np.where(results < 0, -1, at(np.arange(len(values)), results))
    return take(pa.array(values, column.type), places)
