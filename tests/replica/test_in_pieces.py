"""What only large stores have, with limits that small ones reach: many objects, segments, commits and buffers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import kvstore
from kvstore.bucket import recovery, write_path
from kvstore.bucket.merge import tail
from kvstore.meta import image
from kvstore.read import rebuilt_rows
from kvstore.replica.follow import bucket_files
from kvstore.replica.ship import shipper
from tests.replica.followers import contents, everything, follower
from tests.replica.objects import Objects, replica_of, restored
from tests.support.replicas import SCHEMA, write


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "RANGE_BYTES", 1000)
    monkeypatch.setattr(bucket_files, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(recovery, "REPLAY_BYTES_MAX", 1)
    monkeypatch.setattr(rebuilt_rows, "REPLAY_BYTES_MAX", 1)
    monkeypatch.setattr(write_path, "REPLAY_BYTES_MAX", 1)
    monkeypatch.setattr(tail, "TOGETHER_BYTES", 1)
    monkeypatch.setattr(image, "BUFFER_BYTES", 100)


def filled(store: kvstore.Store, *, snapshots: bool) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    random, epoch = Random(7), 0
    for step in range(60):
        epoch = write(table, random, step, epoch)
        if snapshots and step % 9 == 8:
            table.snapshot()
    store.flush()
    return table


@pytest.mark.parametrize("expires", [False, True])
def test_a_store_is_restored_from_small_ranges(tmp_path: Path, *, expires: bool) -> None:
    """Also one whose log has expired, so that it begins with snapshots."""
    kept = {"log_bytes_max": 2000} if expires else {}
    with kvstore.open(tmp_path / "s", segment_bytes_max=1500, **kept) as store:
        table = filled(store, snapshots=True)
        store.checkpoint()
        replica_of(store, objects := Objects()).ship()
        kinds = {name.kind for name in objects.names if name.stream.table_id > 0}
        assert kinds == ({"range", "snapshot"} if expires else {"range"})
        ranges = [name for name in objects.names if name.kind == "range"]
        assert len(ranges) > (3 if expires else 9)
        restored(objects, tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert contents(back.table("t"))[::2] == contents(table)[::2]
            assert expires or contents(back.table("t")) == contents(table)
            assert back.check()
        segments = list((tmp_path / "back/tables/1/0/log").glob("*.log"))
        assert len(segments) > (0 if expires else 2)


def test_a_copy_rolls_its_log(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        replica = replica_of(store, objects := Objects())
        store.create_table("u", SCHEMA, "k")
        replica.ship()
        copy = follower(objects, tmp_path / "c", segment_bytes_max=1500)
        copy.pull()
        table = filled(store, snapshots=False)
        replica.ship()
        copy.pull()
        for step in range(60):
            table.upsert([{"k": k, "v": step} for k in range(step % 7, 30, 3)])
        store.flush()
        replica.ship()
        copy.pull()
        assert len(list((tmp_path / "c/tables/2/0/log").glob("*.log"))) > 2
        assert everything(tmp_path / "c")["t"] == contents(table)
        copy.close()
        assert everything(tmp_path / "c")["t"] == contents(table)
