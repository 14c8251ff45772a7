"""The definition of a table beside its data: a catalog that has lost edits gets its tables back from there."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.checkpoint import recovery
from kvstore.checkpoint.recovery import Recovery
from kvstore.cli.arguments import store_id_of
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import LogFailed, StoreError, StoreFull
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.store.store import Store
from logformat import paths
from logformat.catalog import table_file
from logformat.ids import TableId
from tests.support.examples import slow
from tests.support.repairs import Dying, Killed
from tests.support.tables import changes_of, rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])


def recover(path: Path, *, write: bool = True) -> Recovery:
    return recovery.recover(path, store_id_of(path), Files(), SystemClock(), write=write)


def lose_catalog(path: Path) -> None:
    """Every image and all edits are damaged."""
    lose_images(path)
    shutil.rmtree(path / paths.JOURNAL)


def lose_images(path: Path) -> None:
    """Both images are damaged; the journal has its last edits only."""
    for image in (path / paths.IMAGES).glob("image.*"):
        image.write_bytes(b"\0" * image.stat().st_size)


def definitions_of(path: Path) -> dict[str, TableDefinition]:
    with kvstore.open(path, read_only=True) as store:
        return {table.name: table for table in store.runtime.catalog().tables.values()}


def everything_of(store: Store) -> dict[str, object]:
    """Changes of all tables, and their rows; the order is that of each bucket."""
    found: dict[str, object] = {}
    for name in store.list_tables():
        table = store.table(name)
        found[name] = changes_of(table), rows_of(table) if table.primary_key else []
    return found


def file_of(path: Path, id: int) -> Path:
    return paths.table_file(path, TableId(id))


def test_tables_of_lost_edits_come_back_with_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path, edits_per_journal=4) as store:
        keyed = store.create_table(
            *("keyed", SCHEMA, "k"),
            buckets=3,
            merge_engine=kvstore.Versioned("v"),
            auto_increment=None,
            compression="zstd",
        )
        keyed.upsert([{"k": n, "v": n} for n in range(50)])
        store.create_table("log", SCHEMA, buckets=2, bucket_key="k").upsert([{"k": 1, "v": 2}])
        store.add_columns("keyed", [pa.field("w", pa.string())])
        store.add_columns("keyed", [pa.field("x", pa.list_(pa.int8()))])
        keyed.upsert([{"k": 7, "v": 99, "w": "seven", "x": [1]}])
        for _ in range(3):
            for _ in range(9):
                store.new_writer_id()
            store.checkpoint()
        store.create_table("last", SCHEMA, "k").upsert([{"k": 5, "v": 5}])
        rows = everything_of(store)
    before = definitions_of(path)
    lose_images(path)
    with pytest.raises(StoreError):
        definitions_of(path)
    said, done = recover(path, write=False), recover(path)
    assert said.restored == done.restored == ["keyed", "log"]
    assert done.tables == ["keyed", "last", "log"]
    assert done.quarantined == []
    after = definitions_of(path)
    assert after.keys() == before.keys()
    assert all(after[name].is_same(before[name]) for name in before)
    with kvstore.open(path) as store:
        assert everything_of(store) == rows
        assert store.table("keyed").get(7) == {"k": 7, "v": 99, "w": "seven", "x": [1]}
        store.table("keyed").upsert([{"k": 7, "v": 100, "w": None, "x": None}])
        store.create_table("new", SCHEMA, "k").upsert([{"k": 5, "v": 5}])
        assert store.check()


@slow(30)
@given(st.integers(0, 2**32))
def test_after_any_history_every_live_table_comes_back(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "s"
        model: dict[str, dict[int, dict[str, Any]]] = {}
        columns: dict[str, list[str]] = {}
        for _ in range(chance.randint(1, 4)):
            with kvstore.open(path, edits_per_journal=3) as store:
                for step in range(chance.randint(1, 7)):
                    _random_step(store, chance, model, columns, step)
        before = definitions_of(path)
        assert before.keys() == model.keys()
        if chance.random() < 0.5:
            shutil.rmtree(path / paths.JOURNAL)
        if chance.random() < 0.7:
            lose_images(path)
        done = recover(path)
        assert done.tables == sorted(model)
        after = definitions_of(path)
        assert all(after[name].is_same(before[name]) for name in before)
        with kvstore.open(path) as store:
            for name, rows in model.items():
                assert {row["k"]: row for row in rows_of(store.table(name))} == rows
            assert store.check()


def _random_step(
    store: Store,
    chance: random.Random,
    model: dict[str, dict[int, dict[str, Any]]],
    columns: dict[str, list[str]],
    step: int,
) -> None:
    name = chance.choice("abcd")
    if name not in model:
        store.create_table(name, SCHEMA, "k", buckets=chance.randint(1, 2))
        model[name], columns[name] = {}, ["k", "v"]
    elif chance.random() < 0.25:
        store.drop_table(name)
        del model[name], columns[name]
        return
    elif chance.random() < 0.4:
        new = f"c{len(columns[name])}"
        store.add_columns(name, [pa.field(new, pa.int64())])
        columns[name].append(new)
        for row in model[name].values():
            row[new] = None
    elif chance.random() < 0.2:
        store.checkpoint()
    elif chance.random() < 0.3 and (free := sorted({*"abcd"} - {*model})):
        store.rename_table(name, free[0])
        model[free[0]], columns[free[0]] = model.pop(name), columns.pop(name)
        name = free[0]
    elif chance.random() < 0.3:
        store.alter_table(name, compression=chance.choice((None, "lz4", "zstd")))
    row = dict.fromkeys(columns[name], step * 10) | {"k": chance.randint(0, 3)}
    store.table(name).upsert([row])
    model[name][row["k"]] = row


def test_an_old_store_gets_the_files_when_it_is_next_opened_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        for name in ("a", "b"):
            store.create_table(name, SCHEMA, "k")
    right = [file_of(path, id).read_bytes() for id in (1, 2)]
    for id in (1, 2):
        file_of(path, id).unlink()
    with kvstore.open(path, read_only=True) as store:
        store.table("a").scan()
        assert store.check()
    assert not file_of(path, 1).exists()
    with kvstore.open(path) as store:
        store.table("a")
    decoded = [table_file.decode(each) for each in (*right, *(file_of(path, id).read_bytes() for id in (1, 2)))]
    assert [(each.name, each.columns) for each in decoded[:2]] == [(each.name, each.columns) for each in decoded[2:]]


def test_a_file_that_an_older_version_left_behind_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k")
        old = file_of(path, 1).read_bytes()
        store.add_columns("t", [pa.field("w", pa.int64())])
    file_of(path, 1).write_bytes(old)
    with kvstore.open(path) as store:
        store.table("t").upsert([{"k": 1, "v": None, "w": 2}])
    lose_catalog(path)
    recover(path)
    with kvstore.open(path) as store:
        assert rows_of(store.table("t")) == [{"k": 1, "v": None, "w": 2}]


def _dies(store: Store, patch: pytest.MonkeyPatch, edit: Callable[[], object]) -> None:
    """An edit of the catalog whose process is killed before the commit."""

    def killed(*_: object) -> None:
        raise Killed

    with patch.context() as patched:
        patched.setattr("logformat.catalog.edits.encode", killed)
        with pytest.raises(Killed):
            edit()


def test_the_catalog_is_right_where_a_file_is_ahead_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, left = tmp_path / "s", tmp_path / "left"

    def killed(*_: object) -> None:
        shutil.copytree(path, left)  # as a kill at this moment leaves it
        raise Killed

    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        _dies(store, monkeypatch, lambda: store.add_columns("t", [pa.field("w", pa.int64())]))
        with monkeypatch.context() as patched:
            patched.setattr("logformat.catalog.edits.encode", killed)
            with pytest.raises(Killed):
                store.create_table("u", SCHEMA, "k")
    assert file_of(left, 2).exists()
    assert table_file.decode(file_of(left, 1).read_bytes()).widths == [2, 3]
    done = recover(left)
    assert (done.gone, done.restored, done.tables) == ([], [], ["t"])
    with kvstore.open(left) as store:
        assert store.table("t").schema == SCHEMA
        assert store.check()
    assert table_file.decode(file_of(left, 1).read_bytes()).widths == [2]


@pytest.mark.parametrize("has_image", [False, True])
def test_a_dropped_table_whose_files_were_not_removed_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_image: bool
) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        for name in ("stays", "goes"):
            store.create_table(name, SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        if has_image:
            store.checkpoint()

        def killed(*_: object) -> None:
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr("kvstore.commit.staging.Staging.sweep", killed)
            with pytest.raises(Killed):
                store.drop_table("goes")
        assert store.list_tables() == ["stays"]
    assert (path / paths.TABLES / "2" / "0").is_dir()
    shutil.rmtree(path / paths.JOURNAL)
    done = recover(path)
    assert done.tables == ["stays"]
    assert done.quarantined == [Path("tables/2")]
    with kvstore.open(path) as store:
        assert rows_of(store.table("stays")) == [{"k": 1, "v": 1}]
        assert store.check()


def test_a_table_whose_drop_failed_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])

        def full(*_: object) -> CatalogState:
            raise StoreFull("No space.")

        with monkeypatch.context() as patched:
            patched.setattr("logformat.catalog.edits.encode", full)
            with pytest.raises(StoreFull):
                store.drop_table("t")
        assert file_of(path, 1).exists()
        assert not paths.dropped_file(path, TableId(1)).exists()
        _dies(store, monkeypatch, lambda: store.drop_table("t"))
    lose_catalog(path)
    recover(path)
    with kvstore.open(path) as store:
        assert rows_of(store.table("t")) == [{"k": 1, "v": 1}]


def test_a_catalog_that_is_older_than_the_tables_gets_them_back(tmp_path: Path) -> None:
    path, copy = tmp_path / "s", tmp_path / "copy"
    with kvstore.open(path) as store:
        store.create_table("old", SCHEMA, "k")
    shutil.copytree(path / "meta", copy)
    with kvstore.open(path) as store:
        store.create_table("new", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    shutil.rmtree(path / "meta")
    shutil.copytree(copy, path / "meta")
    done = recover(path)
    assert (done.tables, done.restored) == (["new", "old"], ["new"])
    with kvstore.open(path) as store:
        assert rows_of(store.table("new")) == [{"k": 1, "v": 1}]
        store.create_table("third", SCHEMA, "k")
        assert store.check()


def test_a_damaged_file_is_reported_and_repaired(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        for name in ("a", "b"):
            store.create_table(name, SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    right = file_of(path, 1).read_bytes()
    for damage in (right[:50], right.replace(b'"a"', b'"x"'), file_of(path, 2).read_bytes()):
        file_of(path, 1).write_bytes(damage)
        with kvstore.open(path, read_only=True) as store:
            found = store.check()
        assert not found
        assert [each[:8] for each in found.findings] == ["table a:"]
        done = kvstore.repair(path)
        assert done
        assert [each[:2] for each in done.repaired] == ["a:"]
        assert table_file.decode(file_of(path, 1).read_bytes()).name == "a"
        with kvstore.open(path, read_only=True) as store:
            assert store.check()


def test_a_restored_store_and_a_copy_get_the_files_and_the_replica_has_none(tmp_path: Path) -> None:
    path, replica = tmp_path / "s", tmp_path / "replica"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        table.upsert([{"k": 1, "v": 1}])
        store.add_replica(str(replica)).ship()
        with kvstore.follow(str(replica), tmp_path / "copy") as copy:
            assert file_of(tmp_path / "copy", 1).exists()
            store.add_columns("t", [pa.field("w", pa.int64())])
            store.create_table("u", SCHEMA, "k").upsert([{"k": 2, "v": 2}])
            table.upsert([{"k": 2, "v": None, "w": 3}])
            store.replica(str(replica)).ship()
            copy.pull()
            store.drop_table("u")
            store.replica(str(replica)).ship()
            copy.pull()
        rows = rows_of(table)
    assert not list(replica.rglob("TABLE"))
    kvstore.restore(str(replica), tmp_path / "restored")
    for made in (tmp_path / "copy", tmp_path / "restored"):
        assert not (made / paths.TABLES / "2").exists()
        assert table_file.decode(file_of(made, 1).read_bytes()).widths == [2, 3]
    (tmp_path / "copy" / paths.FOLLOWING).unlink()
    for made in (tmp_path / "copy", tmp_path / "restored"):
        lose_catalog(made)
        recover(made)
        with kvstore.open(made) as store:
            assert rows_of(store.table("t")) == rows


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_recovery_that_dies_brings_the_tables_back_when_it_is_run_again(tmp_path: Path, steps: int) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    lose_catalog(path)

    with suppress(Killed):
        recovery.recover(path, store_id_of(path), Dying(steps), SystemClock(), write=True)
    assert recover(path).tables == ["t"]
    with kvstore.open(path) as store:
        assert rows_of(store.table("t")) == [{"k": 1, "v": 1}]
        assert store.check()


def test_columns_that_only_lost_edits_knew_come_back(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        store.checkpoint()
        for name in ("w", "x"):
            store.add_columns("t", [pa.field(name, pa.int64())])
            table.upsert([dict.fromkeys(table.schema.names, len(name))])
        rows = rows_of(table)
    shutil.rmtree(path / paths.JOURNAL)
    done = recover(path)
    assert (done.image, done.restored) == (1, ["t"])
    with kvstore.open(path) as store:
        assert store.table("t").schema.names == ["k", "v", "w", "x"]
        assert rows_of(store.table("t")) == rows
        assert store.check()


def test_a_repair_moves_no_definition_that_the_disk_does_not_read(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be whole, or of a newer version; `check` says that it can't be read."""
    with kvstore.open(store_path) as store:
        store.create_table("t", {"k": "int64"}, "k")
    read, file = Files.read, paths.table_file(store_path, TableId(1))
    before = file.read_bytes()

    def failing(self: Files, path: Path, *, bytes_max: int) -> bytes:
        if path.name == file.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(self, path, bytes_max=bytes_max)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "read", failing)
        with pytest.raises(LogFailed, match="Input/output error"):
            kvstore.repair(store_path)
        with kvstore.open(store_path, read_only=True) as store:
            assert any("TABLE can't be read" in finding for finding in store.check().findings)
    assert file.read_bytes() == before
    assert kvstore.repair(store_path)
