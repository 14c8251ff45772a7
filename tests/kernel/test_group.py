"""Rows that the native kernel groups by key have the groups, and the keys, that Python gives them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.errors import KeyTooLarge
from kvstore.kernel import library
from kvstore.meta.state import TableDefinition
from kvstore.request.request import Grouping
from kvstore.request.row_layout import TableLayout, grouped
from kvstore.testing import strategies
from logformat.catalog.edits import TableOptions
from logformat.ids import SchemaId, TableId

PREFIXES = ["", "\0", "\1", "\2", "a", "é", "https://example.com/item/000", "https://example.com/item/001"]


def layout_of(*types: pa.DataType) -> TableLayout:
    """Of a table whose key has all of its columns but one, the last column first."""
    fields = [pa.field(f"k{nth}", kind, False) for nth, kind in enumerate(types)]
    schema = pa.schema([*fields, pa.field("v", pa.int32())])
    key = tuple(reversed(schema.names[:-1]))
    return TableLayout(TableDefinition(TableId(1), "t", {SchemaId(1): schema}, key, 1, TableOptions()))


def as_lists(found: Grouping) -> tuple[Any, ...]:
    return (
        found.keys.to_list(),
        found.keys.width,
        *(each.tolist() for each in (found.order, found.starts, found.lasts)),
    )


def assert_both_agree(layout: TableLayout, columns: list[pa.Array]) -> None:
    count = len(columns[0])
    rows = pa.RecordBatch.from_arrays([*columns, pa.nulls(count, pa.int32())], schema=layout.schema)
    with library.switched_off():
        expected = as_lists(grouped(layout, rows))
    assert as_lists(grouped(layout, rows)) == expected


@given(st.lists(st.sampled_from(strategies.KEY_TYPES), min_size=1, max_size=3), st.data())
def test_groups_are_those_of_python(types: list[pa.DataType], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 6))
    columns = [data.draw(strategies.columns(kind, size, nullable=False)) for kind in types]
    assert_both_agree(layout_of(*types), columns)
    places = pa.array([Random(size).randrange(size) for _ in range(40 if size else 0)], pa.int64())
    assert_both_agree(layout_of(*types), [column.take(places) for column in columns])


@given(st.integers(0, 1 << 30), st.sampled_from([1, 12, 13, 80, 500]))
def test_many_keys_with_the_same_beginning_are_sorted(seed: int, count: int) -> None:
    random = Random(seed)

    def text() -> str:
        return random.choice(PREFIXES) + "".join(random.choices("\0\1\2aé", k=random.choice([0, 1, 7, 8, 9, 30])))

    texts = pa.array([text() for _ in range(count)])
    numbers = pa.array([random.choice([-1, 0, 255, 256, -(2**63), 2**63 - 1]) for _ in range(count)], pa.int64())
    assert_both_agree(layout_of(pa.string()), [texts])
    assert_both_agree(layout_of(pa.int64()), [numbers])
    assert_both_agree(layout_of(pa.int64(), pa.string()), [numbers, texts])


@pytest.mark.parametrize("sizes", [[4], [12], [1, 2, 3, 4], [4, 6, 40]])
def test_keys_that_differ_in_a_few_bytes_are_told_apart(sizes: list[int]) -> None:
    random = Random(len(sizes))
    texts = ["item-" + "".join(random.choices("ab", k=random.choice(sizes))) for _ in range(200)]
    assert_both_agree(layout_of(pa.string()), [pa.array(texts)])


@pytest.mark.parametrize("text", [lambda size: "a" * size, lambda size: "\0" * (size // 2) + "a" * (size % 2)])
def test_a_key_that_is_too_long_is_refused(text: Callable[[int], str]) -> None:
    longest = 511 - len(b"\x02\x00")
    assert_both_agree(layout_of(pa.string()), [pa.array([text(longest)] * 20)])
    layout = layout_of(pa.string())
    rows = pa.RecordBatch.from_arrays(
        [pa.array([text(longest + 1)] * 2), pa.nulls(2, pa.int32())], schema=layout.schema
    )
    with pytest.raises(KeyTooLarge):
        grouped(layout, rows)


def test_wide_rows_take_memory_for_their_keys_only() -> None:
    """Requests keep their keys while they wait."""
    columns = [pa.array([f"key {nth}" for nth in range(20)]), pa.array([bytes(1 << 20)] * 20)]
    schema = pa.schema([pa.field("k", pa.string(), False), pa.field("v", pa.binary())])
    layout = TableLayout(TableDefinition(TableId(1), "t", {SchemaId(1): schema}, ("k",), 1, TableOptions()))
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    grouped(layout, rows)
    tracemalloc.start()
    grouped(layout, rows)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 18
