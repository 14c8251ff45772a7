"""No merge engine is forgotten: each is documented, comes back from the catalog, and is compared with a model."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import kvstore
import merge_engines
from kvstore.errors import InvalidRequest
from kvstore.spark.connector import catalog
from merge_engines.engine import MergeEngine
from merge_engines.spec import engine_of
from tests.support.engine_tables import KINDS_OF_TABLE

ROOT = Path(__file__).parents[2]
SCHEMA = {"k": "int64 not null", "ts": "int64", "n": "int64", "tags": "string"}
"""Columns of the engines in format.md, and the key."""
PROPERTIES = {
    "last_row": {},
    "first_row": {"table.merge-engine": "first_row"},
    "versioned": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "ts"},
    "aggregate": {"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
}
"""Properties of Spark's CREATE TABLE for each engine."""


def documented() -> list[str | dict[str, object]]:
    """JSON forms in docs/format.md, "Merge engines"."""
    section = (ROOT / "docs" / "format.md").read_text().partition("\n### Merge engines\n")[2]
    table = section.partition("\nFunctions of an aggregate:")[0]
    return [json.loads(text) for text in re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)]


def name_of(spec: Any) -> str:
    return spec if isinstance(spec, str) else next(iter(spec))


def needed_columns(spec: Any, schema: pa.Schema) -> set[str]:
    """Columns without which no table can have the engine."""
    engine, found = engine_of(spec), set()
    engine.check(schema, ["k"])
    for place, name in enumerate(schema.names):
        try:
            engine.check(schema.remove(place), ["k"])
        except InvalidRequest:
            found.add(name)
    return found


def engines() -> set[type]:
    found = set()
    for path in Path(merge_engines.__file__).parent.glob("[a-z]*.py"):
        module = importlib.import_module(f"merge_engines.{path.stem}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind is not MergeEngine and hasattr(kind, "merge") and hasattr(kind, "delete_behaviors"):
                found.add(kind)
    return found


def test_every_engine_is_in_the_format_and_comes_back_from_it() -> None:
    assert len(engines()) >= 4
    assert {type(engine_of(spec)) for spec in documented()} == engines()


def test_every_engine_is_compared_with_the_model_of_a_table() -> None:
    assert {*KINDS_OF_TABLE} - {"log"} == {name_of(spec) for spec in documented()}


@pytest.mark.parametrize("spec", documented(), ids=name_of)
def test_a_column_of_the_engine_is_neither_dropped_nor_filled_and_is_renamed_in_it(
    spec: Any, store: kvstore.Store
) -> None:
    table = store.create_table("t", SCHEMA, "k", merge_engine=engine_of(spec))
    needed = needed_columns(spec, table.schema)
    for name in ("ts", "n", "tags"):
        if name in needed:
            with pytest.raises(InvalidRequest, match="of the merge engine can't be dropped"):
                store.drop_columns("t", name)
            with pytest.raises(InvalidRequest):
                store.create_table("u", SCHEMA, "k", merge_engine=engine_of(spec), auto_increment=name)
            store.rename_columns("t", {name: f"my_{name}"})
        else:
            store.drop_columns("t", name)
    assert needed_columns(table.options.merge_engine, table.schema) == {f"my_{name}" for name in needed}


@pytest.mark.parametrize("spec", documented(), ids=name_of)
def test_a_table_of_every_engine_is_created_from_spark(spec: Any, tmp_path: Path) -> None:
    columns = StructType([StructField(name, LongType()) for name in ("k", "ts", "n")])
    with kvstore.open(tmp_path / "s") as store:
        catalog.create(str(store.path), "t", columns, ["k"], PROPERTIES[name_of(spec)], case_sensitive=False)
        assert name_of(store.table("t").options.merge_engine) == name_of(spec)
