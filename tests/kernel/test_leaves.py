"""Rows that the native kernel finds in leaves are those of the reference, whatever the bytes; nothing else is read.

Scans with and without it are compared in ``tests/index/test_leaves.py``, of damaged files too, and by ``both_ways``.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kvstore.disk.pages import HEAD, LEAF
from kvstore.kernel import library
from kvstore.kernel.leaves import LeafReader
from logformat.rows.keys import ROW
from tests.kernel.guarded import guarded
from tests.kernel.reference import rows_by_reference, tree_file

PAGE = 256
FLIPS = 1_000


def leaves_of(rows: dict[bytes, bytes], page_bytes: int = PAGE) -> tuple[bytes, list[int]]:
    """The leaves of a small tree, one after the other, and their numbers."""
    data = tree_file(rows, page_bytes=page_bytes)
    pages = [data[start : start + page_bytes] for start in range(0, len(data), page_bytes)]
    numbers = [number for number, page in enumerate(pages) if number > 1 and HEAD.unpack_from(page)[2] == LEAF]
    return b"".join(pages[number] for number in numbers), numbers


def assert_found_alike(
    data: bytes, place: np.ndarray, numbers: list[int], last: bytes = b"", page_bytes: int = PAGE
) -> bool:
    """Find the rows of leaves that may be damaged; returns whether they could be found.

    Args:
        place: Where the same bytes are in memory.
    """
    places = list(range(0, len(data), page_bytes))
    expected = rows_by_reference(data, page_bytes, places, numbers, last)
    kernel = library.kernel()
    if kernel is not None:
        reader = LeafReader(kernel, page_bytes, len(places))
        found = reader.find(place, np.array(places, np.int64), np.array(numbers, np.int64), last)
        assert (found is None) == (expected is None)
        if found is not None:
            assert list(zip(*(column.tolist() for column in found), strict=True)) == expected
    return expected is not None


KEYS = st.one_of(st.binary(max_size=12), st.sampled_from([b"", b"\0" * 7, b"\0" * 8, b"\xff" * 8, b"\xff" * 17]))


@given(st.dictionaries(KEYS.map(ROW.__add__), st.sampled_from([8, 16, 24, 7]).map(bytes), min_size=1, max_size=12))
def test_rows_of_leaves_are_found(rows: dict[bytes, bytes]) -> None:
    data, numbers = leaves_of(rows)
    assert assert_found_alike(data, guarded(data), numbers)
    first = min(rows)
    assert assert_found_alike(data, guarded(data), numbers, first[:-1])
    assert not assert_found_alike(data, guarded(data), numbers, first)
    assert not assert_found_alike(data, guarded(data), [number + 1 for number in numbers])


def test_values_with_their_own_pages_and_empty_ones_are_left_to_python() -> None:
    for value in (bytes(700), b""):
        data, numbers = leaves_of({ROW + b"a": bytes(8), ROW + b"b": value})
        assert not assert_found_alike(data, guarded(data), numbers)


def flipped(seed: int, count: int) -> None:
    random, verdicts = Random(seed), set[bool]()
    rows = {ROW + random.randbytes(random.choice((3, 8, 9, 20))): bytes(random.choice((8, 16, 24))) for _ in range(9)}
    original, numbers = leaves_of(rows)
    data, place = bytearray(original), guarded(original)
    for nth in range(count):
        changes = 1 if nth % 2 else random.randrange(2, 40)
        for at in random.choices(range(len(data)), k=changes):
            data[at] = place[at] = random.choice((data[at] ^ 1 << random.randrange(8), random.randrange(256), 0, 255))
        verdicts.add(assert_found_alike(bytes(data), place, numbers))
        data[:] = original
        place[:] = np.frombuffer(original, np.uint8)
    assert verdicts == {True, False}


def test_changed_bytes_of_leaves_give_what_the_reference_gives() -> None:
    flipped(7, FLIPS)


@pytest.mark.long
def test_many_changed_bytes_of_leaves_give_what_the_reference_gives() -> None:
    flipped(Random().randrange(1 << 30), 50 * FLIPS)


def test_every_flipped_bit_of_a_leaf_gives_what_the_reference_gives() -> None:
    original, numbers = leaves_of({ROW + bytes([number]) * 8: bytes(8) for number in range(3)})
    data, place, verdicts = bytearray(original), guarded(original), set[bool]()
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            place[at] = data[at]
            verdicts.add(assert_found_alike(bytes(data), place, numbers))
            data[at] = place[at] = original[at]
    assert verdicts == {True, False}


def test_pages_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    kernel = library.kernel()
    if kernel is None:
        return
    path = tmp_path / "pages"
    path.write_bytes(b"".join(bytes([number]) * PAGE for number in range(9)))
    reader, target = LeafReader(kernel, PAGE, 9), guarded(bytes(4 * PAGE))
    with path.open("rb") as file:
        assert reader.read(file.fileno(), np.array([0, 3, 4, 8]), target)
        assert target[::PAGE].tolist() == [0, 3, 4, 8]
        assert target[PAGE - 1 :: PAGE].tolist() == [0, 3, 4, 8]
        assert not reader.read(file.fileno(), np.array([7, 8, 9]), target)
        os.truncate(path, 8 * PAGE + 1)
        assert not reader.read(file.fileno(), np.array([8]), target)
    assert not reader.read(1 << 20, np.array([0]), target)
