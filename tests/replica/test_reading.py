"""Reads of a table in place equal a restore, and read only what they need of the replica."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import CorruptData, MissingVersion, ReplicaBehind
from kvstore.options import StoreOptions
from kvstore.replica.read.reader import ReplicaReader
from kvstore.replica.read.table import ReplicaTable
from kvstore.replica.ship.shipper import Shipper
from kvstore.replica.source import SLACK_MS, Source
from kvstore.store.store import Store
from logformat.catalog.replicas import CATALOG, Shipped, Stream
from logformat.ids import BucketId, TableId
from logformat.log.batch import LogBatch, decode_batch, encode_batch
from logformat.log.change import ChangeType
from logformat.log.snapshot_manifest import decode_manifest, encode_manifest
from logformat.replica import manifest as replica_manifest
from logformat.replica.object_file import ObjectName, decode_object, encode_object
from tests.replica.objects import SCHEMA, Objects, replica_of, restored, save_image
from tests.support.clocks import SetClock
from tests.support.replicas import Counting
from tests.support.tables import rows_of

TEXT = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
BUCKETS = 3
STREAMS = [Stream(TableId(1), BucketId(bucket)) for bucket in range(BUCKETS)]


class Written:
    """A store written for a while, by commits over several buckets and others, and its replica."""

    def __init__(self, path: Path, steps: int = 40, *, journal_gone: bool = False, log_gone: bool = False) -> None:
        """
        Args:
            journal_gone: Nothing is shipped before the journal has nothing left of most commits.
            log_gone: The replica begins with snapshots, that of one bucket of a later moment than the others.
        """
        self.clock = SetClock()
        options = StoreOptions(edits_per_journal=4 if journal_gone else 10_000)
        self.store = Store(path, options, clock=self.clock)
        self.objects = Objects()
        self.table = self.store.create_table("t", SCHEMA, "k", buckets=BUCKETS)
        random, epoch = Random(4), 0
        replica = replica_of(self.store, self.objects)
        first = steps - 2 if journal_gone else 0
        for step in range(steps):
            self.clock.now += 500
            if random.random() < 0.5:
                rows = [("upsert", {"k": k, "v": epoch}) for k in range(100, 112)]
                self.table.apply_epoch(kvstore.Changes.of(rows, SCHEMA), "w", epoch, "r")
                epoch += 1
            else:
                self.table.upsert([{"k": k, "v": step} for k in random.sample(range(40), 6)])
            handles = self.store.runtime.open_table(self.store.runtime.definition("t")).handles
            if log_gone and step in (steps // 2 - 5, steps // 2):
                for handle in handles[:1] if step == steps // 2 else handles[1:]:
                    handle.take_snapshot()
            if journal_gone and step in (first - 4, first):
                self.store.checkpoint()
            if step % 7 == 3 and step > first:
                self.store.flush()
                replica.ship()
        self.store.flush()
        replica.ship()
        if log_gone:
            shipper = Shipper(self.store.runtime, "r", self.objects)
            starts = {stream: shipper.ship_snapshot(stream) for stream in STREAMS}
            self.objects = self.with_manifest(
                lambda each: {"start": starts[each.stream], "snapshots": [starts[each.stream]]}
            )
        source = Source(self.objects)
        self.ends = [source.shipped(stream).end for stream in STREAMS]
        self.boundaries = {
            stream.bucket: [header.base_offset for header, _ in source.batches(path, path.pieces[-1].until)]
            for stream, path in ((stream, source.path(stream, source.shipped(stream).end)) for stream in STREAMS)
        }

    def with_manifest(self, change: Callable[[Shipped], dict[str, Any]]) -> Objects:
        """The same replica with another manifest of the table's buckets."""
        manifest = replica_manifest.decode(self.objects.held[replica_manifest.NAME], self.store.runtime.store_id)
        shipped = [
            msgspec.structs.replace(each, **change(each)) if each.stream in STREAMS else each
            for each in manifest.shipped
        ]
        changed = replica_manifest.encode(msgspec.structs.replace(manifest, shipped=shipped))
        return Objects(self.objects.held | {replica_manifest.NAME: changed})


def reader_of(client: Objects) -> tuple[ReplicaTable, ReplicaReader]:
    table = ReplicaTable.of("", "t", client)
    return table, ReplicaReader(client, table.store_id, table.definition)


def read(client: Objects, directory: Path) -> list[dict[str, Any]]:
    table, reader = reader_of(client)
    wanted = [table.rows(bucket, end) for bucket, end in table.ends().items()]
    return [
        row for each in wanted for part in reader.rows(each, ["k", "v"], None, directory) for row in part.to_pylist()
    ]


