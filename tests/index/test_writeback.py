"""Early write-back of large commits: the commit is correct whatever becomes of the early syncs."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.index import writeback

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
BYTES = 1_000


@pytest.fixture(autouse=True)
def _large_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "BYTES_MIN", 1 << 20)


def large(letter: str) -> pa.RecordBatch:
    """Rows large enough to make a commit large."""
    count = 2 * writeback.BYTES_MIN // BYTES
    return pa.record_batch([range(count), [letter * BYTES] * count], schema=SCHEMA)


def assert_written(path: Path) -> None:
    """Write a small commit and a large one of existing rows; all are there after a reopen."""
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(large("w"))
        table.flush()
        table.upsert([{"k": -1, "v": "small"}])
        table.flush()
        table.upsert(large("v"))
    with kvstore.open(path) as store:
        assert store.check().ok
        assert store.table("t").count() == large("v").num_rows + 1


def test_the_disk_starts_while_a_large_commit_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    sync = os.fdatasync

    def seen(descriptor: int) -> None:
        if threading.current_thread().name == "kvstore-writeback":
            names.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", seen)
    assert_written(tmp_path / "s")
    assert names == {"data.mdb"}
    assert "kvstore-writeback" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("name", ["fdatasync", "open"])
def test_a_failed_early_sync_is_no_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB's own sync decides whether the commit is durable."""
    call = getattr(os, name)

    def refuse(*arguments: object, **others: object) -> object:
        if threading.current_thread().name == "kvstore-writeback":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*arguments, **others)

    monkeypatch.setattr(os, name, refuse)
    assert_written(tmp_path / "s")


def test_a_process_without_free_threads_commits_without_early_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "kvstore-writeback":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert_written(tmp_path / "s")
