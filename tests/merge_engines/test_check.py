"""Creating a table refuses an engine that does not fit it; the error names the column and the reason."""

from __future__ import annotations

import builtins
import importlib.util
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from logformat.errors import InvalidRequest, UnsupportedOperation
from merge_engines.aggregate import Aggregate
from merge_engines.engine import MergeEngine, Operations
from merge_engines.first_row import FirstRow
from merge_engines.functions.function import NAMES, listagg
from merge_engines.last_row import LastRow
from merge_engines.versioned import Versioned

SCHEMA = pa.schema(
    {"k": pa.int64(), "i": pa.int32(), "s": pa.string(), "b": pa.bool_(), "ts": pa.timestamp("ns", "UTC")}
    | {"bytes": pa.binary(), "list": pa.list_(pa.int8()), "day": pa.date32(), "f": pa.float64()}
    | {"wide": pa.decimal256(50, 2)}
)


@pytest.mark.parametrize("engine", [LastRow(), FirstRow(), Versioned("i"), Versioned("ts"), Aggregate()])
def test_engines_that_fit(engine: MergeEngine) -> None:
    engine.check(SCHEMA, ["k"])


@pytest.mark.parametrize(
    ("engine", "facts"),
    [
        (Versioned("none"), {"column": "none"}),
        (Versioned("k"), {"column": "k"}),
        (Versioned("s"), {"column": "s", "type": pa.string()}),
        (Versioned("f"), {"column": "f", "type": pa.float64()}),
        (Versioned("day"), {"column": "day", "type": pa.date32()}),
        (Aggregate({"none": "sum"}), {"column": "none", "function": "sum"}),
        (Aggregate({"k": "last_value"}), {"column": "k", "function": "last_value"}),
        (Aggregate({"s": "sum"}), {"column": "s", "function": "sum", "type": pa.string()}),
        (Aggregate({"i": "sum", "b": "product"}), {"column": "b", "function": "product"}),
        (Aggregate({"b": "max"}), {"column": "b", "function": "max"}),
        (Aggregate({"wide": "sum"}), {"column": "wide", "function": "sum"}),
        (Aggregate({"wide": "product"}), {"column": "wide", "function": "product"}),
        (Aggregate({"list": "min"}), {"column": "list", "function": "min"}),
        (Aggregate({"bytes": listagg(";")}), {"column": "bytes", "function": "listagg", "allowed": "string"}),
        (Aggregate({"i": "bool_and"}), {"column": "i", "function": "bool_and", "allowed": "booleans"}),
        (Aggregate({"s": "rbm32"}), {"column": "s", "function": "rbm32", "allowed": "binary"}),
    ],
    ids=repr,
)
def test_engines_that_do_not_fit(engine: MergeEngine, facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        engine.check(SCHEMA, ["k"])
    assert raised.value.where.items() >= facts.items()


@pytest.mark.parametrize("given", ["summ", "", "Sum", None, 3, ["sum"]])
def test_unknown_functions_are_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="listagg") as raised:
        Aggregate({"i": given})
    assert raised.value.where["column"] == "i"


@pytest.mark.parametrize("given", ["sum", ["sum"], {1: "sum"}])
def test_functions_must_be_given_by_column(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        Aggregate(given)


@pytest.mark.parametrize("call", [lambda: listagg(None), lambda: listagg("\ud800"), lambda: Versioned(3)])  # type: ignore[arg-type]
def test_other_wrong_arguments(call: Any) -> None:
    with pytest.raises(InvalidRequest):
        call()


def test_engines_are_equal_by_value() -> None:
    one = Aggregate({"i": "sum", "s": "string_agg"})
    other = Aggregate({"s": listagg(","), "i": "sum"})
    assert one == other
    assert len({one, other, Aggregate({"i": "sum"}), Versioned("i"), Versioned("ts"), FirstRow(), LastRow()}) == 6
    assert repr(one) == "Aggregate({'i': 'sum', 's': listagg(',')})"
    with pytest.raises(AttributeError):
        one.functions = ()  # type: ignore[misc]


@pytest.mark.parametrize("function", ["rbm32", "rbm64"])
def test_bitmaps_need_a_package(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "pyroaring":
            raise ImportError(name)
        return own(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnsupportedOperation, match="pyroaring") as raised:
        Aggregate({"bytes": function}).check(SCHEMA, ["k"])
    assert raised.value.where == {"column": "bytes", "function": function}


@pytest.mark.skipif(importlib.util.find_spec("pyroaring") is None, reason="pyroaring is not installed")
@pytest.mark.parametrize("function", ["rbm32", "rbm64"])
def test_values_that_are_not_bitmaps_are_refused(function: str) -> None:
    rows = pa.record_batch({"k": [1, 1], "bytes": pa.array([b"none", b""], pa.binary())})
    one, zero = np.array([1]), np.array([0])
    operations = Operations(rows, zero - 1, np.arange(2), zero, one, np.zeros(2, bool))
    with pytest.raises(InvalidRequest) as raised:
        Aggregate({"bytes": function}).merge(operations)
    assert raised.value.where == {"column": "bytes", "function": function}


@pytest.mark.parametrize("engine", [FirstRow(), Versioned("v")])
def test_operations_that_an_engine_does_not_take_are_refused(engine: MergeEngine) -> None:
    rows = pa.record_batch({"k": [1], "v": [1], "a": [1]})
    one, zero = np.array([True]), np.array([0])
    with pytest.raises(InvalidRequest, match="deletes"):
        engine.merge(Operations(rows, zero - 1, zero, zero, zero, one))
    with pytest.raises(UnsupportedOperation, match="columns"):
        engine.merge(Operations(rows, zero - 1, zero, zero, zero, ~one, frozenset("kv"), ("k",)))
    assert not engine.takes_targets
    assert "allow" not in engine.delete_behaviors


def test_every_function_is_documented() -> None:
    from merge_engines.functions import function

    table = (function.__doc__ or "").split("=\n")[2]
    named = [name for line in table.splitlines() for name in line[:27].replace(",", " ").split()]
    assert set(named) >= {*NAMES, "string_agg"}
