"""The id of a transaction: the same in the logs of all its tables, and in no other batch."""

from __future__ import annotations

import pytest

import kvstore

TABLES = {"a": 1, "b": 2, "c": 1}
"""Names, and numbers of buckets."""


def ids_of(store: kvstore.Store, name: str) -> list[str | None]:
    """Ids in the logs of all buckets of a table, each once."""
    found = []
    for number in range(TABLES[name]):
        log = store[name].bucket(number).log
        found += [batch.origin.transaction for batch in log.batches(log.start(), log.end())]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("has_name", [False, True])
def test_batches_of_a_transaction_have_its_id(open_store, has_name: bool) -> None:
    store = open_store()
    for name, buckets in TABLES.items():
        store.create_table(name, {"k": "int64", "n": "int64"}, primary_key="k", buckets=buckets)
    store["a"].upsert({"k": 1, "n": 0})
    for number, tables in enumerate(["ab", "abc", "bc"]):
        with store.transaction(**({"writer": "w", "epoch": number} if has_name else {})) as tx:
            for name in tables:
                tx.upsert(name, {"k": 2, "n": number})
    first, second, third = ids_of(store, "b")
    assert len({first, second, third, None}) == 4
    assert ids_of(store, "a") == [None, first, second]
    assert ids_of(store, "c") == [second, third]
    assert store["c"].history(2)["transaction"].to_pylist() == [second, third]
    assert store["a"].history(1)["transaction"].to_pylist() == [None]
