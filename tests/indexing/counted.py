"""Counts the entries of the index that searches read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pytest

from kvstore.indexing import find, single
from logformat.rows.entries import row_key_of

Pair = tuple[bytes, bytes]


def entries_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns a function that returns how many entries of the index were read since its last call."""
    counted = [0]

    def count(entry: bytes, value: bytes) -> bytes:
        counted[0] += 1
        return row_key_of(entry, value)

    def count_all(pairs: Iterable[Pair], most: int) -> Iterator[Pair]:
        for pair in islice(pairs, most):
            counted[0] += 1
            yield pair

    monkeypatch.setattr(single, "row_key_of", count)
    monkeypatch.setattr(find, "islice", count_all)

    def since() -> int:
        found, counted[0] = counted[0], 0
        return found

    return since
