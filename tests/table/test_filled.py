"""Tables that come into the catalog with their rows, and those that take the place of another one."""

from __future__ import annotations

import datetime as dt
import errno
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.errors import Conflict, LogFailed, NoSuchTable, StoreFull, TableExists, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.request.partition import spread
from kvstore.store.store import Store, new_table
from logformat import paths
from logformat.ids import BucketId
from logformat.rows.changes import Changes
from tests.support.disks import FailingDisk, Mortal, failing
from tests.support.processes import Child, Pipe

OLD, NEW = {"k": "int64 not null", "n": "int64"}, {"k": "int64 not null", "text": "string"}
KEYS = 300
TABLE = new_table("t", NEW, "k", buckets=2)


def rows(definition: TableDefinition) -> Iterator[tuple[BucketId, Changes]]:
    """Rows of the new table, in batches of which the later ones replace some rows of the first."""
    for first in (0, 100):
        keys = pa.array(range(first, KEYS), pa.int64())
        batch = pa.record_batch([keys, pc.cast(pc.add(keys, first), pa.string())], schema=definition.schema)
        yield from spread(definition, Changes.upserts(batch), BucketId(0))


def all_rows(store: kvstore.Store) -> dict[int, Any]:
    return {row["k"]: row.get("n", row.get("text")) for row in store.table("t").scan().read_all().to_pylist()}


OLD_ROWS: dict[int, Any] = {k: k for k in range(50)}
NEW_ROWS: dict[int, Any] = {k: str(k if k < 100 else k + 100) for k in range(KEYS)}


def seen(store: kvstore.Store) -> dict[int, int]:
    """The ends of the table's buckets."""
    return {int(bucket): int(end) for bucket, (_, end) in store.table("t").offset_ranges("latest").items()}


def replace(store: kvstore.Store, with_rows: Callable[[TableDefinition], Iterable[Any]] = rows) -> None:
    store.runtime.replace_table(store.runtime.definition("t"), seen(store), TABLE, with_rows)


