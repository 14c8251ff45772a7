"""Undoing only some changes: later changes of others stay, and rows that both changed are named."""

from __future__ import annotations

from typing import Any

import pytest

import kvstore
from kvstore.errors import InvalidRequest, OffsetOutOfRange, UnsupportedOperation
from tests.history.histories import History, any_undo, keys_of, table_of

SCHEMA = {"k": "string", "v": "int64", "w": "int64"}


def undo_anything(history: History) -> None:
    """Undo a random range of changes of a random origin, and compare every row."""
    asked = any_undo(history)
    changes = history.table.undo(*asked.arguments)
    assert keys_of(changes.conflicts) == asked.conflicts
    assert keys_of(changes.rows) == asked.differing
    history.table.apply(changes)
    history.assert_rows(asked.rows)


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_selective_undo_agrees_with_the_model(store: kvstore.Store, buckets: int) -> None:
    for seed in range(12):
        with table_of(store, seed, buckets) as history:
            undo_anything(history)


@pytest.mark.long
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("part", range(20))
def test_a_selective_undo_agrees_with_the_model_over_a_thousand_histories(
    store: kvstore.Store, buckets: int, part: int
) -> None:
    for seed in range(50 * part, 50 * part + 50):
        with table_of(store, seed, buckets) as history:
            undo_anything(history)


def of(table: kvstore.Table, *operations: tuple[str, dict[str, object]]) -> kvstore.Changes:
    return kvstore.Changes.of(operations, table.schema)


def test_only_the_columns_of_the_mistake_go_back(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": key, "v": 1, "w": 1} for key in "abc"])
    table.apply_epoch(of(table, *(("upsert", {"k": key, "v": 9, "w": 1}) for key in "abcd")), writer="bad", epoch=3)
    table.upsert([{"k": "a", "v": 9, "w": 5}, {"k": "b", "v": 7, "w": 1}])
    changes = table.undo("earliest", writer="bad")
    assert changes.rows.to_pylist() == [
        {"k": "a", "v": 1, "w": 5}, {"k": "c", "v": 1, "w": 1}, {"k": "d", "v": 9, "w": 1}
    ]  # fmt: skip
    assert changes.is_delete.to_pylist() == [False, False, True]
    assert changes.conflicts.to_pylist() == [{"k": "b"}]
    table.apply(changes)
    assert [tuple(row.values()) for row in table] == [("a", 1, 5), ("b", 7, 1), ("c", 1, 1)]


def test_a_row_that_comes_or_goes_changes_every_column(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": "b", "v": None, "w": 1})
    mistake = of(table, ("upsert", {"k": "a", "v": None, "w": 1}), ("delete", {"k": "b"}))
    table.apply_epoch(mistake, writer="bad", epoch=0)
    table.upsert([{"k": "a", "v": 5, "w": 1}, {"k": "b", "v": 5, "w": 1}])
    changes = table.undo(0, writer="bad")
    assert len(changes) == 0
    assert changes.conflicts.to_pylist() == [{"k": "a"}, {"k": "b"}]


def test_a_range_may_begin_and_end_within_a_batch(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": key, "v": 1, "w": 1} for key in "abc"])
    table.upsert([{"k": key, "v": 2, "w": 1} for key in "abc"])  # offsets 3 to 8, two for each update
    back = [{"k": "b", "v": 1, "w": 1}]
    assert table.undo(5, 7).rows.to_pylist() == table.undo(6, 7).rows.to_pylist() == back
    assert len(table.undo(5, 6)) == 0  # the update belongs to the range that has its second half
    assert table.undo(4, 7).rows.to_pylist() == [{"k": "a", "v": 1, "w": 1}, *back]


def test_an_epoch_without_a_writer_is_that_of_one_writer(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    with table.writer("batches") as writer:
        writer.upsert({"k": "a", "v": 1, "w": 1})
    for name, key in (("one", "b"), ("two", "c")):
        for epoch in (5, 6) if name == "one" else (6, 7):
            table.apply_epoch(of(table, ("upsert", {"k": key, "v": epoch, "w": 0})), writer=name, epoch=epoch)
    assert [row["k"] for row in table.undo(0, epoch=5).rows.to_pylist()] == []  # epoch 6 changed the row again
    assert table.undo(0, epoch=5).conflicts.to_pylist() == [{"k": "b"}]
    assert [row["v"] for row in table.undo(0, epoch=7).rows.to_pylist()] == [6]
    with pytest.raises(InvalidRequest, match=r"Several writers.*'one', 'two'"):
        table.undo(0, epoch=6)
    with pytest.raises(InvalidRequest, match="No change in this range"):
        table.undo(0, epoch=0)  # the incarnation of a writer of batches is no epoch of a commit


def test_what_can_not_be_undone_in_part(store: kvstore.Store) -> None:
    summed = store.create_table("summed", SCHEMA, "k", merge_engine=kvstore.Aggregate({"v": "sum"}))
    summed.upsert([{"k": "a", "v": 1, "w": 1}])
    for arguments in ({"end": 1}, {"writer": "x"}, {"epoch": 1}, {"job": "x"}):
        with pytest.raises(UnsupportedOperation, match=r"merge engine.*merge_engine=.*sum"):
            summed.undo(0, **arguments)
    assert len(summed.undo(0)) == 1
    wal = store.create_table("wal", SCHEMA, "k", changelog_image="wal")
    with pytest.raises(UnsupportedOperation, match="WAL image"):
        wal.undo(0, writer="x")


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("engine", ["last_row", "first_row", kvstore.Versioned("v"), kvstore.Aggregate({"v": "sum"})])
def test_an_undo_is_applied_as_it_is_whatever_the_engine(store: kvstore.Store, engine: Any, buckets: int) -> None:
    table = store.create_table("t", SCHEMA, "k", merge_engine=engine, buckets=buckets)
    table.upsert([{"k": key, "v": 5, "w": 1} for key in "abc"])
    before = sorted(table.scan().read_all().to_pylist(), key=str)
    start = {bucket: end for bucket, (_, end) in table.offsets().items()}
    table.upsert([{"k": key, "v": 7, "w": 2} for key in "bcde"])
    table.apply(table.undo(start))
    assert sorted(table.scan().read_all().to_pylist(), key=str) == before


def test_an_undo_brings_back_numbers_that_the_table_gives(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64", "id": "int64"}, "k", auto_increment="id")
    table.upsert([{"k": 1}, {"k": 2}])
    rows = table.scan().read_all().to_pylist()
    end = table.offsets()[0][1]
    table.truncate()
    table.apply(table.undo(end))
    assert table.scan().read_all().to_pylist() == rows


def test_wrong_arguments_of_an_undo(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": "a", "v": 1, "w": 1})
    for wrong in (
        {"writer": 1.5}, {"writer": True}, {"writer": "nobody"}, {"epoch": -1}, {"epoch": "1"}, {"task": 1},
        {"job": 5}, {"job": "x", "writer": "y"}, {"end": "earliest"}, {"end": "full"},
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            table.undo(0, **wrong)
    with pytest.raises(OffsetOutOfRange):
        table.undo(0, 5)
    assert len(table.undo(1, 1)) == 0
