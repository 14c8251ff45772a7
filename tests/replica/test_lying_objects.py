"""Objects with wrong content and right checksums, as an attacker may write them: reported, and never used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import kvstore
from kvstore.errors import CorruptData, StoreError
from kvstore.replica.check import findings
from kvstore.replica.replica import Replica
from kvstore.replica.ship.shipper import Shipper
from logformat.catalog.replicas import CATALOG, Stream
from logformat.ids import BucketId, TableId
from logformat.log.batch import LogBatch, decode_batch, encode_batch
from logformat.replica import manifest as replica_manifest
from logformat.replica.object_file import ObjectName, decode_object, encode_object
from tests.replica.objects import SCHEMA, Objects, replica_of, restored

ONE, OTHER = (Stream(TableId(1), BucketId(bucket)) for bucket in range(2))
Parts = list[bytes | memoryview]


@dataclass
class Whole:
    """A store and its replica, in which each stream has a range and a snapshot."""

    store: kvstore.Store
    replica: Replica
    objects: Objects

    def name(self, stream: Stream, kind: str) -> ObjectName:
        """Of the first of a kind."""
        return next(name for name in self.objects.names if (name.stream, name.kind) == (stream, kind))

    def parts(self, stream: Stream, kind: str) -> Parts:
        name = self.name(stream, kind)
        found = decode_object(memoryview(self.objects.held[str(name)]), name, self.store.runtime.store_id)
        return list(found.parts)

    def with_parts(self, held: dict[str, bytes], name: ObjectName, parts: Parts) -> Objects:
        """The replica with other parts under a name."""
        return Objects(held | {str(name): b"".join(encode_object(name, self.store.runtime.store_id, parts))})

    def starting_with_snapshot(self, stream: Stream) -> Objects:
        """The replica as if its ranges of a stream started at the snapshot, so that a restore needs it."""
        held = dict(self.objects.held)
        name, store_id = self.name(stream, "snapshot"), self.store.runtime.store_id
        del held[str(self.name(stream, "range"))]
        manifest = replica_manifest.decode(held[replica_manifest.NAME], store_id)
        start = {"start": name.start, "end": name.start, "snapshots": [name.start]}
        shipped = [replace(each, **start) if each.stream == stream else each for each in manifest.shipped]
        held[replica_manifest.NAME] = replica_manifest.encode(replace(manifest, shipped=shipped))
        return Objects(held)

    def bad(self, objects: Objects) -> set[str | None]:
        status = self.store.runtime.catalog().replicas["r"]
        found = findings(objects, self.store.runtime.store_id, status)
        return {each.object for each in found if each.kind == "BAD"} - {replica_manifest.NAME}


def made(path: Path) -> Whole:
    store = kvstore.open(path)
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    replica = replica_of(store, objects := Objects())
    for step in range(6):
        table.upsert([{"k": k, "v": step} for k in range(step, step + 12)])
    table.bucket(0).apply(kvstore.Changes.of([("upsert", {"k": own_key(table), "v": 6})], SCHEMA), 7, 0)
    store.create_table("last", SCHEMA, "k")
    store.flush()
    replica.ship()
    table.snapshot()
    store.checkpoint()
    for stream in (CATALOG, ONE, OTHER):
        Shipper(store.runtime, "r", objects).ship_snapshot(stream)
    return Whole(store, replica, objects)


def own_key(table: kvstore.Table) -> int:
    """One of the first bucket."""
    return table.buckets_of(list(range(9))).index(0)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Whole, Whole]]:
    """Two stores that had the same done to them."""
    wholes = made(tmp_path_factory.mktemp("one") / "s"), made(tmp_path_factory.mktemp("other") / "s")
    yield wholes
    for each in wholes:
        each.store.close()


@pytest.fixture
def whole(two: tuple[Whole, Whole]) -> Whole:
    return two[0]


def without_the_first(parts: Parts) -> Parts:
    return parts[1:]


def without_the_last(parts: Parts) -> Parts:
    return parts[:-1]


def with_one_twice(parts: Parts) -> Parts:
    return [parts[0], *parts]


def with_two_in_another_order(parts: Parts) -> Parts:
    return [*parts[:-2], parts[-1], parts[-2]]


def empty(_: Parts) -> Parts:
    return []


def with_another_after_them(parts: Parts) -> Parts:
    """Bytes after a batch or edit, in the same part."""
    return [*parts[:-1], bytes(parts[-1]) + bytes(8)]


LIES = [
    without_the_first,
    without_the_last,
    with_one_twice,
    with_two_in_another_order,
    empty,
    with_another_after_them,
]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("stream", [CATALOG, ONE, OTHER])
def test_a_range_with_wrong_parts_is_refused(
    whole: Whole, tmp_path: Path, stream: Stream, lie: Callable[[Parts], Parts]
) -> None:
    assert whole.bad(whole.objects) == set()
    name, parts = whole.name(stream, "range"), whole.parts(stream, "range")
    assert len(parts) > 2
    check_reported_and_refused(whole, whole.with_parts(whole.objects.held, name, lie(parts)), name, tmp_path)


def check_reported_and_refused(whole: Whole, objects: Objects, name: ObjectName, tmp_path: Path) -> None:
    assert whole.bad(objects) == {str(name)}
    with pytest.raises(StoreError, match=str(name)):
        restored(objects, tmp_path / "back")
    assert not (tmp_path / "back" / "STORE").exists()


def test_a_range_with_changes_of_another_bucket_is_refused(whole: Whole, tmp_path: Path) -> None:
    name = whole.name(ONE, "range")
    objects = whole.with_parts(whole.objects.held, name, whole.parts(OTHER, "range"))
    check_reported_and_refused(whole, objects, name, tmp_path)


@pytest.mark.parametrize("stream", [CATALOG, ONE])
@pytest.mark.parametrize("lie", [without_the_last, with_one_twice])
def test_a_snapshot_with_wrong_parts_is_refused(
    whole: Whole, tmp_path: Path, stream: Stream, lie: Callable[[Parts], Parts]
) -> None:
    name, parts, objects = (
        whole.name(stream, "snapshot"),
        whole.parts(stream, "snapshot"),
        whole.starting_with_snapshot(stream),
    )
    restored(objects, tmp_path / "right")
    check_reported_and_refused(whole, whole.with_parts(objects.held, name, lie(parts)), name, tmp_path)


@pytest.mark.parametrize("replaced", [0, 1, 2, None])
def test_a_snapshot_of_another_bucket_is_refused(whole: Whole, tmp_path: Path, replaced: int | None) -> None:
    """Its manifest, its writers, its rows, or all of it."""
    name, parts, others = whole.name(ONE, "snapshot"), whole.parts(ONE, "snapshot"), whole.parts(OTHER, "snapshot")
    chosen = range(3) if replaced is None else [replaced]
    mixed = [others[place] if place in chosen else part for place, part in enumerate(parts)]
    check_reported_and_refused(
        whole, whole.with_parts(whole.starting_with_snapshot(ONE).held, name, mixed), name, tmp_path
    )


@pytest.mark.parametrize("stream", [CATALOG, ONE])
def test_a_snapshot_of_another_store_is_refused(two: tuple[Whole, Whole], tmp_path: Path, stream: Stream) -> None:
    whole, other = two
    name = whole.name(stream, "snapshot")
    objects = whole.with_parts(whole.starting_with_snapshot(stream).held, name, other.parts(stream, "snapshot"))
    check_reported_and_refused(whole, objects, name, tmp_path)


def test_ranges_that_contradict_each_other_are_refused(whole: Whole, tmp_path: Path) -> None:
    """Each is right by itself; of both none is, for a batch of the one begins within one of the other."""
    name, parts = whole.name(ONE, "range"), whole.parts(ONE, "range")
    batches = [decode_batch(part, SCHEMA) for part in parts]
    third = batches[2]
    start = third.base_offset
    assert third.record_count > 1
    late, rest = shifted(third, -1, 0, third.record_count), shifted(third, 0, third.record_count - 1, 1)
    first = ObjectName(ONE, "range", 0, start, name.epoch)
    second = ObjectName(ONE, "range", start - 1, name.end, name.epoch)
    held = {other: data for other, data in whole.objects.held.items() if not other.startswith("tables/1/0/")}
    held = whole.with_parts(held, first, parts[:2]).held
    objects = whole.with_parts(held, second, [*map(encode_batch, (late, rest)), *parts[3:]])
    assert whole.bad(objects) == set()
    with pytest.raises(CorruptData, match=f"contradict each other.*object={second}"):
        restored(objects, tmp_path / "back")
    assert not (tmp_path / "back" / "STORE").exists()


def shifted(batch: LogBatch, by: int, start: int, count: int) -> LogBatch:
    """Some of a batch, at other offsets."""
    part: Any = copy(batch)
    part.base_offset = batch.base_offset + by + start
    part.record_count, part.last_offset_delta = count, count - 1
    part.change_types = batch.change_types[start : start + count]
    part.rows = batch.rows.slice(start, count)
    part.statistics = b""
    return part
