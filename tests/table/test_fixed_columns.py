"""A table with fixed columns reads and writes by the names that it has had since, whatever they are called by now."""

from __future__ import annotations

import os
import signal

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import ForkedStore, InvalidRequest, NoSuchTable, SchemaMismatch

ROW = {"k": 1, "a": "A", "b": "B"}


@pytest.fixture(params=["keyed", "with an automatic column", "log"])
def exchanged(request: pytest.FixtureRequest, store: kvstore.Store) -> tuple[kvstore.Table, kvstore.Table]:
    """A table with the columns a and b, and the same one after they have exchanged their names."""
    columns = {"k": "int64", "a": "string", "b": "string"}
    if request.param == "with an automatic column":
        store.create_table("t", columns | {"n": "int64"}, "k", auto_increment="n")
    else:
        store.create_table("t", columns, "k" if request.param == "keyed" else None)
    fixed = store.table("t").with_fixed_columns()
    store.rename_columns("t", {"a": "b", "b": "a"})
    return fixed, store.table("t")


def changes_of(table: kvstore.Table) -> list[tuple[str, str]]:
    return [(row["a"], row["b"]) for batch in table.changelog() for row in batch.to_pylist()]


def test_each_write_goes_by_the_names_of_the_table(exchanged: tuple[kvstore.Table, kvstore.Table]) -> None:
    fixed, now = exchanged
    fixed.upsert(ROW)
    fixed.upsert([ROW | {"k": 2}])
    fixed.upsert(iter([ROW | {"k": n} for n in range(3, 40)]))
    written = pa.schema([field for field in fixed.schema if field.name != "n"])
    fixed.bucket(0).apply(kvstore.Changes.of([("upsert", ROW | {"k": 50})], written))
    assert changes_of(fixed) == [("A", "B")] * 40
    assert changes_of(now) == [("B", "A")] * 40


def test_reads_of_a_bucket_go_by_the_names_of_the_table(store: kvstore.Store) -> None:
    store.create_table("t", {"k": "int64", "a": "string", "b": "string"}, "k").upsert(ROW)
    fixed = store.table("t").with_fixed_columns()
    store.rename_columns("t", {"a": "b", "b": "a"})
    store.add_columns("t", {"c": "string"})
    store.table("t").upsert({"k": 2, "a": "B", "b": "A", "c": "C"})
    with fixed.bucket(0).scan() as found:
        assert [row for batch in found.batches for row in batch.to_pylist()] == [ROW, ROW | {"k": 2}]
    log = fixed.bucket(0).log
    (first, *_) = log.binlog(log.batches(0, 2), 0, 2)
    assert first["after"][0].as_py() == ROW


def test_a_schema_by_which_columns_are_called_is_a_number(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64", "a": "string"}, "k")
    assert table.with_fixed_columns(1).schema == table.schema
    store.rename_columns("t", {"a": "b"})
    with pytest.raises(SchemaMismatch, match="renamed or dropped"):
        table.with_fixed_columns(1)
    for wrong in ("1", 1.5):
        with pytest.raises(InvalidRequest, match="schema_id"):
            table.with_fixed_columns(wrong)  # type: ignore[arg-type]


def test_a_dataset_is_refused_where_its_table_is(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64"}, "k")
    table.upsert({"k": 1})
    datasets = table.dataset(), table.changes_dataset()
    child = os.fork()
    if not child:
        signal.alarm(600)  # a lock of the parent would be waited for without an end
        refused = 0
        for each in datasets:
            try:
                each.to_table()
            except ForkedStore:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    store.drop_table("t")
    for each in datasets:
        with pytest.raises(NoSuchTable):
            each.to_table()
