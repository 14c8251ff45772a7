"""Merge engines as the catalog stores them (docs/format.md, Merge engines), and as users name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logformat.errors import InvalidRequest, UnsupportedVersion
from merge_engines.aggregate import Aggregate
from merge_engines.engine import MergeEngine
from merge_engines.first_row import FirstRow
from merge_engines.functions.function import Function, function_given, listagg
from merge_engines.last_row import LastRow
from merge_engines.versioned import Versioned

Spec = str | dict[str, Any]
"""Plain JSON."""
Stored = LastRow | FirstRow | Versioned | Aggregate
"""Every engine that a catalog may name; mypy finds a function below that leaves one out."""


def engine_given(given: Any) -> MergeEngine:
    """The engine that a user asked for, by name or as an object.

    Raises:
        InvalidRequest: An engine of that name does not exist, or it needs arguments.
    """
    match given:
        case "last_row":
            return LastRow()
        case "first_row":
            return FirstRow()
        case LastRow() | FirstRow() | Versioned() | Aggregate():
            return given
    raise InvalidRequest(
        'merge_engine must be "last_row", "first_row", Versioned(column) or Aggregate({column: function}).',
        given=repr(given),
    )


def spec_of(engine: MergeEngine) -> Spec:
    """The engine in its stored form."""
    match engine:
        case LastRow():
            return "last_row"
        case FirstRow():
            return "first_row"
        case Versioned(column):
            return {"versioned": column}
        case Aggregate():
            return {"aggregate": {column: _function_spec(function) for column, function in engine.functions}}
    raise InvalidRequest("This merge engine can't be stored.", given=type(engine).__name__)


def engine_of(spec: Any) -> Stored:
    """The engine from its stored form.

    Raises:
        UnsupportedVersion: A newer version wrote it.
    """
    match spec:
        case "last_row":
            return LastRow()
        case "first_row":
            return FirstRow()
        case {"versioned": str(column), **others} if not others:
            return Versioned(column)
        case {"aggregate": dict(functions), **others} if not others:
            return Aggregate({column: _function_of(column, written) for column, written in functions.items()})
    raise UnsupportedVersion("The catalog names a merge engine unknown to this version; upgrade kvstore.", spec=spec)


def engine_columns(spec: Any) -> list[str]:
    """Columns that an engine in its stored form names.

    Raises:
        UnsupportedVersion: A newer version wrote it.
    """
    match engine_of(spec):
        case Versioned(column):
            return [column]
        case Aggregate() as engine:
            return [column for column, _ in engine.functions]
        case LastRow() | FirstRow():
            return []


def with_columns(spec: Any, names: Mapping[str, str]) -> Spec:
    """An engine in its stored form whose columns have new names.

    Args:
        names: From column to its new name; other columns keep theirs.

    Raises:
        UnsupportedVersion: A newer version wrote it.
    """
    match engine_of(spec):
        case Versioned(column):
            return spec_of(Versioned(names.get(column, column)))
        case Aggregate() as engine:
            return spec_of(Aggregate({names.get(column, column): function for column, function in engine.functions}))
        case LastRow() | FirstRow() as engine:
            return spec_of(engine)


def _function_spec(function: Function) -> Spec:
    return {"listagg": function.delimiter} if function.name == "listagg" else function.name


def _function_of(column: str, written: Any) -> Function:
    match written:
        case {"listagg": str(delimiter), **others} if not others:
            return listagg(delimiter)
        case str() if written not in ("listagg", "string_agg"):
            try:
                return function_given(column, written)
            except InvalidRequest:
                pass
    raise UnsupportedVersion(
        "The catalog names a function unknown to this version; upgrade kvstore.", column=column, function=written
    )
