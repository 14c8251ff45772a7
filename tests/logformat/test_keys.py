from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kvstore.testing.strategies import KEY_TYPES, columns
from logformat.binary_column import BinaryColumn
from logformat.errors import CorruptData, KeyTooLarge
from logformat.rows.keys import KeyCodec
from tests.support.contents import values_of

FEWER = settings(max_examples=settings().max_examples // 5)


def codec_of(*kinds: pa.DataType) -> KeyCodec:
    return KeyCodec([pa.field(f"k{i}", kind, nullable=False) for i, kind in enumerate(kinds)])


def keys_of(*parts: pa.Array) -> list[bytes]:
    return codec_of(*(part.type for part in parts)).encode(parts).to_list()


def tuples_of(*parts: pa.Array) -> list[tuple[Any, ...]]:
    return list(zip(*map(values_of, parts), strict=True))


@st.composite
def key_columns(draw: st.DrawFn, *, rows_max: int = 6) -> list[pa.Array]:
    """Columns of keys of one to three columns, with few values that repeat."""
    kinds = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3))
    rows = draw(st.integers(0, rows_max))
    places = st.lists(st.integers(0, 2), min_size=rows, max_size=rows)
    return [draw(columns(kind, 3, nullable=False)).take(pa.array(draw(places), pa.int64())) for kind in kinds]


class TestOrder:
    @FEWER
    @given(st.data())
    @pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
    def test_bytes_sort_as_values(self, kind: pa.DataType, data: st.DataObject) -> None:
        column = data.draw(columns(kind, 6, nullable=False))
        pairs = list(zip(values_of(column), keys_of(column), strict=True))
        for (value, key), (other_value, other_key) in product(pairs, pairs):
            assert (value < other_value) == (key < other_key)
            assert (value == other_value) == (key == other_key)

    @given(key_columns())
    def test_bytes_of_multi_column_keys_sort_as_tuples(self, parts: list[pa.Array]) -> None:
        pairs = list(zip(tuples_of(*parts), keys_of(*parts), strict=True))
        for (value, key), (other_value, other_key) in product(pairs, pairs):
            assert (value < other_value) == (key < other_key)
            assert (value == other_value) == (key == other_key)

    @pytest.mark.parametrize(
        "strings",
        [
            [b"", b"\x00", b"\x00\x00", b"\x00\x01", b"\x00\x02", b"\x01", b"\x01\x00", b"\x01\x01", b"\x01\x02"],
            [b"a", b"a\x00", b"a\x00b", b"a\x01", b"a\x01\x01", b"a\x01\x02", b"a\x02", b"a\xff", b"b"],
        ],
    )
    def test_zeros_and_ones_within_strings_keep_their_order(self, strings: list[bytes]) -> None:
        after = pa.array([0, 255] * len(strings), pa.uint8())
        keys = keys_of(pa.array([string for string in strings for _ in range(2)]), after)
        assert all(key < following for key, following in pairwise(keys))


class TestRoundTrip:
    @FEWER
    @given(st.data())
    @pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
    def test_a_key_of_any_type_survives_a_round_trip(self, kind: pa.DataType, data: st.DataObject) -> None:
        column = data.draw(columns(kind, 4, nullable=False))
        (decoded,) = codec_of(kind).decode(BinaryColumn.from_list(keys_of(column)))
        decoded.validate(full=True)
        assert decoded.type == kind
        assert values_of(decoded) == values_of(column)

    @given(key_columns())
    def test_multi_column_keys_survive_a_round_trip(self, parts: list[pa.Array]) -> None:
        codec = codec_of(*(part.type for part in parts))
        encoded = codec.encode(parts)
        for keys in (encoded, BinaryColumn.from_list(encoded.to_list())):
            decoded = codec.decode(keys)
            assert [column.type for column in decoded] == [part.type for part in parts]
            assert list(map(values_of, decoded)) == list(map(values_of, parts))

    def test_no_keys_decode_to_no_values(self) -> None:
        none = [pa.array([], kind) for kind in KEY_TYPES]
        assert codec_of(*KEY_TYPES).decode(BinaryColumn.from_list([])) == none

    @given(key_columns())
    def test_the_width_is_that_of_every_key_or_unknown(self, parts: list[pa.Array]) -> None:
        codec = codec_of(*(part.type for part in parts))
        variable = any(part.type in (pa.string(), pa.binary()) for part in parts)
        assert (codec.width is None) == variable
        assert variable or {codec.width} >= set(map(len, codec.encode(parts).to_list()))


