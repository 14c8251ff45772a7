"""Checksums: CRC-32C for batches and files, and a vectorised one for rows (docs/format.md, Row checksum).

A row's hash covers its key and its value. It is a weighted sum of 64-bit words modulo 2^64, then mixed: numpy computes
it for a whole column in about 10 ns a row; one library call for each row would take 80 ns. Every weight is odd, so a
change within one word always changes the sum. The low 32 bits of the mixed sum are stored with the row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING

import crc32c as _library
import numpy as np

from logformat.binary_column import WORD, BinaryColumn

if TYPE_CHECKING:
    from typing_extensions import Buffer

_GOLDEN = 0x9E3779B97F4A7C15


if TYPE_CHECKING:

    def crc32c(data: Buffer, crc: int = 0, /) -> int:
        """CRC-32C of ``data``, continuing ``crc``."""
else:
    crc32c = _library.crc32c  # as it is: a call more would take half as long as a short record


_SHIFT_1, _SHIFT_2, _SHIFT_3 = _SHIFT_BITS = 30, 27, 31
_FACTOR_1, _FACTOR_2 = _FACTOR_BITS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = tuple(map(np.uint64, _SHIFT_BITS))
_FACTORS = tuple(map(np.uint64, _FACTOR_BITS))
_ALL_BITS = 2**64 - 1
CHECKSUM_BITS = 2**32 - 1
"""The bits of a row's hash that are stored with it."""
_WORDS = np.dtype("<u8")
_WORDS_IN_PYTHON_MAX = 12
"""For a single value of more words, numpy is faster than Python's integers."""


def mix(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 on uint64 words: every input bit reaches every output bit."""
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    return words ^ (words >> _SHIFTS[2])


def _mixed(word: int) -> int:
    """Like :func:`mix`, of one integer modulo 2^64."""
    word &= _ALL_BITS
    word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1 & _ALL_BITS
    word = (word ^ (word >> _SHIFT_2)) * _FACTOR_2 & _ALL_BITS
    return word ^ (word >> _SHIFT_3)


class _Weights:
    """Odd pseudo-random weights, at least one for each word of the longest row seen so far."""

    def __init__(self, seed: int) -> None:
        self._seed = np.uint64(seed)
        self._weights = self._made(64)

    def first(self, count: int) -> np.ndarray:
        weights = self._weights  # read once: another thread may put a shorter one in its place
        if count > len(weights):
            self._weights = weights = self._made(2 * count)
        return weights[:count]

    def _made(self, count: int) -> np.ndarray:
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        return mix(self._seed + steps) | np.uint64(1)


_VALUE_WEIGHTS = _Weights(0)
_KEY_WEIGHTS = _Weights(1 << 63)
_KEY_LENGTH_WEIGHT = np.uint64(_GOLDEN)
_FIRST_WEIGHT = int(_VALUE_WEIGHTS.first(1)[0])
FIRST_WORD_WEIGHT = _VALUE_WEIGHTS.first(1)[0]
"""Weight of a value's first word, whose low 32 bits are the checksum itself."""


def value_sums(words: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
    """Unmixed sums (uint64) of values.

    Args:
        words: uint64, a matrix ``(n, width)``; or flat, with value ``i`` beginning at word ``starts[i]``.
        starts: int64 ``(n,)`` for the flat form. No value is empty.
    """
    return _sums(words, starts, _VALUE_WEIGHTS)


def key_sums(keys: BinaryColumn) -> np.ndarray:
    """Unmixed sums (uint64) of a column of keys, none of them empty."""
    sums = _sums(*keys.words(), _KEY_WEIGHTS)
    # Makes a key differ from the same key with zeros appended.
    return sums + keys.lengths.astype(np.uint64) * _KEY_LENGTH_WEIGHT


def weights_of_values(count: int) -> np.ndarray:
    """Weights (uint64) of at least the first words of a value, in one buffer."""
    return _VALUE_WEIGHTS.first(count)


def weights_of_keys(count: int) -> np.ndarray:
    """Like :func:`weights_of_values`, of a key."""
    return _KEY_WEIGHTS.first(count)


@lru_cache(maxsize=4096)
def hasher(key_bytes: int, value_bytes: int) -> Callable[[bytes, bytes], tuple[int, int]]:
    """The function that hashes one row whose key and value have these lengths, in plain integers.

    It returns :func:`mix` of the sums of key and value, in which the bytes of the checksum count as zero, and the
    checksum that is stored; -1 for that, and some hash, if the value is not whole words, at least one. For a short row
    it is faster than a single numpy call.
    """
    if value_bytes < WORD or value_bytes % WORD:
        return lambda *_: (0, -1)
    padding = bytes(-key_bytes % WORD)
    key_words, value_words = (key_bytes + len(padding)) // WORD, value_bytes // WORD
    length = key_bytes * _GOLDEN
    weights = _KEY_WEIGHTS.first(key_words).tolist()
    if value_words > _WORDS_IN_PYTHON_MAX:
        unpack_key, stored_in = struct.Struct(f"<{key_words}Q").unpack, struct.Struct("<I").unpack_from

        def hash_long(key: bytes, value: bytes) -> tuple[int, int]:
            (stored,) = stored_in(value)
            words = np.frombuffer(value, _WORDS)
            of_value = int(np.vdot(words, _VALUE_WEIGHTS.first(value_words))) - stored * _FIRST_WEIGHT
            of_key = sum(map(mul, unpack_key(key + padding), weights), length)
            return _mixed(of_key + of_value), stored

        return hash_long
    # The checksum itself has no weight; the other half of its word is a word of its own.
    weights += [0, _FIRST_WEIGHT << 32 & _ALL_BITS, *_VALUE_WEIGHTS.first(value_words).tolist()[1:]]
    unpack = struct.Struct(f"<{key_words}QII{value_words - 1}Q").unpack

    def hash(key: bytes, value: bytes) -> tuple[int, int]:
        words = unpack(key + padding + value)
        # As in `_mixed`: a call of it would cost a tenth of all this.
        word = sum(map(mul, words, weights), length) & _ALL_BITS
        word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1 & _ALL_BITS
        word = (word ^ (word >> _SHIFT_2)) * _FACTOR_2 & _ALL_BITS
        return word ^ (word >> _SHIFT_3), words[key_words]

    return hash


def _sums(words: np.ndarray, starts: np.ndarray | None, weights: _Weights) -> np.ndarray:
    if starts is None:
        matrix_sums: np.ndarray = words @ weights.first(words.shape[1])
        return matrix_sums
    if not len(starts):
        return np.zeros(0, np.uint64)
    if len(starts) == 1:
        return _sums(words.reshape(1, len(words)), None, weights)
    lengths = np.empty_like(starts)
    lengths[:-1], lengths[-1] = starts[1:] - starts[:-1], len(words) - starts[-1]
    nth = np.arange(len(words)) - starts.repeat(lengths)
    return np.add.reduceat(words * weights.first(int(lengths.max()))[nth], starts)
