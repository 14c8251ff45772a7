"""Data of one column, taken as a table takes it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from kvstore.testing.strategies import FLOATS, INTEGERS
from logformat.rows import intake

NUMBERS = [*INTEGERS, *FLOATS, pa.decimal128(5), pa.decimal128(20, 3), pa.decimal128(38, 30), pa.decimal128(4, -2)]
UTC = dt.UTC


def taken(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of Arrow data, converted to the table's type."""
    (found,) = intake.one_batch(pa.record_batch([column], names=["a"]), pa.schema([("a", kind)])).columns
    found.validate(full=True)
    return found


def taken_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The same for Python values."""
    (found,) = intake.one_batch([{"a": value} for value in values], pa.schema([("a", kind)])).columns
    found.validate(full=True)
    return found


def exactly(value: Any) -> Any:
    """A number in a form that equals only the same number."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return Fraction(value if isinstance(value, Decimal) else value.item() if isinstance(value, np.generic) else value)
