"""Changes of a table's definition: what a user sees afterwards, here, in other processes, replicas and after losses."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

import kvstore
from kvstore.checkpoint import recovery
from kvstore.cli.arguments import store_id_of
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import (
    DeletionDisabled,
    InvalidRequest,
    NoSuchTable,
    NotAStore,
    StoreError,
    StoreFull,
    TableExists,
    UnsupportedOperation,
)
from kvstore.meta.salvage import Elsewhere, salvage
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat import paths
from logformat.catalog import table_file
from logformat.catalog.edits import TableOptions, decode
from logformat.ids import TableId, Txid
from tests.support.clocks import SetClock
from tests.support.tables import changes_of, rows_of
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
HOUR = dt.timedelta(hours=1)
ROWS = [{"k": 1, "v": 1}, {"k": 2, "v": None}]


def recover(path: Path) -> recovery.Recovery:
    return recovery.recover(path, store_id_of(path), Files(), SystemClock(), write=True)


def _log_bytes(store: Store) -> int:
    return store.metrics()["kvstore_log_bytes_total"]["t"]


def _fill_segments(table: kvstore.Table, count: int) -> None:
    """Write until so many more segments have begun; the last one has a single batch, so that none begins soon."""
    log = table.bucket(0).handle.log
    there = len(log.bases())
    while len(log.bases()) < there + count:
        table.upsert([{"k": 1, "v": 1}])


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

    @pytest.mark.parametrize("error", [StoreFull, NotAStore])
    def test_a_rename_that_fails_leaves_the_definition_file_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[StoreError]
    ) -> None:
        def full(*_: object) -> bytes:
            raise error("There is no such file, or no space.")

        with kvstore.open(tmp_path / "s") as store:
            store.create_table("a", SCHEMA, "k").upsert(ROWS)
            with monkeypatch.context() as patched:
                patched.setattr("logformat.catalog.edits.encode", full)
                with pytest.raises(error):
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


class TestAlterTable:
    def test_options_that_are_left_out_stay(self, tmp_path: Path) -> None:
        with kvstore.open(tmp_path / "s") as store:
            table = store.create_table("t", SCHEMA, "k", skip_identical_updates=True, retention=HOUR)
            store.alter_table("t", compression="zstd")
            store.alter_table("t", delete_behavior="disable")
            expected = TableOptions(
                compression="zstd", delete_behavior="disable", skip_identical_updates=True, retention_ms=3_600_000
            )
            assert table.options == expected
            assert file_of(store.path).options == expected
            store.alter_table("t", retention=None, compression=None, delete_behavior=None)
            assert table.options == TableOptions(compression=None, skip_identical_updates=True)
        with kvstore.open(tmp_path / "s", read_only=True) as store:
            assert store["t"].options == TableOptions(compression=None, skip_identical_updates=True)
            assert store.check()

    def test_an_open_table_goes_by_them(self, tmp_path: Path) -> None:
        with kvstore.open(tmp_path / "s") as store:
            table = store.create_table("t", SCHEMA, "k")
            table.upsert(ROWS)
            store.alter_table("t", delete_behavior="disable")
            with pytest.raises(DeletionDisabled):
                table.delete([1])
            store.alter_table("t", delete_behavior="ignore")
            table.delete([1])
            assert rows_of(table) == ROWS
            store.alter_table("t", delete_behavior="allow")
            table.delete([1])
            assert rows_of(table) == ROWS[1:]
            sizes = []
            for compression in (None, "zstd"):
                store.alter_table("t", compression=compression)
                before = _log_bytes(store)
                table.upsert([{"k": n, "v": 0} for n in range(10, 5_000)])
                sizes.append(_log_bytes(store) - before)
            assert sizes[1] < sizes[0] / 2
            assert store.check()

    @pytest.mark.parametrize("idle", [False, True], ids=["with the next write", "at once in this process"])
    def test_changes_expire_by_a_new_retention(self, tmp_path: Path, *, idle: bool) -> None:
        clock = SetClock()
        with Store(tmp_path / "s", StoreOptions(segment_bytes_max=1000), clock=clock) as store:
            table = store.create_table("t", SCHEMA, "k")
            _fill_segments(table, 3)
            clock.now += 2 * 3_600_000
            assert table.offsets()[0][0] == 0
            if idle:
                store.alter_table("t", retention=HOUR)
            else:
                definition = store.runtime.definition("t")
                store.runtime.alterations.alter(definition, lambda now: replace(now.options, retention_ms=3_600_000))
                table.upsert([{"k": 1, "v": 0}])
            wait_until(lambda: table.offsets()[0][0] > 0)
            store.alter_table("t", retention=None)
            table.snapshot()  # after what may be expiring
            start = table.offsets()[0][0]
            _fill_segments(table, 3)
            clock.now += 2 * 3_600_000
            table.bucket(0).handle.retain()
            assert table.offsets()[0][0] == start
            assert store.check()

    def test_what_is_refused(self, tmp_path: Path) -> None:
        with kvstore.open(tmp_path / "s") as store:
            options = store.create_table("t", SCHEMA, "k", merge_engine="first_row").options
            log_options = store.create_table("log", SCHEMA).options
            wrong: list[dict[str, Any]] = [
                {},
                {"compression": "gzip"},
                {"retention": 5},
                {"retention": dt.timedelta(0)},
                {"delete_behavior": "never"},
                {"delete_behavior": "allow"},
            ]
            for each in wrong:
                with pytest.raises(InvalidRequest):
                    store.alter_table("t", **each)
            with pytest.raises(UnsupportedOperation, match="no key"):
                store.alter_table("log", delete_behavior="ignore")
            with pytest.raises(NoSuchTable):
                store.alter_table("x", compression=None)
            assert (store["t"].options, store["log"].options) == (options, log_options)
            store.alter_table("log", retention=HOUR)
            assert store["log"].options.retention_ms == 3_600_000

    def test_lost_edits_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with kvstore.open(path) as store:
            for name in "ab":
                store.create_table(name, SCHEMA, "k", retention=HOUR).upsert(ROWS)
            store.checkpoint()
            store.alter_table("a", compression=None, retention=None)
        shutil.rmtree(path / paths.JOURNAL)
        assert recover(path).restored == ["a"]
        with kvstore.open(path) as store:
            assert store["a"].options == TableOptions(compression=None)
            assert store["b"].options == TableOptions(retention_ms=3_600_000)
            assert store.check()


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

    def test_a_known_edit_after_the_missing_ones_counts_more_than_an_older_file(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with kvstore.open(path) as store:
            store.create_table("a", SCHEMA, "k").upsert(ROWS)
            state = store.runtime.catalog()
            store.rename_table("a", "b")
            old = paths.table_file(path, TableId(1)).read_bytes()
            store.new_writer_id()
            store.rename_table("b", "c")
            stored = store.runtime.journal.edits_after(Txid(3))
        assert stored is not None
        paths.table_file(path, TableId(1)).write_bytes(old)
        shutil.rmtree(path / paths.JOURNAL)
        elsewhere = Elsewhere(state, [decode(each) for each in stored])
        found = salvage(path, store_id_of(path), Files(), elsewhere)
        assert [table.name for table in found.state.tables.values()] == ["c"]

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
