"""A published table is the table of the store: rows, changes, offsets and sequences, whatever dies on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import InvalidRequest, NoSuchTable, TableExists, UnsupportedOperation
from kvstore.replica.read.reader import ReplicaReader
from kvstore.shared.publish import publish
from kvstore.shared.reading import SharedTail
from kvstore.shared.snapshots import take_snapshots
from kvstore.shared.table import SharedTable, has_shared_tables
from logformat.ids import Offset
from tests.replica.objects import Objects
from tests.shared.dying import Dies, Dying
from tests.shared.hosts import SCHEMA, Host, upserts
from tests.support.clocks import SetClock

BUCKETS = 2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kvstore.Store]:
    with kvstore.open(tmp_path / "store") as found:
        table = found.create_table("t", SCHEMA, "k", buckets=BUCKETS)
        for number in range(4):
            table.apply_epoch(upserts(range(10), number), "loader", number, "run")
            table.upsert({"k": 100 + number, "v": number})
        table.delete([3, 4])
        table.apply_epoch(upserts([50], 1), "spark txn 2026-01-31", 0)
        yield found


def published(store: kvstore.Store, objects: Objects) -> SharedTable:
    return publish(store.runtime.open_table(store.runtime.definition("t")), "memory://x", objects, SetClock())


def check_equal(store: kvstore.Store, objects: Objects, cache: Path) -> None:
    """Verify that the shared table has the rows, the changes and the batches of the store's."""
    ours = store.table("t")
    with kvstore.SharedTables("memory://x", client=objects, directory=cache) as opened:
        table = opened.table("t")
        assert sorted(table.to_arrow().to_pylist(), key=by_key) == sorted(ours.to_arrow().to_pylist(), key=by_key)
        assert table.changelog().read_all() == ours.changelog().read_all()
        assert (table.offsets(), table.count()) == (ours.offsets(), ours.count())
        assert opened.check().ok
    shared = SharedTable.find("memory://x", objects, "t")
    found = SharedTail(shared, SetClock()).table
    reader = ReplicaReader(objects, shared.described.store_id, shared.definition)
    handles = store.runtime.open_table(store.runtime.definition("t")).handles
    for bucket, end in found.ends().items():
        batches = [batch.header for batch in reader.found(found.changes(bucket, 0, end))]
        logged = [batch.header for batch in handles[bucket].log.batches(Offset(0), Offset(end))]
        assert [batch_of(each) for each in batches] == [batch_of(each) for each in logged]
        assert {each.table_id for each in batches} == {shared.definition.id}


def batch_of(header: Any) -> tuple[Any, ...]:
    return (
        *(header.base_offset, header.record_count, header.commit_timestamp, header.attributes, header.schema_id),
        *(header.writer_id, header.writer_epoch, header.batch_sequence),
    )


def by_key(row: dict[str, Any]) -> int:
    return int(row["k"])


