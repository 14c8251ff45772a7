"""Arrow data that has the table's columns as they are is stored as other data is, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.errors import KeyTooLarge, SchemaMismatch, StoreError
from kvstore.kernel import library
from kvstore.request.encoded import EncodedWrites, encoded_writes
from kvstore.testing import strategies
from tests.support.small_writes import store_at, written
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string()), pa.field("f", pa.float64())])
ROWS = pa.RecordBatch.from_pylist([{"k": nth, "s": f"s{nth}", "f": nth / 2} for nth in range(200)], SCHEMA)
needs_kernel = pytest.mark.skipif(library.kernel() is None, reason="there is no native kernel")


def without_names_of_nulls(rows: pa.RecordBatch) -> pa.Table:
    """The rows as most programs give them: every column may have nulls, and there is metadata."""
    fields = [field.with_nullable(True).with_metadata({"a": "b"}) for field in rows.schema]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields, {"c": "d"}))


SHAPES: list[Callable[[pa.RecordBatch], Any]] = [
    lambda rows: rows,
    lambda rows: pa.Table.from_batches([rows]),
    without_names_of_nulls,
    lambda rows: pa.concat_tables([pa.Table.from_batches([rows.slice(0, 1)]), pa.Table.from_batches([rows.slice(1)])]),
    lambda rows: pa.RecordBatchReader.from_batches(rows.schema, [rows]),
    lambda rows: rows.select(list(reversed(rows.schema.names))),
]


@st.composite
def histories(draw: st.DrawFn) -> tuple[pa.Schema, dict[str, Any], list[tuple[int, pa.RecordBatch]]]:
    """Columns and options of a table, and batches of rows in which keys meet again, each with its shape."""
    kinds = draw(st.lists(st.sampled_from(strategies.SCALAR_TYPES), max_size=5))
    fields = [pa.field("k", draw(st.sampled_from(strategies.KEY_TYPES)), False)]
    fields += [pa.field(f"c{nth}", kind, draw(st.booleans())) for nth, kind in enumerate(kinds)]
    schema = pa.schema(draw(st.permutations(fields)))
    options = {
        "buckets": draw(st.sampled_from([1, 1, 3])),
        "merge_engine": draw(st.sampled_from(["last_row", "last_row", "first_row"])),
        "skip_identical_updates": draw(st.booleans()),
    }
    size = draw(st.integers(2, 40))
    columns = [draw(strategies.columns(field.type, size, nullable=field.nullable)) for field in schema]
    pool = pa.RecordBatch.from_arrays(columns, schema=schema)
    batches = [(draw(st.integers(0, len(SHAPES) - 1)), pool)]
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, size - 1))
        part = pool.slice(start, draw(st.integers(0, size - start)))
        batches.append((draw(st.integers(0, len(SHAPES) - 1)), part))
    return schema, options, batches


@settings(max_examples=settings().max_examples // 2)
@given(histories())
def test_any_shape_of_the_same_rows_leaves_the_same_bytes(tmp_path_factory: Any, history: Any) -> None:
    schema, options, batches = history
    path, found = tmp_path_factory.mktemp("stores"), []
    for name, way in (("it", nullcontext()), ("long", mock.patch.object(EncodedWrites, "arrow", return_value=None))):
        with way, store_at(path / name) as store:
            table = store.create_table("t", schema, "k", **options)
            results: list[Any] = []
            for shape, rows in batches:
                try:
                    results.append(table.upsert(SHAPES[shape](rows)))
                except KeyTooLarge as error:
                    results.append(str(error))
            found.append((results, written(table)))
    assert found[0] == found[1]


@needs_kernel
@pytest.mark.parametrize("shape", [0, 1, 2])
def test_it_is_not_converted(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, shape: int) -> None:
    table = store.create_table("t", SCHEMA, "k")
    monkeypatch.setattr("logformat.rows.intake.conform", None)
    for rows in (ROWS, ROWS.slice(7, 1), ROWS.slice(3, 40)):
        table.upsert(SHAPES[shape](rows))
    assert rows_of(table) == ROWS.to_pylist()


def invalid_text() -> pa.RecordBatch:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    return pa.RecordBatch.from_arrays([pa.array([1]), text, pa.array([0.5])], schema=SCHEMA)


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"k": pa.array([1, None]), "s": ["a", "b"], "f": [0.5, 0.5]}),
        pa.table({"k": pa.array([1]), "s": ["a"], "f": ["b"]}),
        pa.table({"k": pa.array([1]), "other": ["a"]}),
        invalid_text(),
        pa.Table.from_batches([invalid_text()]),
    ],
)
def test_what_does_not_fit_is_refused_as_other_data_is(store: kvstore.Store, rows: Any) -> None:
    table, refused = store.create_table("t", SCHEMA, "k"), []
    for given_rows in (rows, iter(rows.to_batches()) if isinstance(rows, pa.Table) else rows):
        with pytest.raises(SchemaMismatch) as error:
            table.upsert(given_rows if given_rows is rows else pa.Table.from_batches(list(given_rows)))
        refused.append(str(error.value))
    assert refused[0] == refused[1]
    assert table.offsets() == {0: (0, 0)}


def test_more_rows_than_a_batch_takes_are_several_batches(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store", batch_rows_max=64) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(ROWS)
        headers = [each.header for each in table.bucket(0).handle.log.batches(0, 200)]
        assert [each.record_count for each in headers] == [64, 64, 64, 8]
        assert rows_of(table) == ROWS.to_pylist()


@pytest.mark.parametrize("newer", [1, 20, 90, 150, 200])
def test_rows_in_the_memtable_and_in_the_index_are_replaced_together(store: kvstore.Store, newer: int) -> None:
    """What was there is in the digest, which the check compares with the rows."""
    table = store.create_table("t", SCHEMA, "k")
    table.upsert(ROWS)
    table.flush()
    table.upsert([{"k": key, "s": "newer", "f": None} for key in range(newer)])
    table.delete([0, 180])
    again = pa.RecordBatch.from_pylist([{"k": key, "s": "again", "f": None} for key in range(200)], SCHEMA)
    table.upsert(again)
    before = table.changelog(200 + newer * 2 + 2).read_all().to_pylist()
    replaced = {row["k"]: row["s"] for row in before if row["_change_type"] == "update_preimage"}
    expected = {key: "newer" if key < newer else f"s{key}" for key in range(200) if key not in (0, 180)}
    assert replaced == expected
    assert rows_of(table) == again.to_pylist()
    assert store.check().ok


@needs_kernel
def test_columns_that_are_renamed_while_a_write_waits_keep_their_values(store: kvstore.Store) -> None:
    """It is encoded by then; it becomes a batch of the table's present schema."""
    table = store.create_table("t", SCHEMA, "k")
    writes = encoded_writes(table.parts.definition)
    assert writes is not None
    request = writes.arrow(ROWS.slice(0, 3), 100)
    assert request is not None
    store.rename_columns("t", {"s": "text"})
    table.bucket(0).handle.submit(request, here=True)
    assert request.answer.result().last_offset == 2
    assert [row["text"] for row in rows_of(table)] == ["s0", "s1", "s2"]


