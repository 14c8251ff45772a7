"""A stream from a shared table has each change once; Spark's part is played by tests/spark/streams.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

import kvstore
from kvstore import Changes
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    NoSuchTable,
    OffsetOutOfRange,
    ReplicaBehind,
    UnsupportedOperation,
)
from kvstore.replica.client import ObjectStore
from kvstore.shared.snapshots import take_snapshots
from kvstore.shared.vacuum import remove_unneeded
from kvstore.spark import KvStoreSource
from logformat.replica.shared_table import definition_name
from tests.cli.commands import fine, run
from tests.shared.hosts import SCHEMA, Host, created, upserts
from tests.spark.streams import Query, Rows, in_order, place_of

pytestmark = pytest.mark.spark

BUCKETS = 2


class Shared:
    """A shared table in a directory, or at a URL, and a machine that writes it."""

    def __init__(self, path: Path, url: str | None = None) -> None:
        self.path = path
        self.place = path / "place"
        self.url = self.place.as_uri() if url is None else url
        table = created(ObjectStore(self.url, create=True), buckets=BUCKETS)
        self.host = Host(replace(table, url=self.url), path / "cache")
        self.number = 0

    def write(self) -> None:
        """A commit over both buckets, and one in one of them."""
        self.host.write(upserts(range(8), self.number))
        self.host.write(upserts([100 + self.number], 0))
        self.number += 1

    def query(self, **options: str) -> Query:
        return Query({"path": self.url, "table": "t$changelog", **options})

    def changes(self, **options: str) -> Rows:
        """All changes, read in a batch."""
        source = KvStoreSource(self.query(startingOffsets="earliest", **options).options)
        reader = source.reader(source.schema())
        return in_order([row for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()])


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


@pytest.mark.parametrize(("start", "most"), [("full", None), ("full", "3"), ("earliest", "3"), ("latest", None)])
def test_every_change_comes_once(shared: Shared, start: str, most: str | None) -> None:
    shared.write()
    shared.write()
    before = shared.changes()
    options = {} if most is None else {"maxOffsetsPerTrigger": most}
    query = shared.query(startingOffsets=start, **options)
    query.trigger("planned")  # the start is decided
    for die in (None, "sunk", None, "planned", None):
        shared.write()
        query.trigger(die)
    query.run()
    query.stop()
    found, after = in_order(query.rows()), shared.changes()
    new = [row for row in after if row not in before]
    if start == "full":
        rows = {row["k"]: row["v"] for row in before if row["_change_type"] != "update_preimage"}
        first = [row for row in found if row not in new]
        assert {row["k"]: row["v"] for row in first} == rows
        assert len(first) == len(rows)
        assert in_order([row for row in found if row in new]) == new
    else:
        assert found == (after if start == "earliest" else new)
    sizes = [len(rows) for rows in query.sunk.values()]
    if most is not None:
        assert max(sizes) <= 16 + int(most)  # a commit is whole, and so are the rows of a bucket
    for batch in query.sunk.values():
        if start != "full" or all(row in new for row in batch):
            in_each = [{row["v"] for row in batch if row["k"] < 8 and row["_bucket"] == b} for b in range(BUCKETS)]
            assert in_each[0] == in_each[1], "a commit is in both buckets or in none"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_every_change_comes_once_however_often_the_query_dies(shared: Shared, seed: int) -> None:
    random = Random(seed)
    query = shared.query(startingOffsets="earliest", maxOffsetsPerTrigger=str(random.choice([1, 7, 40])))
    for _ in range(40):
        if random.random() < 0.4:
            keys = random.sample(range(20), random.randint(1, 12))
            shared.host.write(upserts(keys, random.randint(0, 9)))
        else:
            query.trigger(random.choice([None, None, "planned", "sunk"]))
        if random.random() < 0.1:
            take_snapshots(shared.host.table, shared.path / "cache", shared.host.clock, again=False)
        if random.random() < 0.1:
            remove_unneeded(shared.host.table, older_than_ms=0, retain_last=1, dry_run=False)
        if random.random() < 0.2:
            query.stop()
    query.run()
    query.stop()
    assert in_order(query.rows()) == shared.changes()


def test_a_batch_reads_changes_between_offsets_and_times(shared: Shared) -> None:
    for _ in range(3):
        shared.host.clock.now += 1000
        shared.write()
    rows = shared.changes()
    start, end = {"0": 2, "1": 3}, {"0": 9, "1": 8}
    found = shared.query(startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)).options
    source = KvStoreSource(found)
    reader = source.reader(source.schema())
    read = [row for part in reader.partitions() for part_rows in reader.read(part) for row in part_rows.to_pylist()]
    wanted = [r for r in rows if start[str(r["_bucket"])] <= r["_log_offset"] < end[str(r["_bucket"])]]
    assert in_order(read) == wanted
    with pytest.raises(ReplicaBehind, match="shared table ends before this offset"):
        shared.changes(endingOffsets=json.dumps({"0": 99, "1": 0}))
    times = sorted({row["_commit_timestamp"] for row in rows})
    late = shared.changes(endingTimestamp=str(int(times[-1].timestamp() * 1000)))
    assert late == [row for row in rows if row["_commit_timestamp"] < times[-1]]
    assert shared.changes(endingTimestamp="1577836800000") == rows, "the table is as of now, not of its last write"


@pytest.mark.parametrize(
    ("source", "runs"),
    [("kvstore", 1), *(pytest.param(name, 3, marks=pytest.mark.long) for name in ("kvstore", "kvstore_python"))],
)
def test_spark_streams_from_a_shared_table(spark: SparkSession, shared: Shared, source: str, runs: int) -> None:
    seen: Rows = []
    for _ in range(runs):
        shared.write()
        stream = spark.readStream.format(source).options(path=shared.place.as_uri(), table="t$binlog")
        frame = stream.option("startingOffsets", "earliest").load()
        writer = frame.writeStream.option("checkpointLocation", str(shared.path / "checkpoint"))
        writer = writer.foreachBatch(lambda rows, _: seen.extend(rows.toArrow().to_pylist()))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(seen, key=place_of) == shared.changes(table="t$binlog")


@pytest.mark.spark_more
def test_a_shared_table_on_s3_is_published_followed_and_read(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    shared = Shared(tmp_path, url := f"{s3_url}/a/place")
    query = shared.query(startingOffsets="earliest")
    for _ in range(3):
        shared.write()
        query.run()
    query.stop()
    assert in_order(query.rows()) == shared.changes()
    with kvstore.open(tmp_path / "store") as store:
        store.create_table("u", SCHEMA, "k").upsert({"k": 1, "v": 2})
        store.publish("u", url)
    assert fine("describe", url, "u", "--json").lines[0]["rows"] == 1
    assert fine("scan", url, "u", "--json").lines == [{"k": 1, "v": 2}]
    assert len(fine("scan", url, "t", "--json").lines) == 11
    assert f"url={url}" in run("upsert", url, "u").err


def test_a_damaged_object_fails_the_stream_until_it_is_put_back(shared: Shared) -> None:
    query = shared.query(startingOffsets="earliest")
    query.run()
    shared.write()
    damaged = max(shared.place.glob("tables/*/0/*.range"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for _ in range(2):  # the running stream, and one that starts again
        with pytest.raises(CorruptData, match=damaged.name):
            query.run()
        query.stop()
    damaged.write_bytes(whole)
    query.run()
    assert in_order(query.rows()) == shared.changes()
    query.stop()


def test_a_checkpoint_is_that_of_one_table(shared: Shared) -> None:
    shared.write()
    query = shared.query(startingOffsets="earliest")
    query.run()
    query.stop()
    loaded = shared.query(startingOffsets="earliest")
    loaded.start()
    (shared.place / definition_name("t")).unlink()
    created(ObjectStore(shared.place.as_uri()), buckets=BUCKETS)
    with pytest.raises(NoSuchTable, match="dropped since it was loaded"):
        loaded.run()
    with pytest.raises(InvalidRequest, match="belongs to another table"):
        query.run()
    query.stop()


def test_what_a_stream_from_a_shared_table_refuses(shared: Shared) -> None:
    shared.host.write(Changes.of([("upsert", {"k": 1, "v": 1})], SCHEMA))
    for options, error in (
        ({"consumer": "c"}, "A shared table has no consumers"),
        ({"table": "t"}, "reads changes"),
        ({"endingOffsets": json.dumps({"0": 0, "1": 0}), "startingOffsets": "earliest"}, "no end"),
    ):
        source = KvStoreSource({"path": str(shared.place), "table": "t$changelog", **options})
        with pytest.raises(UnsupportedOperation, match=error):
            source.streamReader(source.schema())
    query = shared.query(startingOffsets="earliest")
    query.run()
    query.stop()
    shared.write()
    query.offsets[-1] = query.offsets[-1].replace('"0": 0', '"0": 99').replace('"0": 1', '"0": 99')
    with pytest.raises(OffsetOutOfRange, match="ends before what this stream has read"):
        query.run()
