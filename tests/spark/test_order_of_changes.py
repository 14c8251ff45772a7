"""Changes that Spark's tasks have staged are put in the order of the changelog that they come from."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kvstore.read.changelog import CHANGE_FIELDS
from kvstore.spark.write.changes import changes_of
from kvstore.spark.write.staged import staged_batch, together

pytestmark = pytest.mark.spark

TYPES = {name: CHANGE_FIELDS.field(name).type for name in CHANGE_FIELDS.names}


def put_together(rows: list[dict[str, object]]) -> list[int]:
    """The column ``v`` of rows, each of which a task of its own has staged."""
    schema = pa.schema([(name, TYPES.get(name, pa.int64())) for name in rows[0]])
    staged = [staged_batch(*changes_of(pa.RecordBatch.from_pylist([row], schema))) for row in rows]
    found: list[int] = together(staged).rows.column("v").to_pylist()
    return found


def change(v: int, seconds: int, offset: int, **more: int) -> dict[str, object]:
    about = {"_commit_timestamp": seconds * 1_000_000, "_log_offset": offset, "_change_type": "insert"}
    return {"k": 1, "v": v, **about, **more}


def test_a_clock_that_was_set_back_does_not_change_the_order_of_a_bucket() -> None:
    rows = [change(3, 5, 12, _bucket=0), change(1, 90, 10, _bucket=0), change(2, 4, 11, _bucket=0)]
    assert put_together(rows) == [1, 2, 3]


def test_changes_of_several_buckets_come_in_the_order_of_their_times() -> None:
    """Another key may bring together rows that were in two buckets."""
    rows = [change(3, 30, 1, _bucket=1), change(2, 20, 9, _bucket=0), change(1, 10, 8, _bucket=1)]
    rows[2]["_log_offset"] = 0
    assert put_together(rows) == [1, 2, 3]


def test_without_the_bucket_changes_come_by_time_then_by_offset() -> None:
    assert put_together([change(3, 7, 1), change(2, 5, 9), change(1, 5, 8)]) == [1, 2, 3]


def test_without_the_time_changes_come_by_bucket_and_offset() -> None:
    rows = [change(3, 0, 4, _bucket=1), change(2, 0, 9, _bucket=0), change(1, 0, 8, _bucket=0)]
    for row in rows:
        del row["_commit_timestamp"]
    assert put_together(rows) == [1, 2, 3]
