"""A wrong call is a named error that says what to do, and writes nothing."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv

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
from kvstore.options import RANGES, StoreOptions
from logformat.log.batch import BATCH_BYTES_MAX
from tests.support.tables import changes_of, rows_of

SCHEMA = pa.schema([pa.field("k", pa.string(), False), pa.field("n", pa.int32()), pa.field("d", pa.float64(), False)])
ROW = {"k": "a", "n": 1, "d": 0.5}
ROWS = pa.RecordBatch.from_pylist([ROW, ROW], SCHEMA)
Call = Callable[[kvstore.Table], Any]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kvstore.Table]:
    """A table with one row; no test changes it."""
    with kvstore.open(tmp_path_factory.mktemp("table") / "store") as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        first = kvstore.Changes.of([("upsert", ROW)], SCHEMA)
        table.bucket(0).apply(first, writer_id=3, sequence=0, writer_epoch=2)
        yield table
        assert store.check()


def nothing(schema: pa.Schema = SCHEMA) -> kvstore.Changes:
    return kvstore.Changes.of([], schema)


BAD_CALLS: dict[str, tuple[type[StoreError], Call]] = {
    "missing column": (SchemaMismatch, lambda t: t.upsert({"k": "b", "n": 1})),
    "missing column of changes": (
        SchemaMismatch,
        lambda t: t.apply(kvstore.Changes.of([("upsert", {"k": "b", "n": 1})], SCHEMA)),
    ),
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
    "upsert of nothing": (SchemaMismatch, lambda t: t.upsert(None)),
    "apply of None": (SchemaMismatch, lambda t: t.apply(None)),
    "apply of a row": (SchemaMismatch, lambda t: t.apply(ROW)),
    "apply of rows": (SchemaMismatch, lambda t: t.apply([("upsert", ROW)])),
    "changes without a word": (SchemaMismatch, lambda t: t.apply(kvstore.Changes(ROWS, None))),
    "changes with numbers for words": (SchemaMismatch, lambda t: t.apply(kvstore.Changes(ROWS, pa.array([0, 1])))),
    "changes with strings for words": (SchemaMismatch, lambda t: t.apply(kvstore.Changes(ROWS, pa.array(["", "x"])))),
    "an epoch that is a float": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), 0, 0, 0.0)),
    "a sequence that is a float": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), 0, 0.0)),
    "a sequence that is a bool": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), 0, False)),
    "a writer that is a float": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), 0.0, 0)),
    "a writer that is a string": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), "0", 0)),
    "a writer that is too large": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), 2**63, 0)),
    "a negative writer": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), -2, 0)),
    "an epoch that is too large": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), 0, 0, 2**31)),
    "a negative epoch": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), 0, 0, -1)),
    "a schema that is a float": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), schema_id=1.0)),
    "a schema that is a bool": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), schema_id=True)),
    "a schema that is a list": (InvalidRequest, lambda t: t.bucket(0).apply(nothing(), schema_id=[1])),
    "a bucket that is a float": (InvalidRequest, lambda t: t.bucket(0.0)),
    "a bucket that is a string": (InvalidRequest, lambda t: t.changelog(bucket="0")),
    "columns that are a number": (InvalidRequest, lambda t: t.scan(columns=5)),
    "columns that are a set": (InvalidRequest, lambda t: t.scan(columns={"k", "n"})),
    "columns that are a dict": (InvalidRequest, lambda t: t.scan(columns={"k": 1})),
    "columns that are bytes": (InvalidRequest, lambda t: t.changelog(columns=b"k")),
    "columns that are fields": (InvalidRequest, lambda t: t.changelog(columns=SCHEMA)),
    "a column asked for twice": (SchemaMismatch, lambda t: t.scan(columns=["k", "k"])),
    "a column of the changelog asked for twice": (SchemaMismatch, lambda t: t.changelog(columns=["k", "k"])),
    "changelog of no column": (SchemaMismatch, lambda t: t.changelog(columns=[])),
    "a limit that is a string": (InvalidRequest, lambda t: t.scan(limit="5")),
    "a limit that is a float": (InvalidRequest, lambda t: t.scan(limit=1.5)),
    "a limit that is a bool": (InvalidRequest, lambda t: t.scan(limit=True)),
    "a limit beyond all offsets": (InvalidRequest, lambda t: t.scan(limit=2**70)),
    "as of a word": (InvalidRequest, lambda t: t.scan(as_of="latest")),
    "as of a float": (InvalidRequest, lambda t: t.scan(as_of=1.0)),
    "as of an offset beyond all": (OffsetOutOfRange, lambda t: t.scan(as_of=2**70)),
    "as of offsets of odd buckets": (InvalidRequest, lambda t: t.scan(as_of={None: 1, "a": 2})),
    "a filter that is a string": (InvalidRequest, lambda t: t.scan(filter="n > 1")),
    "a filter that is a mask": (InvalidRequest, lambda t: t.scan(filter=pa.array([True]))),
    "a filter of an unknown column": (InvalidRequest, lambda t: t.scan(filter=pc.field("zzz") == 1)),
    "a filter of the wrong type": (InvalidRequest, lambda t: t.scan(filter=pc.field("n") == "x")),
    "a filter that is no condition": (InvalidRequest, lambda t: t.scan(filter=pc.field("n"))),
    "a filter that fails": (InvalidRequest, lambda t: t.scan(filter=pc.divide(pc.field("n"), 0) == 1).read_all()),
    "changelog from nowhere": (InvalidRequest, lambda t: t.changelog(None)),
    "changelog from a float": (InvalidRequest, lambda t: t.changelog(1.0)),
    "changelog from a bool": (InvalidRequest, lambda t: t.changelog(True)),
    "changelog from a day": (InvalidRequest, lambda t: t.changelog(dt.date(2020, 1, 1))),
    "changelog from a time without a zone": (InvalidRequest, lambda t: t.changelog(dt.datetime(2020, 1, 1))),
    "changelog from an array": (InvalidRequest, lambda t: t.changelog(np.array([0, 1]))),
    "changelog to nowhere": (InvalidRequest, lambda t: t.changelog(0, None)),
    "changelog to a float": (InvalidRequest, lambda t: t.changelog(0, 1.0)),
    "changelog to the earliest": (InvalidRequest, lambda t: t.changelog(0, "earliest")),
    "changelog from after its end": (InvalidRequest, lambda t: t.changelog(1, 0)),
    "changelog from the rows of now to before them": (InvalidRequest, lambda t: t.changelog("full", 0)),
    "changelog from the rows of now to nowhere": (InvalidRequest, lambda t: t.changelog("full", None)),
    "as of a time without a zone": (InvalidRequest, lambda t: t.scan(as_of=dt.datetime(2020, 1, 1))),
    "as of a day": (InvalidRequest, lambda t: t.scan(as_of=dt.date(2020, 1, 1))),
    "follow as a word": (InvalidRequest, lambda t: t.changelog(follow="no")),
    "follow as a number": (InvalidRequest, lambda t: t.binlog(follow=1)),
    "following from an offset to come": (OffsetOutOfRange, lambda t: t.changelog(2, follow=True)),
    "following from an unknown word": (InvalidRequest, lambda t: t.changelog("newest", follow=True)),
    "following to an unknown word": (InvalidRequest, lambda t: t.changelog(0, "earliest", follow=True)),
    "following to nowhere": (InvalidRequest, lambda t: t.changelog(0, None, follow=True)),
    "following to a float": (InvalidRequest, lambda t: t.changelog(0, 1.5, follow=True)),
    "following to before the start": (InvalidRequest, lambda t: t.changelog(1, 0, follow=True)),
    "following to a negative offset": (InvalidRequest, lambda t: t.changelog(0, -1, follow=True)),
    "following to a time without a zone": (
        InvalidRequest,
        lambda t: t.changelog(0, dt.datetime(2020, 1, 1), follow=True),
    ),
    "following the rows of now to before them": (InvalidRequest, lambda t: t.changelog("full", 0, follow=True)),
    "following the rows of now to a time before them": (
        InvalidRequest,
        lambda t: t.changelog("full", dt.datetime(2020, 1, 1, tzinfo=dt.UTC), follow=True),
    ),
    "binlog from an offset to come": (OffsetOutOfRange, lambda t: t.binlog(2)),
    "binlog of an unknown column": (SchemaMismatch, lambda t: t.binlog(columns=["zzz"])),
    "binlog of a column that is always there": (SchemaMismatch, lambda t: t.binlog(columns=["_log_offset"])),
    "binlog of no column": (SchemaMismatch, lambda t: t.binlog(columns=[])),
    "binlog of an unknown bucket": (InvalidRequest, lambda t: t.binlog(bucket=1)),
    "undo from the rows of now": (InvalidRequest, lambda t: t.undo("full")),
    "undo from nowhere": (InvalidRequest, lambda t: t.undo(None)),
    "undo from a float": (InvalidRequest, lambda t: t.undo(0.0)),
    "undo from an offset to come": (OffsetOutOfRange, lambda t: t.undo(2)),
    "undo from a time without a zone": (InvalidRequest, lambda t: t.undo(dt.datetime(2020, 1, 1))),
    "key that is a table of others": (SchemaMismatch, lambda t: t.delete(pa.table({"n": [1]}))),
    "keys that are a column of another type": (SchemaMismatch, lambda t: t.lookup(pa.array([1]))),
    "whether a key of another type is there": (SchemaMismatch, lambda t: 1 in t),
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
    assert table.count() == 1


def test_errors_say_which_end_is_wrong(table: kvstore.Table) -> None:
    for start, end, words in [
        ("newest", "latest", "start of a changelog must be"),
        (0, "newest", "end of a changelog must be"),
    ]:
        with pytest.raises(InvalidRequest, match=words):
            table.changelog(start, end)
    with pytest.raises(SchemaMismatch) as missing:
        table.delete({"n": 1})
    assert "partial update" not in str(missing.value)
    with pytest.raises(OffsetOutOfRange, match="an offset from 0 to the log's end"):
        table.scan(as_of=-1)


def test_arguments_come_in_the_order_of_the_contract() -> None:
    expected = {
        kvstore.Table.scan: "columns filter limit as_of start stop reverse prefix",
        kvstore.Table.changelog: "start end bucket columns follow filter",
        kvstore.Table.binlog: "start end bucket columns follow filter",
        kvstore.Table.undo: "start end writer epoch job task",
        kvstore.Table.history: "key start",
        kvstore.Table.upsert: "data columns",
        kvstore.Table.delete: "keys columns where",
        kvstore.Bucket.apply: "changes writer_id sequence writer_epoch columns overwrite schema_id",
        kvstore.Store.create_table: "name schema primary_key buckets bucket_key merge_engine changelog_image "
        "delete_behavior auto_increment skip_identical_updates compression retention indexes",
    }
    for function, names in expected.items():
        assert " ".join(inspect.signature(function).parameters) == f"self {names}"


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
    "unknown engine": {"merge_engine": "max"},
    "one bucket, as a float": {"buckets": 1.0},
    "one bucket, as a bool": {"buckets": True},
    "buckets as a word": {"buckets": "one"},
    "no name": {"name": None},
    "name that is a number": {"name": 5},
    "name that is bytes": {"name": b"x"},
    "no schema": {"schema": None},
    "schema that is a dict of values": {"schema": {"k": 1}},
    "schema that is an object": {"schema": object()},
    "schema that is a list": {"schema": [("k", pa.int8())]},
    "schema that is a word": {"schema": "k"},
    "schema that is a table": {"schema": SCHEMA.empty_table()},
    "key that is a number": {"primary_key": 5},
    "key that is a set": {"primary_key": {"k", "n"}},
    "key of numbers": {"primary_key": [0]},
    "key that is bytes": {"primary_key": b"k"},
    "compression that is a list": {"compression": ["lz4"]},
    "unknown image": {"changelog_image": "partial"},
    "unknown behaviour of deletes": {"delete_behavior": "refuse"},
    "key that counts": {"auto_increment": "k"},
    "identical updates, as a word": {"skip_identical_updates": "yes"},
    "retention in days": {"retention": 7},
    "no retention": {"retention": dt.timedelta(0)},
    "negative retention": {"retention": dt.timedelta(days=-1)},
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_bad_table(what: str, store_of_module: kvstore.Store) -> None:
    store = store_of_module
    arguments = {"name": "t", "schema": SCHEMA, "primary_key": ["k"]} | BAD_TABLES[what]
    with pytest.raises(InvalidRequest):
        store.create_table(**arguments)
    assert store.list_tables() == []
    assert not list((store.path / "tables").glob("*"))


def test_a_key_may_be_any_list_of_names(store: kvstore.Store) -> None:
    for name, key in {"a": "k", "b": ["k"], "c": (name for name in ["k"]), np.str_("d"): np.array(["k"])}.items():
        assert store.create_table(name, SCHEMA, key).primary_key == ("k",)
    assert store.list_tables() == ["a", "b", "c", "d"]


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
        lambda: table.changelog("full", follow=True),
        lambda: table.binlog("full"),
        lambda: table.undo(0),
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

    @pytest.mark.parametrize("path", [b"store", None, 3, "", "a\0b", "a\ud800", "~nobody-of-that-name/x", ["store"]])
    def test_what_is_no_path(self, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InvalidRequest, match="path"):
            kvstore.open(path)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/x", "az://c/x", "memory://x", "https://host/x"])
    def test_the_url_of_an_object_store(self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UnsupportedOperation, match=r"only read: kvstore.open\(url, read_only=True\)"):
            kvstore.open(url)
        for read_only in (False, True):
            with pytest.raises(InvalidRequest, match="a directory on a local disk") as raised:
                kvstore.open(Path(url), read_only=read_only)  # a path has one slash less
            for said in ("store.add_replica(url)", "kvstore.restore(url, directory)", f"path={url}"):
                assert said in str(raised.value)
        assert not list(tmp_path.iterdir())

    def test_a_url_is_shown_without_credentials(self) -> None:
        for given in ("s3://key:secret@bucket/x", Path("s3://key:secret@bucket/x")):
            with pytest.raises(InvalidRequest) as raised:
                kvstore.open(given)
            assert "secret" not in str(raised.value)

    @pytest.mark.parametrize("start", ["file://", "file:", "FILE://localhost"])
    def test_the_url_of_a_directory(self, start: str, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match=f"Give the path .* directory={tmp_path}/a store$"):
            kvstore.open(f"{start}{tmp_path}/a%20store")

    def test_the_url_of_a_directory_given_as_a_path(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match=f"Give the path .* directory={tmp_path}$"):
            kvstore.open(Path(tmp_path.as_uri()))

    def test_a_directory_whose_name_ends_with_a_colon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("data:").mkdir()
        kvstore.open("data:/store").close()
        assert Path("data:/store/STORE").exists()

    @pytest.mark.parametrize("name", RANGES)
    def test_settings_that_are_no_number_or_out_of_range(self, name: str, store_path: Path) -> None:
        low, high = RANGES[name]
        for wrong in ("3", 2.5, float("nan"), None, True, [1], low - 1, high + 1):
            with pytest.raises(InvalidRequest, match=name):
                kvstore.open(store_path, **{name: wrong})
        assert not store_path.exists()
        assert StoreOptions(**{name: np.int64(high)}) == StoreOptions(**{name: high})

    def test_the_largest_batch_fits_after_the_longest_segment(self) -> None:
        assert RANGES["segment_bytes_max"][1] + BATCH_BYTES_MAX < 2**32
        assert RANGES["map_bytes"][0] == 1 << 20

    def test_settings_at_their_ends(self, store_path: Path) -> None:
        for end in (0, 1):
            settings = {name: bounds[end] for name, bounds in RANGES.items()}
            with kvstore.open(store_path, durability="interval", **settings) as store:
                table = store.create_table(f"t{end}", SCHEMA, primary_key="k")
                table.upsert([ROW, {**ROW, "k": "b"}])
                table.flush()
                assert table.count() == 2
                assert store.check().ok

    def test_other_settings_while_open(self, store: kvstore.Store) -> None:
        with pytest.raises(InvalidRequest, match="other settings") as caught:
            kvstore.open(store.path, durability="none")
        assert caught.value.where["given"] == {"durability": "none"}
        assert caught.value.where["there"]["durability"] != "none"

    def test_twice_in_a_process_is_one_store(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, primary_key="k")
        with kvstore.open(store.path) as other:
            other.table("t").upsert(ROW)
            assert table.get("a") == ROW
        table.upsert({**ROW, "n": 2})
        assert table.count() == 1

    def test_handles_of_a_process_write_together(self, store: kvstore.Store) -> None:
        table = store.create_table("t", {"k": "string", "n": "int64"}, "k")
        with kvstore.open(store.path) as other, kvstore.open(store.path, read_only=True) as reader:
            for each in (table, other["t"]) * 10:
                each.increment("a", {"n": 1}, default={})
            assert reader["t"]["a"] == other["t"]["a"] == {"k": "a", "n": 20}
            other.rename_table("t", "u")
            assert list(store) == list(reader) == ["u"]
        assert store["u"]["a"]["n"] == 20


def test_a_table_that_is_not_there_is_a_key_error(store: kvstore.Store) -> None:
    with pytest.raises(KeyError) as caught:
        store["nope"]
    assert isinstance(caught.value, NoSuchTable)
    assert str(caught.value).startswith("There is no such table. table=nope")
    assert not isinstance(caught.value, IndexError)


def test_what_does_not_become_a_decimal_says_how_it_does(store: kvstore.Store, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("k,price\na,1.50\nb,\n")
    table = store.create_table("t", {"k": "string", "price": "decimal128(10, 2)"}, "k")
    with pytest.raises(SchemaMismatch, match=r"column_types=\{name: pyarrow\.decimal128\(10, 2\)\}"):
        table.upsert(csv.read_csv(file))
    with pytest.raises(SchemaMismatch, match="text is not parsed: convert it"):
        table.upsert({"k": "a", "price": "1.50"})
    assert table.count() == 0
    types = csv.ConvertOptions(column_types={"price": pa.decimal128(10, 2)})
    table.upsert(csv.read_csv(file, convert_options=types))
    assert table["a"]["price"] == Decimal("1.50")


def test_a_long_key_is_refused_with_the_way_out(store: kvstore.Store) -> None:
    pages = store.create_table("pages", {"id": "fixed_size_binary[32]", "url": "string"}, "id")
    by_url = store.create_table("t", {"url": "string"}, "url")
    url = "https://example.com/" + "x" * 2_000
    with pytest.raises(KeyTooLarge, match=r"hashlib\.sha256\(text\.encode\(\)\)\.digest\(\)"):
        by_url.upsert({"url": url})
    with pytest.raises(KeyTooLarge):
        by_url.get(url)
    pages.upsert({"id": sha256(url.encode()).digest(), "url": url})
    assert pages[sha256(url.encode()).digest()]["url"] == url
    assert by_url.count() == 0


def test_an_auto_increment_column_as_the_key_is_refused_with_what_to_do(store: kvstore.Store) -> None:
    with pytest.raises(InvalidRequest, match=r"a UUID, or a number from a counter: counters\.increment"):
        store.create_table("t", {"id": "int64", "n": "int64"}, "id", auto_increment="id")
    assert list(store) == []


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
        lambda: table.changelog(follow=True),
        lambda: table.binlog(),
        lambda: table.undo(0),
        lambda: table.history("a"),
        lambda: kvstore.Patch.of(table, nothing()),
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


def test_errors_are_named_as_users_import_them(tmp_path: Path) -> None:
    assert {getattr(kvstore.errors, name).__module__ for name in kvstore.errors.__all__} == {"kvstore.errors"}
    code = "import pickle, sys; sys.stdout.write(str(pickle.loads(bytes.fromhex(sys.argv[1]))))"
    error = pickle.dumps(KeyTooLarge("It is long.", bytes=512)).hex()
    done = subprocess.run([sys.executable, "-c", code, error], capture_output=True, text=True, check=True)
    assert done.stdout == "It is long. bytes=512"


def snapshot(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "lock.mdb"
    }


def test_a_setting_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"unknown=\['durabilty'\] settings=\['durability', ") as refused:
        kvstore.open(tmp_path / "new", durabilty="none")
    assert "batch_rows_max" in refused.value.where["settings"]
    assert not (tmp_path / "new").exists()
