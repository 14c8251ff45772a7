"""The bucket of a key: Apache Fluss's hash of its code, modulo the number of buckets (docs/format.md, Bucket).

The hash is Murmur3 (32 bits) as in Flink and Spark: the bytes after the last whole word are mixed in one by one; the
result is mixed once more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from logformat.binary_column import BinaryColumn

_SEED = 42
_C1_ONE, _C2_ONE = 0xCC9E2D51, 0x1B873593
_C1, _C2 = np.uint32(_C1_ONE), np.uint32(_C2_ONE)
_SIGN, _ALL_BITS = 1 << 31, (1 << 32) - 1
_WORD = 4


def buckets_of(keys: BinaryColumn, buckets: int, start: int = 0) -> np.ndarray:
    """The bucket of each key, int64 ``(n,)``.

    Args:
        buckets: Number of buckets.
        start: Position of the first byte of each key to hash.
    """
    if buckets == 1:
        return np.zeros(len(keys), np.int64)
    mixed = _mix_again(_murmur3(keys, start)).view(np.int32).astype(np.int64)
    # As in Java: the absolute value, or 0 for the one number that has none.
    return np.where(mixed == -(2**31), 0, np.abs(mixed)) % buckets


def bucket_of(code: bytes, buckets: int) -> int:
    """The bucket of one code: :func:`buckets_of` in Python's integers, which for one is faster than a call of numpy."""
    if buckets == 1:
        return 0
    # Written out, because a call of Python would cost as much as three of these lines.
    hash = _SEED
    for word in _words_of(len(code))(code):
        word = word * _C1_ONE & _ALL_BITS
        hash ^= (word << 15 | word >> 17) * _C2_ONE & _ALL_BITS
        hash = (hash << 13 | hash >> 19) * 5 + 0xE6546B64 & _ALL_BITS
    hash ^= len(code)
    hash = (hash ^ hash >> 16) * 0x85EBCA6B & _ALL_BITS
    hash = (hash ^ hash >> 13) * 0xC2B2AE35 & _ALL_BITS
    word = (hash ^ hash >> 16) * _C1_ONE & _ALL_BITS
    hash = (word << 15 | word >> 17) * _C2_ONE & _ALL_BITS
    hash = ((hash << 13 | hash >> 19) * 5 + 0xE6546B64 & _ALL_BITS) ^ _WORD
    hash = (hash ^ hash >> 16) * 0x85EBCA6B & _ALL_BITS
    hash = (hash ^ hash >> 13) * 0xC2B2AE35 & _ALL_BITS
    hash ^= hash >> 16
    return 0 if hash == _SIGN else (hash if hash < _SIGN else 2 * _SIGN - hash) % buckets


@lru_cache(maxsize=1024)
def _words_of(length: int) -> Callable[[bytes], tuple[int, ...]]:
    """The function that cuts a code of this length into words, and the bytes after them, signed as in Java."""
    return struct.Struct(f"<{length // _WORD}I{length % _WORD}b").unpack


def _murmur3(keys: BinaryColumn, start: int) -> np.ndarray:
    starts = keys.offsets[:-1] + start
    lengths = keys.lengths - start
    hashes = np.full(len(keys), _SEED, np.uint32)
    words, tails = lengths // _WORD, lengths % _WORD
    if keys.width is not None:
        # Keys of one width: one column of words at a time.
        codes = keys.matrix()[:, start:]
        whole = codes.shape[1] // _WORD * _WORD
        for word in np.ascontiguousarray(codes[:, :whole]).view("<u4").T:
            hashes = _mixed_in(hashes, word)
        for byte in codes[:, whole:].T:
            hashes = _mixed_in(hashes, _signed(byte))
        return _finished(hashes ^ lengths.astype(np.uint32))
    for nth in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > nth)
        at = starts[rows] + _WORD * nth
        word = sum(keys.flat[at + i].astype(np.uint32) << np.uint32(8 * i) for i in range(_WORD))
        hashes[rows] = _mixed_in(hashes[rows], word)
    for nth in range(int(tails.max(initial=0))):
        rows = np.flatnonzero(tails > nth)
        byte = keys.flat[starts[rows] + _WORD * words[rows] + nth]
        hashes[rows] = _mixed_in(hashes[rows], _signed(byte))
    return _finished(hashes ^ lengths.astype(np.uint32))


def _signed(byte: np.ndarray) -> np.ndarray:
    """A signed byte, as in Java, extended to 32 bits."""
    return byte.view(np.int8).astype(np.int32).view(np.uint32)


def _mixed_in(hashes: np.ndarray, words: np.ndarray) -> np.ndarray:
    mixed = _rotated(hashes ^ (_rotated(words * _C1, 15) * _C2), 13)
    return mixed * np.uint32(5) + np.uint32(0xE6546B64)


def _mix_again(hashes: np.ndarray) -> np.ndarray:
    mixed = _rotated(_rotated(hashes * _C1, 15) * _C2, 13)
    return _finished((mixed * np.uint32(5) + np.uint32(0xE6546B64)) ^ np.uint32(_WORD))


def _finished(hashes: np.ndarray) -> np.ndarray:
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _rotated(numbers: np.ndarray, bits: int) -> np.ndarray:
    return (numbers << np.uint32(bits)) | (numbers >> np.uint32(32 - bits))
