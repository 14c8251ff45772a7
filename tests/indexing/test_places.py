"""Indexes of a store that is elsewhere: in a replica, a copy, a restored or promoted store, a backup; and the past."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore

WANTED = pc.field("mail") == "m3"
BY_INDEX = "index by_mail by mail"


@pytest.fixture
def shipped(store: kvstore.Store, tmp_path: Path) -> str:
    """Address of a replica of a store whose table has an index."""
    table = store.create_table("t", {"id": "int64", "mail": "string"}, "id", indexes={"by_mail": "mail"})
    table.upsert([{"id": number, "mail": f"m{number % 10}"} for number in range(100)])
    table.upsert([{"id": 3, "mail": "gone"}, {"id": 100, "mail": "m3"}])
    url = (tmp_path / "replica").as_uri()
    store.add_replica(url, "r").ship()
    return url


def assert_found(table: kvstore.ReadTable, way: str) -> None:
    expected = [13, 23, 33, 43, 53, 63, 73, 83, 93, 100]
    assert table.indexes == {"by_mail": ("mail",)}
    assert table.explain(WANTED) == table.explain(mail="m3") == way
    assert table.find(mail="m3")["id"].to_pylist() == expected
    assert table.find_one(mail="m3") == {"id": 13, "mail": "m3"}
    assert table.to_arrow(filter=WANTED)["id"].to_pylist() == expected


def test_a_replica_is_scanned(shipped: str) -> None:
    with kvstore.open(shipped, read_only=True) as replica:
        assert_found(replica.table("t"), "scan of all rows")


def test_a_restored_store_makes_entries_before_its_first_write(shipped: str, tmp_path: Path) -> None:
    kvstore.restore(shipped, tmp_path / "restored")
    with kvstore.open(tmp_path / "restored") as store:
        table = store.table("t")
        assert_found(table, "scan of all rows")
        table.upsert([{"id": 200, "mail": "m4"}])
        assert_found(table, BY_INDEX)
        assert table.find(mail="m4").num_rows == 11
        assert store.check().findings == []


def test_a_copy_and_the_store_that_it_is_promoted_to(shipped: str, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    with kvstore.follow(shipped, path) as follower:
        follower.pull()
        with kvstore.open(path, read_only=True) as copy:
            assert_found(copy.table("t"), "scan of all rows")
    kvstore.promote(path)
    with kvstore.open(path) as store:
        table = store.table("t")
        table.upsert([{"id": 200, "mail": "m4"}])
        assert_found(table, BY_INDEX)
        assert store.check().findings == []


def test_a_backup_has_the_entries(store: kvstore.Store, shipped: str, tmp_path: Path) -> None:
    assert shipped
    store.backup(tmp_path / "backup")
    with kvstore.open(tmp_path / "backup", read_only=True) as copy:
        assert_found(copy.table("t"), BY_INDEX)


def test_the_past_is_scanned(store: kvstore.Store, shipped: str) -> None:
    assert shipped
    table = store.table("t")
    now = table.offsets()[0][1]
    table.upsert([{"id": 200, "mail": "m3"}])
    assert table.scan(["id"], WANTED, as_of=100).read_all()["id"].to_pylist() == list(range(3, 100, 10))
    assert table.scan(["id"], WANTED, as_of=now).read_all().num_rows == 10
    assert table.to_arrow(["id"], WANTED).num_rows == 11


def test_a_renamed_column_is_searched_by_its_new_name(store: kvstore.Store, shipped: str) -> None:
    assert shipped
    table = store.table("t")
    rows = table.dataset()
    store.rename_columns("t", {"mail": "address"})
    assert table.explain(pc.field("address") == "m3") == "index by_mail by address"
    assert table.to_arrow(filter=pc.field("address") == "m3").num_rows == 10
    assert rows.to_table(filter=WANTED).num_rows == 10, "a dataset calls columns as when it was made"
    store.alter_table("t", retention=None)
    store.add_columns("t", {"more": pa.int64()})
    table.upsert([{"id": 13, "address": "m3", "more": 1}])
    found = table.find(address="m3")
    assert found.num_rows == 10
    assert found.filter(pc.field("more") == 1)["id"].to_pylist() == [13]
