"""Values of rows that the native kernel decodes have the columns that Python decodes; damage is left to Python."""

from __future__ import annotations

import ctypes
import weakref
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.errors import CorruptData
from kvstore.kernel import library
from kvstore.kernel.rows import verified_schema
from kvstore.meta.state import TableDefinition
from kvstore.request.native_rows import native_columns
from kvstore.request.row_layout import TableLayout
from kvstore.testing.strategies import projections, rows as record_batches
from logformat.binary_column import BinaryColumn, Places
from logformat.catalog.edits import TableOptions
from logformat.checksum import CHECKSUM_BITS, hasher, key_sums, weights_of_values
from logformat.ids import SchemaId, TableId
from logformat.rows import bucketing
from tests.kernel.both import assert_same_columns
from tests.kernel.guarded import guarded
from tests.logformat.damage import bit_flips
from tests.support.contents import values_of

KEY = pa.field("key of the row", pa.int64(), False)


def layout_of(*schemas: pa.Schema) -> TableLayout:
    """Of a table whose schemas have these columns outside the key."""
    stored = {SchemaId(nth): pa.schema([KEY, *schema]) for nth, schema in enumerate(schemas, 1)}
    return TableLayout(TableDefinition(TableId(1), "t", stored, (KEY.name,), 1, TableOptions()))


def keys_of(layout: TableLayout, count: int) -> BinaryColumn:
    return layout.encode_keys(pa.RecordBatch.from_arrays([pa.array(range(count), pa.int64())], names=[KEY.name]))


def encoded(layout: TableLayout, rows: pa.RecordBatch, schema_id: int, keys: BinaryColumn) -> BinaryColumn:
    return layout.encode_values(rows, key_sums(keys), SchemaId(schema_id))[0]


def is_flat(schema: pa.Schema) -> bool:
    return not any(pa.types.is_nested(kind) for kind in schema.types)


@given(record_batches(), st.data())
def test_columns_are_those_of_python(rows: pa.RecordBatch, data: st.DataObject) -> None:
    layout = layout_of(rows.schema)
    random = Random(data.draw(st.integers(0, 1 << 30)))
    all_keys = keys_of(layout, 2 * rows.num_rows)
    places = np.array(sorted(random.sample(range(2 * rows.num_rows), rows.num_rows)), np.int64)
    if data.draw(st.booleans()):
        random.shuffle(places)
    values = encoded(layout, rows, 1, all_keys.take(places))
    names = data.draw(projections(rows.schema))
    found = native_columns(layout, values, places, all_keys, names)
    native = library.kernel() is not None and is_flat(rows.schema) and rows.num_rows > 0
    assert (found is not None) == native
    if found is not None:
        assert_same_columns(found, layout, values, places, all_keys, names)


class Growing:
    """The kernel while another thread meets a row that is longer than all before."""

    def __init__(self, kernel: ctypes.CDLL) -> None:
        self._kernel = kernel
        self.held: list[bool] = []

    def kv_verify(self, *arguments: Any) -> int:
        weights = weights_of_values(1).base
        assert weights is not None
        known, longer = weakref.ref(weights), len(weights) + 1
        del weights
        weights_of_values(longer)
        self.held.append(known() is not None)
        status: int = self._kernel.kv_verify(*arguments)
        return status


def test_weights_are_kept_until_they_are_used() -> None:
    kernel = library.kernel()
    if kernel is None:
        return
    layout = layout_of(pa.schema([("a", pa.int32())]))
    keys = keys_of(layout, 3)
    values = encoded(layout, pa.RecordBatch.from_pydict({"a": pa.array([1, 2, 3], pa.int32())}), 1, keys)
    growing: Any = Growing(kernel)
    assert verified_schema(growing, Places.of(values), Places.of(keys)) == 1
    assert growing.held == [True]


