"""Stored forms and names of engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logformat.errors import InvalidRequest, UnsupportedVersion
from merge_engines.aggregate import Aggregate
from merge_engines.engine import MergeEngine
from merge_engines.first_row import FirstRow
from merge_engines.functions.function import NAMES, listagg
from merge_engines.last_row import LastRow
from merge_engines.spec import engine_given, engine_of, spec_of
from merge_engines.versioned import Versioned

WRITTEN: list[tuple[MergeEngine, Any]] = [
    (LastRow(), "last_row"),
    (FirstRow(), "first_row"),
    (Versioned("ts"), {"versioned": "ts"}),
    (Aggregate(), {"aggregate": {}}),
    (Aggregate({"n": "sum", "tags": listagg(";")}), {"aggregate": {"n": "sum", "tags": {"listagg": ";"}}}),
    (Aggregate({"tags": "string_agg"}), {"aggregate": {"tags": {"listagg": ","}}}),
    *((Aggregate({"a": name}), {"aggregate": {"a": name}}) for name in NAMES if name != "listagg"),
]


@pytest.mark.parametrize(("engine", "spec"), WRITTEN, ids=repr)
def test_an_engine_survives_a_round_trip_through_json(engine: MergeEngine, spec: Any) -> None:
    assert spec_of(engine) == spec
    assert engine_of(json.loads(json.dumps(spec))) == engine
    assert engine_given(engine) is engine


@pytest.mark.parametrize(
    "spec",
    [
        *("newest", "versioned", None, 3, {}, [], {"last_row": {}}, {"versioned": 3}, {"versioned": "a", "more": 1}),
        *(
            {"aggregate": "sum"},
            {"aggregate": {}, "more": 1},
            {"aggregate": {"a": "median"}},
            {"aggregate": {"a": None}},
        ),
        *({"aggregate": {"a": {"listagg": 1}}}, {"aggregate": {"a": {"listagg": ",", "distinct": True}}}),
        *({"aggregate": {"a": "listagg"}}, {"aggregate": {"a": "string_agg"}}),
    ],
    ids=repr,
)
def test_specs_of_a_newer_version_are_refused(spec: Any) -> None:
    with pytest.raises(UnsupportedVersion):
        engine_of(spec)


def test_users_name_engines() -> None:
    assert (engine_given("last_row"), engine_given("first_row")) == (LastRow(), FirstRow())


@pytest.mark.parametrize("given", ["versioned", "aggregate", "none", None, Versioned, {"versioned": "a"}], ids=repr)
def test_unknown_engines_are_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="Versioned"):
        engine_given(given)


def test_a_foreign_engine_can_not_be_stored() -> None:
    with pytest.raises(InvalidRequest):
        spec_of(object())  # type: ignore[arg-type]
