"""A wrong call is a named error that says what to do, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import (
    CorruptImage,
    InvalidRequest,
    KeyTooLarge,
    NoSuchTable,
    NotAStore,
    OffsetOutOfRange,
    OutOfOrderSequence,
    SchemaMismatch,
    StoreClosed,
    StoreError,
    TableExists,
    UnknownSchema,
    UnsupportedOperation,
    UnsupportedVersion,
    WriterFenced,
)
from tests.support.tables import changes_of, rows_of

SCHEMA = pa.schema([pa.field("k", pa.string(), False), pa.field("n", pa.int32()), pa.field("d", pa.float64(), False)])
ROW = {"k": "a", "n": 1, "d": 0.5}
Call = Callable[[kvstore.Table], Any]


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, primary_key="k")
    table.bucket(0).apply(kvstore.Changes.of([("upsert", ROW)], SCHEMA), writer_id=3, sequence=0, writer_epoch=2)
    return table


def nothing(schema: pa.Schema = SCHEMA) -> kvstore.Changes:
    return kvstore.Changes.of([], schema)


BAD_CALLS: dict[str, tuple[type[StoreError], Call]] = {
    "missing column": (SchemaMismatch, lambda t: t.upsert({"k": "b", "n": 1})),
    "unknown column": (SchemaMismatch, lambda t: t.upsert({**ROW, "zzz": 1})),
    "wrong type": (SchemaMismatch, lambda t: t.upsert({**ROW, "n": "1"})),
    "value too large for its type": (SchemaMismatch, lambda t: t.upsert({**ROW, "n": 2**31})),
    "arrow column of another type": (SchemaMismatch, lambda t: t.upsert(pa.table({"k": [1], "n": [1], "d": [0.1]}))),
    "null in the key": (SchemaMismatch, lambda t: t.upsert({**ROW, "k": None})),
    "null in a column that takes none": (SchemaMismatch, lambda t: t.upsert({**ROW, "d": None})),
    "one bad row among good ones": (SchemaMismatch, lambda t: t.upsert([{**ROW, "k": "b"}, {**ROW, "k": None}])),
    "no rows at all": (SchemaMismatch, lambda t: t.upsert(17)),
    "key too long": (KeyTooLarge, lambda t: t.upsert({**ROW, "k": "x" * 510})),
    "delete of a null": (SchemaMismatch, lambda t: t.delete([None])),
    "delete of a key of another type": (SchemaMismatch, lambda t: t.delete(5)),
    "delete with too many values": (SchemaMismatch, lambda t: t.delete(("a", 1))),
    "delete with a wrong column": (SchemaMismatch, lambda t: t.delete({"n": 1})),
    "get of a key of another type": (SchemaMismatch, lambda t: t.get(5)),
    "lookup with too many values": (SchemaMismatch, lambda t: t.lookup([("a", "b")])),
    "unknown word in changes": (SchemaMismatch, lambda t: t.apply(kvstore.Changes.of([("insert", ROW)], SCHEMA))),
    "changes of another table": (SchemaMismatch, lambda t: t.apply(nothing(pa.schema([("x", pa.int64())])))),
    "sequence without a writer": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), sequence=1)),
    "writer without a sequence": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), writer_id=1)),
    "sequence too large": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), writer_id=1, sequence=2**31)),
    "first sequence not 0": (OutOfOrderSequence, lambda t: t.bucket(0).apply(nothing(), writer_id=1, sequence=1)),
    "gap": (OutOfOrderSequence, lambda t: t.bucket(0).apply(nothing(), writer_id=3, sequence=2, writer_epoch=2)),
    "older epoch": (WriterFenced, lambda t: t.bucket(0).apply(nothing(), writer_id=3, sequence=1, writer_epoch=1)),
    "unknown schema": (UnknownSchema, lambda t: t.bucket(0).apply(nothing(), schema_id=2)),
    "unknown bucket": (InvalidRequest, lambda t: t.bucket(1)),
    "scan of an unknown column": (SchemaMismatch, lambda t: t.scan(["zzz"])),
    "scan of no column": (SchemaMismatch, lambda t: t.scan([])),
    "negative limit": (InvalidRequest, lambda t: t.scan(limit=-1)),
    "as of an offset to come": (OffsetOutOfRange, lambda t: t.scan(as_of=2)),
    "as of a negative offset": (OffsetOutOfRange, lambda t: t.scan(as_of=-1)),
    "changelog from an offset to come": (OffsetOutOfRange, lambda t: t.changelog(2)),
    "changelog to an offset to come": (OffsetOutOfRange, lambda t: t.changelog(0, 2)),
    "changelog of an unknown column": (SchemaMismatch, lambda t: t.changelog(columns=["zzz"])),
    "changelog from an unknown word": (InvalidRequest, lambda t: t.changelog("newest")),
    "changelog offsets of a wrong bucket": (InvalidRequest, lambda t: t.changelog({1: 0})),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_bad_call(what: str, table: kvstore.Table) -> None:
    error, call = BAD_CALLS[what]
    with pytest.raises(error) as raised:
        call(table)
    assert len(str(raised.value)) > 20
    assert rows_of(table) == [ROW]
    assert changes_of(table) == [(0, "insert", ROW, 0)]
    assert table.offsets() == {0: (0, 1)}


BAD_TABLES: dict[str, dict[str, Any]] = {
    "no such key column": {"primary_key": ["zzz"]},
    "float key": {"primary_key": ["d"]},
    "list key": {"schema": pa.schema([("k", pa.list_(pa.int8()))]), "primary_key": ["k"]},
    "key column twice": {"primary_key": ["k", "k"]},
    "empty key": {"primary_key": []},
    "column twice": {"schema": pa.schema([("k", pa.int8()), ("k", pa.int8())])},
    "reserved column": {"schema": pa.schema([("k", pa.int8()), ("_log_offset", pa.int64())])},
    "no columns": {"schema": pa.schema([]), "primary_key": None},
    "type that can't be stored": {"schema": pa.schema([("k", pa.int8()), ("u", pa.null())])},
    "empty name": {"name": ""},
    "name with a dollar": {"name": "t$changelog"},
    "name with a line break": {"name": "a\nb"},
    "long name": {"name": "x" * 256},
    "unknown compression": {"compression": "brotli"},
    "several buckets": {"buckets": 2},
    "unknown engine": {"merge_engine": "max"},
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_bad_table(what: str, store: kvstore.Store) -> None:
    arguments = {"name": "t", "schema": SCHEMA, "primary_key": ["k"]} | BAD_TABLES[what]
    with pytest.raises(InvalidRequest):
        store.create_table(**arguments)
    assert store.list_tables() == []
    assert not list((store.path / "tables").glob("*"))


def test_table_names(store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k")
    with pytest.raises(TableExists, match="table=t"):
        store.create_table("t", SCHEMA, primary_key="k")
    with pytest.raises(NoSuchTable, match="tables="):
        store.table("u")
    with pytest.raises(NoSuchTable):
        store.drop_table("u")
    assert store.list_tables() == ["t"]


def test_dropped_table_is_gone(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    table.upsert(ROW)
    store.drop_table("t")
    for call in (lambda: table.upsert(ROW), lambda: table.get("a"), lambda: table.scan(), table.count):
        with pytest.raises(NoSuchTable):
            call()
    assert not list((store.path / "tables").glob("*"))
    again = store.create_table("t", SCHEMA, primary_key="k")
    assert rows_of(again) == []


def test_log_table_has_no_keys(store: kvstore.Store) -> None:
    table = store.create_table("log", SCHEMA)
    table.upsert([ROW, ROW])
    delete = kvstore.Changes.of([("delete", ROW)], SCHEMA)
    calls: list[Callable[[], Any]] = [
        lambda: table.delete("a"),
        lambda: table.get("a"),
        lambda: table.lookup(["a"]),
        lambda: table.scan(),
        lambda: table.changelog("full"),
        lambda: table.apply(delete),
    ]
    for call in calls:
        with pytest.raises(UnsupportedOperation):
            call()
    assert table.count() == 2
    assert [change[:2] for change in changes_of(table)] == [(0, "append"), (1, "append")]


class TestOpening:
    def test_a_directory_that_is_no_store(self, tmp_path: Path) -> None:
        (tmp_path / "holiday.jpg").touch()
        with pytest.raises(NotAStore, match=r"holiday\.jpg"):
            kvstore.open(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(NotAStore):
            kvstore.open(tmp_path / "file")

    def test_a_directory_in_no_directory(self, tmp_path: Path) -> None:
        with pytest.raises(NotAStore):
            kvstore.open(tmp_path / "no" / "store")
        assert not (tmp_path / "no").exists()

    def test_nothing_read_only(self, store_path: Path) -> None:
        with pytest.raises(NotAStore):
            kvstore.open(store_path, read_only=True)
        assert not store_path.exists()

    def test_an_empty_directory_becomes_a_store(self, tmp_path: Path) -> None:
        with kvstore.open(tmp_path) as store:
            assert store.list_tables() == []

    def test_what_a_crash_left_of_a_store_becomes_one(self, store_path: Path) -> None:
        kvstore.open(store_path).close()
        (store_path / "STORE").rename(store_path / "STORE.tmp")
        with kvstore.open(store_path) as store:
            assert store.list_tables() == []

    def test_a_newer_format(self, store_path: Path) -> None:
        kvstore.open(store_path).close()
        about = json.loads((store_path / "STORE").read_text())
        (store_path / "STORE").write_text(json.dumps(about | {"format": 2}))
        with pytest.raises(UnsupportedVersion, match="upgrade"):
            kvstore.open(store_path)

    def test_a_damaged_store_file(self, store_path: Path) -> None:
        kvstore.open(store_path).close()
        whole = (store_path / "STORE").read_bytes()
        (store_path / "STORE").write_bytes(whole[:-9])
        with pytest.raises(CorruptImage):
            kvstore.open(store_path)

    def test_a_lost_catalog(self, store_path: Path) -> None:
        kvstore.open(store_path).close()
        (store_path / "meta" / "journal" / "data.mdb").unlink()
        with pytest.raises(CorruptImage):
            kvstore.open(store_path)

    def test_unknown_setting(self, store_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="durabilty"):
            kvstore.open(store_path, durabilty="sync")
        with pytest.raises(InvalidRequest):
            kvstore.open(store_path, durability="maybe")
        with pytest.raises(InvalidRequest):
            kvstore.open(store_path, segment_bytes_max=0)
        assert not store_path.exists()

    def test_other_settings_while_open(self, store: kvstore.Store) -> None:
        with pytest.raises(InvalidRequest, match="other settings"):
            kvstore.open(store.path, durability="none")

    def test_twice_in_a_process_is_one_store(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, primary_key="k")
        with kvstore.open(store.path) as other:
            other.table("t").upsert(ROW)
            assert table.get("a") == ROW
        table.upsert({**ROW, "n": 2})
        assert table.count() == 1


def test_read_only_writes_nothing(store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k").upsert(ROW)
    store.close()
    before = snapshot(store.path)
    with kvstore.open(store.path, read_only=True) as reader:
        table = reader.table("t")
        for call in (
            lambda: table.upsert(ROW),
            lambda: table.delete("a"),
            lambda: table.bucket(0).apply(nothing()),
            lambda: reader.create_table("u", SCHEMA),
            lambda: reader.drop_table("t"),
            reader.new_writer_id,
        ):
            with pytest.raises(UnsupportedOperation, match="read-only"):
                call()
        assert rows_of(table) == [ROW]
        assert reader.check().ok
    assert snapshot(store.path) == before


def test_use_after_close(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    bucket = table.bucket(0)
    table.upsert(ROW)
    store.close()
    store.close()
    for call in (
        lambda: table.upsert(ROW),
        lambda: table.get("a"),
        lambda: table.scan(),
        lambda: table.changelog(),
        lambda: bucket.apply(nothing()),
        table.count,
        table.offsets,
        table.flush,
        store.check,
        store.list_tables,
        lambda: store.table("t"),
        lambda: store.create_table("u", SCHEMA),
    ):
        with pytest.raises(StoreClosed, match="open it again"):
            call()


def snapshot(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "lock.mdb"
    }
