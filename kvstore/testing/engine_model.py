"""Models of the merge engines: what each makes of one row and one operation, as dicts.

An engine is given as the catalog writes it (docs/format.md, Merge engines). Rows hold Python values; dates and times
may be numbers. A row that comes back as the same object is one that nothing happened to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

Row = dict[str, Any]
DIGITS = Context(prec=200)
FLOATS: dict[pa.DataType, Any] = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}


class Overflow(Exception):
    """A result does not fit its column."""


@dataclass(frozen=True)
class EngineModel:
    """The merge engine of one table.

    Attributes:
        spec: The engine as the catalog writes it: ``"last_row"``, ``{"versioned": "ts"}``,
            ``{"aggregate": {"n": "sum"}}``.
        schema: Columns of the table.
        key: Names of the key's columns.
    """

    spec: Any
    schema: pa.Schema
    key: tuple[str, ...]

    def upsert(self, old: Row | None, new: Row, targets: Collection[str] | None = None) -> Row:
        """The row after an upsert; outside the targets ``new`` has nulls."""
        if old is None or (self.spec == "last_row" and targets is None):
            return new
        match self.spec:
            case "first_row":
                return old
            case {"versioned": column}:
                return new if old[column] is None or (new[column] is not None and new[column] >= old[column]) else old
        if targets is not None and set(targets) == set(self.key) and set(targets) != set(self.schema.names):
            return old
        return {name: self._merged(name, old, new, targets) for name in self.schema.names}

    def delete(self, old: Row | None, targets: Collection[str] | None = None) -> Row | None:
        """The row after a delete."""
        if old is None:
            return None
        kept = set() if targets is None else set(self.schema.names) - set(targets)
        if all(old[name] is None for name in kept):
            return None
        return {name: old[name] if name in kept or name in self.key else None for name in self.schema.names}

    def _merged(self, name: str, old: Row, new: Row, targets: Collection[str] | None) -> Any:
        if targets is not None and name not in targets:
            return old[name]
        if self.spec == "last_row" or name in self.key:
            return new[name]
        function = self.spec["aggregate"].get(name, "last_value_ignore_nulls")
        if function == "last_value":
            return new[name]
        if function == "first_value":
            return old[name]
        if old[name] is None or new[name] is None:
            return new[name] if old[name] is None else old[name]
        match function:
            case {"listagg": delimiter}:
                return old[name] + delimiter + new[name]
            case "sum" | "product":
                return total(old[name], new[name], self.schema.field(name).type, function)
        return FUNCTIONS[function](old[name], new[name])


def total(old: Any, new: Any, kind: pa.DataType, function: str) -> Any:
    """Sum or product of two values, neither of them null."""
    if kind in FLOATS:
        with np.errstate(all="ignore"):
            one, other = FLOATS[kind](old), FLOATS[kind](new)
            return float(one + other if function == "sum" else one * other)
    if pa.types.is_integer(kind):
        result = old + new if function == "sum" else old * new
        limits = np.iinfo(kind.to_pandas_dtype())
        if not limits.min <= result <= limits.max:
            raise Overflow
        return result
    exact = DIGITS.add(old, new) if function == "sum" else DIGITS.multiply(old, new)
    rounded = exact.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, DIGITS)
    if rounded.copy_abs() >= Decimal(10).scaleb(kind.precision - kind.scale - 1, DIGITS):
        raise Overflow
    return rounded if rounded else rounded.copy_abs()  # there is no -0


def is_larger(one: Any, other: Any) -> bool:
    """Whether one value is larger than the other; text is compared by its bytes, and NaN is the largest."""
    if isinstance(one, str):
        return bool(one.encode() > other.encode())
    if one != one or other != other:
        return one != one and other == other
    return bool(one > other)


def union(old: bytes, new: bytes, bitmap: str) -> bytes:
    """Union of two roaring bitmaps."""
    import pyroaring

    kind: Any = getattr(pyroaring, bitmap)
    return bytes(kind(set(kind.deserialize(old)) | set(kind.deserialize(new))).serialize())


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "max": lambda old, new: new if is_larger(new, old) else old,
    "min": lambda old, new: new if is_larger(old, new) else old,
    "last_value_ignore_nulls": lambda _, new: new,
    "first_value_ignore_nulls": lambda old, _: old,
    "bool_and": lambda old, new: old and new,
    "bool_or": lambda old, new: old or new,
    "rbm32": lambda old, new: union(old, new, "BitMap"),
    "rbm64": lambda old, new: union(old, new, "BitMap64"),
}
"""What each function makes of two values, neither of them null."""
