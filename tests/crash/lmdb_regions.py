"""What each byte of an LMDB file is for, by a walk over its pages that owes nothing to the code under test.

The layout is that of LMDB 0.9 with 64 bits. Only a file that is whole is walked, so nothing is verified here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

PAGE = 4096
HEAD = 16
META = 136
_BRANCH, _OVERFLOW = 1, 4
_BIG, _NAMED = 1, 2
_NOWHERE = 2**64 - 1

Region = Literal[
    "structure", "value", "address", "map size", "unused field", "after the meta", "commit before", "free page",
    "gap", "pad byte", "separator", "free record", "overflow tail", "after the last page",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes from ``start`` to ``stop`` (exclusive)."""

    start: int
    stop: int
    region: Region


def regions_of(data: bytes) -> list[Region]:
    """The region of each byte."""
    regions: list[Region] = ["structure"] * len(data)
    for piece in _pieces(data):
        regions[piece.start : piece.stop] = [piece.region] * (piece.stop - piece.start)
    return regions


def _pieces(data: bytes) -> Iterator[Piece]:
    """Every piece that is not structure; what comes later is right."""
    newest = max((0, 1), key=lambda number: _u64(data, number * PAGE + HEAD + META - 8))
    for number in (0, 1):
        yield from _meta(number * PAGE, is_newest=number == newest)
    body = newest * PAGE + HEAD
    last_page = _u64(data, body + META - 16)
    yield Piece((last_page + 1) * PAGE, len(data), "after the last page")
    for key, place, length in _tree(data, body + 24, []):
        yield Piece(key, key + 8, "free record")
        for at in range(place + 8, place + length, 8):
            free = _u64(data, at)
            yield Piece(free * PAGE, (free + 1) * PAGE, "free page")
    pieces: list[Piece] = []
    # Of the trees of the commit before only that of free pages is looked at, for its last record.
    for key, place, length in _tree(data, (1 - newest) * PAGE + HEAD + 24, pieces):
        at = key // PAGE * PAGE
        yield Piece(at, at + HEAD + 16, "commit before")
        yield Piece(key - 8, place + length, "commit before")
    pieces = []
    records = [*_tree(data, body + 24, pieces)]
    # The last record's number is that of the commit, and held against it.
    yield Piece(records[-1][0], records[-1][0] + 8, "structure")
    for _, place, length in _tree(data, body + 72, pieces):
        if length == 48 and _is_named(data, place):
            for _, below, bytes_below in _tree(data, place, pieces):
                yield Piece(below, below + bytes_below, "value")
        else:
            yield Piece(place, place + length, "value")
    yield from pieces


def _meta(start: int, *, is_newest: bool) -> Iterator[Piece]:
    body = start + HEAD
    yield Piece(start + 8, start + 10, "unused field")
    yield Piece(start + 12, start + 16, "unused field")
    yield Piece(body + 8, body + 16, "address")
    yield Piece(body + 16, body + 24, "map size")
    if not is_newest:
        # Page size, and the unused word of the other tree, are held against those of the other meta page.
        yield Piece(body + 28, body + 72, "commit before")
        yield Piece(body + 76, body + 128, "commit before")
    yield Piece(body + META, start + PAGE, "after the meta")


def _tree(data: bytes, record: int, pieces: list[Piece]) -> Iterator[tuple[int, int, int]]:
    """Place of each key of a tree, and place and length of its value; what is unused goes to ``pieces``."""
    root = _u64(data, record + 40)
    if root != _NOWHERE:
        yield from _page(data, root * PAGE, pieces)


def _page(data: bytes, start: int, pieces: list[Piece]) -> Iterator[tuple[int, int, int]]:
    kind, lower, upper = struct.unpack_from("<HHH", data, start + 10)
    pieces.append(Piece(start + 8, start + 10, "unused field"))
    pieces.append(Piece(start + lower, start + upper, "gap"))
    for number, (place,) in enumerate(struct.iter_unpack("<H", data[start + HEAD : start + lower])):
        node = start + place
        low, high, flags, key_bytes = struct.unpack_from("<HHHH", data, node)
        key = node + 8
        if kind == _BRANCH:
            pieces.append(Piece(key, key + key_bytes, "separator" if number else "unused field"))
            pieces.append(Piece(key + key_bytes, key + key_bytes + key_bytes % 2, "pad byte"))
            yield from _page(data, (low | high << 16 | flags << 32) * PAGE, pieces)
            continue
        value, length = key + key_bytes, low | high << 16
        stored = 8 if flags & _BIG else length
        pieces.append(Piece(value + stored, value + stored + (key_bytes + stored) % 2, "pad byte"))
        if flags & _BIG:
            first = _u64(data, value) * PAGE
            pages = struct.unpack_from("<I", data, first + 12)[0]
            pieces.append(Piece(first + 8, first + 10, "unused field"))
            pieces.append(Piece(first + HEAD + length, first + pages * PAGE, "overflow tail"))
            value = first + HEAD
        yield key, value, length


def _is_named(data: bytes, value: int) -> bool:
    """Whether a value is the record of a database: named by 20 digits, it stands after them and the node's flags."""
    return data[value - 20 : value].isdigit() and struct.unpack_from("<H", data, value - 24)[0] == _NAMED


def _u64(data: bytes, place: int) -> int:
    return int(struct.unpack_from("<Q", data, place)[0])
