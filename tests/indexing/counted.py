"""Counts the entries of the index that searches read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from kvstore.indexing import find
from kvstore.indexing.single import SingleSearches

Pair = tuple[bytes, bytes]


def entries_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns a function that returns how many entries of the index were read since its last call."""
    counted, decoded = [0], SingleSearches.decoded

    def count(search: SingleSearches, pairs: Sequence[Pair], *given: Any) -> Any:
        counted[0] += len(pairs)  # the rows that they name
        return decoded(search, pairs, *given)

    def count_all(pairs: Iterable[Pair], most: int) -> Iterator[Pair]:
        for pair in islice(pairs, most):
            counted[0] += 1
            yield pair

    monkeypatch.setattr(SingleSearches, "decoded", count)
    monkeypatch.setattr(find, "islice", count_all)

    def since() -> int:
        found, counted[0] = counted[0], 0
        return found

    return since
