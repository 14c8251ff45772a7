from __future__ import annotations

from itertools import accumulate

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.testing.strategies import BYTES, TEXTS
from logformat import binary_column as binary_column
from logformat.binary_column import BinaryColumn

STRINGS = st.lists(BYTES, max_size=6)
SAME_WIDTH = st.integers(1, 20).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), max_size=5))


def matrix_of(strings: list[bytes], width: int) -> np.ndarray:
    return np.frombuffer(b"".join(strings), np.uint8).reshape(len(strings), width)


def padded(string: bytes) -> bytes:
    return string + bytes(-len(string) % 8)


@given(STRINGS)
def test_a_list_survives_a_round_trip(strings: list[bytes]) -> None:
    column = BinaryColumn.from_list(strings)
    assert (len(column), column.to_list()) == (len(strings), strings)
    assert column.lengths.tolist() == list(map(len, strings))
    assert column.to_arrow().to_pylist() == strings


@given(st.lists(BYTES) | st.lists(TEXTS), st.integers(0, 3), st.integers(0, 3))
def test_a_slice_of_an_arrow_column_survives_a_round_trip(
    strings: list[bytes] | list[str], first: int, count: int
) -> None:
    kind = pa.string() if strings and isinstance(strings[0], str) else pa.binary()
    column = pa.array(strings, kind).slice(first, count)
    assert BinaryColumn.from_arrow(column).to_arrow().to_pylist() == column.cast(pa.binary()).to_pylist()
    assert BinaryColumn.from_arrow(column).to_list() == column.cast(pa.binary()).to_pylist()


@given(SAME_WIDTH)
def test_a_matrix_is_a_column_of_known_width(strings: list[bytes]) -> None:
    width = len(strings[0]) if strings else 7
    column = BinaryColumn.from_matrix(matrix_of(strings, width))
    assert (column.width, column.to_list(), column.to_arrow().to_pylist()) == (width, strings, strings)
    assert column.matrix().tolist() == [list(string) for string in strings]


@given(st.lists(BYTES, min_size=1, max_size=6), st.lists(st.integers(0, 5), max_size=8))
def test_take_returns_strings_in_the_requested_order(strings: list[bytes], places: list[int]) -> None:
    places = [place % len(strings) for place in places]
    wanted = [strings[place] for place in places]
    assert BinaryColumn.from_list(strings).take(np.array(places, np.int64)).to_list() == wanted
    narrow = [string.ljust(20)[:3] for string in strings]
    taken = BinaryColumn.from_matrix(matrix_of(narrow, 3)).take(np.array(places, np.int64))
    assert (taken.width, taken.to_list()) == (3, [narrow[place] for place in places])


@given(STRINGS)
def test_words_are_the_strings_padded_with_zeros(strings: list[bytes]) -> None:
    words, starts = BinaryColumn.from_list(strings).words()
    assert starts is not None
    assert words.astype("<u8").tobytes() == b"".join(map(padded, strings))
    assert starts.tolist() == [0, *accumulate(len(padded(string)) // 8 for string in strings)][: len(strings)]


@given(SAME_WIDTH)
def test_words_of_strings_of_one_width_are_a_matrix(strings: list[bytes]) -> None:
    width = len(strings[0]) if strings else 12
    words, starts = BinaryColumn.from_matrix(matrix_of(strings, width)).words()
    assert starts is None
    assert words.shape == (len(strings), (width + 7) // 8)
    assert words.astype("<u8").tobytes() == b"".join(map(padded, strings))


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_slices_equal_slices_of_bytes(data: bytes, cuts: list[int]) -> None:
    bounds = sorted(min(cut, len(data)) for cut in cuts)
    starts, ends = bounds[: len(bounds) // 2 * 2 : 2], bounds[1::2]
    found = binary_column.slices(np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array(ends, np.int64))
    assert found.to_pylist() == [data[start:end] for start, end in zip(starts, ends, strict=True)]


@given(st.lists(st.tuples(BYTES, BYTES), max_size=5))
def test_columns_are_joined_row_by_row(pairs: list[tuple[bytes, bytes]]) -> None:
    left, right = (BinaryColumn.from_list([pair[side] for pair in pairs]) for side in (0, 1))
    assert binary_column.join(left, right).to_list() == [first + second for first, second in pairs]


@pytest.mark.parametrize("length", range(17))
def test_padding_fills_the_last_word(length: int) -> None:
    first, second = binary_column.word_padding(np.array([length, length])).to_list()
    assert first == second == bytes(len(first))
    assert (length + len(first)) % 8 == 0
    assert len(first) < 8


@st.composite
def strings_anywhere(draw: st.DrawFn, words: bool = False) -> tuple[list[np.ndarray], list[tuple[int, int, int]]]:
    """Two buffers with spare bytes at the end; for some strings the buffer, start and length."""
    buffers = [np.frombuffer(draw(st.binary(min_size=60, max_size=60)) + bytes(40), np.uint8) for _ in range(2)]
    lengths = st.integers(0, 3).map(lambda count: 8 * count) if words else st.integers(0, 20)
    string = st.tuples(st.integers(0, 1), st.integers(0, 40), lengths)
    return buffers, draw(st.lists(string, max_size=6))


@given(strings_anywhere())
def test_gather_copies_strings_from_any_place(given: tuple[list[np.ndarray], list[tuple[int, int, int]]]) -> None:
    buffers, places = given
    which, starts, lengths = np.array(places, np.int64).reshape(-1, 3).T
    for nth in (which, None):
        expected = [
            buffers[buffer if nth is which else 0][start : start + length].tobytes() for buffer, start, length in places
        ]
        found = binary_column.gather(buffers, starts, lengths, nth)
        assert found.to_list() == expected
        assert [found[place] for place in range(-len(found), len(found))] == expected * 2
        first, last = len(found) // 3, len(found) // 2
        assert found.slice(first, last).to_list() == expected[first:last]


@given(strings_anywhere(words=True))
def test_padded_strings_end_with_zeros(
    given: tuple[list[np.ndarray], list[tuple[int, int, int]]],
) -> None:
    buffers, places = given
    _, starts, lengths = np.array(places, np.int64).reshape(-1, 3).T
    longest = int(lengths.max(initial=0))
    found = binary_column.gather_padded(buffers[0], starts, lengths)
    if found is None:
        assert not longest or longest * len(places) > 2 * lengths.sum()
    else:
        strings = [buffers[0][start : start + length].tobytes() for _, start, length in places]
        assert found.to_list() == [string.ljust(longest, b"\0") for string in strings]


def test_strings_that_are_not_whole_words_are_not_padded() -> None:
    assert binary_column.gather_padded(np.zeros(40, np.uint8), np.array([0, 1]), np.array([8, 9])) is None
