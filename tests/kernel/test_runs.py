"""Runs that the native kernel brings together are those of Python, and of a dict."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from kvstore.kernel import library
from kvstore.memtable.run import Run, merged
from logformat.binary_column import BinaryColumn

KEYS = st.one_of(
    st.binary(min_size=8, max_size=8).map(b"\2\0".__add__),
    st.text("ab", max_size=20).map(lambda text: f"\2{text}\1".encode()),
)
RUNS = st.lists(st.dictionaries(KEYS, st.binary(max_size=40), max_size=12), min_size=1, max_size=5)


def as_run(rows: dict[bytes, bytes]) -> Run:
    """With other bytes before and after it, as a part of a larger one has."""
    both = sorted({b"\1": b"before", b"\xff" * 30: b"after", **rows}.items())
    return Run.of([key for key, _ in both], [row for _, row in both]).slice(1, len(rows) + 1)


@given(RUNS)
@example([{b"\2a\1": b"1"}, {}, {b"\2a\1": b""}])
@example([{b"\2\0" + b"b" * 8: b"1", b"\2\0" + b"c" * 8: b"2"}, {b"\2\0" + b"a" * 8: b"3", b"\2\0" + b"c" * 8: b"4"}])
def test_the_last_row_of_each_key_stays(given: list[dict[bytes, bytes]]) -> None:
    runs = list(map(as_run, given))
    expected: dict[bytes, bytes] = {}
    for rows in given:
        expected |= rows
    assert list(merged(runs).items()) == sorted(expected.items())
    with library.switched_off():
        assert list(merged(runs).items()) == sorted(expected.items())


@given(st.sets(KEYS), st.lists(KEYS, max_size=30))
def test_the_place_of_each_key_is_that_of_python(keys: set[bytes], asked: list[bytes]) -> None:
    """In any order."""
    ordered = sorted(keys)
    run = as_run(dict.fromkeys(ordered, b"row"))
    for each in (asked + ordered, sorted(asked), ordered[::-1]):
        column = BinaryColumn.from_list([b"\2", *each]).slice(1, len(each) + 1)
        expected = [ordered.index(key) if key in keys else -1 for key in each]
        assert run.places_of(column).tolist() == expected
        with library.switched_off():
            assert run.places_of(column).tolist() == expected


def test_keys_of_one_width_keep_it() -> None:
    keys = [Run.of([bytes([number, nth]) for nth in range(9)], [b"row"] * 9).keys for number in range(2)]
    for each in keys:
        each.width = 2
    runs = [Run(each, each) for each in keys]
    assert merged(runs).keys.width == (None if library.kernel() is None else 2)
    assert merged([runs[0], Run.of([b"abc"], [b"row"])]).keys.width is None


def encoded(name: int, width: int) -> bytes:
    """A key that is no beginning of another one; of some names with more bytes, if keys have no width."""
    code = b"\2" + name.to_bytes(3, "big")
    return code + b"\0" * width if width else code + b"x" * (name % 7) + b"\1" + b"y" * (name % 3) + b"\0"


@pytest.mark.skipif(library.kernel() is None, reason="there is no native kernel")
@given(st.integers(0, 1 << 30), st.integers(2, 9), st.sampled_from([3, 50, 5000]), st.sampled_from([0, 1, 8, 20]))
def test_runs_are_brought_together_as_by_python(seed: int, count: int, names: int, width: int) -> None:
    random, runs = Random(seed), []
    for _ in range(count):
        known = random.sample(range(names), random.randint(1, min(names, 60)))
        known = [name for name in known if random.random() < 0.8] or known
        keys = sorted(encoded(name, width) for name in known)
        rows = [random.choice([b"", b"a", b"row" * random.randrange(5)]) for _ in keys]
        run = Run.of(keys, rows)
        if width and random.random() < 0.5:
            flat = np.frombuffer(b"".join(keys), np.uint8)
            run = Run(BinaryColumn.from_matrix(flat.reshape(len(keys), len(keys[0]))), run.rows)
        first = random.randrange(len(keys))  # columns that do not begin at the beginning of their memory
        runs.append(run.slice(first, len(keys)))
    native = merged(runs)
    with library.switched_off():
        expected = merged(runs)
    assert list(native.items()) == list(expected.items())
    assert dict(native.items()) == {key: row for run in runs for key, row in run.items()}
    assert native.keys.width in (None, len(native.keys[0]))
