"""Places of keys in a run are those in a sorted list."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, strategies as st

from kvstore.memtable.run import Run

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