@pytest.mark.parametrize(
    ("gone", "snapshots"),
    [
        ({}, set()),
        pytest.param({"journal_gone": True}, {CATALOG}, marks=pytest.mark.long),
        ({"log_gone": True}, {*STREAMS}),
    ],
)
def test_a_table_ends_where_a_restore_does(tmp_path: Path, gone: dict[str, bool], snapshots: set[Stream]) -> None:
    written = Written(tmp_path / "s", **gone)
    assert {name.stream for name in written.objects.names if name.kind == "snapshot"} == snapshots
    random, torn, impossible = Random(5), 0, 0
    for number in range(5):
        ends = {bucket: random.choice(of[1:]) if number else of[1] for bucket, of in written.boundaries.items()}
        client = written.with_manifest(lambda each, ends=ends: {"end": ends[each.stream.bucket]})  # type: ignore[misc]
        try:
            expected = restored(client, tmp_path / f"{number}").ends["t"]
        except ReplicaBehind:
            with pytest.raises(ReplicaBehind):
                ReplicaTable.of("", "t", client)
            impossible += 1
            continue
        assert ReplicaTable.of("", "t", client).ends() == expected
        torn += expected != ends
        with kvstore.open(tmp_path / f"{number}", read_only=True) as back:
            assert read(client, tmp_path) == rows_of(back.table("t"))
    assert torn + impossible > 2, "too little was torn to show anything"
    assert torn
    assert bool(impossible) == bool(gone.get("log_gone"))
    assert list(ReplicaTable.of("", "t", written.objects).ends().values()) == written.ends


def test_nothing_of_old_commits_is_read(tmp_path: Path) -> None:
    written = Written(tmp_path / "s")
    written.clock.now += 2 * SLACK_MS
    written.table.upsert([{"k": k, "v": -1} for k in range(40)])
    written.store.flush()
    replica_of(written.store, written.objects).ship()
    a_hole = Objects(dict(written.objects.held))
    a_hole.delete(str(next(name for name in a_hole.names if name.stream == STREAMS[2])))
    with pytest.raises(MissingVersion, match="a hole in bucket 2"):
        ReplicaTable.of("", "t", a_hole)
    client = Counting(written.objects.held)
    table, reader = reader_of(client)
    assert not [name for name in client.asked if name.startswith("tables/")]
    last = [end - 1 for end in table.ends().values()]
    wanted = [table.changes(bucket, offset, offset + 1) for bucket, offset in enumerate(last)]
    found = [part for each in wanted for part in reader.changes(each, ["_log_offset"])]
    assert [row["_log_offset"] for part in found for row in part.to_pylist()] == last
    assert len([name for name in client.asked if name.startswith("tables/")]) == BUCKETS


def test_to_load_a_table_takes_as_many_requests_after_many_shipments_and_for_many_tables(tmp_path: Path) -> None:
    """2.2 s and all keys of all tables, after 120 shipments."""
    with kvstore.open(tmp_path / "s", edits_per_journal=100) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = replica_of(store, objects := Objects())
        requests: list[int] = []
        for number in range(1, 241):
            table.upsert([{"k": number % 7, "v": number}])
            store.consumer("c").commit("t", {0: 0, 1: number % 2})  # an edit of the catalog
            replica.ship()
            if number % 60 == 0:
                for other in range(8):
                    store.create_table(f"u{number}.{other}", SCHEMA, "k").upsert({"k": 1, "v": 1})
                replica.ship()
                client = Counting(objects.held)
                found = ReplicaTable.of("", "t", client)
                assert found.ends() == {bucket: end for bucket, (_, end) in table.offsets().items()}
                assert {name.split("/")[0:2][-1] for name in client.listed if name.startswith("tables/")} == {"1"}
                assert len(client.asked) == len(set(client.asked)) + 2, "only the manifest is read again"
                requests.append(len(client.asked) + client.listings)
        assert len(objects.held) > 200
        # The catalog is in fewer than 16 small objects, and some into which others were merged.
        assert max(requests) <= 16 + 4 + 6
        assert requests[-1] <= requests[0] + 16


def test_a_table_is_loaded_from_an_image_of_the_catalog(tmp_path: Path) -> None:
    written = Written(tmp_path / "s")
    objects = written.objects
    save_image(written.store, written.clock.now)
    written.clock.now += 10 * SLACK_MS
    written.store.create_table("later", SCHEMA, "k")
    replica_of(written.store, objects).ship()
    (image,) = [name for name in objects.names if (name.stream, name.kind) == (CATALOG, "snapshot")]
    client = Counting(objects.held)
    ReplicaTable.of("", "later", client)
    assert str(image) in client.asked
    before = [name for name in objects.names if name.stream == CATALOG and name.end <= image.start]
    assert len(before) > 5
    assert not {str(name) for name in before if name != image} & set(client.asked)


