"""A run finds its rows; several lie over older rows, the newest first."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from hypothesis import example, given, strategies as st

from kvstore.memtable.run import Run, found_over
from logformat.binary_column import BinaryColumn


@given(
    keys=st.lists(st.text("abuv:", max_size=20), min_size=1, unique=True),
    common=st.text("ab", max_size=12),
    others=st.lists(st.text("abuv:", max_size=24), max_size=8),
)
@example(keys=["", "a"], common="", others=["b"])
@example(keys=["a" * 9, "a" * 10, "a" * 11, "b"], common="", others=["a" * 12])
def test_a_run_finds_its_keys_and_no_others(keys: list[str], common: str, others: list[str]) -> None:
    # As keys are stored: none begins another.
    stored = sorted(f"{common}{key}".encode() + b"\0" for key in keys)
    rows = [key * 2 for key in stored]
    run = Run.of(stored, rows)
    assert [run.get(key) for key in stored] == rows == run.find_all(stored)
    for other in [each.encode() + end for each in [*others, common] for end in (b"", b"\0", b"\xff" * 9)]:
        assert run.get(other) == (rows[stored.index(other)] if other in stored else None)
    middle = run.slice(len(stored) // 2, len(stored))
    assert [middle.get(key) is not None for key in stored] == [
        place >= len(stored) // 2 for place in range(len(stored))
    ]


@given(
    older=st.dictionaries(st.text("abu", max_size=12), st.binary(min_size=1, max_size=3)),
    newer=st.lists(st.dictionaries(st.text("abu", max_size=12), st.binary(max_size=3)), max_size=4),
    others=st.lists(st.text("abu", max_size=12), max_size=4),
)
@example(older={"a": b"0"}, newer=[{"a": b"2"}, {"a": b"", "b": b"1"}], others=[])
@example(older={"a": b"0"}, newer=[{"a": b"", "b": b"1"}, {"a": b"2"}], others=["b"])
def test_rows_of_runs_are_laid_over_older_ones(
    older: dict[str, bytes], newer: list[dict[str, bytes]], others: list[str]
) -> None:
    """The newest run is the first."""
    layers = [{f"{k}.".encode(): row for k, row in each.items()} for each in [*newer, older]]
    asked = sorted({key for each in layers for key in each} | {f"{k}.".encode() for k in others})
    runs = [Run.of(sorted(each), [each[key] for key in sorted(each)]) for each in layers[:-1]]

    def find(keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        names = keys.to_list()
        rows = [layers[-1][key] for key in names if key in layers[-1]]
        return np.array([key in layers[-1] for key in names], bool), BinaryColumn.from_list(rows)

    expected = [next((each[key] for each in layers if key in each), b"") for key in asked]
    found, values = found_over(runs, BinaryColumn.from_list(asked), find)
    assert found.tolist() == [bool(row) for row in expected]
    assert values.to_list() == [row for row in expected if row]


KEYS = st.lists(st.sampled_from([b"", b"\2", b"\2common", b"\2common\xff"]), max_size=2).map(b"".join)
ANY = st.builds(bytes.__add__, KEYS, st.binary(max_size=12))


@given(st.sets(ANY), st.lists(ANY, max_size=40))
def test_first_places_are_those_in_a_sorted_list(keys: set[bytes], asked: list[bytes]) -> None:
    ordered = sorted(keys)
    run = Run.of(ordered, [b"row"] * len(ordered))
    asked += ordered
    expected = [bisect_left(ordered, key) for key in asked]
    assert list(map(run.first_place, asked)) == expected
    assert run.first_places(asked).tolist() == expected
