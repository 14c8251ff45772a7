"""Repairs of what the leader no longer has either: the stream restarts with a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore.errors import ReplicaBehind, StoreError
from kvstore.replica.replica import Replica
from kvstore.replica.ship.shipper import Shipper
from logformat.catalog.replicas import CATALOG, Stream
from logformat.ids import BucketId, TableId
from logformat.replica.object_file import ObjectName
from tests.replica.objects import SCHEMA, Objects, replica_of, restored
from tests.support.tables import rows_of

BUCKET = Stream(TableId(1), BucketId(0))


class Expired:
    """A store whose log has gone on; the replica has what it had before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = kvstore.open(path, segment_bytes_max=2000, log_bytes_max=2000)
        self.table = self.store.create_table("t", SCHEMA, "k")
        self.objects = Objects()
        self.replica: Replica = replica_of(self.store, self.objects)
        self._step = 0
        while not self.table.offsets()[0][0]:
            self.write()
            self.replica.ship()
        assert self.objects.names[-1].start > self.table.offsets()[0][0]

    def write(self) -> None:
        self._step += 1
        self.table.upsert([{"k": k, "v": self._step} for k in range(self._step % 5, 60, 2)])
        self.table.snapshot()
        self.store.flush()

    def ranges(self) -> list[ObjectName]:
        return [name for name in self.objects.names if (name.stream, name.kind) == (BUCKET, "range")]

    def spoil(self, name: ObjectName) -> None:
        data = bytearray(self.objects.held[str(name)])
        data[-1] ^= 1
        self.objects.held[str(name)] = bytes(data)

    def is_whole_again(self, to: Path) -> None:
        """What is restored has all rows, and the changes from where the replica begins now."""
        assert self.replica.check()
        restored(self.objects, to)
        with kvstore.open(to) as back:
            assert rows_of(back.table("t")) == rows_of(self.table)
            start, end = back.table("t").offsets()[0]
            assert end == self.table.offsets()[0][1]
            assert start <= end
            assert back.check()


@pytest.fixture
def expired(tmp_path: Path) -> Iterator[Expired]:
    made = Expired(tmp_path / "s")
    yield made
    made.store.close()


@pytest.mark.parametrize("damage", ["lost", "bad"])
def test_a_stream_restarts_with_a_snapshot_if_the_lost_changes_have_expired(
    expired: Expired, tmp_path: Path, damage: str
) -> None:
    name = expired.ranges()[0]
    assert name.start < expired.table.offsets()[0][0]
    if damage == "lost":
        del expired.objects.held[str(name)]
    else:
        expired.spoil(name)
    assert not expired.replica.check()
    with pytest.raises(StoreError):
        restored(expired.objects, tmp_path / "damaged")
    assert expired.replica.repair()
    expired.write()
    expired.replica.ship()
    (begun,) = [name for name in expired.objects.names if (name.stream, name.kind) == (BUCKET, "snapshot")]
    assert begun.start > name.end
    expired.is_whole_again(tmp_path / "back")


def test_a_bad_snapshot_is_replaced(expired: Expired, tmp_path: Path) -> None:
    """The one a replica begins with: there is no second one of its offset."""
    del expired.objects.held[str(expired.ranges()[0])]
    assert expired.replica.repair()
    (first,) = [name for name in expired.objects.names if (name.stream, name.kind) == (BUCKET, "snapshot")]
    expired.write()
    expired.replica.ship()
    expired.spoil(first)
    (finding,) = expired.replica.check().findings
    assert finding.object == str(first)
    assert expired.replica.repair()
    expired.replica.ship()
    expired.is_whole_again(tmp_path / "back")


def test_the_catalog_restarts_with_an_image_if_the_lost_edits_are_gone(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", edits_per_journal=4) as store:
        objects = Objects()
        replica = replica_of(store, objects)
        for number in range(20):
            store.create_table(f"t{number}", SCHEMA, "k")
            replica.ship()
        store.checkpoint()
        store.checkpoint()
        for first in [name for name in objects.names if name.stream == CATALOG and not name.start]:
            del objects.held[str(first)]  # also the range into which it was merged
        assert not replica.check()
        assert replica.repair()
        replica.ship()
        assert replica.check()
        assert [name.kind for name in objects.names if name.stream == CATALOG].count("snapshot") == 1
        restored(objects, tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert back.list_tables() == store.list_tables()


def test_a_repair_without_a_snapshot_is_refused(store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": 1})
    replica_of(store, objects := Objects())
    shipper = Shipper(store.runtime, "r", objects)
    with pytest.raises(ReplicaBehind, match="take one"):
        shipper.ship_snapshot(BUCKET)
    with pytest.raises(ReplicaBehind, match="meta checkpoint"):
        shipper.ship_snapshot(CATALOG)
