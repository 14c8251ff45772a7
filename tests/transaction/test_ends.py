"""Commits of small transactions stay open until the logs are durable; what becomes of them if a log fails."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.commit import ends
from kvstore.commit.coordinator import Commits
from kvstore.commit.ends import OpenEnds
from kvstore.errors import LogFailed, StoreFull
from kvstore.log.segment_writer import SegmentWriter
from kvstore.meta.state import CatalogState
from kvstore.meta.table_files import DefinitionEdit, TableFiles
from kvstore.meta.writers import OpenCommit
from kvstore.table.alteration import Alterations
from logformat.ids import TableId
from tests.support.tables import rows_of

TABLES = {"a": 1, "b": 2, "c": 1, "d": 1}
"""Names, and numbers of buckets."""


@pytest.fixture(autouse=True)
def ends_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commits end only where something syncs the logs."""
    monkeypatch.setattr(ends, "OPEN_SECONDS", 600.0)


def opened(path: Path, **settings: object) -> kvstore.Store:
    store = kvstore.open(path, commit_idle_ms=60_000, commit_wait_ms=60_000, **settings)  # type: ignore[call-overload]
    for name, buckets in TABLES.items():
        store.create_table(name, {"k": "int64", "v": "int64"}, primary_key="k", buckets=buckets)
    put(store, "abcd", 0)  # the name under which transactions are counted is made once
    store.flush()
    ends_of(store).settle()
    return store


def put(store: kvstore.Store, tables: str, value: int) -> None:
    with store.transaction() as tx:
        for name in tables:
            tx.upsert(name, [{"k": k, "v": value} for k in range(4)])


def values(store: kvstore.Store) -> dict[str, set[int]]:
    return {name: {row["v"] for row in rows_of(store[name])} for name in TABLES}


def table_id(store: kvstore.Store, name: str) -> TableId:
    return store.runtime.definition(name).id


def ends_of(store: kvstore.Store) -> OpenEnds:
    return store.runtime.open_table(store.runtime.definition("d")).commits.ends


def open_commits(store: kvstore.Store, name: str) -> tuple[OpenCommit, ...]:
    return store.runtime.catalog().writers_of(table_id(store, name)).commits


def fail(monkeypatch: pytest.MonkeyPatch, table: TableId, code: int) -> None:
    """Have the log of a table refuse every sync."""
    sync = SegmentWriter.sync

    def failing(segment: SegmentWriter) -> None:
        if segment.head.table_id == table:
            raise OSError(code, "refused")
        sync(segment)

    monkeypatch.setattr(SegmentWriter, "sync", failing)


