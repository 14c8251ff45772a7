"""A page that was asked for before columns exchanged their names shows none of them under the other's name."""

from __future__ import annotations

import pytest

import kvstore
from kvstore.console.query import Query
from kvstore.console.table.download import value_of
from kvstore.console.table.undo import undo_page
from kvstore.console.table.versions import history_page
from kvstore.errors import SchemaMismatch


def test_a_page_whose_columns_were_renamed_is_to_be_loaded_again(store: kvstore.Store) -> None:
    table = store.create_table("t", {"a": "int64", "b": "int64", "v": "int64", "w": "int64"}, ["a", "b"])
    table.upsert([{"a": 1, "b": 2, "v": 3, "w": 4}, {"a": 2, "b": 1, "v": 5, "w": 6}])
    definition = store.runtime.catalog().tables[table.identity[1]]
    history, undo = Query([("key", "1"), ("key", "2")]), Query([("start", "0")])
    value = Query([("column", "v"), ("offset", "0")])
    (version,) = history_page(store, definition, history).facts["versions"]
    assert version["after"]["values"] == {"a": 1, "b": 2, "v": 3, "w": 4}
    assert value_of(store, definition, value).data == b"3"
    assert undo_page(store, definition, undo).facts["preview"]["delete"] == 2
    store.rename_columns("t", {"a": "b", "b": "a", "v": "w", "w": "v"})
    for page, query in ((history_page, history), (value_of, value)):
        with pytest.raises(SchemaMismatch, match="renamed or dropped since the page was asked for; load it again"):
            page(store, definition, query)
    assert "load it again" in str(undo_page(store, definition, undo).facts["preview"])
