"""Codes of indexed values: their order is that of the values, and an entry leads back to its row."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.errors import CorruptData
from logformat.log import entries_record
from logformat.log.entries_record import EntriesRecord
from logformat.rows import entries
from logformat.rows.entries import between, codes_of, entries_of, row_key_of
from logformat.rows.keys import KEY_BYTES_MAX, ROW, KeyCodec

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.float16(): st.floats(allow_nan=False, width=16),
    pa.decimal128(9, 2): st.decimals(-1000, 1000, places=2),
    pa.timestamp("us", "UTC"): st.datetimes(dt.datetime(1900, 1, 1), timezones=st.just(dt.UTC)),
    pa.date32(): st.dates(),
}


def as_compared(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def order_of(values: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    """Nulls first, then by value; texts by their bytes."""
    return [(value is not None, 0 if value is None else as_compared(value)) for value in values]


@given(st.data())
def test_the_order_of_codes_is_the_order_of_values(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    rows = data.draw(st.lists(st.tuples(*(st.none() | VALUES[kind] for kind in types)), min_size=1, max_size=12))
    padded = [(None,) * len(types), *rows]  # the columns are slices, as they may be in a batch
    columns = [pa.array(column, kind)[1:] for column, kind in zip(zip(*padded, strict=True), types, strict=True)]
    codes = codes_of(columns).to_list()
    for one, its in zip(rows, codes, strict=True):
        for other, others in zip(rows, codes, strict=True):
            assert (its < others, its == others) == (order_of(one) < order_of(other), order_of(one) == order_of(other))
            assert its == others or not its.startswith(others)


def test_values_that_are_equal_have_one_code() -> None:
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        zero, negative, nan, other, infinite = codes_of(
            [pa.array([0.0, -0.0, math.nan, -math.nan, math.inf], pa.float64()).cast(kind)]
        ).to_list()
        assert zero == negative
        assert nan == other > infinite


@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=700), st.binary(min_size=1, max_size=KEY_BYTES_MAX - 1)), max_size=5
    )
)
def test_an_entry_fits_into_lmdb_and_has_the_key_of_its_row(rows: list[tuple[bytes, bytes]]) -> None:
    codes, keys = [code for code, _ in rows], [ROW + key for _, key in rows]
    found, values = entries_of(7, codes, keys)
    for code, key, entry, value in zip(codes, keys, found, values, strict=True):
        assert row_key_of(entry, value) == key
        assert len(entry) <= KEY_BYTES_MAX
        start, stop = between(7, code, code)
        assert start <= entry < stop
        assert entries.index_of(entry, value) == 7


@given(
    st.lists(st.tuples(st.text(max_size=9) | st.just("a" * 300), st.integers(0, 999)), min_size=1, unique=True),
    st.sampled_from([1, 16]),
)
def test_entries_of_many_rows_are_those_of_each_in_order(rows: list[tuple[str, int]], few: int) -> None:
    codes, keys = (KeyCodec([]).encode_prefix([pa.array(column)]) for column in zip(*rows, strict=True))
    expected = sorted(zip(*entries_of(3, codes.to_list(), keys.to_list()), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "FEW", few + 1)
        found = (column.to_list() for column in entries.entries_in_order(3, codes, keys))
        assert list(zip(*found, strict=True)) == expected


def test_rows_whose_long_values_begin_alike_have_entries_of_their_own() -> None:
    codes = [b"\x02" + 300 * b"a" + bytes([last]) for last in range(2, 9)]
    keys = [ROW + 400 * b"k" + bytes([last]) for last in range(2, 9)]
    found, values = entries_of(1, codes, keys)
    assert len(set(found)) == len(keys)
    assert list(map(row_key_of, found, values)) == keys


def test_damaged_entries_are_found() -> None:
    [entry], [value] = entries_of(1, [b"\x02abc\x00"], [ROW + b"k\x00"])
    for wrong in (b"", b"\x01", b"\x00\x00", b"\xff\xff", b"\xff\xffk", value + b"k", b"\x50\x00"):
        with pytest.raises(CorruptData, match=r"kvstore check"):
            row_key_of(entry, wrong)
    with pytest.raises(CorruptData, match=r"unknown key"):
        entries.index_of(b"\x01\x82" + entry[2:], value)
    with pytest.raises(CorruptData, match=r"unknown key"):
        entries.id_of_record(entries.RECORDS + b"abc")


def test_a_record_comes_back_and_each_damage_is_found() -> None:
    record = EntriesRecord(5, 2**40)
    data = entries_record.encode(3, record)
    assert entries_record.decode(3, data) == record
    damaged = [bytes([*data[:place], data[place] ^ 1, *data[place + 1 :]]) for place in range(len(data))]
    for wrong in [b"", data[:-1], data + b"\0", *damaged]:
        with pytest.raises(CorruptData, match=r"kvstore check"):
            entries_record.decode(3, wrong)
    with pytest.raises(CorruptData, match=r"another"):
        entries_record.decode(4, data)


def test_decimals_have_the_order_of_their_values() -> None:
    low, high = codes_of([pa.array([Decimal("-1.50"), Decimal("2.25")], pa.decimal128(5, 2))]).to_list()
    assert low < high
