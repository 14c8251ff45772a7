"""Bytes that were durable and changed: such a log is refused, or right all the same, but never believed.

The index is taken away, so that the log has to speak for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from tests.crash.states import ROT, State
from tests.crash.vfs import Contents

HEADER_BYTES = 96
_HEAD_BYTES = 64


def rotten(contents: Contents, random: Random, *, draws: int) -> Iterator[State]:
    """States with one bit changed somewhere in a batch that has a follower in its segment.

    Half of them in a header. The last batch is left alone: it looks like one that was cut.
    """
    bare = {name: data for name, data in contents.items() if "/index" not in name and not name.endswith(".index")}
    places = [
        (name, start, stop)
        for name, data in bare.items()
        if data is not None and name.endswith(".log")
        for start, stop in list(pairwise(_batches(data)))[:-1]
    ]
    for _ in range(draws):
        name, start, stop = random.choice(places)
        in_header = random.random() < 0.5
        yield flipped(bare, name, random.randrange(start, start + HEADER_BYTES if in_header else stop), random)


def flipped(contents: Contents, name: str, position: int, random: Random) -> State:
    """A state with one bit of a byte changed."""
    data = bytearray(contents[name] or b"")
    data[position] ^= 1 << random.randrange(8)
    return State(None, ROT, {**contents, name: bytes(data)})


def _batches(data: bytes) -> list[int]:
    """Where batches begin, and where the last one ends."""
    places = [_HEAD_BYTES]
    while places[-1] + HEADER_BYTES <= len(data):
        start = places[-1]
        places.append(start + 12 + int.from_bytes(data[start + 8 : start + 12], "little"))
    return places
