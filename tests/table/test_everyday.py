"""A table and a store as collections: what Python's own syntax does with them."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import DeletionDisabled, InvalidRequest, NoSuchTable, SchemaMismatch, UnsupportedOperation

SCHEMA = pa.schema([pa.field("a", pa.int64(), False), pa.field("b", pa.string(), False), pa.field("v", pa.int64())])


@pytest.fixture(params=[1, 3])
def table(store: kvstore.Store, request: pytest.FixtureRequest) -> kvstore.Table:
    return store.create_table("t", SCHEMA, ["a", "b"], buckets=request.param)


def test_a_table_is_a_collection_of_its_rows(table: kvstore.Table) -> None:
    assert (len(table), bool(table), list(table)) == (0, True, [])
    rows = [{"a": n % 3, "b": f"{n}", "v": n} for n in range(20)]
    table.upsert(rows)
    assert len(table) == 20
    assert list(table) == sorted(rows, key=lambda row: (row["a"], row["b"])) == list(reversed(table))[::-1]
    assert sorted(table, key=lambda row: int(row["b"])) == rows
    before = iter(table)
    table.delete(where=pa.compute.field("a") >= 0)
    assert len(list(before)) == 20
    assert list(table) == []


def test_rows_are_set_and_deleted_by_key(table: kvstore.Table) -> None:
    table[1, "x"] = {"v": 1}
    table[{"a": 2, "b": "x"}] = {"a": 2, "b": "x", "v": 2}
    table[3, "x"] = {}
    assert [table[a, "x"]["v"] for a in (1, 2, 3)] == [1, 2, None]
    assert (1, "x") in table
    del table[1, "x"]
    assert (1, "x") not in table
    for missing in ((1, "x"), {"a": 9, "b": ""}):
        with pytest.raises(KeyError):
            del table[missing]
        with pytest.raises(KeyError):
            table[missing]
    ends = table.offsets()
    with pytest.raises(InvalidRequest, match="another key"):
        table[1, "x"] = {"a": 2, "v": 1}
    for key, row in ((1, {"v": 1}), ((1, "x"), {"w": 1}), ((1, "x"), 7)):
        with pytest.raises(SchemaMismatch):
            table[key] = row
    assert table.offsets() == ends


def test_a_column_that_an_update_names_must_be_given(table: kvstore.Table) -> None:
    """Otherwise it would become null although it was named by mistake; a whole row may leave it out."""
    table[1, "x"] = {"v": 1}
    rows = pa.record_batch({"a": [1], "b": ["x"]})
    for data in ({"a": 1, "b": "x"}, [{"a": 1, "b": "x"}] * 20, rows, iter([{"a": 1, "b": "x"}])):
        with pytest.raises(SchemaMismatch, match="missing"):
            table.upsert(data, columns=["a", "b", "v"])
    bucket = table.bucket(table.buckets_of([(1, "x")])[0])
    with pytest.raises(SchemaMismatch, match="missing"):
        bucket.apply(kvstore.Changes.upserts(rows), columns=["a", "b", "v"])
    assert table[1, "x"]["v"] == 1
    bucket.apply(kvstore.Changes.upserts(rows))
    assert table[1, "x"]["v"] is None


def test_a_row_that_is_set_may_be_an_object(store: kvstore.Store) -> None:
    row = dataclasses.make_dataclass("Row", [("k", int), ("v", str)])
    table = store.create_table("t", row, "k")
    table[1] = row(1, "x")
    assert table[1] == {"k": 1, "v": "x"}


def test_deletion_follows_the_tables_rules(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, ["a", "b"], delete_behavior="disable")
    table[1, "x"] = {"v": 1}
    with pytest.raises(DeletionDisabled):
        del table[1, "x"]
    with pytest.raises(KeyError):
        del table[2, "x"]
    log = store.create_table("log", SCHEMA)
    log.upsert({"a": 1, "b": "", "v": 1})
    assert len(log) == 1
    with pytest.raises(UnsupportedOperation):
        iter(log)
    with pytest.raises(UnsupportedOperation):
        log[1] = {"v": 1}
    with pytest.raises(UnsupportedOperation):
        del log[1]


def test_rows_that_are_not_counted_are_still_a_collection(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, ["a", "b"], changelog_image="wal")
    table.upsert([{"a": n, "b": "x", "v": None} for n in range(5)])
    assert (len(table), len(list(table))) == (5, 5)
    assert "rows" not in repr(table)


def test_a_store_is_a_collection_of_its_tables(store: kvstore.Store, table: kvstore.Table) -> None:
    other = store.create_table("other", SCHEMA)
    assert list(store) == ["other", "t"] == store.list_tables()
    assert "t" in store
    assert "nope" not in store
    assert 7 not in store
    assert store["t"].identity == table.identity
    assert store["other"].identity == other.identity
    with pytest.raises(NoSuchTable):
        store["nope"]


def test_what_they_are_is_shown(store: kvstore.Store, table: kvstore.Table) -> None:
    table.upsert([{"a": n, "b": "x", "v": None} for n in range(1200)])
    log = store.create_table("log", SCHEMA)
    assert repr(table) == "<kvstore.Table t: key a, b, 1,200 rows>"
    assert repr(log) == "<kvstore.Table log: append-only, 0 rows>"
    assert repr(store) == f"<kvstore.Store {str(store.path)!r}: log, t>"
    store.drop_table("log")
    assert "dropped" in repr(log)
    assert log._repr_html_() is None
    store.close()
    assert "closed" in repr(table)
    assert "closed" in repr(store)
    assert table._repr_html_() is None


class Cells(HTMLParser):
    """Text of each cell, and names of all tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, _: Any) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


@pytest.mark.parametrize("key", ["<b>k</b>", None])
def test_a_notebook_shows_the_first_rows_and_runs_nothing_of_them(store: kvstore.Store, key: str | None) -> None:
    schema = pa.schema([pa.field("<b>k</b>", pa.int64(), False), pa.field("v", pa.string())])
    table = store.create_table("<script>t", schema, key)
    table.upsert([{"<b>k</b>": n, "v": "<script>alert(1)</script>" if n else None} for n in range(30)])
    table.upsert({"<b>k</b>": 31, "v": "x" * 1000})
    html = table._repr_html_()
    assert html is not None
    found = Cells(html)
    assert found.tags == {"table", "caption", "thead", "tbody", "tr", "th", "td", "br"}
    assert found.cells[:4] == ["0", "null", "1", "<script>alert(1)</script>"]
    assert len(found.cells) == 20