class TestPrefix:
    @given(key_columns(), st.data())
    def test_exactly_the_keys_with_these_first_values_have_the_prefix(
        self, parts: list[pa.Array], data: st.DataObject
    ) -> None:
        first = data.draw(st.integers(1, len(parts)))
        prefixes = codec_of(*(part.type for part in parts)).encode_prefix(parts[:first]).to_list()
        keys, values = keys_of(*parts), tuples_of(*parts)
        for (prefix, its_values), (key, other_values) in product(
            zip(prefixes, values, strict=True), zip(keys, values, strict=True)
        ):
            assert key.startswith(prefix) == (other_values[:first] == its_values[:first])


class TestLength:
    @pytest.mark.parametrize(
        ("longest", "too_long"),
        [
            (pa.array([b"", b"x" * 509]), pa.array([b"x" * 510, b""])),
            (pa.array(["", "x" * 509]), pa.array(["", "x" * 510])),
            (pa.array([bytes(254) + b"x"]), pa.array([bytes(255)])),
            (pa.array([b"\x01" * 254 + b"x"]), pa.array([b"\x01" * 255])),
            (pa.array([bytes(510)], pa.binary(510)), pa.array([bytes(511)], pa.binary(511))),
        ],
        ids=["binary", "string", "zeros", "ones", "fixed"],
    )
    def test_a_key_has_at_most_511_bytes(self, longest: pa.Array, too_long: pa.Array) -> None:
        assert max(map(len, keys_of(longest))) == 511
        with pytest.raises(KeyTooLarge) as refused:
            keys_of(too_long)
        assert refused.value.where["bytes"] == 512

    def test_all_columns_count_towards_the_limit(self) -> None:
        text, number = pa.array(["x" * 501]), pa.array([1], pa.int64())
        assert list(map(len, keys_of(text, number))) == [511]
        with pytest.raises(KeyTooLarge):
            keys_of(text, number, pa.array([True]))


class TestDamage:
    @given(key_columns(rows_max=2))
    def test_a_key_that_is_too_short_or_too_long_is_refused(self, parts: list[pa.Array]) -> None:
        codec = codec_of(*(part.type for part in parts))
        keys = keys_of(*parts)
        for key in keys:
            for damaged in [*(key[:length] for length in range(len(key))), key + b"\x00", key + b"x"]:
                with pytest.raises(CorruptData):
                    codec.decode(BinaryColumn.from_list([*keys, damaged]))
                with pytest.raises(CorruptData):
                    codec.decode(BinaryColumn.from_list([damaged, *keys]))

    @given(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3), st.lists(st.binary(max_size=30), max_size=3))
    def test_any_bytes_are_keys_or_are_refused(self, kinds: list[pa.DataType], keys: list[bytes]) -> None:
        try:
            decoded = codec_of(*kinds).decode(BinaryColumn.from_list(keys))
        except CorruptData:
            return
        assert [(len(column), column.type) for column in decoded] == [(len(keys), kind) for kind in kinds]


@pytest.mark.parametrize(
    ("column", "key"),
    [
        (pa.array([-1], pa.int8()), "02 7f"),
        (pa.array([1], pa.int32()), "02 80000001"),
        (pa.array([2**64 - 1], pa.uint64()), "02 ffffffffffffffff"),
        (pa.array([True]), "02 01"),
        (pa.array([-2], pa.timestamp("us", "UTC")), "02 7ffffffffffffffe"),
        (pa.array([-1]).cast(pa.decimal128(19)), "02 7fffffffffffffffffffffffffffffff"),
        (pa.array([b"\x00\x01\xff"], pa.binary(3)), "02 0001ff"),
        (pa.array([b"a\x00b\x01c"]), "02 61 0101 62 0102 63 00"),
        (pa.array(["é"]), "02 c3a9 00"),
        (pa.array([""]), "02 00"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_the_encoding_of_keys_is_frozen(column: pa.Array, key: str) -> None:
    assert keys_of(column) == [bytes.fromhex(key)]
