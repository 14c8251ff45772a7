"""Slices of a merge: in key order, of the newest rows, and neither too small nor too large."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import pytest
from hypothesis import given, strategies as st

from kvstore.memtable import sorted_rows
from kvstore.memtable.layers import Layer, Layers
from kvstore.memtable.run import Run
from kvstore.memtable.sorted_rows import SortedRows
from logformat.rows.keys import ROW

KEYS = st.integers(0, 99).map(lambda k: ROW + b"%08d" % k)
ROWS = st.dictionaries(KEYS, st.binary(max_size=30), min_size=1, max_size=20)

Layout: TypeAlias = Callable[[int, int, int], list[Layer[bytes, bytes]]]


def slices(layers: list[Layer[bytes, bytes]], count: int, bytes_max: int) -> list[dict[bytes, bytes]]:
    """All slices.

    Args:
        layers: The newest first.
    """
    left, found = SortedRows(Layers(tuple(layers))), []
    while left.left:
        run, places = left.next(count, bytes_max)
        assert [*run] == sorted({*run})
        left.taken(places)
        found.append(dict(run.items()))
    return found


def run_of(rows: dict[bytes, bytes]) -> Run:
    return Run.of(sorted(rows), [rows[key] for key in sorted(rows)])


@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=6), st.integers(1, 30), st.integers(1, 200))
def test_slices_are_the_newest_rows_in_order(
    given: list[tuple[dict[bytes, bytes], bool]], count: int, size: int
) -> None:
    newest: dict[bytes, bytes] = {}
    for rows, _ in reversed(given):
        newest |= rows
    layers = [cast("Layer[bytes, bytes]", run_of(rows) if is_run else rows) for rows, is_run in given]
    found = slices(layers, count, size)
    assert [pair for each in found for pair in each.items()] == sorted(newest.items())
    for each in found:
        assert len(each) <= max(count, len(given))
        assert sum(map(len, list(each.values())[:-1])) <= size


def successive(runs: int, rows: int, size: int) -> list[Layer[bytes, bytes]]:
    """Runs whose keys follow each other."""
    return [
        cast("Layer[bytes, bytes]", run_of({ROW + b"%08d" % (run * rows + row): bytes(size) for row in range(rows)}))
        for run in reversed(range(runs))
    ]


def alternating(runs: int, rows: int, size: int) -> list[Layer[bytes, bytes]]:
    return [
        cast("Layer[bytes, bytes]", run_of({ROW + b"%08d" % (row * runs + run): bytes(size) for row in range(rows)}))
        for run in range(runs)
    ]


@pytest.mark.parametrize("layout", [successive, alternating])
@pytest.mark.parametrize("size", [1, 50])
def test_slices_are_few(layout: Layout, size: int) -> None:
    """About as few as rows and bytes allow, however the keys of runs lie."""
    found = slices(layout(16, 500, size), 200, 5_000)
    least = max(16 * 500 // 200, 16 * 500 * size // 5_000)
    assert len(found) <= 2 * least + 16


@pytest.mark.parametrize("layout", [successive, alternating])
def test_little_more_than_a_slice_is_brought_together_for_it(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows are left."""
    together: list[int] = []
    merged = sorted_rows.merged

    def and_note(runs: list[Run]) -> Run:
        together.append(sum(run.size for run in runs))
        return merged(runs)

    monkeypatch.setattr(sorted_rows, "merged", and_note)
    slices(layout(8, 50, 10_000), 4096, 100_000)
    assert max(together, default=0) < 3 * 100_000
