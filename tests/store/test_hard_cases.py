"""What happens seldom and must not cost more than it has to: wide rows, forks, errors in the middle of things."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import StoreClosed, StoreError, StoreFull, Unavailable
from kvstore.files import Files
from kvstore.lock import ProcessLock
from kvstore.options import StoreOptions
from kvstore.store import Store
from kvstore.table.committer import Committer
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])


def test_a_scan_of_wide_rows_is_cut_by_their_size(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for first in range(0, 600, 200):
        table.upsert(pa.table({"k": range(first, first + 200), "v": ["x" * 200_000] * 200}))
    rows = [batch.num_rows for batch in table.scan()]
    assert sum(rows) == 600
    assert len(rows) > 1


@pytest.mark.parametrize("width", [1, 3, 7, 12, 20])
def test_a_sliced_column_of_any_width_is_stored_and_checked(store: kvstore.Store, width: int) -> None:
    """Arrow pads the buffers of what it writes, so they may be longer than their values."""
    values = pa.array([bytes([n]) * width for n in range(10)], pa.binary(width))
    rows = pa.record_batch({"k": pa.array(range(10)), "v": values})
    padded = pa.Array.from_buffers(values.type, 10, [None, pa.py_buffer(values.buffers()[1].to_pybytes() + b"\0\0")])
    table = store.create_table("t", rows.schema, "k")
    table.upsert(rows.slice(2, 3))
    table.upsert(pa.record_batch([rows.column("k"), padded], names=["k", "v"]))
    other = store.create_table("other", rows.schema, "k")
    for batch in table.changelog(columns=["k", "v"]):
        other.upsert(batch)
    assert store.check()
    assert rows_of(other) == rows_of(table) == rows.to_pylist()


FORK = """
import os, sys, pyarrow as pa, kvstore
with kvstore.open(sys.argv[1], commit_wait_ms=10, commit_idle_ms=10) as store:
    table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())]), "k")
    def fill(v):
        table.upsert(pa.table({"k": range(100_000), "v": [v * 100] * 100_000}))
        table.flush()
    fill("x")
    scan = table.scan()
    first = scan.read_next_batch()
    if os.fork() == 0:
        del scan
        os._exit(0)
    os.wait()
    for v in "abcde":
        fill(v)
    seen = {first["v"][0].as_py()[0]} | {v[0] for batch in scan for v in set(batch["v"].to_pylist())}
    print(*seen)
"""


def test_a_forked_child_takes_no_scan_from_its_parent(store_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, store_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["x"]), done.stderr


class Interrupted(BaseException):
    """Like a KeyboardInterrupt."""


class Refusing(Files):
    def __init__(self) -> None:
        self.failure: BaseException | None = None

    def make_directory(self, path: Path) -> None:
        if self.failure is not None:
            raise self.failure
        super().make_directory(path)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), Interrupted()])
def test_a_table_that_can_not_be_created_blocks_nobody(store_path: Path, failure: BaseException) -> None:
    files = Refusing()
    with Store(store_path, StoreOptions(), files=files) as store:
        files.failure = failure
        with pytest.raises((StoreError, Interrupted)) as kept:  # keeps the traceback, and what is in its frames
            store.create_table("t", SCHEMA, "k")
        files.failure = None
        assert isinstance(kept.value, StoreFull if isinstance(failure, OSError) else Interrupted)
        others: list[int] = []
        thread = threading.Thread(target=lambda: others.append(store.new_writer_id()), daemon=True)
        thread.start()
        thread.join(10)
        assert len(others) == 1
        store.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": "a"})
        assert store.check()


def test_files_of_others_among_the_tables_are_left_alone(store: kvstore.Store) -> None:
    store.create_table("one", SCHEMA, "k")
    tables = store.path / "tables"
    (tables / ".DS_Store").write_text("mine")
    (tables / "²").mkdir()
    store.create_table("two", SCHEMA, "k")
    assert (tables / ".DS_Store").read_text() == "mine"
    assert store.check()


def test_a_close_that_fails_gives_everything_up_all_the_same(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kvstore.open(store_path)
    for name in ("a", "b"):
        store.create_table(name, SCHEMA, "k").upsert({"k": 1, "v": name})

    close = Committer.close

    def interrupted(committer: Committer) -> None:
        close(committer)
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "close", interrupted)
        with pytest.raises(Interrupted):
            store.close()
    with kvstore.open(store_path) as store:
        for name in ("a", "b"):
            assert store.table(name).get(1) == {"k": 1, "v": name}


def test_a_full_disk_does_not_keep_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        first = ProcessLock(tmp_path / "LOCK")
        first.acquire()
        first.release()
    second = ProcessLock(tmp_path / "LOCK")
    assert second.try_acquire()
    second.release()


def test_a_large_index_with_damaged_pages_is_built_anew(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(pa.record_batch([np.arange(100_000), pa.array(["v" * 40] * 100_000)], schema=SCHEMA))
    data = store_path / "tables/1/0/index/data.mdb"
    assert data.stat().st_size > 4 << 20
    damaged = bytearray(data.read_bytes())
    for page in range(2, len(damaged) // 4096):
        if damaged[page * 4096 + 10] & 3:  # a branch or a leaf
            damaged[page * 4096 + 10 : page * 4096 + 12] = bytes(2)
    data.write_bytes(damaged)
    with kvstore.open(store_path) as store:
        assert store.table("t").count() == 100_000
        assert store.check()


def test_a_log_that_lost_its_first_segment_is_named(store_path: Path) -> None:
    with kvstore.open(store_path, segment_bytes_max=1000) as store:
        table = store.create_table("t", SCHEMA, "k")
        for k in range(50):
            table.upsert({"k": k, "v": "x" * 100})
    first, *_ = sorted((store_path / "tables/1/0/log").glob("*.log"))
    first.unlink()
    for lose_index in (False, True):
        if lose_index:
            shutil.rmtree(store_path / "tables/1/0/index")
        with kvstore.open(store_path) as store:
            assert not store.check()


def test_a_scan_is_over_when_its_store_is_closed(store_path: Path) -> None:
    store = kvstore.open(store_path)
    table = store.create_table("t", SCHEMA, "k")
    table.upsert(pa.table({"k": range(100_000), "v": ["v"] * 100_000}))
    scan = table.scan()
    scan.read_next_batch()
    store.close()
    with pytest.raises(StoreClosed):
        scan.read_all()


def test_more_scans_than_there_are_slots_is_said_in_time(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": 1, "v": "a"})
    table.flush()
    with pytest.raises(Unavailable):
        _ = [table.scan() for _ in range(2000)]
    assert table.count() == 1
