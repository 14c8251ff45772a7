"""The codec of single rows agrees with the codecs of columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, strategies as st

from kvstore.testing.strategies import KEY_TYPES, columns, stored_types
from logformat.checksum import key_sums
from logformat.errors import CorruptData, KeyTooLarge
from logformat.ids import SchemaId
from logformat.rows.few.single_row import SingleRowCodec
from logformat.rows.keys import KeyCodec
from logformat.rows.rows import RowCodec
from tests.logformat.damage import bit_flips

FIRST, SECOND = SchemaId(1), SchemaId(2)
SCHEMA = pa.schema([("v", pa.int64()), ("k", pa.int64()), ("s", pa.string()), ("flag", pa.bool_())])
ROWS = pa.record_batch([[-1, None], [7, 8], ["é", None], [True, None]], schema=SCHEMA)


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[str]]:
    """Rows, and the names of their key columns."""
    kinds = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=2))
    others = draw(st.lists(stored_types(), max_size=10))
    size = draw(st.integers(1, 3))
    made = {f"k{nth}": draw(columns(kind, size, nullable=False)) for nth, kind in enumerate(kinds)}
    made |= {f"v{nth}": draw(columns(kind, size)) for nth, kind in enumerate(others)}
    names = draw(st.permutations(list(made)))
    return pa.RecordBatch.from_pydict({name: made[name] for name in names}), [f"k{nth}" for nth in range(len(kinds))]


def stored(rows: pa.RecordBatch, key: list[str], schema_id: SchemaId = FIRST) -> list[tuple[bytes, bytes]]:
    """Keys and values, encoded by the codecs of columns."""
    keys = KeyCodec([rows.schema.field(name) for name in key]).encode([rows.column(name) for name in key])
    others = [name for name in rows.schema.names if name not in key]
    schema = pa.schema([rows.schema.field(name) for name in others])
    codec = RowCodec({schema_id: schema})
    values, _ = codec.encode([rows.column(name) for name in others], key_sums(keys), schema_id)
    return list(zip(keys.to_list(), values.to_list(), strict=True))


def pythons(row: pa.RecordBatch) -> tuple[Any, ...] | None:
    """The values of one row; None if Python lacks one of them."""
    try:
        return tuple(row.to_pylist()[0].values())
    except (ValueError, OverflowError):
        return None


def is_exact(key: tuple[Any, ...], row: pa.RecordBatch) -> bool:
    """Whether Python's values are the very key, and not a less exact one."""
    try:
        return all(pa.array([value], of.type).equals(of) for value, of in zip(key, row.columns, strict=True))
    except (TypeError, ValueError):
        return False


@given(tables())
def test_a_row_decodes_as_with_arrow(table: tuple[pa.RecordBatch, list[str]]) -> None:
    rows, key = table
    try:
        found = stored(rows, key)
    except KeyTooLarge:
        assume(False)
    codec = SingleRowCodec({FIRST: rows.schema}, key)
    for place, (code, value) in enumerate(found):
        its_row = rows.slice(place, 1)
        its_key = its_row.select(key)
        values = pythons(its_key)
        if values is None or not is_exact(values, its_key):
            continue
        row = pythons(its_row)
        for asked in (values, dict(zip(key, values, strict=True)), *(values if len(key) == 1 else ())):
            if (encoded := codec.encode_key(asked)) is None:  # pandas' times are left to the codec of columns
                assert any(hasattr(value, "nanosecond") or hasattr(value, "nanoseconds") for value in values)
                continue
            assert encoded == code
            assert codec.encode_columns(asked, key[::-1]) == stored(its_row, key[::-1])[0][0][1:]
            expected = None if row is None else dict(zip(rows.schema.names, row, strict=True))
            assert repr(codec.decode(asked, code, value)) == repr(expected)  # NaN is NaN, True is not 1


def test_columns_newer_than_a_row_are_null() -> None:
    code, value = stored(ROWS, ["k"])[0]
    wider = pa.schema([*SCHEMA, ("new", pa.int8()), ("newer", pa.string())])
    codec = SingleRowCodec({FIRST: SCHEMA, SECOND: wider}, ["k"])
    assert codec.decode(7, code, value) == {"v": -1, "k": 7, "s": "é", "flag": True, "new": None, "newer": None}


def test_a_row_of_an_unknown_schema_is_recognized() -> None:
    codec = SingleRowCodec({FIRST: SCHEMA}, ["k"])
    code, value = stored(ROWS, ["k"], SECOND)[0]
    assert codec.decode(7, code, value) is None  # a newer one, perhaps of another process
    code, value = stored(ROWS, ["k"], SchemaId(0))[0]
    with pytest.raises(CorruptData, match="unknown schema"):
        codec.decode(7, code, value)


@pytest.mark.parametrize(
    "key", [True, 1.0, "7", 2**63, -(2**63) - 1, None, (7, 7), (), {"x": 7}, {"k": 7, "x": 7}, 7.0]
)
def test_a_key_that_needs_the_general_codec_has_no_code(key: Any) -> None:
    assert SingleRowCodec({FIRST: SCHEMA}, ["k"]).encode_key(key) is None


@pytest.mark.parametrize("key", ["\ud800", b"a", 1, "x" * 600])
def test_an_invalid_text_has_no_code(key: Any) -> None:
    assert SingleRowCodec({FIRST: SCHEMA}, ["s"]).encode_key(key) is None


def test_every_flipped_bit_is_detected() -> None:
    codec = SingleRowCodec({FIRST: SCHEMA}, ["k"])
    for code, value in stored(ROWS, ["k"]):
        for damaged in bit_flips(value):
            with pytest.raises(CorruptData):
                codec.decode(7, code, damaged)


def test_a_row_under_another_key_or_cut_short_is_detected() -> None:
    codec = SingleRowCodec({FIRST: SCHEMA}, ["k"])
    (code, value), (other, _) = stored(ROWS, ["k"])
    assert codec.decode(7, code, value)["v"] == -1
    for its_code, its_value in ((other, value), (code, b""), (code, value[:-8]), (code, value[:-1])):
        with pytest.raises(CorruptData):
            codec.decode(7, its_code, its_value)


def test_lengths_that_do_not_add_up_are_detected_under_a_correct_checksum() -> None:
    """For example a row that was written with other columns under the same schema id."""
    lengths = pa.record_batch([[7], [2**20]], schema=pa.schema([("k", pa.int64()), ("n", pa.int64())]))
    code, value = stored(lengths, ["k"])[0]
    for types in ([pa.string(), pa.int32()], [pa.int64()] * 3):
        schema = pa.schema([("k", pa.int64()), *((f"c{nth}", kind) for nth, kind in enumerate(types))])
        with pytest.raises(CorruptData, match=r"add up|cut short"):
            SingleRowCodec({FIRST: schema}, ["k"]).decode(7, code, value)
