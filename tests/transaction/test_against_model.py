"""Transactions and other writes in any order, against dicts: all or nothing, and a conflict names its cause."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.errors import InvalidRequest, TransactionConflict
from tests.support.tables import rows_of

TABLES = {"a": 1, "b": 2, "c": 1}
"""Names, and numbers of buckets."""
Rows = dict[str, dict[int, int]]

keys = st.integers(0, 3)
places = st.tuples(st.sampled_from(sorted(TABLES)), keys)
steps = st.one_of(
    st.tuples(st.just("get"), places),
    st.tuples(st.just("upsert"), places, st.integers(0, 2)),
    st.tuples(st.just("delete"), places),
    st.tuples(st.just("add"), places),
    st.tuples(st.just("other"), places, st.none() | st.integers(0, 2)),
)
histories = st.lists(st.lists(steps, max_size=6), min_size=1, max_size=6)


def run(store: kvstore.Store, model: Rows, transaction: list[tuple[Any, ...]], epoch: int | None) -> None:
    """Run one transaction, with writes of others before its end."""
    mine, seen = deepcopy(model), {}
    own: set[tuple[str, int]] = set()
    writes = False
    conflict: tuple[str, int] | None = None
    try:
        with store.transaction(**({} if epoch is None else {"writer": "w", "epoch": epoch})) as tx:
            for kind, (name, key), *value in transaction:
                if kind == "other":
                    if value[0] is None:
                        store[name].delete(key)
                        model[name].pop(key, None)
                    else:
                        store[name].upsert({"k": key, "v": value[0]})
                        model[name][key] = value[0]
                    continue
                if kind in ("get", "add") and (name, key) not in own | seen.keys():
                    seen[name, key] = model[name].get(key)
                    mine[name] = {k: v for k, v in mine[name].items() if k != key}
                    if seen[name, key] is not None:
                        mine[name][key] = seen[name, key]
                if kind in ("get", "add"):
                    found = tx.get(name, key)
                    assert (found and found["v"]) == mine[name].get(key)
                if kind in ("upsert", "add"):
                    new = value[0] if value else (mine[name].get(key) or 0) + 1
                    tx.upsert(name, {"k": key, "v": new})
                    mine[name][key] = new
                if kind == "delete":
                    tx.delete(name, key)
                    mine[name].pop(key, None)
                if kind != "get":
                    own.add((name, key))
                    writes = True
    except TransactionConflict as error:
        conflict = error.where["table"], error.where["key"]["k"]
    except InvalidRequest:
        assert epoch is not None
        assert not writes
        return
    changed = {place for place, value in seen.items() if model[place[0]].get(place[1]) != value}
    assert conflict in changed if writes and changed else conflict is None
    if conflict is None:
        for name, key in own:
            model[name].pop(key, None)
            if key in mine[name]:
                model[name][key] = mine[name][key]
        assert tx.result is not None
        assert set(tx.result.offsets) == {name for name, _ in own}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kvstore.Store]:
    """A store with the tables, for all histories: to make or to open one takes longer than a history."""
    path = tmp_path_factory.mktemp("model") / "s"
    with kvstore.open(path) as store:
        for name, buckets in TABLES.items():
            store.create_table(name, {"k": "int64", "v": "int64"}, primary_key="k", buckets=buckets)
        yield store
        last = contents(store)
    with kvstore.open(path) as store:
        assert contents(store) == last
        assert store.check().ok


@given(histories, st.booleans())
def test_transactions_do_as_dicts_do(
    store: kvstore.Store, history: list[list[tuple[Any, ...]]], has_name: bool
) -> None:
    does_as_dicts_do(store, history, has_name)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
@settings(max_examples=1_000, derandomize=False)
@given(histories, st.booleans())
def test_20_000_histories_do_as_dicts_do(
    store: kvstore.Store, part: int, history: list[list[tuple[Any, ...]]], has_name: bool
) -> None:
    does_as_dicts_do(store, history, has_name)


def does_as_dicts_do(store: kvstore.Store, history: list[list[tuple[Any, ...]]], has_name: bool) -> None:
    model: Rows = {name: {} for name in TABLES}
    for name in TABLES:
        store[name].delete(list(range(4)))
    if any("w" in store[name].writers for name in TABLES):
        store.drop_writer("w")
    for epoch, transaction in enumerate(history):
        run(store, model, transaction, epoch if has_name else None)
        assert contents(store) == model


def contents(store: kvstore.Store) -> Rows:
    return {name: {row["k"]: row["v"] for row in rows_of(store[name])} for name in TABLES}
