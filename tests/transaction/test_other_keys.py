"""A transaction in one bucket may read some keys and write others: what it replaces is what is stored under these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from tests.support.tables import rows_of

KEYS = st.integers(0, 5)
TRANSACTIONS = st.lists(
    st.tuples(st.lists(KEYS, max_size=3), st.dictionaries(KEYS, st.none() | st.integers(0, 9), min_size=1, max_size=4)),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> kvstore.Store:
    return kvstore.open(tmp_path_factory.mktemp("others") / "store")


@given(transactions=TRANSACTIONS)
@settings(deadline=None)
def test_rows_and_changes_are_those_of_a_dict(store: kvstore.Store, transactions: list[Any]) -> None:
    if "t" in store.list_tables():
        store.drop_table("t")
    table = store.create_table("t", {"k": "int64", "v": "int64"}, "k")
    model = dict.fromkeys(range(3), 100)
    table.upsert([{"k": k, "v": v} for k, v in model.items()])
    for reads, writes in transactions:
        with store.transaction() as tx:
            for k in reads:
                assert (tx.get("t", k) or {}).get("v") == model.get(k)
            for k, v in writes.items():
                if v is None:
                    tx.delete("t", k)
                else:
                    tx.upsert("t", {"k": k, "v": v})
        model = {k: v for k, v in (model | writes).items() if v is not None}
        assert table.count() == len(model)
    assert rows_of(table) == [{"k": k, "v": v} for k, v in sorted(model.items())]
    replayed: dict[int, int] = {}
    for change in table.changelog().read_all().to_pylist():
        if change["_change_type"].startswith("update_pre") or change["_change_type"] == "delete":
            assert replayed.pop(change["k"]) == change["v"]
        else:
            assert replayed.setdefault(change["k"], change["v"]) == change["v"]
    assert replayed == model
    assert store.check().ok


def test_a_read_and_two_writes(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", {"k": "int64", "v": "int64"}, "k")
        table.upsert({"k": 1, "v": 0})
        with store.transaction() as tx:
            tx.get("t", 1)
            tx.upsert("t", {"k": 1, "v": 1})
            tx.upsert("t", {"k": 2, "v": 1})
        assert rows_of(table) == [{"k": 1, "v": 1}, {"k": 2, "v": 1}]
