"""Undo and reads of earlier states: what they fold, by offset and by time. Any history: test_against_model."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import OffsetOutOfRange, UnsupportedOperation
from kvstore.log.segments import LogFiles
from kvstore.options import StoreOptions
from kvstore.read import time_travel as undo
from kvstore.store.store import Store
from tests.support.clocks import SetClock
from tests.support.tables import operations_of, rows_of

SCHEMA = pa.schema([pa.field("v", pa.int64()), pa.field("k", pa.string(), False)])


def test_each_key_appears_once_in_key_order(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    then = table.upsert([{"k": key, "v": 1} for key in "cab"])
    table.upsert([{"k": key, "v": 2} for key in "dcb"])
    table.delete(["c", "d"])
    table.upsert([{"k": key, "v": 3} for key in "dcb"])
    changes = table.undo(then.first_offset + 3)
    assert operations_of(changes) == [
        ("upsert", {"v": 1, "k": "b"}), ("upsert", {"v": 1, "k": "c"}), ("delete", {"v": 2, "k": "d"})
    ]  # fmt: skip
    table.apply(changes)
    assert rows_of(table) == [{"v": 1, "k": key} for key in "abc"]
    assert len(table.undo("latest")) == 0
    assert operations_of(table.undo("earliest")) == operations_of(table.undo({0: 0}))
    table.apply(table.undo("earliest"))
    assert rows_of(table) == []


@pytest.mark.parametrize("fold_rows", [1, 7, 100])
def test_incremental_folding_changes_nothing(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, fold_rows: int
) -> None:
    table = store.create_table("t", SCHEMA, "k")
    choose = random.Random(fold_rows)
    states = {}
    for step in range(20):
        table.upsert([{"k": str(key), "v": step} for key in choose.sample(range(30), 7)])
        table.delete([str(key) for key in choose.sample(range(30), 3)])
        if step % 4 == 1:
            states[table.offsets()[0][1]] = rows_of(table)
    monkeypatch.setattr(undo, "FOLD_ROWS", fold_rows)
    monkeypatch.setattr("kvstore.read.changelog.READ_ROWS", 1)
    sizes = []
    folded = undo.fold
    monkeypatch.setattr(undo, "fold", lambda batches, *rest: sizes.append(len(batches)) or folded(batches, *rest))
    for offset, rows in states.items():
        assert rows_of(table, as_of=offset) == rows
        ours = table.scan(columns=["v"], as_of=offset).read_all()
        assert ours.column("v").to_pylist() == [row["v"] for row in rows]
    assert len(sizes) > 2 * len(states)
    offset = next(iter(states))
    table.apply(table.undo(offset))
    assert rows_of(table) == states[offset]


def test_waiting_changes_are_bounded_by_the_changed_keys(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for step in range(60):
        table.upsert([{"k": str(key), "v": step} for key in range(10)])
    monkeypatch.setattr(undo, "FOLD_ROWS", 50)
    monkeypatch.setattr("kvstore.read.changelog.READ_ROWS", 1)
    rows = []
    folded = undo.fold
    monkeypatch.setattr(
        undo, "fold", lambda batches, *rest: rows.append(sum(map(len, batches))) or folded(batches, *rest)
    )
    assert len(table.undo(10)) == 10
    assert max(rows) <= 50 + 10 + 10


def test_rows_as_of_a_time_are_those_before_the_first_commit_at_or_after_it(store_path: Path) -> None:
    clock = SetClock(1_000)

    def at(ms: float) -> dt.datetime:
        return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)

    with Store(store_path, StoreOptions(), clock=clock) as store:
        table = store.create_table("t", SCHEMA, "k")
        for clock.now in (1_000, 2_000, 2_000, 3_000):
            table.upsert({"k": "a", "v": clock.now + table.count()})
        found = {ms: rows_of(table, as_of=at(ms)) for ms in (999, 1_000, 1_000.5, 2_000, 2_000.5, 3_000, 3_001, 9_999)}
        values = {ms: rows[0]["v"] if rows else None for ms, rows in found.items()}
        assert values == {
            999: None, 1_000: None, 1_000.5: 1_000, 2_000: 1_000, 2_000.5: 2_001, 3_000: 2_001, 3_001: 3_001,
            9_999: 3_001,
        }  # fmt: skip
        for ms, value in values.items():
            undone = operations_of(table.undo(at(ms)))
            changed = [] if value == 3_001 else [("delete", {"v": 1_000, "k": "a"})]
            assert undone == (changed if value is None else [("upsert", {"v": value, "k": "a"})] if changed else [])


def test_a_time_before_the_log_start_is_refused(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for step in range(3):
        table.upsert({"k": "a", "v": step})
    monkeypatch.setattr(LogFiles, "bases", lambda _: [1])
    monkeypatch.setattr(LogFiles, "first_at_or_after", lambda *_: 1)
    with pytest.raises(OffsetOutOfRange, match="reach back"):
        table.scan(as_of=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))


def test_undo_with_a_merging_engine_overwrites(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", merge_engine=kvstore.Aggregate({"v": "sum"}))
    table.upsert([{"k": key, "v": 1} for key in "abc"])
    then = rows_of(table)
    table.upsert([{"k": key, "v": 5} for key in "bcd"])
    table.upsert([{"k": key, "v": 7} for key in "de"])
    table.bucket(0).apply(table.undo(3), overwrite=True)
    assert rows_of(table) == then


def test_a_wal_image_can_not_be_undone_and_has_no_binlog(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", changelog_image="wal")
    table.upsert({"k": "a", "v": 1})
    table.upsert({"k": "a", "v": 2})
    with pytest.raises(UnsupportedOperation, match="WAL image"):
        table.undo(1)
    with pytest.raises(UnsupportedOperation, match="WAL image"):
        table.scan(as_of=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    with pytest.raises(UnsupportedOperation, match="WAL image"):
        table.binlog()
