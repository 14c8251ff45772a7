"""Rows that, with what they replace, are more than one batch of the log holds: the write becomes several batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.errors import BatchTooLarge, InvalidRequest
from kvstore.request import preparation
from logformat.log import batch as log_batch

ROWS, ROW_BYTES = 120, 8_000
BATCH_BYTES = 400_000
SCHEMA = {"k": "int64", "n": "int64", "y": "binary"}
Model = dict[int, dict[str, Any]]


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batch, "BATCH_BYTES_MAX", BATCH_BYTES)
    monkeypatch.setattr("kvstore.bucket.merge.native.BATCH_BYTES_MAX", BATCH_BYTES)


@pytest.fixture(params=[1, 3])
def table(store: kvstore.Store, request: pytest.FixtureRequest) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, "k", buckets=request.param)
    table.upsert(list(large().values()))
    return table


def large() -> Model:
    return {k: {"k": k, "n": k % 7, "y": bytes([k]) * ROW_BYTES} for k in range(ROWS)}


def small(keys: range) -> list[dict[str, Any]]:
    return [{"k": k, "n": -1, "y": b"-"} for k in keys]


WRITES: dict[str, tuple[Callable[[kvstore.Table], object], Callable[[Model], Model]]] = {
    "truncate": (lambda table: table.truncate(), lambda _: {}),
    "rows of Arrow": (
        lambda table: table.upsert(pa.Table.from_pylist(small(range(ROWS)), table.schema)),
        lambda model: {k: {"k": k, "n": -1, "y": b"-"} for k in model},
    ),
    "a list of many rows": (
        lambda table: table.upsert(small(range(ROWS))),
        lambda model: {k: {"k": k, "n": -1, "y": b"-"} for k in model},
    ),
    "a partial update": (
        lambda table: table.upsert([{"k": k, "n": 9} for k in range(ROWS)], columns=["k", "n"]),
        lambda model: {k: {**row, "n": 9} for k, row in model.items()},
    ),
    "a list of keys": (
        lambda table: table.delete(list(range(5, ROWS))),
        lambda model: {k: row for k, row in model.items() if k < 5},
    ),
    "rows for which something is true": (
        lambda table: table.delete(where=pc.field("n") < 6),
        lambda model: {k: row for k, row in model.items() if row["n"] == 6},
    ),
    "a value that is computed": (
        lambda table: table.update_where(pc.field("n") >= 0, {"n": pc.field("n") + 10}),
        lambda model: {k: {**row, "n": row["n"] + 10} for k, row in model.items()},
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_all_of_it_is_written_once(table: kvstore.Table, write: str) -> None:
    apply, expected = WRITES[write]
    ends = table.offsets()
    apply(table)
    rows = {row["k"]: row for row in table.scan().read_all().to_pylist()}
    assert rows == expected(large())
    changed = [
        change["k"]
        for bucket, (_, end) in ends.items()
        for change in table.changelog(end, bucket=bucket).read_all().to_pylist()
        if change["_change_type"] in ("update_postimage", "delete")
    ]
    assert len(changed) == len(set(changed)) == sum(rows.get(k) != row for k, row in large().items())


def test_few_rows_of_one_bucket_are_split(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for k in range(4):
        table.upsert({"k": k, "n": 0, "y": b"x" * 160_000})
    table.upsert(small(range(4)))
    assert [table[k] for k in range(4)] == small(range(4))


def test_a_row_that_can_not_be_replaced_is_refused(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    row = {"k": 1, "n": 0, "y": b"x" * 250_000}
    table.upsert(row)
    for write in (
        lambda: table.upsert({**row, "n": 1}),
        lambda: table.upsert([{"k": 1, "n": 1}], columns=["k", "n"]),
        lambda: table.update_where(pc.field("k") == 1, {"n": 1}),
    ):
        with pytest.raises(BatchTooLarge, match="delete a large row first"):
            write()
    assert table[1] == row
    del table[1]
    table.upsert({**row, "n": 1})
    assert table[1]["n"] == 1


def test_a_row_that_no_batch_can_hold_is_refused_as_one_row(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "ROWS_BYTES_MAX", 2 * BATCH_BYTES)
    table = store.create_table("t", SCHEMA, "k")
    row = {"k": 1, "n": 0, "y": b"x" * (2 * BATCH_BYTES)}
    for rows in (row, [row], pa.Table.from_pylist([row], table.schema)):
        with pytest.raises(BatchTooLarge, match="A row can have at most"):
            table.upsert(rows)
    with pytest.raises(InvalidRequest, match="send several smaller"):
        table.upsert([{**row, "k": k, "y": b"x" * BATCH_BYTES} for k in range(2)])
    assert len(table) == 0


@pytest.mark.parametrize("write", [name for name, (_, expected) in WRITES.items() if expected(large())])
def test_a_bucket_whose_rows_fit_is_written_once(store: kvstore.Store, write: str) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    model = {k: {**row, "y": b"-"} for k, row in large().items()}
    table.upsert(list(model.values()))
    for row in table.changelog(bucket=0).read_all().to_pylist():
        model[row["k"]]["y"] = b"x" * (2 * BATCH_BYTES * 3 // ROWS)
    table.upsert(list(model.values()))
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    apply, expected = WRITES[write]
    apply(table)
    rows = {row["k"]: row for row in table.scan().read_all().to_pylist()}
    assert rows == expected(model)
    changes = table.changelog(ends).read_all().to_pylist()
    changed = [each["k"] for each in changes if each["_change_type"] in ("update_postimage", "delete")]
    assert len(changed) == len(set(changed)) > 0
