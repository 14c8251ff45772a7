"""Entries of secondary indexes that the kernel makes, and changes of columns that it finds, are those of Python."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.indexing.entries import in_order
from kvstore.kernel import library
from kvstore.meta.state import TableDefinition
from kvstore.request.native_rows import native_differences
from kvstore.request.row_layout import TableLayout
from logformat.binary_column import BinaryColumn, concatenate
from logformat.catalog.edits import TableOptions
from logformat.checksum import key_sums
from logformat.ids import SchemaId, TableId
from logformat.rows.entries import codes_of, entries_in_order
from logformat.rows.keys import KeyCodec

NEEDS_KERNEL = pytest.mark.skipif(library.kernel() is None, reason="there is no native kernel")
TEXTS = ["", "\0", "\1", "a", "a\0", "a\1", "user1@example.org", "user12@example.org", "x" * 100, None]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), False),
        ("text", pa.string()),
        ("number", pa.int32()),
        ("flag", pa.bool_()),
        ("other", pa.binary()),
    ]
)
COLUMNS = SCHEMA.names[1:]
BITS = (("other", 1), ("number", 2), ("flag", 4), ("text", 8), ("k", 16))
LAYOUT = TableLayout(TableDefinition(TableId(1), "t", {SchemaId(1): SCHEMA}, ("k",), 1, TableOptions()))


@given(st.integers(0, 1 << 30), st.sampled_from([16, 40, 300, 3000]), st.booleans())
def test_entries_are_those_of_python(seed: int, count: int, is_text: bool) -> None:
    random = Random(seed)
    names = random.sample(range(100 * count), count)
    kind, keys = (pa.string(), list(map(str, names))) if is_text else (pa.int64(), names)
    codes = codes_of(
        [
            pa.array(random.choices(TEXTS[random.randrange(len(TEXTS)) :], k=count), pa.string()),
            *([pa.array(random.choices([None, 1, 7], k=count), pa.int16())] if random.random() < 0.5 else []),
        ]
    )
    key_codes = KeyCodec([pa.field("k", kind)]).encode([pa.array(keys, kind)])
    first = random.randrange(count - 15)  # columns that do not begin at the beginning of their memory
    given = codes.slice(first, count), key_codes.slice(first, count)
    found, expected = in_order(7, *given), entries_in_order(7, *given)
    assert [each.to_list() for each in found] == [each.to_list() for each in expected]


def test_entries_that_are_too_long_are_made_by_python() -> None:
    codes = codes_of([pa.array(["a" * 100 * number for number in range(20)])])
    keys = KeyCodec([pa.field("k", pa.string())]).encode([pa.array(["k" * 300 + str(number) for number in range(20)])])
    found, expected = in_order(7, codes, keys), entries_in_order(7, codes, keys)
    assert [each.to_list() for each in found] == [each.to_list() for each in expected]


Row = tuple[object, ...]


def row_of(random: Random) -> Row:
    text = random.choice(TEXTS)
    number, flag = random.choice([None, 0, 5]), random.choice([None, True, False])
    return text, number, flag, random.choice([None, b"", b"a", b"bc"])


def encoded(keys: BinaryColumn, rows: list[Row | None]) -> BinaryColumn:
    """Rows as the index stores them, empty where there is none."""
    there = [place for place, row in enumerate(rows) if row is not None]
    columns = zip(*(row for row in rows if row is not None), strict=True) if there else [()] * len(COLUMNS)
    arrays = [pa.array(column, SCHEMA.field(name).type) for name, column in zip(COLUMNS, columns, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, COLUMNS)
    values = LAYOUT.encode_values(batch, key_sums(keys.take(np.array(there, np.int64))), SchemaId(1))[0].to_list()
    stored = dict(zip(there, values, strict=True))
    return BinaryColumn.from_list([stored.get(place, b"") for place in range(len(rows))])


@NEEDS_KERNEL
@given(st.integers(0, 1 << 30), st.integers(1, 60), st.booleans())
def test_columns_that_change_are_found(seed: int, count: int, has_gaps: bool) -> None:
    random = Random(seed)
    keys = KeyCodec([SCHEMA.field("k")]).encode([pa.array(range(count), pa.int64())])
    before: list[Row | None] = [row_of(random) for _ in range(count)]
    after: list[Row | None] = [row_of(random) if random.random() < 0.5 else row for row in before]
    if has_gaps:
        before = [row if random.random() < 0.7 else None for row in before]
        after = [row if random.random() < 0.7 else None for row in after]
    old = encoded(keys, before)
    there = old.lengths > 0
    found = native_differences(LAYOUT, keys, there, old.without_empty(), encoded(keys, after), BITS)
    assert found is not None
    for one, other, bits in zip(before, after, found.tolist(), strict=True):
        if one is None or other is None:
            assert bits == (0 if one is other else 2**64 - 1)
        else:
            differ = {name for name, a, b in zip(COLUMNS, one, other, strict=True) if a != b or type(a) is not type(b)}
            assert {name for name, bit in BITS if bits & bit} == differ


@NEEDS_KERNEL
def test_rows_that_are_damaged_or_of_another_schema_are_left_to_python() -> None:
    random, count = Random(3), 40
    keys = KeyCodec([SCHEMA.field("k")]).encode([pa.array(range(count), pa.int64())])
    old, new = (encoded(keys, [row_of(random) for _ in range(count)]) for _ in range(2))
    there = np.ones(count, bool)
    assert native_differences(LAYOUT, keys, there, old, new, BITS) is not None
    assert (
        native_differences(LAYOUT, keys, there, old, concatenate([new.slice(1, count), new.slice(0, 1)]), BITS) is None
    )
    for column in (old, new):
        for _ in range(200):
            flat = column.flat.copy()
            flat[random.randrange(len(flat))] ^= 1 << random.randrange(8)
            damaged = BinaryColumn(flat, column.offsets)
            sides = (damaged, new) if column is old else (old, damaged)
            assert native_differences(LAYOUT, keys, there, *sides, BITS) is None
