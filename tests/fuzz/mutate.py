"""Bytes made of others by chance, where there is nothing that sees which of them lead further."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_NUMBERS = (0, 1, 2, 4, 7, 8, 63, 64, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63)
_WORDS = (
    *(b"null", b"true", b"-1", b"0", b"1e9", b'""', b"[]", b"{}", b"9223372036854775807", b"9223372036854775808"),
    *(b"[" * 1_200, b"9" * 5_000, b"..", b"../", b"\0", b"\n", b"$", b"\xff", b"\xed\xa0\x80", "٣".encode(), b"NaN"),
    *(b'"list"', b'"map"', b'"nullable":true', b'"nullable":false', b'"string"', b'"timestamp[us, tz=UTC]"'),
)
_BYTES_MAX = 1 << 14


def mutated(random: Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with one to four changes."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        _change(random, data, seeds)
    return bytes(data[:_BYTES_MAX])


def _change(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    match random.randrange(9):
        case 0 if at < len(data):
            data[at] ^= 1 << random.randrange(8)
        case 1 if at < len(data):
            data[at] = random.randrange(256)
        case 2:
            size = random.choice((1, 2, 4, 8))
            data[at : at + size] = (random.choice(_NUMBERS) % 256**size).to_bytes(size, "little")
        case 3:
            del data[at : at + random.choice((1, 2, 8, 64, 10_000))]
        case 4:
            data[at:at] = random.randbytes(random.choice((1, 2, 8, 64)))
        case 5:
            start = random.randrange(len(data) + 1)
            data[at:at] = data[start : start + random.choice((1, 8, 64, 500))]
        case 6:
            other = random.choice(seeds)
            start = random.randrange(len(other) + 1)
            data[at:] = other[start:]
        case 7:
            data[at : at + random.choice((0, 0, 1, 4))] = random.choice(_WORDS)
        case _:
            digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
            if digits:
                data[random.choice(digits)] = random.choice(b"0123456789-")
