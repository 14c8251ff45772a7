"""A replica in an object store, over the network: put-if-absent, listings in pages, what is not there."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

import kvstore
from kvstore.errors import CorruptData, NotAStore, Unavailable, WriterFenced
from kvstore.replica.client import NO_RETRIES, ObjectStore
from tests.replica.objects import SCHEMA
from tests.support.tables import changes_of, rows_of


def test_shipping_following_and_promoting_on_s3(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{s3_url}/a/place"
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = store.add_replica(url, "r")
        with pytest.raises(NotAStore, match="no replica"):
            kvstore.restore(url, tmp_path / "back")
        for step in range(6):
            table.upsert([{"k": k, "v": step} for k in range(20)])
            store.flush()
            replica.ship()
        assert replica.check()
        objects = from_url(url)
        names = [each["path"] for page in obstore.list(objects, "tables/1/0") for each in page]
        assert len(names) == 6
        obstore.delete(objects, names[1])
        obstore.put(objects, names[3], b"nonsense")
        found = {(each.kind, each.object or "") for each in replica.check().findings}
        assert found == {("MISSING_VERSION", ""), ("BAD", names[3])}
        assert replica.repair()
        monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
        with kvstore.open(url, read_only=True) as opened:
            assert opened["t"].scan().read_all() == table.scan().read_all()
            assert opened["t"].changelog().read_all() == table.changelog().read_all()
        with kvstore.follow(url, tmp_path / "c") as copy:
            table.delete([3])
            store.flush()
            replica.ship()
            assert copy.pull().changes == 1
        assert [each.leader_epoch for each in replica.followers()] == [0]
        rows, changes = sorted(map(str, rows_of(table))), sorted(map(str, changes_of(table)))
        kvstore.promote(tmp_path / "c")
        with pytest.raises(WriterFenced):
            replica.ship()
    kvstore.restore(url, tmp_path / "restored")
    for path in (tmp_path / "c", tmp_path / "restored"):
        with kvstore.open(path, read_only=True) as back:
            assert sorted(map(str, rows_of(back.table("t")))) == rows
            assert sorted(map(str, changes_of(back.table("t")))) == changes
    with kvstore.open(tmp_path / "c") as new:
        new.table("t").upsert([{"k": 99, "v": 99}])
        new.flush()
        new.replica("r").ship()
        assert new.replica("r").check()


def test_an_object_is_created_once(s3_url: str) -> None:
    place = ObjectStore(f"{s3_url}/x")
    assert place.create("leader/1", [b"one"])
    assert not place.create("leader/1", [b"other"])
    assert bytes(place.get("leader/1", bytes_max=3)) == b"one"
    assert bytes(place.get_first("leader/1", 2)) == b"on"
    with pytest.raises(CorruptData, match=r"larger than its limit.* bytes=3 bytes_max=2"):
        place.get("leader/1", bytes_max=2)
    assert place.modified_ms("leader/1") > 1_700_000_000_000
    place.delete("leader/1")
    place.delete("leader/1")
    with pytest.raises(FileNotFoundError):
        place.get("leader/1", bytes_max=3)


def test_names_after_one_are_listed(s3_url: str, tmp_path: Path) -> None:
    for url in (f"{s3_url}/some/where", (tmp_path / "place").as_uri()):
        place = ObjectStore(url, create=True)
        for name in ("t/1", "t/2", "t/2-3", "t/3", "u/1"):
            place.replace(name, [b"x"])
        assert sorted(place.list("t/", "t/2")) == [("t/2-3", 1), ("t/3", 1)]
        assert sorted(place.list("t/")) == [("t/1", 1), ("t/2", 1), ("t/2-3", 1), ("t/3", 1)]
        assert list(place.list("t/", "t/3")) == []


def test_a_missing_s3_bucket_is_reported(s3_url: str, tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        replica = store.add_replica(f"{s3_url}-no-such/x", "r")
        with pytest.raises(Unavailable, match="no such bucket"):
            replica.ship()
        assert table.upsert([{"k": 1, "v": 1}])
    with pytest.raises(Unavailable, match=r"no such bucket.* reason=.*NoSuchBucket"):
        list(ObjectStore(f"{s3_url}-no-such/x", retries=NO_RETRIES).list())