def make_old(store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("t", OLD, "k", buckets=3)
    table.upsert([{"k": k, "n": n} for k, n in OLD_ROWS.items()])
    return table


def left_over(store: kvstore.Store) -> set[str]:
    """Directories of no table."""
    there = {each.name for each in (store.path / paths.TABLES).glob("*")}
    return there - set(map(str, store.runtime.catalog().tables))


def test_a_table_has_its_rows_from_the_first_moment_on(store: kvstore.Store) -> None:
    store.runtime.create_table(TABLE, rows)
    table = store.table("t")
    assert (all_rows(store), table.count()) == (NEW_ROWS, KEYS)
    kinds = table.changelog().read_all().column("_change_type").value_counts().to_pylist()
    assert {each["values"]: each["counts"] for each in kinds}["insert"] == KEYS
    table.upsert({"k": 0, "text": "later"})
    assert table[0] == {"k": 0, "text": "later"}
    with pytest.raises(TableExists):
        store.runtime.create_table(TABLE, rows)
    assert not left_over(store)


def test_a_table_that_is_replaced_goes_with_its_changes(store: kvstore.Store) -> None:
    old = make_old(store)
    replace(store)
    assert (store.list_tables(), all_rows(store)) == (["t"], NEW_ROWS)
    assert store.table("t").changelog().read_all().num_rows > KEYS
    with pytest.raises(NoSuchTable):
        old.get(1)
    assert not left_over(store)


def looks(pipe: Pipe, path: str) -> None:
    """Reads the table by its name, again and again."""
    with kvstore.open(path, read_only=True) as store:
        while not pipe.poll():
            try:
                found = all_rows(store)
            except NoSuchTable as error:
                assert error.message == "The table was dropped."  # noqa: PT017 # after it was found by its name
                continue
            pipe.send(found == OLD_ROWS or (found == NEW_ROWS) * 2)


def test_other_processes_read_the_old_table_or_the_new_one(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        make_old(store)
        store.flush()
        with Child(looks, str(store_path)) as reader:
            assert reader.hear() is True

            def dawdling(definition: TableDefinition) -> Iterator[Any]:
                for each in rows(definition):
                    assert reader.hear() is True
                    yield each

            replace(store, dawdling)
            found = [reader.hear()]
            while found[-1] != 2:
                found.append(reader.hear())
            assert set(found) <= {True, 2}, "no other rows, and never a third table"


def writes(pipe: Pipe, path: str) -> None:
    """Writes a bucket, keeps it, and writes it again when the other process says so."""
    with kvstore.open(path) as store:
        table = store.table("t")
        table.upsert([{"k": 1, "n": 1}])
        table.flush()
        pipe.send("written")
        pipe.recv()
        try:
            table.upsert([{"k": 2, "n": 2}])
        except NoSuchTable:
            pipe.send("gone")


def test_a_process_that_writes_the_old_table_hands_it_over(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        make_old(store)
    with Child(writes, str(store_path)) as writer, kvstore.open(store_path) as store:
        assert writer.hear() == "written"
        replace(store)
        assert all_rows(store) == NEW_ROWS
        writer.say("again")
        assert writer.hear() == "gone"


def writes_until_killed(pipe: Pipe, path: str) -> None:
    """Writes a row that no other process sees before it is on the disk."""
    with kvstore.open(path, durability="none") as store:
        table = store.table("t")
        table.upsert({"k": 0, "n": 1})
        table.flush()
        pipe.send("shown")
        pipe.recv()
        table.upsert({"k": 0, "n": 2})
        pipe.send("written")
        pipe.recv()


def test_what_a_killed_writer_left_is_not_replaced(store: kvstore.Store) -> None:
    make_old(store).flush()
    store.close()
    with kvstore.open(store.path) as reader, Child(writes_until_killed, str(store.path)) as writer:
        assert writer.hear() == "shown"
        before = seen(reader)

        def none(definition: TableDefinition) -> Iterator[tuple[BucketId, Changes]]:
            writer.say("go on")
            assert writer.hear() == "written"
            reader.table("t").get(0)  # checks that the writer lives, which counts for a quarter of a second
            writer.kill()
            return iter(())

        with pytest.raises(Conflict, match="Run it again"):
            reader.runtime.replace_table(reader.runtime.definition("t"), before, TABLE, none)
        assert all_rows(reader) == OLD_ROWS | {0: 2}


def test_what_was_written_or_is_still_to_be_read_is_not_replaced(store: kvstore.Store) -> None:
    table = make_old(store)
    before = seen(store)
    table.upsert({"k": 50, "n": 50})
    with pytest.raises(Conflict, match="Run it again"):
        store.runtime.replace_table(store.runtime.definition("t"), before, TABLE, rows)
    known = store.runtime.definition("t")
    store.alter_table("t", retention=dt.timedelta(days=3))
    with pytest.raises(Conflict, match="Run it again"):
        store.runtime.replace_table(known, seen(store), TABLE, rows)
    store.consumer("reads").commit("t", dict.fromkeys(range(3), 0))
    with pytest.raises(UnsupportedOperation, match=r"drop the consumer.*consumers=\['reads'\]"):
        replace(store)
    store.drop_consumer("reads")
    known = store.runtime.definition("t")
    store.rename_table("t", "u")
    make_old(store)
    with pytest.raises(Conflict, match="renamed or replaced meanwhile"):
        store.runtime.replace_table(known, {0: 0, 1: 0, 2: 0}, TABLE, rows)
    dropped = store.runtime.definition("t")
    store.drop_table("t")
    with pytest.raises(Conflict, match="Run it again"):
        store.runtime.replace_table(dropped, {0: 0, 1: 0, 2: 0}, TABLE, rows)
    make_old(store)
    assert all_rows(store) == OLD_ROWS
    assert store.table("u").count() == len(OLD_ROWS) + 1
    assert not left_over(store)


@pytest.mark.parametrize(
    ("call", "code", "error"),
    [("rename", errno.ENOSPC, StoreFull), ("write", errno.ENOSPC, StoreFull), ("sync_directory", errno.EIO, LogFailed)],
)
def test_a_replacement_that_the_disk_refuses_leaves_the_old_table(
    store_path: Path, call: str, code: int, error: type[Exception]
) -> None:
    disk = FailingDisk()
    with Store(store_path, StoreOptions(), files=disk) as store:
        make_old(store)
        refused = 0
        for after in itertools.count():
            disk.fail, disk.calls = failing(call, code, after=after), []
            with suppress(error):
                replace(store)
            was_hit = disk.calls.count(call) > after
            disk.fail = lambda _: 0
            is_new = store.runtime.definition("t").buckets == 2
            assert all_rows(store) == (NEW_ROWS if is_new else OLD_ROWS)
            if is_new:  # only what comes after the commit failed, or what is not needed
                store.drop_table("t")
                make_old(store)
            else:
                refused += 1
                store.table("t").upsert({"k": 0, "n": 0})
            if not was_hit:
                break
        assert refused
        store.create_table("u", OLD)
        assert not left_over(store)


def test_a_creation_beside_one_whose_files_go_as_it_looks_at_them(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = store.path / paths.TABLES / "9.tmp" / "tables"
    going.mkdir(parents=True)
    look = os.scandir

    def gone(path: Any) -> Any:
        if not isinstance(path, int) and Path(path) == going and going.exists():
            going.rmdir()
        return look(path)

    monkeypatch.setattr(os, "scandir", gone)
    store.create_table("t", OLD, "k")
    assert not going.exists()
    assert not left_over(store)


def replaces(pipe: Pipe, path: str, lives: int) -> None:
    files = Mortal(-1)
    with Store(Path(path), StoreOptions(), files=files) as store:
        files.lives = lives
        replace(store)
        files.lives = -1


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
def test_a_replacement_that_is_killed_leaves_the_old_table_or_the_new_one(store_path: Path, step: int) -> None:
    outcomes: list[bool] = []
    for lives in itertools.count(1, step):
        with kvstore.open(store_path) as store:
            if "t" in store:
                store.drop_table("t")
            make_old(store)
        with Child(replaces, str(store_path), lives) as child:
            survived = child.join() == 0
        with kvstore.open(store_path) as store:
            assert store.check()
            assert store.list_tables() == ["t"]
            outcomes.append(store.table("t").schema.names == ["k", "text"])
            assert all_rows(store) == (NEW_ROWS if outcomes[-1] else OLD_ROWS)
            store.create_table("after", OLD, "k").upsert({"k": 1, "n": 1})
            assert not left_over(store)
            store.drop_table("after")
        if survived:
            break
    assert outcomes == sorted(outcomes), "the new one from one step on"
    assert outcomes[-1]
    assert len(outcomes) > 50 / step
