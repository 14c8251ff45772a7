"""Every engine agrees with the model, which applies one row at a time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kvstore.testing.engine_model import EngineModel, Overflow
from kvstore.testing.strategies import FLOATS, INTEGERS, SCALAR_TYPES
from logformat.errors import AggregateOverflow
from merge_engines.functions.function import NAMES
from merge_engines.spec import Spec, engine_of
from tests.merge_engines.batches import KEY, Batch, Change, batches, changes_of, seeded

DECIMALS = [pa.decimal128(3, 1), pa.decimal128(18, 18), pa.decimal128(20, -3), pa.decimal128(38, 10), pa.decimal128(38)]
NUMBERS = [*INTEGERS, *FLOATS, *DECIMALS]
TIMES = [kind for kind in SCALAR_TYPES if pa.types.is_temporal(kind)]
ORDERED = [*NUMBERS, *TIMES, pa.string(), pa.binary(), pa.binary(3), pa.decimal256(50, 2), pa.decimal256(60, -3)]
ANY = [pa.int64(), pa.bool_(), pa.string(), pa.binary(2), pa.list_(pa.int32()), pa.decimal128(20, 2)]
FUNCTIONS: list[tuple[Spec, list[pa.DataType]]] = [
    ("sum", NUMBERS),
    ("product", NUMBERS),
    ("max", ORDERED),
    ("min", ORDERED),
    ("last_value", ANY),
    ("last_value_ignore_nulls", ANY),
    ("first_value", ANY),
    ("first_value_ignore_nulls", ANY),
    ({"listagg": ","}, [pa.string()]),
    ({"listagg": "é, "}, [pa.string()]),
    ("bool_and", [pa.bool_()]),
    ("bool_or", [pa.bool_()]),
]
MARGINS = st.integers(0, 2)


def test_every_function_is_compared_and_is_in_the_guide() -> None:
    compared = {spec if isinstance(spec, str) else next(iter(spec)) for spec, _ in FUNCTIONS}
    assert {*NAMES} - {"rbm32", "rbm64"} == compared  # they need a package
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "merge-engines.md").read_text()
    assert [name for name in NAMES if f'`"{name}"`' not in guide] == []


def check(spec: Any, batch: Batch, margin: int) -> None:
    model, engine = EngineModel(spec, batch.schema, KEY), engine_of(spec)
    operations = batch.operations(margin)
    engine.check(batch.schema, KEY)
    try:
        expected = batch.changes(model)
    except Overflow:
        with pytest.raises(AggregateOverflow) as raised:
            engine.merge(operations)
        assert raised.value.where["column"] in batch.schema.names
        return
    merged = engine.merge(operations)
    assert as_text(changes_of(merged, operations), batch.schema) == as_text(expected, batch.schema)


def as_text(changes: list[Change], schema: pa.Schema) -> list[str]:
    """Text in which NaN equals NaN, and -0.0 differs from 0.0."""
    return [
        " -> ".join("nothing" if row is None else str([row[name] for name in schema.names]) for row in change)
        for change in changes
    ]


def schema_of(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("k", pa.int64(), False), *(pa.field(name, kind) for name, kind in kinds.items())])


SMALL = schema_of(a=pa.int64(), b=pa.string(), c=pa.bool_())
TARGETS = [None, frozenset(SMALL.names), *(frozenset("k" + names) for names in ("", "a", "b", "bc"))]


@given(batches(SMALL, deletes=True, targets=TARGETS), MARGINS)
@settings(max_examples=3 * settings().max_examples)
def test_last_row(batch: Batch, margin: int) -> None:
    check("last_row", batch, margin)


@given(batches(SMALL, deletes=False), MARGINS)
def test_first_row(batch: Batch, margin: int) -> None:
    check("first_row", batch, margin)


VERSIONS = [*INTEGERS, *(kind for kind in TIMES if pa.types.is_timestamp(kind))]


@given(st.sampled_from(VERSIONS).flatmap(lambda kind: batches(schema_of(v=kind, a=pa.int8()), deletes=False)), MARGINS)
def test_versioned(batch: Batch, margin: int) -> None:
    check({"versioned": "v"}, batch, margin)


@pytest.mark.parametrize("kind", VERSIONS, ids=str)
@pytest.mark.parametrize("keys", [3, 30, 3000])
def test_versions_of_every_type(kind: pa.DataType, keys: int) -> None:
    check({"versioned": "v"}, seeded(schema_of(v=kind, a=pa.int8()), 60, keys, 0), 1)


@pytest.mark.parametrize(("function", "kinds"), FUNCTIONS, ids=[str(function) for function, _ in FUNCTIONS])
@settings(max_examples=30)
@given(data=st.data())
def test_functions(data: st.DataObject, function: Spec, kinds: list[pa.DataType]) -> None:
    schema = schema_of(a=data.draw(st.sampled_from(kinds)))
    check({"aggregate": {"a": function}}, data.draw(batches(schema, deletes=True)), data.draw(MARGINS))


@pytest.mark.parametrize(
    ("function", "kind"), [(function, kind) for function, kinds in FUNCTIONS for kind in kinds], ids=str
)
def test_functions_of_every_type(function: Spec, kind: pa.DataType) -> None:
    overflows = function in ("sum", "product") and kind not in FLOATS
    # Where numbers soon overflow, many short batches test more than a long one.
    for rows, keys in [(count, 4) for count in range(1, 40)] if overflows else [(100, 5), (60, 30), (60, 3000)]:
        check({"aggregate": {"a": function}}, seeded(schema_of(a=kind), rows, keys, 0.2), rows % 3)


PARTIAL = schema_of(s=pa.int64(), t=pa.string(), f=pa.int64(), d=pa.int32(), b=pa.bool_())
PARTIAL_FUNCTIONS = {"aggregate": {"s": "sum", "t": {"listagg": ";"}, "f": "first_value", "b": "last_value"}}
PARTIAL_TARGETS = [
    *(None, frozenset(PARTIAL.names)),
    *(frozenset("k" + names) for names in ("", "s", "sf", "tf", "d", "b", "tfdb")),
]


@given(batches(PARTIAL, deletes=True, targets=PARTIAL_TARGETS), MARGINS)
@settings(max_examples=3 * settings().max_examples)
def test_partial_aggregates(batch: Batch, margin: int) -> None:
    check(PARTIAL_FUNCTIONS, batch, margin)


@pytest.mark.parametrize("rows", [300, 700])
def test_long_runs(rows: int) -> None:
    functions = {"s": "max", "t": {"listagg": ""}, "f": "last_value", "d": "min", "b": "bool_or"}
    check({"aggregate": functions}, seeded(PARTIAL, rows, 2, 0.01), 0)


bitmaps = pytest.mark.skipif(importlib.util.find_spec("pyroaring") is None, reason="pyroaring is not installed")


@bitmaps
@pytest.mark.parametrize("function", ["rbm32", "rbm64"])
@settings(max_examples=40)
@given(data=st.data())
def test_bitmaps(data: st.DataObject, function: str) -> None:
    import pyroaring

    bitmap = pyroaring.BitMap if function == "rbm32" else pyroaring.BitMap64
    largest = 2 ** int(function[3:]) - 1
    numbers = st.lists(st.sampled_from([0, 1, 70_000, largest]), max_size=3)
    sets = st.none() | numbers.map(lambda some: bytes(bitmap(some).serialize()))
    row = st.fixed_dictionaries({"k": st.integers(0, 2), "a": sets})
    stored = data.draw(st.lists(row, max_size=3, unique_by=lambda row: row["k"]))
    incoming = data.draw(st.lists(st.tuples(row, st.booleans()), max_size=8))
    check({"aggregate": {"a": function}}, Batch(schema_of(a=pa.binary()), stored, incoming), 0)
