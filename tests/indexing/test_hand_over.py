"""Indexes of a table that another process writes: it hands the table over, and no row lacks its entry."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore.errors import UniqueViolation
from tests.conftest import OpenStore
from tests.support.processes import Child, Pipe


def filled(store: kvstore.Store, **options: int) -> None:
    columns = {"id": "int64", "mail": "string"}
    table = store.create_table("t", columns, "id", **options)
    table.upsert([{"id": number, "mail": f"m{number % 100}"} for number in range(1000)])


def write(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        table = store.table("t")
        for number in range(2):
            table.upsert([{"id": 5000 + 10 * number + more, "mail": "other"} for more in range(10)])
            pipe.send(table.bucket(0).handle.writes)
            pipe.recv()


@pytest.mark.parametrize("buckets", [1, 2])
@pytest.mark.parametrize("unique", [False, True])
def test_a_process_that_writes_the_table_hands_it_over(
    open_store: OpenStore, store_path: Path, buckets: int, unique: bool
) -> None:
    columns = ["id", "mail"] if unique else ["mail"]
    with open_store() as store:
        filled(store, buckets=buckets)
    with open_store() as store, Child(write, store_path) as child:
        assert child.pipe.recv()
        store.create_index("t", "by_mail", columns, unique)
        table = store.table("t")
        assert table.indexes == {"by_mail": tuple(columns)}
        child.pipe.send(None)
        child.pipe.recv()
        assert table.find(mail="other").num_rows == 20
        assert unique or table.explain(mail="other") == "index by_mail by mail"
        child.pipe.send(None)
    with open_store() as store:
        store.table("t").upsert({"id": 6000, "mail": "other"})
        assert store.table("t").find(mail="other").num_rows == 21


def test_two_rows_of_the_same_values_give_the_table_back(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        filled(store)
    with open_store() as store, Child(write, store_path) as child:
        child.pipe.recv()
        with pytest.raises(UniqueViolation):
            store.create_index("t", "by_mail", ["mail"], unique=True)
        assert store.table("t").indexes == {}
        child.pipe.send(None)
        child.pipe.recv()
        assert store.table("t").find(mail="other").num_rows == 20
        child.pipe.send(None)
