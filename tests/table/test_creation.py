"""Creation of tables: the files come before one short edit; what a creation leaves is removed, and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk import lmdb_files
from kvstore.disk.environment import Transaction
from kvstore.disk.files import Files
from kvstore.errors import LogFailed, StoreFull, StoreLocked, TableExists
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from kvstore.table import creation
from kvstore.table.creation import TableDirectories
from logformat import paths
from logformat.catalog.edits import CreateTable
from logformat.ids import TableId
from logformat.rows import schema as schemas
from tests.store.helpers import Program
from tests.support.disks import FailingDisk, Mortal, failing
from tests.support.processes import Child, Pipe

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])

CREATOR = """
from kvstore.table import creation
made, buckets = creation.create_bucket, []
def one_by_one(*arguments):
    made(*arguments)
    buckets.append(1)
    if len(buckets) == 1:
        print("making")
        sys.stdin.readline()
creation.create_bucket = one_by_one
with kvstore.open(path) as store:
    store.create_table("theirs", pa.schema([pa.field("k", pa.int64(), False)]), "k", buckets=2).upsert([{"k": 1}])
print("made")
"""
"""Creates a table, and waits after its first bucket."""

WRITES = ("open", "write", "sync", "truncate", "rename", "remove", "make_directory", "sync_directory")


class Watched(Files):
    """A disk that notes its calls while an edit of the catalog is open."""

    def __init__(self) -> None:
        self.is_editing = False
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in WRITES and self.is_editing:
            self.calls.append(name)
        return super().__getattribute__(name)


def tables_in(store: Path) -> set[str]:
    return {each.name for each in (store / paths.TABLES).glob("*")}


def check_usable(store: kvstore.Store, name: str) -> None:
    store.table(name).upsert([{"k": key, "v": key} for key in range(10)])
    assert store.table(name).count() == 10


def ids(store: kvstore.Store) -> set[str]:
    return set(map(str, store.runtime.catalog().tables))


def test_no_file_is_created_while_the_catalog_is_being_edited(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, adding, open_lmdb = Watched(), Journal.adding, lmdb_files.open_lmdb
    environments: list[str] = []

    @contextmanager
    def watched(journal: Journal) -> Iterator[Transaction]:
        with adding(journal) as transaction:
            files.is_editing = True
            try:
                yield transaction
            finally:
                files.is_editing = False

    def noted(directory: Path, *arguments: Any, **given: Any) -> Any:
        if files.is_editing:
            environments.append(str(directory))
        return open_lmdb(directory, *arguments, **given)

    monkeypatch.setattr(Journal, "adding", watched)
    monkeypatch.setattr(lmdb_files, "open_lmdb", noted)
    with Store(store_path, StoreOptions(), files=files) as store:
        for buckets in (1, 9):
            store.create_table(f"t{buckets}", SCHEMA, "k", buckets=buckets)
            assert (environments, files.calls) == ([], ["rename", "sync_directory"])
            files.calls.clear()
        check_usable(store, "t9")
        store.add_columns("t9", pa.field("w", pa.int64()))
        store.drop_table("t9")
        store.drop_table("t1")
        (store_path / paths.TABLES / "77").mkdir()
        files.calls.clear()
        store.create_table("t", SCHEMA, "k")
        assert (environments, files.calls) == ([], ["rename", "sync_directory"])
        assert tables_in(store_path) == ids(store)


def test_the_schema_of_an_added_column_is_made_before_the_edit(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 4,096 columns, this would make other processes wait for a fifth of a second."""
    store.create_table("t", SCHEMA, "k")
    adding, made, normalise, to_json = Journal.adding, list[str](), schemas.normalise, schemas.to_json

    @contextmanager
    def watched(journal: Journal) -> Iterator[Transaction]:
        with adding(journal) as transaction:
            made.append("begin")
            yield transaction
            made.append("end")

    monkeypatch.setattr(Journal, "adding", watched)
    monkeypatch.setattr(schemas, "normalise", lambda *given: made.append("normalise") or normalise(*given))
    monkeypatch.setattr(schemas, "to_json", lambda *given: made.append("to_json") or to_json(*given))
    store.add_columns("t", pa.field("w", pa.int64()))
    assert made[made.index("begin") :] == ["begin", "end"]
    assert "normalise" in made


