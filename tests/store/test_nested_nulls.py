"""Nulls inside lists, maps and structs with fields that are not nullable: stored if the type allows them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import SchemaMismatch
from logformat.rows.intake import one_batch
from logformat.rows.value_bytes import row_bytes
from tests.support.tables import changes_of, rows_of

STRICT = pa.struct([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.string())])
"""A struct that is null has no ``a`` either, although ``a`` is not nullable."""
NULL, FULL, HOLE = None, {"a": "x", "b": None}, {"a": None, "b": "x"}
VALID = {
    "struct": (STRICT, [NULL, FULL]),
    "list of structs": (pa.list_(STRICT), [[NULL], [NULL, FULL], [], None]),
    "list of lists": (pa.list_(pa.list_(pa.field("item", STRICT, nullable=False))), [[None], [[FULL], None, []], None]),
    "map of structs": (pa.map_(pa.string(), STRICT), [[("x", NULL)], [("x", FULL), ("y", NULL)], [], None]),
    "map of lists": (pa.map_(pa.string(), pa.list_(STRICT)), [[("x", NULL)], [("x", [NULL, FULL]), ("y", [])], None]),
    "map of maps": (
        pa.map_(pa.string(), pa.map_(pa.int8(), STRICT)),
        [[("x", NULL)], [("x", [(1, NULL), (2, FULL)]), ("y", [])], None],
    ),
    "map of strict lists": (
        pa.map_(pa.string(), pa.list_(pa.field("item", STRICT, nullable=False))),
        [[("x", NULL)], [("x", [FULL]), ("y", [])], None],
    ),
    "struct of maps": (
        pa.struct([pa.field("m", pa.map_(pa.string(), STRICT), nullable=False)]),
        [{"m": [("x", NULL)]}, {"m": [("x", FULL)]}, None],
    ),
    "map by structs": (pa.map_(STRICT, STRICT), [[(FULL, NULL)], [({"a": "k", "b": "l"}, FULL)], None]),
}
INVALID = {
    "struct": (STRICT, HOLE),
    "list of structs": (pa.list_(STRICT), [NULL, HOLE]),
    "list of strict structs": (pa.list_(pa.field("item", STRICT, nullable=False)), [FULL, NULL]),
    "map of structs": (pa.map_(pa.string(), STRICT), [("x", NULL), ("y", HOLE)]),
    "map of strict structs": (pa.map_(pa.string(), pa.field("value", STRICT, nullable=False)), [("x", NULL)]),
    "map of lists": (pa.map_(pa.string(), pa.list_(STRICT)), [("x", NULL), ("y", [HOLE])]),
    "map of maps": (pa.map_(pa.string(), pa.map_(pa.int8(), STRICT)), [("x", NULL), ("y", [(1, HOLE)])]),
    "map by structs": (pa.map_(STRICT, pa.int8()), [(HOLE, 1)]),
}
FORMS: dict[str, Callable[[list[dict[str, Any]], pa.Schema], Any]] = {
    "a few dicts": lambda rows, _: rows,
    "many dicts": lambda rows, _: rows * 100,
    "Arrow data": lambda rows, schema: pa.Table.from_pylist(rows, schema=schema),
    "nullable Arrow data": lambda rows, schema: pa.Table.from_pylist(rows, schema=nullable(schema)),
}


def nullable(schema: pa.Schema) -> pa.Schema:
    """The same columns with every inner field nullable, as most programs send them."""
    return pa.schema([field.with_type(without_not_null(field.type)) for field in schema])


def without_not_null(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, without_not_null(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(without_not_null(kind.key_type), without_not_null(kind.item_type))
    return pa.list_(without_not_null(kind.value_type)) if pa.types.is_list(kind) else kind


@pytest.mark.parametrize(("kind", "values"), VALID.values(), ids=list(VALID))
def test_nulls_that_a_type_allows_are_stored(store: kvstore.Store, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", kind)])
    rows = [{"k": key, "v": value} for key, value in enumerate(values)]
    for name, form in FORMS.items():
        table = store.create_table(name, schema, "k")
        table.upsert(form(rows, schema))
        assert rows_of(table) == rows
        assert table.lookup([row["k"] for row in rows]).drop_columns("_found").to_pylist() == rows
        table.upsert({"k": 0, "v": values[1]})
        table.delete([1])
        assert rows_of(table) == [{"k": 0, "v": values[1]}, *rows[2:]]
        assert rows_of(table, as_of=len(rows)) == rows
        assert [(op, row) for _, op, row, _ in changes_of(table)][-3:] == [
            ("update_preimage", rows[0]),
            ("update_postimage", {"k": 0, "v": values[1]}),
            ("delete", rows[1]),
        ]
    assert store.check()


@pytest.mark.parametrize("source", ["log", "snapshot"])
@pytest.mark.parametrize(("kind", "values"), VALID.values(), ids=list(VALID))
def test_nulls_that_a_type_allows_survive_a_rebuilt_index(
    store_path: Path, kind: pa.DataType, values: list[Any], source: str
) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", kind)])
    rows = [{"k": key, "v": value} for key, value in enumerate(values)]
    with kvstore.open(store_path) as store:
        table = store.create_table("t", schema, "k")
        table.upsert(rows)
        if source == "snapshot":
            table.snapshot()
    (index,) = store_path.rglob("index")
    shutil.rmtree(index)
    with kvstore.open(store_path) as store:
        assert rows_of(store.table("t")) == rows
        assert store.check()


@pytest.mark.parametrize(("kind", "value"), INVALID.values(), ids=list(INVALID))
def test_nulls_that_a_type_does_not_allow_are_refused_before_anything_is_written(
    store: kvstore.Store, kind: pa.DataType, value: Any
) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", kind)])
    for name, form in FORMS.items():
        table = store.create_table(name, schema, "k")
        with pytest.raises(SchemaMismatch) as refused:
            table.upsert(form([{"k": 1, "v": None}, {"k": 2, "v": value}], schema))
        assert refused.value.where["column"] == "v"
        assert (rows_of(table), changes_of(table)) == ([], [])
        table.upsert({"k": 3, "v": None})
        assert rows_of(table) == [{"k": 3, "v": None}]


@pytest.mark.parametrize(("kind", "values"), VALID.values(), ids=list(VALID))
def test_the_size_of_a_row_does_not_depend_on_other_rows(kind: pa.DataType, values: list[Any]) -> None:
    rows = one_batch([{"v": value} for value in values], pa.schema([("v", kind)]))
    assert row_bytes(rows).tolist() == [int(row_bytes(rows.slice(row, 1))[0]) for row in range(len(rows))]
