"""Streams as Spark runs them: what dies comes again, nothing is lost and nothing twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import kvstore
from kvstore.bucket import maintenance as maintenance
from kvstore.bucket.maintenance import Maintenance
from tests.support.spark_tables import SCHEMA, python_changes

pytestmark = pytest.mark.spark

Change = tuple[int, int, str, int]


class Sink:
    """Keeps batches under their ids; on request, it dies with a batch in its hands."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Change]] = {}
        self.dies = False

    def take(self, rows: DataFrame, batch: int) -> None:
        found = rows.select("_bucket", "_log_offset", "_change_type", "k").collect()
        if self.dies:
            raise RuntimeError("planted")
        self.batches[batch] = [tuple(row) for row in found]

    def changes(self) -> list[Change]:
        return sorted(change for rows in self.batches.values() for change in rows)


def run(spark: SparkSession, store: kvstore.Store, sink: Sink, checkpoint: Path, **options: Any) -> None:
    stream = spark.readStream.format("kvstore").options(path=str(store.path), table="t$changelog", **options).load()
    query = stream.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


def changes_of(table: kvstore.Table, *arguments: Any) -> list[Change]:
    return sorted(
        (row["_bucket"], row["_log_offset"], row["_change_type"], row["k"]) for row in python_changes(table, *arguments)
    )


def write(table: kvstore.Table, keys: range) -> None:
    table.upsert([{"k": k, "s": str(k), "v": 0.0} for k in keys])
    table.delete(list(keys[::5]))
    table.flush()


@pytest.mark.spark_more
@pytest.mark.parametrize("mode", ["full", pytest.param("latest", marks=pytest.mark.long)])
def test_a_first_batch_that_dies_loses_nothing(
    spark: SparkSession, store: kvstore.Store, tmp_path: Path, mode: str
) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    write(table, range(50))
    then = {bucket: end for bucket, (_, end) in table.offsets().items()}
    expected = changes_of(table, "full") if mode == "full" else []
    sink = Sink()
    sink.dies = True
    with pytest.raises(StreamingQueryException, match="planted"):
        run(spark, store, sink, tmp_path / "checkpoint", startingOffsets=mode)
    write(table, range(25, 75))
    sink.dies = False
    run(spark, store, sink, tmp_path / "checkpoint", startingOffsets=mode)
    assert sink.changes() == sorted(expected + changes_of(table, then))


def test_a_limit_a_restart_and_a_new_column(spark: SparkSession, store: kvstore.Store, tmp_path: Path) -> None:
    import pyarrow as pa

    table = store.create_table("t", SCHEMA, "k", buckets=2)
    for first in range(0, 100, 10):
        write(table, range(first, first + 10))
    sink = Sink()
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 50}
    run(spark, store, sink, tmp_path / "checkpoint", **options)
    assert sink.changes() == changes_of(table)
    sizes = Counter({batch: len(rows) for batch, rows in sink.batches.items()})
    assert 3 <= len(sizes) <= 6
    assert max(sizes.values()) <= 60
    store.add_columns("t", [pa.field("n", pa.int64())])
    table.upsert([{"k": 1, "s": "x", "v": 0.0, "n": 1}])
    table.flush()
    run(spark, store, sink, tmp_path / "checkpoint", **options)
    assert sink.changes() == changes_of(table)


@pytest.mark.spark_more
def test_a_stream_with_a_name_loses_nothing_while_it_is_stopped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Maintenance, "begin", lambda _: None)
    monkeypatch.setattr(maintenance, "REST_FACTOR", 0)
    options = {"startingOffsets": "earliest", "consumer": "q", "maxOffsetsPerTrigger": 10}
    sink = Sink()
    expected: list[Change] = []
    with kvstore.open(tmp_path / "short", segment_bytes_max=1, log_bytes_max=1) as store:
        table = store.create_table("t", SCHEMA, "k")
        for first in range(0, 40, 10):
            before = table.offsets()[0][1]
            write(table, range(first, first + 10))
            expected += changes_of(table, before)
            if first != 10:  # then it is stopped for a while
                run(spark, store, sink, tmp_path / "checkpoint", **options)
            table.bucket(0).handle.retain()
            start, end = table.offsets()[0]
            assert start <= table.consumers["q"][0] <= end
        assert sink.changes() == expected
        assert start > 20
