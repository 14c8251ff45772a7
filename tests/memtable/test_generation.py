"""A generation gives each view the rows as of its end, whatever was added since."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from kvstore.memtable import generation as generations
from kvstore.memtable.generation import Generation
from kvstore.memtable.run import Run, found_over
from logformat.binary_column import BinaryColumn
from logformat.ids import Offset

Rows = dict[bytes, bytes | None]
KEYS = [bytes([2, number]) for number in range(8)]
BATCHES = st.lists(st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(min_size=1, max_size=3)), max_size=8)


def add(generation: Generation, offset: int, rows: Rows) -> None:
    generation.add(Offset(offset), Run.of_dict({key: row or b"" for key, row in rows.items()}))


def rows_of(run: Run) -> Rows:
    return {key: row or None for key, row in zip(run.keys.to_list(), run.rows.to_list(), strict=True)}


def model(batches: list[Rows], end: int) -> Rows:
    rows: Rows = {}
    for batch in batches[:end]:
        rows |= batch
    return rows


@given(
    batches=BATCHES,
    run_keys=st.integers(1, 9),
    since=st.integers(0, 8),
    ends=st.lists(st.integers(0, 8), min_size=1, max_size=4),
)
@example(
    batches=[{KEYS[0]: b"a", KEYS[1]: None}, {KEYS[4]: b"b"}, {KEYS[4]: b"c"}], run_keys=2, since=1, ends=[1, 2, 3]
)
def test_views_of_any_end_have_the_rows_as_of_it(
    batches: list[Rows], run_keys: int, since: int, ends: list[int]
) -> None:
    generation = Generation()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generations, "RUN_KEYS", run_keys)
        for offset, batch in enumerate(batches):
            add(generation, offset, batch)
    for end in ends:
        rows = model(batches, end)
        run = generation.run(Offset(end))
        assert rows_of(run) == rows
        assert run.keys.to_list() == sorted(rows)
        assert rows_of(run.there()) == {key: row for key, row in rows.items() if row is not None}
        for key, entry in zip(KEYS, generation.find_all(BinaryColumn.from_list(KEYS), Offset(end)), strict=True):
            assert (key in rows, rows.get(key)) == (entry is not None, entry and entry[1])
            assert entry == generation.find(key, Offset(end))
        part = run.between(KEYS[2], KEYS[5])
        assert part.keys.to_list() == [key for key in sorted(rows) if KEYS[2] <= key < KEYS[5]]
        assert run.between(KEYS[5], None).keys.to_list() == [key for key in sorted(rows) if key >= KEYS[5]]
    later, everything = generation.since(Offset(since)), model(batches, len(batches))
    for key in {key for batch in batches[since:] for key in batch}:
        entry = later.find(key, Offset(99))
        assert entry is not None
        assert entry[1] == everything[key]
    assert len(later) <= sum(map(len, batches[since:]))


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
    assert run.may_have(run.keys).all()
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
    there = np.array([key in layers[-1] for key in asked], bool)
    rows = BinaryColumn.from_list([layers[-1][key] for key in asked if key in layers[-1]])
    expected = [next((each[key] for each in layers if key in each), b"") for key in asked]
    found, values = found_over(runs, BinaryColumn.from_list(asked), there, rows)
    assert found.tolist() == [bool(row) for row in expected]
    assert values.to_list() == [row for row in expected if row]


def test_a_run_that_is_made_while_keys_are_added_is_whole() -> None:
    generation = Generation()
    add(generation, 0, {b"a": b"0"})
    done = threading.Event()

    def adds() -> None:
        for number in range(3_000):
            add(generation, 1 + number, {b"%04d" % number: b"1", b"a": b"%d" % number})
        done.set()

    adding = threading.Thread(target=adds)
    adding.start()
    while not done.is_set():
        assert rows_of(generation.run(Offset(1))) == {b"a": b"0"}
    adding.join()
    assert len(generation.run(Offset(3_001))) == 3_001
