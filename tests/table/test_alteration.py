"""Changes of a table's definition: what a user sees afterwards, here, in other processes, replicas and after losses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.checkpoint import recovery
from kvstore.cli.arguments import store_id_of
from kvstore.clock import SystemClock
from kvstore.errors import InvalidRequest, NoSuchTable, StoreFull, TableExists
from kvstore.files import Files
from logformat import paths
from logformat.catalog import table_file
from logformat.ids import TableId
from tests.support.tables import changes_of, rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
ROWS = [{"k": 1, "v": 1}, {"k": 2, "v": None}]


def recover(path: Path) -> recovery.Recovery:
    return recovery.recover(path, store_id_of(path), Files(), SystemClock(), write=True)


def file_of(path: Path, id: int = 1) -> table_file.TableFile:
    return table_file.decode(paths.table_file(path, TableId(id)).read_bytes())


class TestRenameTable:
    def test_everything_of_the_table_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with kvstore.open(path) as store:
            table = store.create_table("a", SCHEMA, "k", buckets=2)
            table.upsert(ROWS)
            table.writer("w").close()
            store.consumer("c").commit("a", {0: 0, 1: 0})
            changes, writers = changes_of(table), table.writers
            follower = table.changelog(follow=True)
            assert next(iter(follower)).num_rows
            store.rename_table("a", "b")
            assert store.list_tables() == ["b"]
            assert "a" not in store
            assert table.name == "b"
            assert repr(table).startswith("<kvstore.Table b:")
            table.upsert([{"k": 3, "v": 3}])
            assert sum(batch.num_rows for batch in (next(iter(follower)),)) >= 1
            follower.close()
            assert changes_of(store["b"])[: len(changes)] == changes
            assert store["b"].writers == writers
            assert store.consumers == {"c": {"b": {0: 0, 1: 0}}}
            assert "b" in store.metrics()["kvstore_changes_total"]
        with kvstore.open(path, read_only=True) as store:
            assert sorted(row["k"] for row in rows_of(store["b"])) == [1, 2, 3]
            with pytest.raises(NoSuchTable):
                store.table("a")
            assert store.check()

    def test_the_old_name_is_free(self, tmp_path: Path) -> None:
        with kvstore.open(tmp_path / "s") as store:
            store.create_table("a", SCHEMA, "k").upsert(ROWS)
            store.rename_table("a", "b")
            store.create_table("a", SCHEMA, "k").upsert(ROWS[:1])
            store.rename_table("b", "c")
            store.rename_table("a", "b")
            store.rename_table("c", "a")
            assert rows_of(store["a"]) == ROWS
            assert rows_of(store["b"]) == ROWS[:1]
            assert store.metrics()["kvstore_changes_total"] == {"a": 2, "b": 1}
            assert store.check()

    def test_what_is_refused(self, tmp_path: Path) -> None:
        with kvstore.open(tmp_path / "s") as store:
            for name in ("a", "b"):
                store.create_table(name, SCHEMA, "k")
            with pytest.raises(TableExists):
                store.rename_table("a", "b")
            with pytest.raises(NoSuchTable):
                store.rename_table("x", "y")
            for name in ("", "a$b", "a\n", "x" * 256):
                with pytest.raises(InvalidRequest):
                    store.rename_table("a", name)
            assert store.list_tables() == ["a", "b"]
            assert [file_of(store.path, id).name for id in (1, 2)] == ["a", "b"]

    def test_another_process_that_has_it_open_goes_on(self, tmp_path: Path) -> None:
        with kvstore.open(tmp_path / "s") as store:
            store.create_table("a", SCHEMA, "k").upsert(ROWS)
            store.flush()
            with kvstore.open(tmp_path / "s", read_only=True) as other:
                table = other.table("a")
                store.rename_table("a", "b")
                assert (table.name, rows_of(table)) == ("b", ROWS)

    def test_a_rename_that_fails_leaves_the_definition_file_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> bytes:
            raise StoreFull("No space.")

        with kvstore.open(tmp_path / "s") as store:
            store.create_table("a", SCHEMA, "k").upsert(ROWS)
            with monkeypatch.context() as patched:
                patched.setattr("logformat.catalog.edits.encode", full)
                with pytest.raises(StoreFull):
                    store.rename_table("a", "b")
            assert store.list_tables() == ["a"]
            assert file_of(store.path).name == "a"

    def test_restored_stores_and_copies_have_the_new_name(self, tmp_path: Path) -> None:
        with kvstore.open(tmp_path / "s") as store:
            table = store.create_table("a", SCHEMA, "k")
            table.upsert(ROWS)
            replica = store.add_replica(str(tmp_path / "r"), "r")
            replica.ship()
            with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
                follower.pull()
            store.rename_table("a", "b")
            table.upsert([{"k": 3, "v": 3}])
            store.flush()
            replica.ship()
            rows = rows_of(table)
        with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
            follower.pull()
        with kvstore.open(tmp_path / "copy", read_only=True) as copy:
            assert copy.list_tables() == ["b"]
            assert rows_of(copy["b"]) == rows
        assert file_of(tmp_path / "copy").name == "b"
        kvstore.restore(str(tmp_path / "r"), tmp_path / "restored")
        with kvstore.open(tmp_path / "restored") as restored:
            assert restored.list_tables() == ["b"]
            assert rows_of(restored["b"]) == rows
            assert restored.check()


class TestLostEdits:
    """A catalog that has lost edits gets names from the files beside the data."""

    def test_names_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with kvstore.open(path) as store:
            for name in "abc":
                store.create_table(name, SCHEMA, "k").upsert([{"k": 1, "v": ord(name)}])
            store.checkpoint()
            store.rename_table("a", "x")
            store.rename_table("b", "a")
            store.rename_table("x", "b")
            store.create_table("x", SCHEMA, "k").upsert([{"k": 1, "v": 0}])
            before = {name: rows_of(store[name]) for name in store}
        shutil.rmtree(path / paths.JOURNAL)
        assert recover(path).restored == ["a", "b", "x"]
        with kvstore.open(path) as store:
            assert {name: rows_of(store[name]) for name in store} == before
            store.rename_table("a", "y")
            assert store.check()

    def test_a_known_edit_counts_more_than_an_older_file(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with kvstore.open(path) as store:
            store.create_table("a", SCHEMA, "k").upsert(ROWS)
            store.rename_table("a", "b")
            old = paths.table_file(path, TableId(1)).read_bytes()
            store.rename_table("b", "c")
            store.checkpoint()
            store.new_writer_id()
        paths.table_file(path, TableId(1)).write_bytes(old)
        shutil.rmtree(path / paths.JOURNAL)
        assert recover(path).tables == ["c"]

    def test_two_files_of_one_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The process that renamed a table died before the edit; then another table got the name."""
        path = tmp_path / "s"

        def killed(*_: object) -> bytes:
            raise KeyboardInterrupt

        with kvstore.open(path) as store:
            store.create_table("a", SCHEMA, "k").upsert(ROWS)
            store.checkpoint()
            with monkeypatch.context() as patched:
                patched.setattr("logformat.catalog.edits.encode", killed)
                with pytest.raises(KeyboardInterrupt):
                    store.rename_table("a", "b")
            assert file_of(path).name == "b"
            store.create_table("b", SCHEMA, "k").upsert(ROWS[:1])
            store.new_writer_id()
        shutil.rmtree(path / paths.JOURNAL)
        done = recover(path)
        assert done.tables == ["a", "b"]
        assert "table 1: the catalog has another table of its name, b" in done.damaged
        with kvstore.open(path) as store:
            assert rows_of(store["a"]) == ROWS
            assert rows_of(store["b"]) == ROWS[:1]
            assert store.check()
