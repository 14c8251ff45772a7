"""Damaged byte strings."""

from __future__ import annotations

from collections.abc import Iterator


def bit_flips(data: bytes, start: int = 0) -> Iterator[bytes]:
    """``data`` with one bit flipped, for every bit from byte ``start`` on."""
    damaged = bytearray(data)
    for place in range(start, len(data)):
        for bit in range(8):
            damaged[place] ^= 1 << bit
            yield bytes(damaged)
            damaged[place] ^= 1 << bit


def cuts(data: bytes) -> Iterator[bytes]:
    """Every proper prefix of ``data``."""
    return (data[:length] for length in range(len(data)))
