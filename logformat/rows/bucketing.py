"""The bucket of a key: Apache Fluss's hash of its code, modulo the number of buckets (docs/format.md, Bucket).

The hash is Murmur3 (32 bits) as in Flink and Spark: the bytes after the last whole word are mixed in one by one; the
result is mixed once more.
"""

from __future__ import annotations

import struct

import numpy as np

from logformat.binary_column import BinaryColumn

_SEED = 42
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_WORD = 4
_BITS = 2**32 - 1


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
    """The bucket of one key, by its code; the same as :func:`buckets_of` in plain integers, which is faster for few."""
    hashed, whole = _SEED, len(code) // _WORD * _WORD
    for word in struct.unpack_from(f"<{whole // _WORD}I", code):
        hashed = _word_mixed_in(hashed, word)
    for byte in code[whole:]:
        hashed = _word_mixed_in(hashed, byte - 256 & _BITS if byte > 127 else byte)
    hashed = _word_finished(hashed ^ len(code))
    hashed = _word_finished(_word_mixed_in(0, hashed) ^ _WORD)
    if hashed >= 1 << 31:
        hashed = 0 if hashed == 1 << 31 else (1 << 32) - hashed
    return hashed % buckets


def _word_mixed_in(hashed: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _BITS
    hashed ^= ((word << 15 | word >> 17) & _BITS) * 0x1B873593 & _BITS
    return ((hashed << 13 | hashed >> 19) & _BITS) * 5 + 0xE6546B64 & _BITS


def _word_finished(hashed: int) -> int:
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _BITS
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _BITS
    return hashed ^ hashed >> 16


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
    for place in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > place)
        at = starts[rows] + _WORD * place
        word = sum(keys.flat[at + i].astype(np.uint32) << np.uint32(8 * i) for i in range(_WORD))
        hashes[rows] = _mixed_in(hashes[rows], word)
    for place in range(int(tails.max(initial=0))):
        rows = np.flatnonzero(tails > place)
        byte = keys.flat[starts[rows] + _WORD * words[rows] + place]
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