@needs_kernel
def test_a_unique_index_refuses_a_row(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    store.create_index("t", "by_text", ["s"], unique=True)
    table.upsert(ROWS.slice(0, 2))
    with pytest.raises(StoreError):
        table.upsert(pa.table({"k": [7], "s": ["s1"], "f": [0.5]}))
    table.upsert(pa.table({"k": [1], "s": ["other"], "f": [0.5]}))
    assert [row["s"] for row in rows_of(table)] == ["s0", "other"]


@pytest.mark.parametrize("kind", ["time64[ns]", "timestamp[ns]", "duration[ns]", "timestamp[s]", "date32"])
def test_one_row_keeps_what_python_has_no_value_for(store: kvstore.Store, kind: str) -> None:
    """Nanoseconds, and years after 9999."""
    type_ = pa.type_for_alias(kind)
    value = 86_399_999_999_999 if type_.bit_width == 64 else 2**31 - 1
    column = pa.array([value], pa.int64() if type_.bit_width == 64 else pa.int32()).view(type_)
    row = pa.record_batch([pa.array([1]), column], pa.schema([pa.field("k", pa.int64(), False), pa.field("t", type_)]))
    table = store.create_table("t", row.schema, "k")
    table.upsert(row)
    assert table.scan().read_all().column("t").combine_chunks().equals(column)
