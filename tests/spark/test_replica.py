"""Spark reads a replica as Python reads its leader: rows, changes, and nothing after a hole."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import kvstore
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    MissingVersion,
    NoSuchTable,
    OffsetOutOfRange,
    ReplicaBehind,
    UnsupportedOperation,
)
from kvstore.replica.read.parts import Changes, Rows
from kvstore.spark import KvStoreSource
from kvstore.spark.read import replica
from kvstore.spark.read.tasks import ReadPiece
from tests.support.clocks import wait_for_the_next_millisecond
from tests.support.object_store import serving

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])


class Written:
    """A store with a replica of several objects in each bucket; deletes, a column that was added, and commits."""

    def __init__(self, path: Path) -> None:
        self.url = (path / "replica").as_uri()
        self.store = kvstore.open(path / "store")
        self.replica = self.store.add_replica(self.url, "r")
        self.table = self.store.create_table("t", SCHEMA, primary_key="k", buckets=3)
        for step in range(4):
            self.table.upsert([{"k": k, "s": f"{step}"} for k in range(step * 50, 300)])
            self.table.delete(list(range(step * 7, 300, 40)))
            self.ship()
        self.store.add_columns("t", [pa.field("n", pa.float64())])
        self.middle = {bucket: end for bucket, (_, end) in self.table.offsets().items()}
        changes = kvstore.Changes.of([("upsert", {"k": k, "s": "e", "n": 0.5}) for k in range(20)], self.table.schema)
        self.table.apply_epoch(changes, "w", 0)
        self.middle_rows = self.rows(self.middle)
        self.log = self.store.create_table("log", SCHEMA)
        self.log.upsert([{"k": 1, "s": "a"}, {"k": 1, "s": "b"}])
        self.store.create_table("gone", SCHEMA, primary_key="k")
        self.ship()
        self.store.drop_table("gone")
        self.ship()

    def ship(self) -> None:
        self.store.flush()  # only what is published is shipped
        self.replica.ship()

    def rows(self, as_of: Any = None) -> list[dict[str, Any]]:
        return sorted(self.table.scan(as_of=as_of).read_all().to_pylist(), key=lambda row: row["k"])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("written"))


def load(spark: SparkSession, url: str, table: str, **options: str) -> DataFrame:
    return spark.read.format("kvstore").options(path=url, table=table, **options).load()


def listed(frame: DataFrame, *order: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.orderBy(*order).toArrow().to_pylist()
    return found


def python(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def read_here(url: str, table: str, **options: str) -> list[dict[str, Any]]:
    """What the source reads, by itself."""
    source = KvStoreSource({"path": url, "table": table} | options)
    reader = source.reader(source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_rows_and_changes_equal_the_leaders(spark: SparkSession, written: Written) -> None:
    assert listed(load(spark, written.url, "t"), "k") == written.rows()
    changes = load(spark, written.url, "t$changelog")
    assert listed(changes, "_bucket", "_log_offset") == python(written.table.changelog())
    assert listed(load(spark, written.url, "t$binlog"), "_bucket", "_log_offset") == python(written.table.binlog())
    assert listed(load(spark, written.url, "log$changelog"), "_log_offset") == python(written.log.changelog())


def test_a_path_of_a_directory_and_columns(spark: SparkSession, written: Written) -> None:
    directory = written.url.removeprefix("file://")
    found = listed(load(spark, directory, "t", columns="n,k"), "k")
    assert found == [{"n": row["n"], "k": row["k"]} for row in written.rows()]
    reader = spark.read.format("kvstore").options(path=directory, table="t$changelog")
    frame = reader.schema("_change_type string, s string").load()
    assert {row["_change_type"] for row in frame.collect()} == {
        *("insert", "update_preimage", "update_postimage", "delete")
    }


def test_what_is_loaded_stays_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    own = Written(tmp_path)
    rows, changes, expected = load(spark, own.url, "t"), load(spark, own.url, "t$changelog"), own.rows()
    count = len(python(own.table.changelog()))
    own.table.upsert([{"k": k, "s": "later", "n": None} for k in range(400)])
    own.ship()
    assert listed(rows, "k") == expected
    assert changes.count() == count
    assert load(spark, own.url, "t").count() == 400


def test_places(written: Written) -> None:
    table, middle = written.table, written.middle
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    within = {bucket: end // 3 for bucket, end in middle.items()}  # in the middle of commits, and of updates
    for name, read in (("t$changelog", table.changelog), ("t$binlog", table.binlog)):
        for first, last in ((within, middle), (middle, ends), (within, within), (ends, ends)):
            options = {"startingOffsets": json.dumps(first), "endingOffsets": json.dumps(last)}
            assert read_here(written.url, name, **options) == python(read(first, last))
        assert read_here(written.url, name, startingOffsets="latest") == []
        found = read_here(written.url, name, startingOffsets="full")
        assert [each | {"_commit_timestamp": 0} for each in found] == [
            each | {"_commit_timestamp": 0} for each in python(read("full"))
        ]
    for as_of in (within, middle, ends, dict.fromkeys(ends, 0)):
        found = read_here(written.url, "t", asOf=json.dumps(as_of))
        assert sorted(found, key=lambda row: row["k"]) == written.rows(as_of)


def test_times(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
        replica = store.add_replica((tmp_path / "replica").as_uri(), "r")
        for step in range(6):
            table.upsert([{"k": k, "s": f"{step}"} for k in range(10)])
            if step % 2:
                store.flush()
                wait_for_the_next_millisecond()  # what is shipped reaches beyond the millisecond of the last change
                replica.ship()
        store.flush()
        replica.ship()
        times = sorted({change["_commit_timestamp"] for change in python(table.changelog())})
        for time in [times[0] - dt.timedelta(seconds=1), *times, times[-1] + dt.timedelta(milliseconds=1)]:
            ms = str(int(time.timestamp() * 1000))
            assert read_here(replica.url, "t$changelog", startingTimestamp=ms) == python(table.changelog(time))
            assert read_here(replica.url, "t$changelog", endingTimestamp=ms) == python(table.changelog(end=time))
            assert read_here(replica.url, "t", asOf=time.isoformat()) == table.scan(as_of=time).read_all().to_pylist()
        later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        for options in ({"asOf": later.isoformat()}, {"table": "t$changelog", "endingTimestamp": f"{2**42}"}):
            with pytest.raises(ReplicaBehind, match="ends before this time"):
                read_here(replica.url, **{"table": "t"} | options)


def test_a_replica_that_begins_with_a_snapshot(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store", log_bytes_max=1, segment_bytes_max=1 << 16) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        for step in range(8):
            table.upsert([{"k": k, "s": f"{step}-{k}"} for k in range(0, 3000, step + 1)])
        table.delete(list(range(0, 3000, 11)))
        table.snapshot()
        for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
            handle.retain()
        start = table.offsets()[0][0]
        assert start
        replica = store.add_replica((tmp_path / "replica").as_uri(), "r")
        store.flush()
        replica.ship()
        table.upsert([{"k": k, "s": "later"} for k in range(7)])
        store.flush()
        replica.ship()
        assert read_here(replica.url, "t") == table.scan().read_all().to_pylist()
        begin = min(change["_log_offset"] for change in read_here(replica.url, "t$changelog"))
        assert read_here(replica.url, "t$changelog") == python(table.changelog(begin))
        with pytest.raises(OffsetOutOfRange, match="starts after this offset"):
            read_here(replica.url, "t$changelog", startingOffsets='{"0": 0}')
        found = read_here(replica.url, "t$changelog", startingOffsets='{"0": 0}', failOnDataLoss="false")
        assert found == python(table.changelog(begin))


def objects(written: Written, pattern: str) -> list[Path]:
    return sorted(Path(written.url.removeprefix("file://")).glob(pattern))


def test_holes_and_damage(spark: SparkSession, tmp_path: Path) -> None:
    own = Written(tmp_path)
    lost, damaged = objects(own, "tables/1/0/*.range")[1], objects(own, "tables/1/1/*.range")[2]
    changes = load(spark, own.url, "t$changelog")
    data = lost.read_bytes()
    lost.unlink()
    with pytest.raises(Exception, match=f"ReplicaBehind.*gone.*{lost.name}"):
        changes.collect()
    with pytest.raises(AnalysisException, match=r"MissingVersion.*a hole in bucket 0"):
        load(spark, own.url, "t")
    for options in ({}, {"startingOffsets": "full"}, {"startingOffsets": "latest"}):
        with pytest.raises(MissingVersion, match="a hole in bucket 0"):
            read_here(own.url, "t$changelog", **options)
    lost.write_bytes(data)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    for name in ("t", "t$changelog", "t$binlog"):
        with pytest.raises(CorruptData, match=f"object=tables/1/1/{damaged.name}"):
            read_here(own.url, name)


def test_an_object_store(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(written.url.removeprefix("file://"))
    files = [path for path in root.rglob("*") if path.is_file()]
    held = {f"bucket/some/where/{path.relative_to(root)}": (1e9, path.read_bytes()) for path in files}
    with serving(held) as port:
        settings = {"ENDPOINT_URL": f"http://127.0.0.1:{port}", "ALLOW_HTTP": "true", "REGION": "us-east-1"}
        for name, value in (settings | {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}).items():
            monkeypatch.setenv(f"AWS_{name}", value)
        for url in ("s3://bucket/some/where", "S3A://bucket/some/where/"):
            assert read_here(url, "t$changelog") == python(written.table.changelog())
            assert sorted(read_here(url, "t"), key=lambda row: row["k"]) == written.rows()


def test_where_rows_are_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/nowhere,{tmp_path}")
    assert replica.room() == tmp_path
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    assert replica.room() == tmp_path / "other"


def objects_of(piece: ReadPiece) -> Rows | Changes:
    found = piece.rows or piece.changes
    assert found is not None
    return found


def test_tasks_share_the_objects(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "TASK_BYTES_MIN", 1 << 10)
    monkeypatch.setattr(replica, "TASK_BYTES_MAX", 5 << 10)
    for table, tasks, expected in (
        ("t", 3, written.rows()),  # one for each bucket
        ("t$changelog", 6, python(written.table.changelog())),
    ):
        source = KvStoreSource({"path": written.url, "table": table})
        reader = source.reader(source.schema())
        parts = reader.partitions()
        assert len(parts) >= tasks
        objects = [each.name for part in parts for piece in part.pieces for each in objects_of(piece).ranges]
        assert len(set(objects)) == len(objects) == 15
        found = [row for part in parts for row in python(reader.read(pickle.loads(pickle.dumps(part))))]
        assert sorted(map(str, found)) == sorted(map(str, expected))


def test_a_task_has_one_client_for_all_its_pieces(written: Written) -> None:
    source = KvStoreSource({"path": written.url, "table": "t"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    assert len(task.pieces) == 3
    with patch.object(replica, "ObjectStore", wraps=replica.ObjectStore) as clients:
        assert sum(batch.num_rows for batch in reader.read(task)) == len(written.rows())
    assert clients.call_count == 1


def test_filters_leave_out_objects_and_buckets(written: Written) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

    def bytes_read(table: str, *filters: Any) -> int:
        source = KvStoreSource({"path": written.url, "table": table, "pushFilters": "true"})
        reader = source.reader(source.schema())
        assert list(reader.pushFilters(list(filters))) == list(filters)
        parts = reader.partitions()
        found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        expected = python(written.table.changelog()) if "$" in table else written.rows()
        for each in filters:
            name = each.attribute[0]
            is_equal = isinstance(each, EqualTo)
            expected = [row for row in expected if row[name] == each.value or (not is_equal and row[name] > each.value)]
        assert sorted(map(str, found)) == sorted(map(str, expected))
        return sum(objects_of(piece).bytes for part in parts for piece in part.pieces)

    for table in ("t", "t$changelog"):
        assert bytes_read(table, EqualTo(("k",), 17)) < bytes_read(table) / 2
    assert bytes_read("t$changelog", EqualTo(("_bucket",), 1)) < bytes_read("t$changelog") / 2
    late = GreaterThanOrEqual(("_log_offset",), written.middle[0])
    assert 0 < bytes_read("t$changelog", late) < bytes_read("t$changelog") / 2


@pytest.mark.parametrize(
    ("table", "options", "error"),
    [
        ("nope", {}, NoSuchTable),
        ("gone", {}, NoSuchTable),
        ("log", {}, UnsupportedOperation),
        ("log$changelog", {"startingOffsets": "full"}, UnsupportedOperation),
        ("t$changelog", {"startingOffsets": '{"0": 1}'}, InvalidRequest),
        ("t$changelog", {"startingOffsets": '{"0": 1, "1": 1, "2": 1}', "endingOffsets": '{"0": 0, "1": 0, "2": 0}'},
         InvalidRequest),
        ("t", {"asOf": '{"0": 1000000, "1": 0, "2": 0}'}, ReplicaBehind),
        ("t", {"path": "hdfs://host/store"}, InvalidRequest),
        ("t", {"path": "s3:///path"}, InvalidRequest),
        ("t", {"path": "memory://path"}, InvalidRequest),
    ],
)  # fmt: skip
def test_the_class_of_an_error(written: Written, table: str, options: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        KvStoreSource({"path": written.url, "table": table} | options).schema()
    assert type(raised.value) is error


def test_writing_is_refused(written: Written) -> None:
    source = KvStoreSource({"path": written.url, "table": "t"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(UnsupportedOperation, match="A replica is read-only"):
            writer(source.schema(), overwrite=False)


def test_a_copy_that_follows_is_read_and_not_written(written: Written, tmp_path: Path) -> None:
    kvstore.follow(written.url, tmp_path / "copy").close()
    source = KvStoreSource({"path": str(tmp_path / "copy"), "table": "t"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(UnsupportedOperation, match="follows a replica"):
            writer(source.schema(), overwrite=False)
    assert not (tmp_path / "copy/staging").exists()
    assert source.reader(source.schema()).partitions()


def test_a_lost_object_that_says_how_far_it_goes(tmp_path: Path) -> None:
    own = Written(tmp_path)
    Path(own.url.removeprefix("file://"), "TOLD").unlink()
    with pytest.raises(MissingVersion):
        KvStoreSource({"path": own.url, "table": "t"}).schema()
