"""A stream from a replica has what a stream from its leader has; Spark's part is played by tests/spark/streams.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import kvstore
from kvstore.errors import CorruptData, MissingVersion, OffsetOutOfRange, SchemaMismatch, UnsupportedOperation
from kvstore.replica.read.table import ReplicaTable
from kvstore.spark import KvStoreSource
from tests.spark.streams import Query, Rows, changes, in_order, place_of

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
BUCKETS = 2


class Shipped:
    """A store and its replica in a directory."""

    def __init__(self, path: Path) -> None:
        self.store = kvstore.open(path / "store")
        self.table = self.store.create_table("t", SCHEMA, "k", buckets=BUCKETS)
        self.place = path / "replica"
        self.replica = self.store.add_replica(self.place.as_uri(), "r")
        self.epoch = 0
        self.ship()

    def ship(self) -> None:
        self.store.flush()
        self.replica.ship()

    def write(self) -> None:
        """A commit over both buckets, and a change in one."""
        rows = [("upsert", {"k": k, "v": self.epoch}) for k in range(8)]
        self.table.apply_epoch(kvstore.Changes.of(rows, self.table.schema), "w", self.epoch, "r")
        self.table.upsert({"k": 100 + self.epoch, "v": 0})
        self.epoch += 1
        self.ship()

    def query(self, **options: str) -> Query:
        return Query({"path": self.place.as_uri(), "table": "t$changelog", **options})

    def changes(self, start: Any = "earliest") -> Rows:
        return changes(self.table, start)

    def object_of(self, bucket: int) -> Path:
        """The newest object of a bucket."""
        return max(self.place.glob(f"tables/1/{bucket}/*.range"))


@pytest.fixture
def shipped(tmp_path: Path) -> Any:
    found = Shipped(tmp_path)
    with found.store:
        yield found


@pytest.mark.parametrize(("start", "most"), [("full", None), ("full", "3"), ("earliest", "3"), ("latest", None)])
def test_every_change_comes_once(shipped: Shipped, start: str, most: str | None) -> None:
    shipped.write()
    shipped.write()
    expected = shipped.changes(start)
    ends = {bucket: end for bucket, (_, end) in shipped.table.offsets().items()}
    query = shipped.query(startingOffsets=start, **({} if most is None else {"maxOffsetsPerTrigger": most}))
    query.trigger("planned")  # the start is decided
    for die in (None, "sunk", None, "planned", None):
        shipped.write()
        query.trigger(die)
    query.run()
    query.stop()
    later = shipped.changes() if start == "earliest" else [*expected, *shipped.changes(ends)]
    assert in_order(query.rows()) == in_order(later)
    sizes = [len(rows) for rows in query.sunk.values()]
    if most is not None:
        assert max(sizes) <= 16 + int(most)  # a commit of a bucket is whole, and so are the rows of one
    else:
        for rows in query.sunk.values():
            in_each = [{row["v"] for row in rows if row["k"] < 8 and row["_bucket"] == b} for b in range(BUCKETS)]
            assert in_each[0] == in_each[1], "a commit is in both buckets or in none"


def test_a_checkpoint_passes_between_store_and_replica(shipped: Shipped) -> None:
    query = shipped.query(startingOffsets="earliest")
    places = [query.options["path"], str(shipped.store.path)]
    for number in range(4):
        shipped.write()
        query.options["path"] = places[number % 2]
        query.run()
        query.stop()
    assert in_order(query.rows()) == shipped.changes()


def test_a_replica_does_not_go_on_between_the_rows_of_a_bucket(shipped: Shipped) -> None:
    shipped.write()
    query = shipped.query(startingOffsets="full", maxOffsetsPerTrigger="2")
    query.options["path"] = str(shipped.store.path)
    query.trigger()
    query.stop()
    query.options["path"] = shipped.place.as_uri()
    with pytest.raises(UnsupportedOperation, match="continue with the store"):
        query.trigger()
    query.stop()


@pytest.mark.parametrize("source", ["kvstore", pytest.param("kvstore_python", marks=pytest.mark.long)])
def test_spark_streams_from_a_replica(spark: SparkSession, shipped: Shipped, tmp_path: Path, source: str) -> None:
    seen: Rows = []
    for _ in range(2):
        shipped.write()
        stream = spark.readStream.format(source).options(path=shipped.place.as_uri(), table="t$binlog")
        frame = stream.option("startingOffsets", "earliest").load()
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.foreachBatch(lambda rows, _: seen.extend(rows.toArrow().to_pylist()))
        writer.trigger(availableNow=True).start().awaitTermination()
    expected = [row for batch in shipped.table.binlog() for row in batch.to_pylist()]
    assert sorted(seen, key=place_of) == sorted(expected, key=place_of)


def test_new_columns_come_later_and_renamed_ones_end_the_stream(shipped: Shipped) -> None:
    query = shipped.query(startingOffsets="earliest")
    query.run()
    shipped.store.add_columns("t", [pa.field("w", pa.int64())])
    shipped.table.upsert({"k": 1, "v": 2, "w": 3})
    shipped.ship()
    query.run()
    assert (query.rows()[-1]["v"], "w" in query.rows()[-1]) == (2, False)
    shipped.store.rename_columns("t", {"v": "x"})
    shipped.ship()
    with pytest.raises(SchemaMismatch, match="renamed"):
        query.run()
    query.stop()


def test_a_lost_or_damaged_object_fails_the_stream_until_it_is_repaired(shipped: Shipped) -> None:
    query = shipped.query(startingOffsets="earliest")
    query.run()
    shipped.write()
    lost = shipped.object_of(1)
    lost.rename(shipped.place / "away")
    for _ in range(2):  # the running stream, and one that starts again
        with pytest.raises(MissingVersion, match=r"hole in bucket 1.*replica repair"):
            query.run()
        query.stop()
    os.rename(shipped.place / "away", lost)
    damaged = shipped.object_of(0)
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    for _ in range(2):
        with pytest.raises(CorruptData, match=f"object=tables/1/0/{damaged.name}"):
            query.run()
        query.stop()
    assert shipped.replica.repair()
    query.run()
    assert in_order(query.rows()) == shipped.changes()
    query.stop()


def test_what_the_replica_no_longer_has_is_reported(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store", log_bytes_max=1, segment_bytes_max=1 << 16) as store:
        table = store.create_table("t", SCHEMA, "k")
        place = tmp_path / "replica"

        def fill(count: int) -> None:
            for number in range(count):
                table.upsert(pa.table({"k": range(3000), "v": pa.array([number] * 3000)}))
            store.flush()
            replica.ship()

        replica = store.add_replica(place.as_uri(), "r")
        fill(1)
        options = {"path": str(place), "table": "t$changelog", "startingOffsets": "earliest"}
        queries = [Query(options), Query(options | {"failOnDataLoss": "false"})]
        for query in queries:
            query.run()
            query.stop()
        fill(8)
        table.snapshot()
        for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
            handle.retain()
        store.drop_replica("r")
        store.flush()
        for each in place.glob("tables/1/0/*"):
            each.unlink()
        (place / "TOLD").unlink()
        replica = store.add_replica(place.as_uri(), "r")
        fill(1)
        begins = ReplicaTable.of(place.as_uri(), "t").bounds()[0][0]
        assert begins > 3000
        with pytest.raises(OffsetOutOfRange, match=r"have expired.*startingOffsets `full`"):
            queries[0].run()
        queries[0].stop()
        queries[1].run()
        queries[1].stop()
        found = [row["_log_offset"] for row in queries[1].rows()]
        assert found == [*range(3000), *range(begins, table.offsets()[0][1])]


def test_options_that_a_stream_from_a_replica_does_not_take(shipped: Shipped) -> None:
    for options, error in (
        ({"consumer": "c"}, "no consumers"),
        ({"table": "t"}, "reads changes"),
        ({"endingOffsets": json.dumps({"0": 0, "1": 0}), "startingOffsets": "earliest"}, "no end"),
    ):
        source = KvStoreSource({"path": str(shipped.place), "table": "t$changelog", **options})
        with pytest.raises(UnsupportedOperation, match=error):
            source.streamReader(source.schema())
