from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.testing.strategies import rows as record_batches
from logformat import Changes
from logformat.errors import InvalidRequest, SchemaMismatch
from tests.support.contents import contents

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("n", pa.int16(), nullable=False), ("s", pa.string())]
)
ROW = {"k": 1, "n": 2, "s": "x"}

OPERATIONS = st.lists(
    st.tuples(
        st.just("upsert"), st.fixed_dictionaries({"k": st.integers(0, 3), "n": st.integers(0, 9), "s": st.text()})
    )
    | st.tuples(st.just("delete"), st.fixed_dictionaries({"k": st.integers(0, 3)}, optional={"s": st.text()}))
)


@given(OPERATIONS)
def test_operations_keep_their_order_and_a_delete_needs_only_its_key(operations: list[Any]) -> None:
    changes = Changes.of(operations, SCHEMA)
    assert len(changes) == len(operations)
    assert changes.is_delete.to_pylist() == [word == "delete" for word, _ in operations]
    assert changes.rows.to_pylist() == [{"k": None, "n": None, "s": None} | row for _, row in operations]
    conformed = changes.conform(SCHEMA, ["k"])
    assert conformed.rows.schema == SCHEMA
    assert (conformed.rows.to_pylist(), conformed.is_delete) == (changes.rows.to_pylist(), changes.is_delete)


@pytest.mark.parametrize(
    "operation",
    [
        ("insert", ROW),
        ("upsert", {"k": 1, "n": 2}),
        ("upsert", ROW | {"more": 1}),
        ("delete", {"k": 1, "more": 1}),
        ("upsert", ROW | {"n": "2"}),
        ("delete", {"k": "1"}),
    ],
)
def test_operations_that_do_not_fit_are_refused(operation: Any) -> None:
    with pytest.raises(SchemaMismatch):
        Changes.of([("upsert", ROW), operation], SCHEMA)


@given(record_batches())
def test_upserts_are_the_rows_and_deletes_their_keys(rows: pa.RecordBatch) -> None:
    upserts = Changes.upserts(rows)
    assert (upserts.rows, upserts.is_delete.to_pylist()) == (rows, [False] * len(rows))
    key = rows.schema.names[:1]
    deletes = Changes.deletes(rows.select(key), rows.schema)
    assert deletes.is_delete.to_pylist() == [True] * len(rows)
    assert (deletes.rows.schema.names, deletes.rows.schema.types) == (rows.schema.names, rows.schema.types)
    assert contents(deletes.rows) == [*contents(rows.select(key)), *[[None] * len(rows)] * (rows.num_columns - 1)]


@pytest.mark.parametrize("is_delete", [[True], [True, False, True], [True, None]])
def test_every_row_is_an_upsert_or_a_delete(is_delete: list[bool | None]) -> None:
    with pytest.raises(SchemaMismatch):
        Changes(pa.record_batch([[1, 2]], names=["k"]), pa.array(is_delete, pa.bool_()))


