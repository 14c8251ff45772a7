"""Creating and dropping indexes: what is refused, and what a kill, a rebuild or damage leaves."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import lmdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest, NoSuchTable, SchemaMismatch, StoreFull, UnsupportedOperation
from kvstore.index.index import Index
from kvstore.indexing import building
from kvstore.memtable.memtable import Memtable
from logformat import binary_column, paths
from logformat.catalog.edits import TableOptions
from logformat.ids import BucketId, TableId
from logformat.rows.entries import ENTRIES, between, record_key
from tests.conftest import OpenStore
from tests.support.processes import Child, Pipe

COLUMNS = {"id": "int64", "mail": "string", "age": "int32", "tags": pa.list_(pa.string())}


def filled(store: kvstore.Store, count: int = 1000, **options: Any) -> kvstore.Table:
    table = store.create_table("t", COLUMNS, "id", **options)
    table.upsert([{"id": number, "mail": f"m{number % 100}", "age": number} for number in range(count)])
    return table


def index_of(store_path: Path) -> Path:
    return paths.bucket_directory(store_path, TableId(1), BucketId(0)) / paths.INDEX


def entry_counts(table: kvstore.Table) -> dict[int, int]:
    with table.bucket(0).handle.indexed() as view:
        return {id: record.entry_count for id, record in view.entries_records().items() if view.has_entries(id)}


def test_what_is_no_index_is_refused(store: kvstore.Store) -> None:
    table = filled(store, 3, indexes={"by_mail": ["mail"]})
    for error, name, columns, match in [
        (InvalidRequest, "by_mail", ["age"], r"index of that name"),
        (InvalidRequest, "", ["age"], r"printable"),
        (InvalidRequest, 5, ["age"], r"printable"),
        (SchemaMismatch, "x", ["nowhere"], r"no such column"),
        (SchemaMismatch, "x", [], r"at least one column"),
        (SchemaMismatch, "x", ["age", "age"], r"only once"),
        (InvalidRequest, "x", ["age", "tags"], r"lists"),
    ]:
        with pytest.raises(error, match=match):
            store.create_index("t", name, columns)  # type: ignore[arg-type]
    with pytest.raises(NoSuchTable):
        store.create_index("u", "x", ["age"])
    with pytest.raises(InvalidRequest, match=r"no such index"):
        store.drop_index("t", "x")
    with pytest.raises(InvalidRequest, match=r"dict"):
        store.create_table("v", COLUMNS, "id", indexes=["mail"])  # type: ignore[arg-type]
    store.create_table("log", COLUMNS)
    for create in (
        lambda: store.create_index("log", "x", ["age"]),
        lambda: store.create_table("log2", COLUMNS, indexes={"x": "age"}),
    ):
        with pytest.raises(UnsupportedOperation, match=r"log table"):
            create()
    assert table.indexes == {"by_mail": ("mail",)}


def test_a_table_without_an_index_has_the_options_that_it_had() -> None:
    assert b"indexes" not in msgspec.json.encode(TableOptions())


def test_ids_are_not_given_out_twice(store: kvstore.Store) -> None:
    table = filled(store)
    store.create_index("t", "one", ["age"])
    store.drop_index("t", "one")
    assert table.indexes == {}
    store.create_index("t", "two", ["mail"])
    assert entry_counts(table) == {2: 1000}
    assert table.find(mail="m7").num_rows == 10


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "BUILD_ROWS", 7)
    monkeypatch.setattr(building, "RUN_ROWS", 20)


@pytest.mark.usefixtures("_small_parts")
def test_progress_is_in_rows(store: kvstore.Store) -> None:
    filled(store, 40, buckets=3).flush()
    seen: list[tuple[int, int]] = []
    store.create_index("t", "by_age", "age", progress=lambda *done: seen.append(done))
    assert [total for _, total in seen] == [40] * len(seen)
    done = [done for done, _ in seen]
    assert len(done) > 3
    assert done == sorted(set(done))
    assert done[-1] == 40


def test_rows_in_memory_are_not_merged_for_a_new_index(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(commit_wait_ms=3_600_000, commit_idle_ms=3_600_000) as store:
        table, seen = filled(store, 40), []
        with monkeypatch.context() as patched:
            patched.setattr(Memtable, "merge_slice", mock.Mock(side_effect=AssertionError))
            store.create_index("t", "by_mail", "mail", progress=lambda *done: seen.append(done))
            assert table.explain(mail="m7") == "index by_mail by mail"
            assert table.find(mail="m7").num_rows == 1
        assert seen == [(40, 40)]
        assert entry_counts(table) == {1: 40}


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize(("buckets", "all_hashes_are_the_same"), [(1, False), (2, False), (1, True)])
def test_writes_go_on_while_entries_are_made(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, buckets: int, all_hashes_are_the_same: bool
) -> None:
    if all_hashes_are_the_same:
        monkeypatch.setattr(building, "mix", np.zeros_like)
    random = Random(buckets)
    table = filled(store, 90, buckets=buckets)

    def write(*_: int) -> None:
        for _ in range(random.randrange(3)):
            ids = random.sample(range(130), 4)
            if random.random() < 0.3:
                table.delete(ids)
            else:
                table.upsert([{"id": id, "mail": f"m{random.randrange(9)}", "age": id} for id in ids])
        if random.random() < 0.5:
            table.flush()
        assert table.find(mail="m1").num_rows == table.to_arrow(filter=pc.field("mail") == "m1").num_rows

    for index in ("one", "two"):
        store.create_index("t", index, ["mail", "age"], progress=write)
        assert entry_counts(table).keys() == set(range(1, len(table.indexes) + 1))
        rows = table.to_arrow().to_pylist()
        for mail in {row["mail"] for row in rows}:
            found = {row["id"] for row in table.find(mail=mail).to_pylist()}
            assert found == {row["id"] for row in rows if row["mail"] == mail}
        assert store.check().findings == []


def test_values_of_many_rows_may_be_longer_than_a_column_of_arrow(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("t", COLUMNS, "id")
    table.upsert([{"id": id, "mail": f"{-id:04}" + 2000 * "m"} for id in range(600)])
    table.flush()
    monkeypatch.setattr(building, "SCAN_ROWS", 100)
    monkeypatch.setattr(binary_column, "COLUMN_BYTES_MAX", 1 << 19)
    store.create_index("t", "by_mail", "mail")
    assert table.find(mail="-077" + 2000 * "m").column("id").to_pylist() == [77]


@pytest.mark.usefixtures("_small_parts")
def test_a_call_that_ends_early_leaves_no_index(store: kvstore.Store) -> None:
    table = filled(store, 100)
    table.flush()
    for error in (KeyboardInterrupt, ValueError):

        def stop(done: int, _: int, error: type[BaseException] = error) -> None:
            if done > 50:
                raise error

        with pytest.raises(error):
            store.create_index("t", "by_mail", "mail", progress=stop)
        assert table.indexes == {}
        assert table.find(mail="m7").num_rows == 1
        table.upsert({"id": 200, "mail": "m7"})
        table.delete([200])
        with table.bucket(0).handle.latest() as view:
            assert view.entries_records() == {}
    store.create_index("t", "by_mail", "mail")
    assert entry_counts(table) == {3: 100}


def create(pipe: Pipe, path: Path) -> None:
    parts = {"BUILD_ROWS": 7, "RUN_ROWS": 20}
    with mock.patch.multiple(building, **parts), kvstore.open(path) as store:

        def say(done: int, _: int) -> None:
            pipe.send(done)
            pipe.recv()

        store.create_index("t", "by_mail", "mail", progress=say)


def test_what_a_killed_process_left_is_made_again(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        filled(store, 400)
    with Child(create, store_path) as child:
        # At half of it all rows are read.
        while (done := child.hear()) < 220:
            child.say("go on")
        assert done < 400
    with open_store() as store:
        table = store.table("t")
        assert table.indexes == {"by_mail": ("mail",)}
        with table.bucket(0).handle.latest() as view:
            assert 0 < view.entries_records()[1].entry_count < 400
        assert entry_counts(table) == {}
        assert table.find(mail="m7").num_rows == 4
        assert store.check().ok
    with open_store() as store:
        table = store.table("t")
        assert entry_counts(table) == {}
        table.upsert({"id": 1, "mail": "m7"})
        assert table.find(mail="m7").num_rows == 5
        assert entry_counts(table) == {1: 400}


def test_a_process_that_takes_the_bucket_meanwhile_gives_it_back(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        store.create_table("own", {"id": "int64"}, "id")
        filled(store, 400)
    with open_store() as store, Child(create, store_path) as child:
        store.table("own").upsert({"id": 1})
        assert child.hear() < 400
        with store.transaction() as tx:  # its first bucket is this process's, which takes the other one
            tx.upsert("own", {"id": 2})
            tx.upsert("t", {"id": 1000, "mail": "m7"})
        table = store.table("t")
        assert table.bucket(0).handle.writes
        child.say("go on")
        while child.hear() < 401:
            child.say("go on")
        child.say("go on")
        assert child.join() == 0
        assert entry_counts(table) == {1: 401}
        assert table.find(mail="m7").num_rows == 5


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("unique", [False, True])
def test_a_full_disk_leaves_no_index(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, unique: bool) -> None:
    table = filled(store, 100)
    table.flush()
    real = Index.note_entries
    count = 0

    def note(*given: Any, **how: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise lmdb.DiskError("no room")
        real(*given, **how)

    monkeypatch.setattr(Index, "note_entries", note)
    with pytest.raises(StoreFull):
        store.create_index("t", "by_age", ["age"], unique=unique)
    assert table.indexes == {}
    table.upsert({"id": 100, "age": 7, "mail": None})
    assert table.find(age=7).num_rows == 2
    store.create_index("t", "by_id_and_age", ["id", "age"], unique=unique)
    assert table.find(id=100, age=7).num_rows == 1


def test_a_rebuilt_index_gets_its_entries(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        filled(store, indexes={"by_mail": ["mail"]}).flush()
    shutil.rmtree(index_of(store_path))
    with open_store() as store:
        table = store.table("t")
        assert table.find(mail="m7").num_rows == 10
        table.upsert({"id": 7, "mail": "other"})
        table.flush()
        assert entry_counts(table) == {1: 1000}
        assert table.find(mail="m7").num_rows == 9


def test_an_index_with_a_damaged_record_is_rebuilt(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        filled(store, indexes={"by_mail": ["mail"]}).flush()
    index = Index(open_environment(index_of(store_path), Files(), map_bytes=1 << 24, has_databases=False))
    with index.view() as view:
        state = view.state()
    index.commit(state)
    with index.environment.begin_write() as transaction:
        transaction.put(record_key(1), b"damaged")
    index.close()
    with open_store() as store:
        table = store.table("t")
        table.upsert({"id": 7, "mail": "other"})
        table.flush()
        assert entry_counts(table) == {1: 1000}


def test_entries_are_no_use_once_rows_change_without_them(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        filled(store, indexes={"by_mail": ["mail"]}).flush()
    with_rows = index_of(store_path)
    index = Index(open_environment(with_rows, Files(), map_bytes=1 << 24, has_databases=False))
    with index.view() as view:
        state = view.state()
        key, row = next(((keys[0], rows[0]) for keys, rows in view.rows(1)))
        assert view.has_entries(1)
    index.commit(state)
    with index.view() as view:
        assert view.has_entries(1), "nothing was changed"
    index.put([key], [row])
    index.commit(state)
    with index.view() as view:
        assert not view.has_entries(1)
        assert view.row_count() == 1000
    index.close()
    with open_store() as store:
        table = store.table("t")
        assert table.find(mail="m7").num_rows == 10
        table.upsert({"id": 7, "mail": "m7"})
        table.flush()
        assert entry_counts(table) == {1: 1000}


def test_compaction_keeps_entries(store: kvstore.Store) -> None:
    table = filled(store, indexes={"by_mail": ["mail"]})
    table.compact()
    assert entry_counts(table) == {1: 1000}
    assert table.find(mail="m7").num_rows == 10


@pytest.mark.parametrize("what", ["removed", "added", "other", "uncounted"])
def test_check_finds_wrong_entries(tmp_path: Path, what: str) -> None:
    path = tmp_path / "store"
    with kvstore.open(path) as store:
        filled(store, indexes={"by_mail": ["mail"]}).flush()
    index = Index(open_environment(index_of(path), Files(), map_bytes=1 << 24, has_databases=False))
    with index.view() as view:
        state = view.state()
        entry, value = next(view.entries([between(1, b"", b"")]))
    match what:
        case "removed":
            index.move_entries([entry], [], [])
        case "added":
            index.move_entries([], [entry + b"x"], [value])
        case "other":
            index.move_entries([entry], [entry + b"x"], [value])
        case "uncounted":
            index.move_entries([], [ENTRIES + b"\0\0\0\x09" + entry[6:]], [value])
    index.note_entries(1, 1000, are_whole=True)
    index.commit(state)
    index.close()
    with kvstore.open(path) as store:
        findings = store.check().findings
    assert findings
    assert all("secondary index" in finding for finding in findings)


def test_tables_that_are_made_like_another_have_its_indexes(store: kvstore.Store) -> None:
    from kvstore.store.store import table_like

    filled(store, indexes={"by_mail": ["mail", "age"], "by_age": "age"})
    definition = store.runtime.definition("t")
    made = table_like(definition, pa.schema([("age", pa.int32()), ("id", pa.int64())]), ["id"])
    assert [(each.name, each.columns) for each in made.options.indexes.known] == [("by_age", [0])]