def test_rows_are_read_from_a_snapshot(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", segment_bytes_max=2000, log_bytes_max=2000) as store:
        table = store.create_table("t", SCHEMA, "k")
        while not table.offsets()[0][0]:
            table.upsert([{"k": k, "v": 1} for k in range(60)])
            table.snapshot()
        store.flush()
        replica_of(store, objects := Objects()).ship()
        table.delete([7, 8])
        store.flush()
        replica_of(store, objects).ship()
        assert read(objects, tmp_path) == rows_of(table)
        (name,) = [name for name in objects.names if name.kind == "snapshot"]
        # If the replica had started at 0, the changes before the snapshot would be a hole; the rows are complete.
        manifest = replica_manifest.decode(objects.held["TOLD"], store.runtime.store_id)
        shipped = [
            each if each.stream == CATALOG else msgspec.structs.replace(each, start=0) for each in manifest.shipped
        ]
        from_0 = objects.held | {"TOLD": replica_manifest.encode(msgspec.structs.replace(manifest, shipped=shipped))}
        assert read(Objects(from_0), tmp_path) == rows_of(table)
        with pytest.raises(MissingVersion, match="a hole in bucket 0"):
            ReplicaTable.of("", "t", Objects(from_0)).changes(0, 0, name.start + 1)
        assert ReplicaTable.of("", "t", Objects(from_0)).changes(0, name.start, name.start + 1).bytes
        found = decode_object(memoryview(objects.held[str(name)]), name, store.runtime.store_id)
        other = msgspec.structs.replace(decode_manifest(bytes(found.parts[0])), digest="1" * 16)
        data = b"".join(encode_object(name, store.runtime.store_id, [encode_manifest(other), *found.parts[1:]]))
        with pytest.raises(CorruptData, match=f"other rows than it says.*object={name}"):
            read(Objects(objects.held | {str(name): data}), tmp_path)


def test_reading_rows_leaves_no_files(tmp_path: Path) -> None:
    written = Written(tmp_path / "s", 10)
    (room := tmp_path / "room").mkdir()
    table, reader = reader_of(written.objects)
    parts = reader.rows(table.rows(0, table.ends()[0]), ["k"], None, room)
    next(parts)
    assert not list(room.iterdir())  # during the read, so a killed process leaves nothing
    parts.close()


def replaced(objects: Objects, change: Callable[[LogBatch], None]) -> tuple[Objects, ObjectName]:
    """The last object of a bucket with another batch in it, all checksums right."""
    name = max(name for name in objects.names if name.stream == STREAMS[0])
    store_id = Source(objects).store.store_id
    found = decode_object(memoryview(objects.held[str(name)]), name, store_id)
    batches = [decode_batch(part, TEXT) for part in found.parts]
    change(batches[-1])
    data = b"".join(encode_object(name, store_id, [encode_batch(each) for each in batches]))
    return Objects(objects.held | {str(name): data}), name


def of_an_unknown_schema(batch: LogBatch) -> None:
    batch.schema_id = 7


def without_a_key(batch: LogBatch) -> None:
    nulls, nullable = pa.nulls(batch.record_count, pa.int64()), pa.field("k", pa.int64())
    columns = [nulls, batch.rows.column("v")]
    batch.rows = pa.RecordBatch.from_arrays(columns, schema=pa.schema([nullable, TEXT.field("v")]))


def no_text(batch: LogBatch) -> None:
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    columns = [batch.rows.column("k"), pa.concat_arrays([bad] * batch.record_count)]
    batch.rows = pa.RecordBatch.from_arrays(columns, schema=TEXT)


def of_an_unknown_kind(batch: LogBatch) -> None:
    batch.change_types = batch.change_types * 0 + max(ChangeType) + 1


@pytest.mark.parametrize("change", [of_an_unknown_schema, without_a_key, no_text, of_an_unknown_kind])
def test_malicious_batches_are_refused(tmp_path: Path, change: Callable[[LogBatch], None]) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", TEXT, "k", buckets=2)
        table.upsert([{"k": k, "v": "a"} for k in range(9)])
        store.flush()
        replica_of(store, objects := Objects()).ship()
    client, name = replaced(objects, change)
    found, reader = reader_of(client)
    end = found.ends()[0]
    with pytest.raises(CorruptData, match=f"object={name}"):
        list(reader.rows(found.rows(0, end), ["k", "v"], None, tmp_path))
    if change is not without_a_key:
        with pytest.raises(CorruptData, match=f"object={name}"):
            list(reader.changes(found.changes(0, 0, end), ["_log_offset", "k", "v"]))
