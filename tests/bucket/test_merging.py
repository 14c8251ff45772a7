"""A merge goes on in slices: at each moment between two of them everything is seen, by every reader, also after a kill.

The moments are copies of the store's directory, as a kill of the process would leave it.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.errors import CorruptData
from kvstore.log.published import EndPublisher
from kvstore.memtable.memtable import Memtable
from kvstore.repair.store import repair
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
ROWS = 40
NEVER_DUE: dict[str, Any] = {"commit_wait_ms": 3_600_000, "commit_idle_ms": 3_600_000, "segment_bytes_max": 1500}
"""Merges begin by a flush; a segment of the log has few batches."""
Rows = dict[int, dict[str, Any]]


@dataclass
class Moments:
    """Copies of a store's directory, made after each slice but the last of a merge.

    Attributes:
        kept: The copies.
    """

    directory: Path
    store: Path
    look: Callable[[], object] = lambda: None
    kept: list[Path] = field(default_factory=list)

    def keep(self) -> None:
        copy = self.directory / str(len(self.kept))
        shutil.copytree(self.store, copy)
        self.kept.append(copy)
        self.look()


@contextmanager
def small_slices(rows: int, after: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Slices of so many rows, with a call after each but the last."""
    merge_slice = Memtable.merge_slice

    def and_look(self: Memtable, share: float = 1.0) -> bool:
        is_whole = merge_slice(self, share)
        if self.is_merging:
            after()
        return is_whole

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstore.memtable.memtable.SLICE_ROWS", rows)
        patch.setattr("kvstore.memtable.memtable.SLICE_ROWS_MAX", rows)
        patch.setattr(Memtable, "merge_slice", and_look)
        yield


def write(table: kvstore.Table, model: Rows, step: int) -> None:
    """Some updates, inserts and deletes."""
    batch = [{"k": k, "v": step, "s": f"{step}-{k}"} for k in range(step % 3, ROWS, 3)]
    table.upsert(batch)
    model |= {row["k"]: row for row in batch}
    gone = list(range(step, ROWS, 7))
    table.delete([{"k": k} for k in gone])
    for k in gone:
        model.pop(k, None)


def assert_is(table: kvstore.Table, model: Rows) -> None:
    assert {row["k"]: row for row in rows_of(table)} == model
    assert table.count() == len(model)
    assert [table.get(k) for k in range(ROWS)] == [model.get(k) for k in range(ROWS)]
    found = table.lookup([{"k": k} for k in range(ROWS)]).to_pylist()
    assert [row["v"] for row in found] == [model.get(k, {"v": None})["v"] for k in range(ROWS)]


@pytest.fixture
def moments(store_path: Path, tmp_path: Path) -> tuple[Moments, Rows]:
    """Moments of a merge of a table, and the rows of the table at each."""
    model: Rows = {}
    found = Moments(tmp_path / "moments", store_path)
    with kvstore.open(store_path, **NEVER_DUE) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        write(table, model, 0)
        store.flush()
        for step in range(1, 4):
            write(table, model, step)
        with small_slices(5, found.keep):
            store.flush()
        assert_is(table, model)
    assert 4 <= len(found.kept) <= 8
    return found, model


def test_a_killed_merge_hides_nothing_from_readers(moments: tuple[Moments, Rows]) -> None:
    found, model = moments
    for copy in found.kept:
        with kvstore.open(copy, read_only=True) as store:
            assert_is(store.table("t"), model)
            assert not store.check().findings


def test_the_next_writer_completes_it(moments: tuple[Moments, Rows]) -> None:
    found, model = moments
    for number, copy in enumerate(found.kept):
        later = dict(model)
        with kvstore.open(copy) as store:
            table = store.table("t")
            if number % 2:
                assert_is(table, later)
            write(table, later, 9)
            assert_is(table, later)
        with kvstore.open(copy) as store:
            assert_is(store.table("t"), later)
            assert not store.check().findings


def test_a_merge_that_is_killed_again_is_completed(moments: tuple[Moments, Rows], tmp_path: Path) -> None:
    found, model = moments
    again = Moments(tmp_path / "again", found.kept[1])
    with small_slices(3, again.keep), kvstore.open(found.kept[1]) as store:
        write(store.table("t"), model, 5)
        store.flush()
    assert again.kept
    (log,) = (copy for copy in again.kept[-1:])
    with kvstore.open(log) as store:
        assert_is(store.table("t"), model)
        assert not store.check().findings


def test_repair_completes_it(moments: tuple[Moments, Rows]) -> None:
    found, model = moments
    copy = found.kept[2]
    # A damaged segment before the changes that are merged: rows of before it are in the index alone.
    repair(copy, accept_loss=False)
    with kvstore.open(copy, read_only=True) as store:
        assert_is(store.table("t"), model)