def test_a_published_table_is_that_of_the_store_and_writes_go_on(store: kvstore.Store, tmp_path: Path) -> None:
    objects, ours = Objects(), store.table("t")
    shared = published(store, objects)
    check_equal(store, objects, tmp_path / "cache")
    assert shared.newest().writers == {"2026-01-31": 0}, "a write of Spark under this name does not happen again"
    hosts = [Host(SharedTable.find("memory://x", objects, "t"), tmp_path / name) for name in ("one", "two")]
    assert hosts[0].write(upserts([50], 9), "2026-01-31").duplicated
    for number in range(4):
        take_snapshots(shared, tmp_path / "snapshots", hosts[0].clock, again=number == 2)
        changes = kvstore.Changes.of([("upsert", {"k": 5, "v": 70 + number}), ("delete", {"k": number})], SCHEMA)
        hosts[number % 2].clock.now = store.runtime.clock.now_ms() + number
        hosts[number % 2].write(changes)
        ours.apply(changes)
    with kvstore.SharedTables("memory://x", client=objects, directory=tmp_path / "cache") as opened:
        table = opened.table("t")
        assert sorted(table.to_arrow().to_pylist(), key=by_key) == sorted(ours.to_arrow().to_pylist(), key=by_key)
        assert table.offsets() == ours.offsets()
        kinds = table.changelog(columns=["k", "v", "_change_type", "_log_offset"]).read_all()
        assert kinds == ours.changelog(columns=["k", "v", "_change_type", "_log_offset"]).read_all()


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_dies_publishes_all_or_nothing(
    store: kvstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr("kvstore.shared.publish.RANGE_BYTES", 1000)
    puts, held = 0, dict[str, bytes]()
    while True:
        puts += 1
        try:
            published(store, Dying(held, puts, after=after))
        except Dies:
            if not has_shared_tables(Objects(held)):
                with pytest.raises(NoSuchTable):
                    SharedTable.find("memory://x", Objects(held), "t")
                continue
        break
    assert puts >= 6, "several objects of each bucket"
    check_equal(store, Objects(held), tmp_path / "cache")
    with pytest.raises(TableExists):
        published(store, Objects(held))


def test_what_is_published_has_each_commit_whole_while_others_write(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=BUCKETS)
        begun, ended = threading.Event(), threading.Event()

        def write() -> None:
            for number in range(10**6):
                table.apply_epoch(upserts(range(10), number), "w", number, "run")
                if number == 2:
                    begun.set()
                if ended.is_set():
                    return

        thread = threading.Thread(target=write)
        thread.start()
        begun.wait()
        try:
            for number in range(5):
                shared = published(store, objects := Objects())
                found = shared.at(shared.newest())
                reader = ReplicaReader(objects, shared.described.store_id, shared.definition)
                last = [
                    list(reader.found(found.changes(bucket, 0, end)))[-1].header.batch_sequence
                    for bucket, end in found.ends().items()
                ]
                assert last[0] == last[1] >= 2, number
        finally:
            ended.set()
            thread.join()


def test_what_can_not_be_published_is_refused(store: kvstore.Store, tmp_path: Path) -> None:
    place = tmp_path / "place"
    store.publish("t", str(place))
    with kvstore.open(place, read_only=True) as opened:
        assert opened.table("t").count() == store.table("t").count()
    with pytest.raises(TableExists, match="choose another"):
        store.publish("t", place.as_uri())
    with pytest.raises(NoSuchTable):
        store.publish("nope", str(place))
    with pytest.raises(InvalidRequest, match="credentials"):
        store.publish("t", "s3://key:secret@bucket/x")
    with pytest.raises(InvalidRequest, match="A URL is text"):
        store.publish("t", place)  # type: ignore[arg-type]  # a path, which is no text
    with pytest.raises(UnsupportedOperation, match="a store in this directory"):
        store.publish("t", str(store.path))
    store.add_replica(str(tmp_path / "replica"), "r").ship()
    with pytest.raises(UnsupportedOperation, match="a replica at this URL"):
        store.publish("t", str(tmp_path / "replica"))
    store.add_columns("t", {"w": "int64"})
    with pytest.raises(UnsupportedOperation, match="were added"):
        store.publish("t", str(tmp_path / "new"))
    numbered = pa.schema([pa.field("k", pa.string(), False), pa.field("n", pa.int64(), False)])
    store.create_table("numbered", numbered, "k", auto_increment="n")
    with pytest.raises(UnsupportedOperation, match="number rows"):
        store.publish("numbered", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").rglob("*.range"))
    with kvstore.open(store.path, read_only=True) as reading, pytest.raises(UnsupportedOperation, match="read-only"):
        reading.publish("t", str(place))


def test_a_table_of_which_changes_have_expired_is_refused(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store", log_bytes_max=1, segment_bytes_max=1 << 16) as store:
        table = store.create_table("t", SCHEMA, "k")
        for number in range(9):
            table.upsert(pa.table({"k": range(3000), "v": pa.array([number] * 3000)}))
        store.flush()
        table.snapshot()
        for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
            handle.retain()
        assert table.offsets()[0][0] > 0
        with pytest.raises(UnsupportedOperation, match="has expired"):
            published(store, Objects())


def test_log_tables_and_empty_ones_are_published(store: kvstore.Store, tmp_path: Path) -> None:
    log = store.create_table("log", SCHEMA, buckets=3)
    log.upsert(pa.table({"k": range(7), "v": range(7)}))
    store.create_table("empty", SCHEMA, "k")
    store.publish("log", str(tmp_path / "place"))
    store.publish("empty", str(tmp_path / "place"))
    with kvstore.open(tmp_path / "place", read_only=True) as opened:
        assert opened.list_tables() == ["empty", "log"]
        assert opened.table("log").count() == 7
        assert opened.table("log").changelog().read_all() == log.changelog().read_all()
        assert opened.table("empty").count() == 0