@given(record_batches(), record_batches())
def test_rows_of_an_earlier_schema_lack_its_later_columns(rows: pa.RecordBatch, more: pa.RecordBatch) -> None:
    later = pa.schema([*rows.schema, *(pa.field(f"new {nth}", field.type) for nth, field in enumerate(more.schema))])
    layout = layout_of(rows.schema, later)
    keys, places = keys_of(layout, rows.num_rows), np.arange(rows.num_rows)
    values = encoded(layout, rows, 1, keys)
    found = native_columns(layout, values, places, keys, later.names)
    assert (found is not None) == (library.kernel() is not None and is_flat(rows.schema) and rows.num_rows > 0)
    if found is not None:
        assert_same_columns(found, layout, values, places, keys, later.names)


def a_few(layout: TableLayout, schema_id: int = 1) -> tuple[pa.RecordBatch, BinaryColumn, BinaryColumn]:
    rows = pa.RecordBatch.from_pydict(
        {"a": pa.array([1, None, 3], pa.int32()), "s": ["", "long text", None], "b": [True, None, False]}
    )
    keys = keys_of(layout, 3)
    return rows, keys, encoded(layout, rows, schema_id, keys)


FEW = pa.schema([("a", pa.int32()), ("s", pa.string()), ("b", pa.bool_())])


def test_every_flipped_bit_of_a_value_or_its_key_is_left_to_python() -> None:
    layout = layout_of(FEW)
    rows, keys, values = a_few(layout)
    assert library.kernel() is None or native_columns(layout, values, np.arange(3), keys, rows.schema.names)
    for flipped in bit_flips(values.flat.tobytes()):
        damaged = BinaryColumn(np.frombuffer(flipped, np.uint8), values.offsets)
        assert native_columns(layout, damaged, np.arange(3), keys, rows.schema.names) is None
        with pytest.raises(CorruptData):
            layout.decode_values(damaged, key_sums(keys), rows.schema.names)
    for flipped in bit_flips(keys.flat.tobytes()):
        others = BinaryColumn(np.frombuffer(flipped, np.uint8), keys.offsets)
        assert native_columns(layout, values, np.arange(3), others, rows.schema.names) is None


def resealed(random: Random, count: int) -> None:
    """Values of a few rows, some bytes of one changed, under a checksum that is right."""
    layout = layout_of(FEW)
    rows, keys, values = a_few(layout)
    place, verdicts = guarded(values.flat.tobytes()), set[bool]()
    for _ in range(count):
        row = random.randrange(3)
        value = bytearray(values[row])
        for at in random.choices(range(4, len(value)), k=random.choice((1, 1, 3))):
            value[at] = random.choice((value[at] ^ 1 << random.randrange(8), random.randrange(256), 0, 255))
        hashed, _ = hasher(len(keys[row]), len(value))(keys[row], bytes(value))
        value[:4] = (hashed & CHECKSUM_BITS).to_bytes(4, "little")
        place[:] = values.flat
        place[values.offsets[row] : values.offsets[row + 1]] = np.frombuffer(value, np.uint8)
        changed = BinaryColumn(place, values.offsets)
        names = random.sample(rows.schema.names, random.randrange(1, 4))
        found = native_columns(layout, changed, np.arange(3), keys, names)
        try:
            layout.decode_values(changed, key_sums(keys), names)
        except CorruptData:
            assert found is None
        if found is not None:
            assert_same_columns(found, layout, changed, np.arange(3), keys, names, valid=False)
        verdicts.add(found is not None)
    assert verdicts == {True, False} or library.kernel() is None


def test_changed_values_with_a_right_checksum_are_what_python_decodes() -> None:
    resealed(Random(2), 400)


@pytest.mark.long
def test_many_changed_values_with_a_right_checksum_are_what_python_decodes() -> None:
    resealed(Random(), 100_000)


@pytest.mark.parametrize("cut", [1, 4, 8, 40])
def test_a_value_that_is_cut_is_left_to_python(cut: int) -> None:
    layout = layout_of(FEW)
    rows, keys, values = a_few(layout)
    offsets = values.offsets.copy()
    offsets[-1] -= min(cut, int(values.lengths[-1]) - 1)
    shorter = BinaryColumn(guarded(values.flat[: offsets[-1]].tobytes()), offsets)
    assert native_columns(layout, shorter, np.arange(3), keys, rows.schema.names) is None


