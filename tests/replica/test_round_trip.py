"""What is shipped comes back: to the end, to an offset of each bucket, to a time."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import shutil
import threading
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk.lock import directory_taken
from kvstore.errors import NotAStore, StoreLocked
from tests.support.replicas import SCHEMA, write
from tests.support.tables import rows_of

UTC = dt.UTC


def changes_of(table: kvstore.Table) -> list[dict[str, Any]]:
    return [row for batch in table.changelog() for row in batch.to_pylist()]


def test_a_whole_store_is_restored(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=3)
        replica = store.add_replica(str(tmp_path / "r"), "r")
        assert replica.ship().objects
        random, epoch = Random(5), 0
        for step in range(40):
            epoch = write(table, random, step, epoch)
            if step % 10 == 5:
                store.flush()
                replica.ship()
        store.add_columns("t", [pa.field("w", pa.string())])
        table.upsert([{"k": 77, "v": 1, "w": "ü"}])
        store.create_table("events", SCHEMA, None).upsert([{"k": 1, "v": 1}])
        store.flush()
        assert replica.report().behind["t"] > 0
        replica.ship()
        assert replica.ship().objects == 0
        report = replica.check()
        assert report
        assert report.behind == {"t": 0, "events": 0}
        rows, changes = rows_of(table), changes_of(table)
        ends = {name: {b: end for b, (_, end) in store.table(name).offsets().items()} for name in ("t", "events")}
    (tmp_path / "back").mkdir()
    descriptor = os.open(tmp_path / "back", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # as a restore of another process does
    with pytest.raises(StoreLocked, match="Another restore writes into this directory"):
        kvstore.restore(str(tmp_path / "r"), tmp_path / "back")
    os.close(descriptor)
    assert kvstore.restore(str(tmp_path / "r"), tmp_path / "back").ends == ends
    with kvstore.open(tmp_path / "back") as store:
        assert (store.list_tables(), store.replicas) == (["events", "t"], {})
        table = store.table("t")
        assert (rows_of(table), changes_of(table)) == (rows, changes)
        assert store.check()
        again = kvstore.Changes.of([("upsert", {"k": 1, "v": -1, "w": None})], table.schema)
        table.apply_epoch(again, "w", epoch - 1, "r")
        assert {b: end for b, (_, end) in table.offsets().items()} == ends["t"]
        table.apply_epoch(again, "w", epoch, "r")
        store.create_table("new", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        assert store.check()


def test_a_directory_that_another_restore_has_filled_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("a", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        store.add_replica(str(tmp_path / "r"), "r").ship()

    def taken_later(path: Path, refusal: str) -> AbstractContextManager[None]:
        monkeypatch.undo()
        kvstore.restore(str(tmp_path / "r"), path)
        return directory_taken(path, refusal)

    monkeypatch.setattr("kvstore.replica.read.restore.directory_taken", taken_later)
    with pytest.raises(NotAStore, match="new or empty"):
        kvstore.restore(str(tmp_path / "r"), tmp_path / "back")
    with kvstore.open(tmp_path / "back") as store:
        assert store["a"].count() == 1


def test_two_restores_into_one_directory_at_once(tmp_path: Path) -> None:
    """One of them has it; the other one is refused, or finds it full."""
    with kvstore.open(tmp_path / "s") as store:
        for name in "abc":
            store.create_table(name, SCHEMA, "k").upsert([{"k": k, "v": k} for k in range(500)])
        middle = {name: {0: 200} for name in "abc"}
        store.add_replica(str(tmp_path / "r"), "r").ship()
    done: list[kvstore.Restored] = []

    def restore(target: Any) -> None:
        with suppress(StoreLocked, NotAStore):
            done.append(kvstore.restore(str(tmp_path / "r"), tmp_path / "back", to=target))

    for _ in range(3):
        threads = [threading.Thread(target=restore, args=(target,)) for target in (None, middle)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (one,) = done
        with kvstore.open(tmp_path / "back") as store:
            assert {name: store[name].offsets()[0][1] for name in "abc"} == {
                name: ends[0] for name, ends in one.ends.items()
            }
            assert store.check()
        done.clear()
        shutil.rmtree(tmp_path / "back")
