from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from logformat.binary_column import BinaryColumn
from logformat.checksum import crc32c, hasher, key_sums, mix, value_sums

WORDS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5)


def sums_of(keys: list[bytes]) -> list[int]:
    return key_sums(BinaryColumn.from_list(keys)).tolist()


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_follows_rfc_3720(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@given(st.binary(), st.binary())
def test_a_crc_continues_another(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


class TestFrozen:
    """These numbers define the format of stored rows."""

    def test_mixing(self) -> None:
        assert mix(np.array([0, 1, 2**63], np.uint64)).tolist() == [0, 6238072747940578789, 2720858781877447050]

    def test_keys(self) -> None:
        assert sums_of([b"\x00", b"\x02abc", b"\x0212345678", bytes(range(200))]) == [
            11400714819323198485,
            1971362336031232778,
            6633673620118090651,
            2259134500502600120,
        ]

    def test_values(self) -> None:
        words = np.array([[0, 0], [1, 0], [0, 1], [2**64 - 1, 2**63]], np.uint64)
        assert value_sums(words).tolist() == [
            0,
            16294208416658607535,
            7960286522194355701,
            11375907693905719889,
        ]
        assert value_sums(np.ones((1, 200), np.uint64)).tolist() == [2644762031509312422]


class TestKeys:
    @given(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    def test_a_sum_does_not_depend_on_other_keys(self, keys: list[bytes]) -> None:
        assert sums_of(keys) == [sums_of([key])[0] for key in keys]

    @given(st.integers(1, 40).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), min_size=1)))
    def test_a_column_of_known_width_has_the_sums_of_the_same_strings(self, keys: list[bytes]) -> None:
        matrix = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
        assert key_sums(BinaryColumn.from_matrix(matrix)).tolist() == sums_of(keys)
        sliced = pa.array([b"before", *keys, b"after"]).slice(1, len(keys))
        assert key_sums(BinaryColumn.from_arrow(sliced)).tolist() == sums_of(keys)

    @given(st.binary(min_size=1, max_size=40), st.integers(1, 20))
    def test_appended_zeros_change_the_sum_of_a_key(self, key: bytes, zeros: int) -> None:
        first, second = sums_of([key, key + bytes(zeros)])
        assert first != second

    def test_no_keys_have_no_sums(self) -> None:
        assert sums_of([]) == key_sums(BinaryColumn.from_matrix(np.zeros((0, 9), np.uint8))).tolist() == []


class TestValues:
    @given(WORDS, st.integers(1, 4))
    def test_a_matrix_and_the_same_flat_words_have_equal_sums(self, words: list[int], rows: int) -> None:
        matrix = np.array([words] * rows, np.uint64) * np.arange(1, rows + 1, dtype=np.uint64)[:, None]
        starts = np.arange(rows) * matrix.shape[1]
        assert value_sums(matrix).tolist() == value_sums(matrix.reshape(-1), starts).tolist()

    @given(st.lists(WORDS, min_size=1, max_size=5))
    def test_a_sum_does_not_depend_on_other_values(self, values: list[list[int]]) -> None:
        flat = np.array([word for value in values for word in value], np.uint64)
        starts = np.cumsum([0, *map(len, values)])[:-1]
        alone = [value_sums(np.array([value], np.uint64))[0] for value in values]
        assert value_sums(flat, starts).tolist() == alone

    @given(WORDS, st.data())
    def test_a_changed_word_changes_the_sum(self, words: list[int], data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(words) - 1))
        other = data.draw(st.integers(0, 2**64 - 1).filter(lambda word: word != words[place]))
        changed = [*words[:place], other, *words[place + 1 :]]
        first, second = value_sums(np.array([words, changed], np.uint64))
        assert first != second

    @given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=6, unique=True))
    def test_swapped_words_change_the_sum(self, words: list[int]) -> None:
        swapped = [words[1], words[0], *words[2:]]
        first, second = value_sums(np.array([words, swapped], np.uint64))
        assert first != second

    @given(st.sets(st.integers(0, 2**64 - 1), max_size=20))
    def test_mixing_keeps_different_words_different(self, words: set[int]) -> None:
        assert len(set(mix(np.array(list(words), np.uint64)).tolist())) == len(words)


@given(key=st.binary(min_size=1, max_size=100), words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30))
def test_the_hash_of_one_row_is_that_of_many(key: bytes, words: list[int]) -> None:
    value, checksum = np.array([words], np.uint64).tobytes(), words[0] % 2**32
    words[0] -= checksum  # it counts as zero
    expected = mix(key_sums(BinaryColumn.from_list([key])) + value_sums(np.array([words], np.uint64)))
    assert hasher(len(key), len(value))(key, value) == (int(expected[0]), checksum)


@pytest.mark.parametrize("value", [b"", bytes(7), bytes(9)])
def test_a_value_that_is_no_whole_words_has_no_checksum(value: bytes) -> None:
    assert hasher(1, len(value))(b"k", value)[1] == -1