def test_rows_of_two_schemas_are_left_to_python() -> None:
    layout = layout_of(FEW, FEW)
    rows, keys, values = a_few(layout)
    _, _, newer = a_few(layout, 2)
    mixed = BinaryColumn.from_list([values[0], newer[1], values[2]])
    assert native_columns(layout, mixed, np.arange(3), keys, rows.schema.names) is None
    found = layout.decode_values(mixed, key_sums(keys), rows.schema.names)
    assert list(map(values_of, found)) == list(map(values_of, rows.columns))


def test_rows_of_an_unknown_schema_are_left_to_python() -> None:
    layout, newer = layout_of(FEW), layout_of(FEW, FEW)
    rows, keys, values = a_few(newer, 2)
    assert native_columns(layout, values, np.arange(3), keys, rows.schema.names) is None
    with pytest.raises(CorruptData, match="unknown schema"):
        layout.decode_values(values, key_sums(keys), rows.schema.names)


def test_many_rows_of_many_types_are_decoded() -> None:
    count = 5_000
    rows = pa.RecordBatch.from_pydict(
        {
            "a": pa.array([None if n % 7 == 0 else n % 100 for n in range(count)], pa.int8()),
            "s": [None if n % 5 == 0 else "x" * (n % 40) for n in range(count)],
            "b": [n % 3 == 0 for n in range(count)],
            "raw": [bytes([n % 256]) * (n % 3) for n in range(count)],
            "d": pa.array([None if n % 2 else n for n in range(count)], pa.decimal128(20, 0)),
        }
    )
    layout = layout_of(rows.schema)
    keys, places = keys_of(layout, count), np.arange(count)
    values = encoded(layout, rows, 1, keys)
    found = native_columns(layout, values, places, keys, rows.schema.names)
    assert (found is not None) == (library.kernel() is not None)
    if found is not None:
        assert pa.RecordBatch.from_arrays(found, schema=rows.schema).equals(rows)
        pa.RecordBatch.from_arrays(found, schema=rows.schema).validate(full=True)


@given(st.binary(min_size=1, max_size=40), st.binary(max_size=130), st.integers(0, 3))
def test_one_row_has_its_checksum_where_python_says_so(key: bytes, value: bytes, damage: int) -> None:
    hashed, stored = hasher(len(key), len(value))(key, value)
    sealed = (hashed & CHECKSUM_BITS).to_bytes(4, "little") + value[4:]
    verify = library.row_verifier()
    given_key, given_value = key if damage != 1 else key + b"\0", sealed if damage != 2 else value
    hashed, stored = hasher(len(given_key), len(given_value))(given_key, given_value)
    expected = hashed & CHECKSUM_BITS == stored
    assert verify is None or verify(given_key, len(given_key), given_value, len(given_value)) == expected
    assert expected or damage or len(value) % 8 or not value
    hash = library.row_hasher()
    if hash is not None and value and len(value) % 8 == 0:
        assert hash(given_key, len(given_key), given_value, len(given_value)) == hashed


def test_one_large_row_has_its_checksum() -> None:
    layout = layout_of(pa.schema([("raw", pa.binary())]))
    rows = pa.RecordBatch.from_pydict({"raw": [Random(1).randbytes(1_000_001)]})
    keys = keys_of(layout, 1)
    (value,) = encoded(layout, rows, 1, keys).to_list()
    verify = library.row_verifier()
    if verify is not None:
        assert verify(keys[0], len(keys[0]), value, len(value)) == 1
        assert verify(keys[0], len(keys[0]), value[:-8], len(value) - 8) == 0
        assert verify(keys[0], len(keys[0]), b"", 0) == 0


@given(st.binary(min_size=1, max_size=70), st.integers(1, 1000))
def test_the_bucket_of_a_code_is_that_of_python(code: bytes, buckets: int) -> None:
    find = library.bucket_finder()
    assert find is None or find(code, len(code), 1, buckets) == bucketing.bucket_of(code[1:], buckets)
