"""Counts the entries that searches read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvstore.indexing import find, single
from logformat.rows.entries import row_key_of


def entries_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns a function that returns how many entries were read since its last call."""
    counted = [0]

    def count(entry: bytes, value: bytes) -> bytes:
        counted[0] += 1
        return row_key_of(entry, value)

    for module in (find, single):
        monkeypatch.setattr(module, "row_key_of", count)

    def since() -> int:
        found, counted[0] = counted[0], 0
        return found

    return since