def test_a_merge_whose_log_is_lost_is_refused(moments: tuple[Moments, Rows]) -> None:
    found, _ = moments
    copy = found.kept[2]
    for segment in sorted(copy.glob("tables/*/*/log/*.log"))[-3:]:
        segment.write_bytes(segment.read_bytes()[:64])
    with kvstore.open(copy) as store, pytest.raises(CorruptData):
        store.table("t").upsert({"k": 1})


def reader(pipe: Pipe, store_path: Path) -> None:
    """Looks at the store each time it is asked, in a process that has it open."""
    with kvstore.open(store_path, read_only=True) as store:
        while (asked := pipe.recv()) is not None:
            model, backup = asked
            assert_is(store.table("t"), model)
            assert not store.check().findings
            with kvstore.open(store_path) as fresh:
                assert_is(fresh.table("t"), model)
                fresh.backup(backup)
            pipe.send("right")


@pytest.mark.parametrize("is_published", [True, False])
def test_others_see_everything_while_it_goes_on(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_published: bool
) -> None:
    """Also if the disk refuses the file that says how far the log is durable: the merge says it, too."""
    model: Rows = {}
    backups: list[Path] = []
    with kvstore.open(store_path, **NEVER_DUE) as store, Child(reader, store_path) as child:
        table = store.create_table("t", SCHEMA, primary_key="k")

        def look() -> None:
            backups.append(tmp_path / f"backup-{len(backups)}")
            child.say((model, backups[-1]))
            assert child.hear() == "right"

        for step in range(4):
            write(table, model, step)
            if not is_published:
                monkeypatch.setattr(EndPublisher, "publish", lambda *_: None)
        with small_slices(7, look):
            store.flush()
        child.say(None)
        assert child.join() == 0
    assert len(backups) >= 3
    for backup in backups:
        with kvstore.open(backup) as store:
            assert_is(store.table("t"), model)
            assert not store.check().findings


def test_writes_go_on_while_it_does(store_path: Path) -> None:
    """The memtable's limit is small, so that merges begin between writes, and go on as these come."""
    model: Rows = {}
    halfway: list[None] = []
    with small_slices(4, lambda: halfway.append(None)), kvstore.open(store_path, memtable_bytes=20_000) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        for step in range(60):
            write(table, model, step % 11)
            if step % 5 == 0:
                assert_is(table, model)
        assert_is(table, model)
    assert halfway
    with kvstore.open(store_path) as store:
        assert_is(store.table("t"), model)
        assert not store.check().findings


def test_what_comes_during_a_merge_is_durable_in_time(store_path: Path) -> None:
    begun = threading.Event()
    with (
        small_slices(1, begun.set),
        kvstore.open(
            store_path, durability="interval", sync_interval_ms=50, commit_wait_ms=50, commit_idle_ms=3_600_000
        ) as store,
    ):
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert([{"k": k, "v": 0, "s": "s"} for k in range(200)])
        assert begun.wait(60)
        table.upsert({"k": 1000, "v": 0, "s": "s"})
        wait_until(lambda: table.bucket(0).handle.committed().applied_offset == 201)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 15), st.integers(-9, 9)), max_size=12), min_size=2, max_size=8))
def test_sums_are_not_counted_twice(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, int]]]
) -> None:
    directory = tmp_path_factory.mktemp("sums")
    sums: dict[int, int] = {}
    found = Moments(directory / "moments", directory / "store")
    with kvstore.open(found.store, **NEVER_DUE) as store:
        table = store.create_table(
            "t",
            {"k": "int64", "v": "int64"},
            primary_key="k",
            merge_engine=kvstore.Aggregate({"v": "sum"}),
        )
        for number, batch in enumerate(batches):
            table.upsert([{"k": k, "v": v} for k, v in batch])
            for k, v in batch:
                sums[k] = sums.get(k, 0) + v
            if number == 0:
                store.flush()
        with small_slices(2, found.keep):
            store.flush()
    for copy in found.kept:
        with kvstore.open(copy, read_only=True) as store:
            assert {row["k"]: row["v"] for row in rows_of(store.table("t"))} == sums
        with kvstore.open(copy) as store:
            store.table("t").upsert([{"k": k, "v": 1} for k in range(16)])
            after = {k: sums.get(k, 0) + 1 for k in range(16)}
            assert {row["k"]: row["v"] for row in rows_of(store.table("t"))} == after
            assert not store.check().findings


def test_a_writer_and_a_commit_over_tables_begin_without_a_merge(store_path: Path) -> None:
    """They need what is acknowledged, wherever it is; after a recovery a merge of all of it takes seconds."""
    with kvstore.open(store_path, **NEVER_DUE) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert({"k": 1, "v": 1, "s": "a"})
        with store.transaction() as tx:
            tx.upsert("t", {"k": 2, "v": 2, "s": "b"})
        with table.writer("w") as writer:
            writer.upsert({"k": 3, "v": 3, "s": "c"})
        assert store.health().merges == 0
        assert table.count() == 3