def test_a_second_table_of_a_name_leaves_nothing(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_table("t", SCHEMA, "k")
    before = sorted(store.path.rglob("*"))
    with pytest.raises(TableExists):
        store.create_table("t", SCHEMA, "k", buckets=3)
    assert sorted(store.path.rglob("*")) == before

    make = TableDirectories.make

    def meanwhile(self: TableDirectories, *arguments: Any) -> None:
        make(self, *arguments)
        other_process(store, 2, "u")

    monkeypatch.setattr(TableDirectories, "make", meanwhile)
    with pytest.raises(TableExists, match="table=u"):
        store.create_table("u", SCHEMA, "k")
    assert tables_in(store.path) == {"1", "2"}


def other_process(store: kvstore.Store, table_id: int, name: str) -> None:
    """Create a table as a process does that makes the files within its edit."""

    def decide(state: CatalogState) -> CreateTable:
        source = store.path / paths.TABLES / f"{table_id}.tmp"
        source.rename(source.with_suffix(""))
        known = state.tables[TableId(1)]
        return CreateTable(
            table_id=TableId(table_id),
            name=name,
            columns=schemas.to_json(known.schema),
            primary_key=["k"],
            buckets=1,
            bucket_key=None,
            options=known.options,
        )

    store.runtime.journal.append(decide)


def test_a_process_that_does_not_know_the_lock_may_create_tables_too(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_table("t", SCHEMA, "k")
    make, turns = TableDirectories.make, count()

    def meanwhile(self: TableDirectories, *arguments: Any) -> None:
        make(self, *arguments)
        if not next(turns):
            other_process(store, 2, "u")

    monkeypatch.setattr(TableDirectories, "make", meanwhile)
    store.create_table("w", SCHEMA, "k")
    assert {table.name: id for id, table in store.runtime.catalog().tables.items()} == {"t": 1, "u": 2, "w": 3}
    for name in "tuw":
        check_usable(store, name)


def test_two_processes_create_tables_at_once(store: kvstore.Store) -> None:
    """The files that the other process is making are not taken for an orphan."""
    with Program(store.path, CREATOR) as other:
        assert other.line() == "making"
        looks, acquired = count(), TableDirectories.progress

        def let_it_go_on(self: TableDirectories) -> object:
            if not next(looks):
                other.go_on()
            return acquired(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableDirectories, "progress", let_it_go_on)
            store.create_table("ours", SCHEMA, "k", buckets=2)
        assert other.line() == "made"
    assert store.list_tables() == ["ours", "theirs"]
    assert store.table("theirs").count() == 1
    check_usable(store, "ours")
    assert tables_in(store.path) == ids(store)


def test_a_table_is_created_while_another_process_removes_the_files_of_one_it_dropped(store_path: Path) -> None:
    class Dropping(Files):
        """A disk on which the files of the dropped table go just before they are renamed."""

        def rename(self, old: Path, new: Path) -> None:
            if old == dropped:
                self.remove_tree(old)
            super().rename(old, new)

    with kvstore.open(store_path) as store:
        dropped = store.create_table("t", SCHEMA, "k").bucket(0).handle.paths.directory.parent
        other = store_path.parent / "kept"
        shutil.copytree(dropped, other)
        store.drop_table("t")
    shutil.copytree(other, dropped)
    with Store(store_path, StoreOptions(), files=Dropping()) as store:
        store.create_table("u", SCHEMA, "k")
        check_usable(store, "u")
    assert not dropped.exists()


def test_a_stopped_creation_is_named_and_stops_nothing_else(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_table("t", SCHEMA, "k")
    monkeypatch.setattr(creation, "PROGRESS_SECONDS", 0.1)
    with Program(store.path, CREATOR) as other:
        assert other.line() == "making"
        os.kill(other.pid, signal.SIGSTOP)
        with pytest.raises(StoreLocked, match=f"no progress.*holder_pid={other.pid}"):
            store.create_table("ours", SCHEMA, "k")
        store.add_columns("t", pa.field("w", pa.int64()))
        store.new_writer_id()
        assert {"1", "2.tmp"} == tables_in(store.path)
        other.kill()
    store.create_table("ours", SCHEMA, "k")
    assert tables_in(store.path) == ids(store) == {"1", "2"}


def creates(pipe: Pipe, path: str, lives: int) -> None:
    files = Mortal(-1)
    with Store(Path(path), StoreOptions(), files=files) as store:
        files.lives = lives
        store.create_table("new", SCHEMA, "k")
        files.lives = -1


def test_a_creation_that_is_killed_at_any_step_leaves_an_orphan_at_most(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, "k")
    deaths, survived = 0, False
    for lives in count(1):
        with Child(creates, str(store_path), lives) as child:
            survived = child.join() == 0
        with kvstore.open(store_path) as store:
            assert store.check()
            assert set(store.list_tables()) - {"new"} == {"t"}
            if "new" in store.list_tables():
                check_usable(store, "new")
                store.drop_table("new")
            if survived:
                break
            deaths += 1
            store.create_table("after", SCHEMA, "k")
            check_usable(store, "after")
            assert tables_in(store_path) == ids(store)
            store.drop_table("after")
    assert deaths > 15


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, StoreFull), (errno.EIO, LogFailed)])
def test_a_creation_that_the_disk_refuses_leaves_nothing(
    store_path: Path, code: int, error: type[kvstore.StoreError]
) -> None:
    disk = FailingDisk()
    with Store(store_path, StoreOptions(), files=disk) as store:
        store.create_table("t", SCHEMA, "k")
        refused = 0
        for call in ("write", "sync", "rename", "sync_directory"):
            for after in count():
                disk.fail = failing(call, code, after=after)
                try:
                    store.create_table("new", SCHEMA, "k", buckets=2)
                except error:
                    refused += 1
                    assert store.list_tables() == ["t"]
                    assert tables_in(store_path) == {"1"}
                else:
                    disk.fail = lambda _: 0
                    check_usable(store, "new")
                    store.drop_table("new")
                    break
        assert refused > 10

        def lasting(call: str) -> int:
            return code if call in ("write", "rename") else 0

        disk.fail = lasting
        with pytest.raises(error):
            store.create_table("new", SCHEMA, "k")
        disk.fail = lambda _: 0
        store.create_table("new", SCHEMA, "k")
        assert tables_in(store_path) == ids(store)
