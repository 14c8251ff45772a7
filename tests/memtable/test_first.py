"""The first rows of a range are those of a model, whatever of it the index has and the memtable has over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.table import reading
from tests.support.examples import slow

KEYS = st.integers(0, 60)
CHANGES = st.lists(st.tuples(KEYS, st.booleans()), max_size=40)


@slow(60)
@given(data=st.data())
def test_ranges_are_those_of_a_model(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("s") / "store"
    with kvstore.open(directory, commit_wait_ms=600_000, commit_idle_ms=600_000) as store:
        table = store.create_table("t", {"k": "int64", "v": "int64"}, "k")
        model: dict[int, int] = {}
        for nth in range(data.draw(st.integers(1, 4))):
            for key, is_upsert in data.draw(CHANGES):
                if is_upsert:
                    table.upsert([{"k": key, "v": nth}])
                    model[key] = nth
                else:
                    table.delete([key])
                    model.pop(key, None)
            if data.draw(st.booleans()):
                table.flush()
            with kvstore.open(directory, read_only=True) as other:
                for reader in (table, other["t"]):
                    _compare(data, reader, model)


def _compare(data: st.DataObject, table: Any, model: dict[int, int]) -> None:
    ends = st.none() | st.integers(-1, 61)
    start, stop, reverse = data.draw(ends), data.draw(ends), data.draw(st.booleans())
    limit = data.draw(st.none() | st.integers(0, 9))
    keys = [
        key
        for key in sorted(model, reverse=reverse)
        if (start is None or key >= start) and (stop is None or key < stop)
    ]
    expected = [{"k": key, "v": model[key]} for key in keys[:limit]]
    assert table.to_arrow(start=start, stop=stop, limit=limit, reverse=reverse).to_pylist() == expected
    found = table.scan(start=start, stop=stop, limit=limit, reverse=reverse, columns=["v"]).read_all()
    assert found["v"].to_pylist() == [row["v"] for row in expected]


@pytest.mark.parametrize("reverse", [False, True])
def test_many_deleted_rows_before_a_range_are_passed_over(store: kvstore.Store, *, reverse: bool) -> None:
    table = store.create_table("t", {"k": "int64"}, "k")
    table.upsert([{"k": key} for key in range(2000)])
    table.flush()
    table.delete(list(range(20, 1980)))
    table.upsert([{"k": key} for key in range(3000, 3300)])
    wanted = [key for key in [*range(20), *range(1980, 2000), *range(3000, 3300)] if key >= 5]
    if reverse:
        wanted.reverse()
    for limit in (1, 3, 30, 250, reading.SHORT_ROWS, reading.SHORT_ROWS + 1, None):
        assert table.to_arrow(start=5, reverse=reverse, limit=limit)["k"].to_pylist() == wanted[:limit]


def test_large_rows_are_read_whether_they_are_merged_or_not(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64", "s": "string"}, "k")
    table.upsert([{"k": key, "s": str(key) * 100_000} for key in range(100)])
    for _ in range(2):
        for limit in (80, None):
            found = table.to_arrow(start=5, limit=limit)
            assert found["s"].to_pylist() == [str(key) * 100_000 for key in range(5, 100)][:limit]
        table.flush()


def test_the_newest_of_several_layers_counts(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store", commit_wait_ms=600_000, commit_idle_ms=600_000) as store:
        table = store.create_table("t", {"k": "int64", "v": "int64"}, "k")
        expected = dict.fromkeys(range(100), 0)
        table.upsert([{"k": key, "v": 0} for key in expected])
        for nth in range(1, 4):
            assert {row["k"]: row["v"] for row in table.to_arrow(start=0, limit=200).to_pylist()} == expected
            table.upsert([{"k": key, "v": nth} for key in range(40, 42)])  # few, so they stay a layer of their own
            table.delete([nth])
            expected |= {40: nth, 41: nth}
            del expected[nth]
        assert {row["k"]: row["v"] for row in table.to_arrow(start=0, limit=200).to_pylist()} == expected
