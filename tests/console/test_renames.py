"""A page that was asked for before columns exchanged their names shows none of them under the other's name."""

from __future__ import annotations

import kvstore
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition
from kvstore.console.table.download import value_of
from kvstore.console.table.undo import undo_page
from kvstore.console.table.versions import history_page


def test_a_page_calls_the_columns_as_they_were_called_when_it_was_asked_for(store: kvstore.Store) -> None:
    table = store.create_table("t", {"a": "int64", "b": "int64", "v": "int64", "w": "int64"}, ["a", "b"])
    table.upsert([{"a": 1, "b": 2, "v": 3, "w": 4}, {"a": 2, "b": 1, "v": 5, "w": 6}])
    definition = Definition.of(table)
    history, undo = Query([("key", "1"), ("key", "2")]), Query([("start", "0")])
    value = Query([("column", "v"), ("offset", "0")])

    def shown() -> tuple[object, object]:
        (version,) = history_page(store, definition, history).facts["versions"]
        return version["after"]["values"], value_of(store, definition, value).data

    assert shown() == ({"a": 1, "b": 2, "v": 3, "w": 4}, b"3")
    assert undo_page(store, definition, undo).facts["preview"]["delete"] == 2
    store.rename_columns("t", {"a": "b", "b": "a", "v": "w", "w": "v"})
    assert shown() == ({"a": 1, "b": 2, "v": 3, "w": 4}, b"3")
    # What it would show could not be applied any more.
    assert "renamed or dropped" in str(undo_page(store, definition, undo).facts["error"])