class TestArguments:
    ROWS = pa.record_batch([[1, 2]], names=["k"])

    @pytest.mark.parametrize(
        "given",
        [
            [False, True],
            np.array([False, True]),
            pa.array([False, True]),
            pa.chunked_array([[False], [True]]),
            pa.chunked_array([[True, False, True]]).slice(1),
        ],
    )
    def test_booleans_of_any_kind_become_one_array(self, given: Any) -> None:
        assert Changes(self.ROWS, given).is_delete.equals(pa.array([False, True]))

    @pytest.mark.parametrize(
        "given",
        [
            pa.array([0, 1]),
            pa.array([0, 1], pa.uint8()),
            pa.array(["", "x"]),
            pa.array([False, True]).dictionary_encode(),
            np.array([0, 1]),
            [0, 1],
            "ab",
            [None, True],
            True,
            None,
        ],
    )
    def test_other_values_of_is_delete_are_refused(self, given: Any) -> None:
        with pytest.raises(SchemaMismatch):
            Changes(self.ROWS, given)

    @pytest.mark.parametrize("rows", [None, [{"k": 1}], {"k": [1]}, pa.table({"k": [1]}), pa.array([1])])
    def test_rows_must_be_one_record_batch(self, rows: Any) -> None:
        with pytest.raises(SchemaMismatch, match="RecordBatch"):
            Changes(rows, pa.array([False]))

    @pytest.mark.parametrize(
        "operations",
        [
            None,
            5,
            "x",
            [("upsert", ROW, 1)],
            [("delete", "a")],
            [("upsert", None)],
            [ROW],
            ["upsert"],
            [("insert", ROW)],
        ],
    )
    def test_operations_must_be_pairs(self, operations: Any) -> None:
        with pytest.raises(SchemaMismatch, match="pair"):
            Changes.of(operations, SCHEMA)

    @pytest.mark.parametrize("schema", [None, ["k"], {"k": pa.int64()}])
    def test_a_schema_must_be_a_schema(self, schema: Any) -> None:
        with pytest.raises(InvalidRequest, match=r"pyarrow\.Schema"):
            Changes.of([], schema)


class TestConform:
    def test_columns_are_ordered_and_typed_as_in_the_table(self) -> None:
        rows = pa.record_batch([["x"], pa.array([2], pa.int64()), [1]], names=["s", "n", "k"])
        conformed = Changes.upserts(rows).conform(SCHEMA, ["k"])
        assert conformed.rows == pa.RecordBatch.from_pylist([ROW], schema=SCHEMA)

    @pytest.mark.parametrize("word", ["upsert", "delete"])
    def test_a_null_key_is_refused(self, word: Any) -> None:
        with pytest.raises(SchemaMismatch) as refused:
            Changes.of([("upsert", ROW), (word, ROW | {"k": None})], SCHEMA).conform(SCHEMA, ["k"])
        assert refused.value.where["column"] == "k"

    def test_a_null_key_is_refused_even_in_a_nullable_column(self) -> None:
        with pytest.raises(SchemaMismatch):
            Changes.of([("delete", {"s": None})], SCHEMA).conform(SCHEMA, ["s"])

    def test_a_null_counts_in_an_upsert_but_not_in_a_delete(self) -> None:
        fine = Changes.of([("upsert", ROW), ("delete", ROW | {"n": None})], SCHEMA)
        assert fine.conform(SCHEMA, ["k"]).rows.to_pylist()[1]["n"] is None
        with pytest.raises(SchemaMismatch) as refused:
            Changes.of([("upsert", ROW | {"n": None}), ("delete", {"k": 1})], SCHEMA).conform(SCHEMA, ["k"])
        assert (refused.value.where["column"], refused.value.where["nulls"]) == ("n", 1)

    @pytest.mark.parametrize("names", [["k", "s"], ["k", "n", "s", "more"], ["k", "n", "t"]])
    def test_columns_that_are_missing_or_unknown_are_refused(self, names: list[str]) -> None:
        with pytest.raises(SchemaMismatch):
            Changes.upserts(pa.record_batch([[1]] * len(names), names=names)).conform(SCHEMA, ["k"])

    def test_columns_that_no_upsert_has_are_left_out(self) -> None:
        partial = Changes.of([("upsert", {"k": 1, "s": "x"}), ("delete", {"k": 2}), ("delete", ROW)], SCHEMA)
        assert partial.rows.to_pylist() == [{"k": 1, "s": "x"}, {"k": 2, "s": None}, {"k": 1, "s": "x"}]
        with pytest.raises(SchemaMismatch, match="missing"):
            partial.conform(SCHEMA, ["k"])
        with pytest.raises(SchemaMismatch, match="missing"):
            Changes.of([("upsert", {"k": 1, "s": "x"}), ("upsert", ROW)], SCHEMA)
