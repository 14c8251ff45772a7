"""A few rows that the native kernel decodes, keys and values together, are those that Python decodes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.errors import CorruptData
from kvstore.kernel import library
from kvstore.meta.state import TableDefinition
from kvstore.request import native_rows
from kvstore.request.native_rows import rows_of_pairs
from kvstore.request.row_layout import TableLayout
from kvstore.testing.strategies import projections, rows as record_batches
from logformat.catalog.edits import TableOptions
from logformat.checksum import key_sums
from logformat.ids import SchemaId, TableId
from tests.logformat.damage import bit_flips
from tests.support.contents import values_of

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "number": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "text": (pa.string(), st.text("a\0\1\2é", max_size=12)),
    "bytes": (pa.binary(), st.binary(max_size=9)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "decimal": (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
    "flag": (pa.bool_(), st.booleans()),
}


def layout_of(key: pa.Schema, *schemas: pa.Schema) -> TableLayout:
    stored = {SchemaId(nth): pa.schema([*key, *schema]) for nth, schema in enumerate(schemas, 1)}
    return TableLayout(TableDefinition(TableId(1), "t", stored, tuple(key.names), 1, TableOptions()))


def pairs_of(layout: TableLayout, rows: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    keys = layout.encode_keys(rows)
    names = [name for name in rows.schema.names if name not in layout.key_names]
    values, _ = layout.encode_values(rows.select(names), key_sums(keys), SchemaId(1))
    return list(zip(keys.to_list(), values.to_list(), strict=True))


def by_python(layout: TableLayout, pairs: list[tuple[bytes, bytes]], names: Any = None) -> pa.RecordBatch:
    with library.switched_off():
        return rows_of_pairs(layout, pairs, names)


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether two batches are equal, also where they have NaNs."""
    pairs = zip(one.columns, other.columns, strict=True)
    return one.schema.equals(other.schema) and all(values_of(its) == values_of(others) for its, others in pairs)


@given(st.data())
def test_rows_are_those_of_python(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3, unique=True))
    values = data.draw(record_batches().filter(lambda rows: rows.num_rows > 0))
    columns = [pa.array([data.draw(KEYS[kind][1]) for _ in range(values.num_rows)], KEYS[kind][0]) for kind in kinds]
    key = pa.schema([pa.field(f"key {kind}", KEYS[kind][0], False) for kind in kinds])
    later = pa.schema([*values.schema, pa.field("a new text", pa.string()), pa.field("a new flag", pa.bool_())])
    layout = layout_of(key, values.schema, later)
    rows = pa.RecordBatch.from_arrays([*columns, *values.columns], schema=pa.schema([*key, *values.schema]))
    pairs = pairs_of(layout, rows)
    for names in (None, data.draw(projections(layout.schema))):
        found = rows_of_pairs(layout, pairs, names)
        found.validate(full=True)
        assert same(found, by_python(layout, pairs, names))


A_FEW = pa.schema([("a", pa.int32()), ("s", pa.string()), ("b", pa.bool_())])
TEXT_KEY = pa.schema([pa.field("k", pa.string(), False)])


def a_few(layout: TableLayout) -> list[tuple[bytes, bytes]]:
    columns = {"k": ["x", "y\0", "z"], "a": [1, None, 3], "s": ["", "long text", None], "b": [True, None, False]}
    return pairs_of(layout, pa.RecordBatch.from_pydict(columns, schema=pa.schema([*TEXT_KEY, *A_FEW])))


def native(layout: TableLayout, pairs: list[tuple[bytes, bytes]]) -> pa.RecordBatch | None:
    decoder = native_rows.few_rows_of(layout, SchemaId(1), None)
    return None if decoder is None else decoder.decode(pairs)


def test_every_flipped_bit_is_left_to_python() -> None:
    layout = layout_of(TEXT_KEY, A_FEW)
    pairs = a_few(layout)
    assert library.kernel() is None or native(layout, pairs) is not None
    for nth, (key, value) in enumerate(pairs):
        damaged = [(key, each) for each in bit_flips(value)] + [(each, value) for each in bit_flips(key)]
        damaged += [(key, value[:-8]), (key[:-1], value), (key + b"\0", value), (b"", value), (key, b"")]
        for pair in damaged:
            some = [*pairs[:nth], pair, *pairs[nth + 1 :]]
            assert native(layout, some) is None
    with pytest.raises(CorruptData):
        rows_of_pairs(layout, [(pairs[0][0], pairs[1][1])])


def test_columns_outlive_their_batch() -> None:
    layout = layout_of(TEXT_KEY, A_FEW)
    expected = by_python(layout, a_few(layout)).to_pydict()
    found = rows_of_pairs(layout, a_few(layout))
    columns = dict(zip(found.schema.names, found.columns, strict=True))
    del found
    gc.collect()
    filler = [np.zeros(1 << 10) for _ in range(100)]
    assert {name: column.to_pylist() for name, column in columns.items()} == expected
    del filler
