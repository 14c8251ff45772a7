"""Filters as the connector sends them, as those of PySpark, which :mod:`kvstore.spark.read.filters` converts.

A value has its kind, because JSON has fewer types than Spark: days and microseconds since 1970, decimals as text, bytes
in base64.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

_EPOCH = dt.datetime(1970, 1, 1)
_OF_VALUE: Mapping[str, Callable[..., Filter]] = {
    kind.__name__: kind
    for kind in (
        *(EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual),
        *(StringContains, StringEndsWith, StringStartsWith),
    )
}
_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "plain": lambda given: given,
    "double": float,
    "decimal": Decimal,
    "bytes": base64.b64decode,
    "days": lambda days: _EPOCH.date() + dt.timedelta(days=days),
    "micros": lambda micros: _EPOCH.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=micros),
    "local": lambda micros: _EPOCH + dt.timedelta(microseconds=micros),
}


def filters_of(given: Iterable[Mapping[str, Any]]) -> list[Filter]:
    """The filters that this module knows; others, and values that Python can't hold, are left to Spark."""
    filters = (_filter(each) for each in given)
    return [each for each in filters if each is not None]


def _filter(given: Mapping[str, Any]) -> Filter | None:
    name = given["name"]
    if name == "Not":
        child = _filter(given["child"])
        return None if child is None else Not(child)
    column = tuple(given["column"])
    if name in ("IsNull", "IsNotNull"):
        return IsNull(column) if name == "IsNull" else IsNotNull(column)
    try:
        if name == "In":
            return In(column, tuple(_value(each) for each in given["values"]))
        return _OF_VALUE[name](column, _value(given["value"])) if name in _OF_VALUE else None
    except OverflowError:  # a moment before or after what Python has
        return None


def _value(given: Mapping[str, Any]) -> Any:
    ((kind, value),) = given.items()
    return None if value is None else _KINDS[kind](value)
