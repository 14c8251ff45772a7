"""Edge values that random tests miss: limits of types, long runs and large results."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from logformat.errors import AggregateOverflow, InvalidRequest
from merge_engines.aggregate import Aggregate
from merge_engines.engine import Operations

MIN, MAX = -(2**63), 2**63 - 1


def merged(function: str, values: list[Any] | pa.Array, kind: pa.DataType, *, stored: int = 0) -> list[Any]:
    """Results of one key's upserts, from the second value on; the first value is stored if ``stored`` is 1."""
    column = values if isinstance(values, pa.Array) else pa.array(values, kind)
    count = len(column)
    rows = pa.record_batch({"k": np.zeros(count, np.int64), "a": column})
    zero, incoming = np.array([0]), count - stored
    no_deletes = np.zeros(incoming, bool)
    operations = Operations(rows, zero - 1 + stored, np.arange(incoming), zero, zero + incoming - 1, no_deletes)
    found = Aggregate({"a": function}).merge(operations)
    places = [-1, 0, *range(count, 2 * count - 1)][stored:]
    assert (found.before.tolist(), found.after.tolist()) == (places[:-1], places[1:])
    return found.pool.column("a").slice(count).to_pylist()


@pytest.mark.parametrize("zeros", [0, 1], ids=["pair", "run"])
@pytest.mark.parametrize(
    ("function", "one", "other", "kind"),
    [
        ("sum", MAX, 1, pa.int64()),
        ("sum", MIN, -1, pa.int64()),
        ("sum", MIN, MIN, pa.int64()),
        ("sum", 2**64 - 1, 1, pa.uint64()),
        ("product", MIN, -1, pa.int64()),
        ("product", -1, MIN, pa.int64()),
        ("product", 2**32, 2**32, pa.int64()),
        ("product", 2**32, 2**32, pa.uint64()),
        ("product", 2**32 - 1, 2**32 - 1, pa.uint32()),
        ("sum", Decimal(10**38 - 1), Decimal(10**38 - 1), pa.decimal128(38)),
        ("sum", Decimal(-(10**38) + 1), Decimal(-1), pa.decimal128(38)),
        # The size of this result is a multiple of 2^64.
        ("sum", Decimal(-(10**38 // 2**64 * 2**64)), Decimal(-(2**64)), pa.decimal128(38)),
        ("product", Decimal(10**19), Decimal(10**19), pa.decimal128(38)),
        ("product", Decimal("9.5"), Decimal("1.1"), pa.decimal128(2, 1)),
    ],
    ids=str,
)
def test_overflow(function: str, one: Any, other: Any, kind: pa.DataType, zeros: int) -> None:
    neutral = [0 if function == "sum" else 1] * zeros
    with pytest.raises(AggregateOverflow, match=f"{function}.*column=a") as raised:
        merged(function, [one, other, *neutral], kind, stored=1)
    assert raised.value.where == {"column": "a", "function": function, "type": kind}


@pytest.mark.parametrize(
    ("function", "values", "results", "kind"),
    [
        ("sum", [MAX, -1, 1, MIN], [MAX - 1, MAX, -1], pa.int64()),
        ("sum", [-5, MAX, 3], [MAX - 5, MAX - 2], pa.int64()),
        ("product", [MAX, 0, MIN], [0, 0], pa.int64()),
        ("product", [MAX, -1, -1], [-MAX, MAX], pa.int64()),
        ("product", [-1, MAX, 1], [-MAX, -MAX], pa.int64()),
        ("product", [MIN, 1, 1], [MIN, MIN], pa.int64()),
        ("sum", [2**64 - 2, 1, 0], [2**64 - 1, 2**64 - 1], pa.uint64()),
        ("product", [Decimal("0.5"), Decimal("0.5"), Decimal("-0.5")], list(map(Decimal, ("0.3", "-0.2"))), None),
        ("product", [Decimal("-0.5"), Decimal("0.5")], [Decimal("-0.3")], None),
        ("product", [Decimal("9.4"), Decimal("10.6")], [Decimal("99.6")], None),
        ("max", [-0.0, 0.0, -1.0], ["-0.0", "-0.0"], pa.float64()),
        ("min", [0.0, -0.0], ["0.0"], pa.float32()),
        ("max", [1.0, float("nan"), float("inf")], ["nan", "nan"], pa.float64()),
        ("min", [float("nan"), float("inf"), 1.0], ["inf", "1.0"], pa.float64()),
    ],
    ids=str,
)
def test_limits_of_types_do_not_overflow(
    function: str, values: list[Any], results: list[Any], kind: pa.DataType | None
) -> None:
    expected = [str(value) for value in results]
    for stored in (0, 1):
        assert list(map(str, merged(function, values, kind or pa.decimal128(3, 1), stored=stored))) == expected
    assert list(map(str, merged(function, values[:2], kind or pa.decimal128(3, 1), stored=1))) == expected[:1]


def test_floats_are_added_in_order() -> None:
    values = np.random.default_rng(1).normal(size=1000) * 10.0 ** np.arange(1000) ** 0.5
    assert merged("sum", pa.array(values), pa.float64()) == np.cumsum(values)[1:].tolist()


NESTED = pa.list_(pa.struct({"s": pa.string()}))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        *(("listagg", pa.string()), ("first_value", pa.string()), ("min", pa.string()), ("min", pa.binary())),
        ("first_value_ignore_nulls", NESTED),
    ],
    ids=str,
)
def test_too_large_results_are_refused(function: str, kind: pa.DataType) -> None:
    # 1 MiB, then 3000 results of at least that size.
    texts = ["a" * (1 << 20), *["b"] * 3000]
    values = pa.array([[{"s": text}] for text in texts] if kind == NESTED else texts, kind)
    own = pa.default_memory_pool()
    watched = pa.proxy_memory_pool(own)
    pa.set_memory_pool(watched)
    try:
        with pytest.raises(InvalidRequest, match="2 GiB") as raised:
            merged(function, values, kind)
    finally:
        pa.set_memory_pool(own)
    assert raised.value.where == {"column": "a"}
    assert watched.max_memory() < 1 << 28


@pytest.mark.parametrize("function", ["max", "last_value", "last_value_ignore_nulls"])
@pytest.mark.parametrize("kind", [pa.string(), NESTED], ids=str)
def test_dropped_long_values_do_not_count_towards_the_limit(function: str, kind: pa.DataType) -> None:
    if function == "max" and kind == NESTED:
        return
    texts = ["a" * (1 << 20), *["b"] * 3000]
    values = pa.array([[{"s": text}] for text in texts] if kind == NESTED else texts, kind)
    assert merged(function, values, kind) == values.slice(1).to_pylist()
