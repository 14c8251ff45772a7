"""Buckets of keys, limited scans, and ids of auto-increment columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import InvalidRequest
from kvstore.request.auto_increment import SEGMENT_IDS, Ids, next_count_after, numbered
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId
from logformat.rows.bucketing import buckets_of
from merge_engines.engine import Operations
from merge_engines.last_row import LastRow
from tests.conformance.vectors import VECTORS, running

KINDS = ("bucket", "scan", "sequence")
ONE_BUCKET = Ids(BucketId(0), 1)


@pytest.mark.parametrize("name", running("bucket"))
def test_bucket(name: str) -> None:
    vector = VECTORS[name]
    text = vector["key"]
    key = bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()
    # By itself, among keys of its length, and among others.
    for keys in ([key], [key] * 3, [b"", key, b"x" * 9]):
        found = buckets_of(BinaryColumn.from_list(keys), vector["buckets"])
        assert found[keys.index(key)] == vector["expect_bucket"]
    fixed = BinaryColumn.from_matrix(np.frombuffer(b"\2" + key, np.uint8).reshape(1, -1))
    assert buckets_of(fixed, vector["buckets"], 1).tolist() == [vector["expect_bucket"]]


@pytest.mark.parametrize("name", running("scan"))
def test_limited_scan(name: str, store: kvstore.Store) -> None:
    vector = VECTORS[name]
    schema = pa.schema([pa.field("a", pa.int32(), False), pa.field("b", pa.string())])
    table = store.create_table("t", schema, vector["table"]["pk"])
    table.upsert([{"a": a, "b": b} for a, b in reversed(vector["rows"])])
    for limit in (vector["limit"], 100):
        found = [list(row.values()) for row in table.scan(limit=limit).read_all().to_pylist()]
        assert found == (vector["expect"] if limit == vector["limit"] else vector["rows"])


def taken(count: int, next_count: int, kind: pa.DataType) -> tuple[list[int], int]:
    """Ids of this many new rows, and the next count."""
    rows = pa.record_batch({"k": pa.array(range(count)), "id": pa.nulls(count, kind)})
    places = np.arange(count)
    operations = Operations(rows, np.full(count, -1), places, places, places, np.zeros(count, bool))
    merged = numbered(LastRow().merge(operations), operations, "id", ONE_BUCKET, next_count)
    ids: list[int] = merged.pool.column("id").to_pylist()
    return ids, next_count_after(merged.pool, "id", ONE_BUCKET, next_count)


@pytest.mark.parametrize("name", running("sequence"))
def test_ids(name: str) -> None:
    vector: dict[str, Any] = VECTORS[name]
    match name:
        case "auto_increment_segments":
            first, following = taken(150, 1, pa.int64())
            second, _ = taken(50, following, pa.int64())
            assert vector["expect"] == "1..200 continuous over two segments"
            assert first + second == list(range(1, 201))
        case "auto_increment_range_update":
            _, following = taken(100, 1, pa.int64())
            assert vector["ops"][1][1] == following == 101
            restored = vector["ops"][2][1]
            ids, following = taken(51, restored, pa.int64())
            assert (ids[0], ids[-1]) == (1000, 1050)
            assert vector["ops"][4][1] == following == 1051
        case _:
            ids, following = taken(10, vector["limit"] - 9, pa.int32())
            assert ids[-1] == vector["limit"]
            with pytest.raises(InvalidRequest, match=rf'Reached maximum value of sequence "id" \({vector["limit"]}\)'):
                taken(1, following, pa.int32())


def test_buckets_never_allocate_the_same_id() -> None:
    counts = np.arange(1, 3 * SEGMENT_IDS + 2)
    given = [Ids(BucketId(bucket), 4).of(counts) for bucket in range(4)]
    assert len(np.unique(np.concatenate(given))) == 4 * len(counts)
    for bucket, ids in enumerate(given):
        for other in range(4):
            expected = counts if other == bucket else np.zeros(len(counts), np.int64)
            assert (Ids(BucketId(other), 4).counts(ids) == expected).all()
        assert Ids(BucketId(bucket), 4).highest(len(counts)) == ids[-1]