def test_a_failed_log_stops_no_other_tables_commits(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(store_path)
    put(store, "ab", 1)
    put(store, "cd", 1)
    with monkeypatch.context() as patched:
        fail(patched, table_id(store, "a"), errno.EIO)
        with pytest.raises(LogFailed, match="The catalog has what was acknowledged last"):
            ends_of(store).settle()
        assert [len(open_commits(store, name)) for name in TABLES] == [1, 0, 0, 0]
        put(store, "cd", 2)
        ends_of(store).settle()
        assert [len(open_commits(store, name)) for name in TABLES] == [1, 0, 0, 0]
        with pytest.raises(LogFailed):
            put(store, "ab", 3)
        store.close()
    with kvstore.open(store_path) as again:
        put(again, "cd", 4)
        assert values(again) == {"a": {1}, "b": {1}, "c": {4}, "d": {4}}
        assert again.check().ok


def test_a_full_disk_is_tried_again(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(store_path) as store:
        put(store, "ab", 1)
        with monkeypatch.context() as patched:
            fail(patched, table_id(store, "a"), errno.ENOSPC)
            with pytest.raises(StoreFull):
                ends_of(store).settle()
            assert open_commits(store, "a")
        ends_of(store).settle()
        assert not open_commits(store, "a")
        put(store, "ab", 2)
        assert values(store) == {"a": {2}, "b": {2}, "c": {0}, "d": {0}}
        assert store.check().ok


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_failed_log_says_what_may_be_lost(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    store = opened(store_path, durability="interval", sync_interval_ms=60_000)
    put(store, "ab", 1)
    if is_lost:
        store["a"].upsert({"k": 9, "v": 1})
    with monkeypatch.context() as patched:
        fail(patched, table_id(store, "a"), errno.EIO)
        with pytest.raises(LogFailed, match="may be lost" if is_lost else "The catalog has"):
            store["a"].flush()
        with suppress(LogFailed):
            store.close()
    with kvstore.open(store_path) as again:
        assert {row["v"] for row in rows_of(again["b"])} == {1}
        assert [again["a"][k] for k in range(4)] == [{"k": k, "v": 1} for k in range(4)]


def test_a_check_waits_for_the_end_of_a_commit(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(store_path) as store:
        put(store, "ab", 1)
        assert open_commits(store, "a")
        settle, calls = Commits.settle, []

        def settle_later(commits: Commits) -> None:
            calls.append(commits)
            if len(calls) > 1:  # another process has the turn before
                settle(commits)

        monkeypatch.setattr(Commits, "settle", settle_later)
        report = store.check()
        assert report, report
        assert not open_commits(store, "a")


def test_a_table_that_is_dropped_meanwhile(store_path: Path) -> None:
    with opened(store_path) as store:
        put(store, "ab", 1)
        put(store, "bc", 2)
        store.drop_table("a")
        ends_of(store).settle()
        assert not open_commits(store, "b")
        assert not open_commits(store, "c")


def test_open_commits_have_their_rows_in_the_edit(store_path: Path) -> None:
    """Also those of one table: so kvstore 0.1.0, which knows five batches of a writer, refuses the store by name."""
    with opened(store_path) as store:
        for number in range(7):
            put(store, "b", number)
        assert len(open_commits(store, "b")) == 7
        assert all(each.staged for each in open_commits(store, "b"))
        assert not list((store_path / "staging").glob("*"))


def test_rows_that_are_too_long_for_an_edit_are_durable_with_the_answer(store_path: Path) -> None:
    with opened(store_path) as store:
        store.create_table("texts", {"k": "int64", "text": "string"}, primary_key="k", buckets=2)
        for tables in (("texts",), ("a", "texts")):
            put(store, "a", 1)
            with store.transaction() as tx:
                for name in tables:
                    tx.upsert(
                        name, [{"k": k, **({"text": "x" * 3000} if name == "texts" else {"v": 2})} for k in range(3)]
                    )
            assert not open_commits(store, "texts")
            assert not list((store_path / "staging").glob("*"))
        assert [store["texts"][k]["text"] for k in range(3)] == ["x" * 3000] * 3


def test_no_commit_ends_before_its_logs_are_durable(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the turn of a table completes its commits; a log that has the rows may still lose them."""
    with opened(store_path) as store:
        put(store, "ab", 1)
        commits = store.runtime.open_table(store.runtime.definition("a")).commits
        with monkeypatch.context() as patched:
            fail(patched, table_id(store, "a"), errno.ENOSPC)
            with pytest.raises(StoreFull), commits.turn():
                pass
            assert open_commits(store, "a")
        with commits.turn():
            assert not open_commits(store, "a")
        put(store, "ab", 2)
        assert values(store) == {"a": {2}, "b": {2}, "c": {0}, "d": {0}}
        assert store.check().ok


def test_options_change_once_the_commits_before_have_ended(store_path: Path) -> None:
    """Else a batch that a power cut takes would be appended again by other rules."""
    with opened(store_path) as store:
        put(store, "ab", 1)
        assert open_commits(store, "a")
        store.alter_table("a", delete_behavior="disable")
        assert not open_commits(store, "a")


def test_a_commit_that_comes_before_the_change_of_options_ends_before_it(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, values = TableFiles.before, iter([1, 2])

    def overtaken(self: TableFiles, state: CatalogState, edit: DefinitionEdit) -> DefinitionEdit:
        opened_at_edit.append(state.writers_of(edit.table_id).commits)
        return before(self, state, edit)

    opened_at_edit: list[tuple[OpenCommit, ...]] = []
    with opened(store_path) as store:
        alter = Alterations.alter

        def late(*given: Any, **named: Any) -> None:
            if (value := next(values, None)) is not None:
                put(store, "ab", value)
            alter(*given, **named)

        monkeypatch.setattr(Alterations, "alter", late)
        monkeypatch.setattr(TableFiles, "before", overtaken)
        store.alter_table("a", delete_behavior="disable")
        assert opened_at_edit == [()]
        monkeypatch.undo()
