"""What happens seldom and must not cost more than it has to: wide rows, forks, errors in the middle of things."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.committer import Committer
from kvstore.disk.files import Files
from kvstore.disk.lock import Presence, ProcessLock
from kvstore.errors import (
    InvalidRequest,
    LogFailed,
    NoSuchTable,
    SchemaMismatch,
    StoreClosed,
    StoreError,
    StoreFull,
    Unavailable,
)
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.support.processes import ran
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])


def test_a_scan_of_wide_rows_is_cut_by_their_size(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for first in range(0, 600, 200):
        table.upsert(pa.table({"k": range(first, first + 200), "v": ["x" * 200_000] * 200}))
    for _ in ("in memory, unless they were merged meanwhile", "in the index"):
        rows = [batch.num_rows for batch in table.scan()]
        assert sum(rows) == 600
        assert len(rows) > 1
        store.flush()


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
    done = ran(FORK, store_path)
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
def test_a_table_that_can_not_be_created_blocks_no_process(store_path: Path, failure: BaseException) -> None:
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
        thread.join(600)
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


def test_a_large_index_with_damaged_pages_is_rebuilt(store_path: Path) -> None:
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


def test_rows_of_any_size_are_stored_in_batches_that_fit(store: kvstore.Store) -> None:
    """Two rows of 40 MB: both of them are more than a batch may have, and one update of each is not."""
    table = store.create_table("t", SCHEMA, "k", compression=None)
    for letter in "ab":
        result = table.upsert(pa.table({"k": range(2), "v": [letter * 40_000_000] * 2}))
    assert (result.first_offset, result.last_offset) == (2, 5)
    versions = [version for batch in table.changelog(columns=["_commit_version"]) for version in batch[0].to_pylist()]
    assert versions == [0, 1, 2, 2, 4, 4]
    assert table.scan(columns=["v"]).read_all().column("v")[1].as_py() == "b" * 40_000_000


def test_a_batch_of_more_bytes_than_a_log_takes_is_refused_before_anything_is_done(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    wide = pa.array(["x" * 60_000_000])
    rows = pa.record_batch({"k": range(10), "v": wide.take(pa.array([0] * 10))})
    with pytest.raises(InvalidRequest, match="several smaller ones"):
        table.bucket(0).apply(kvstore.Changes.upserts(rows))
    assert table.offsets() == {0: (0, 0)}


@pytest.mark.parametrize("damage", ["text", "offsets", "decimal", "dictionary"])
def test_arrow_data_that_is_not_what_it_says_is_refused(store: kvstore.Store, damage: str) -> None:
    columns = {"k": pa.array([1, 2])}
    if damage == "text":
        columns["v"] = pa.array([b"\xff\xfe", b"a"]).view(pa.string())
    elif damage == "offsets":
        offsets = pa.py_buffer(np.array([0, 1 << 30, 2], np.int32))
        columns["v"] = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    elif damage == "dictionary":
        columns["v"] = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int8()), pa.array([1]), safe=False)
    else:
        digits = pa.py_buffer(np.array([10**12, 0, 1, 0], np.int64))
        columns["v"] = pa.Array.from_buffers(pa.decimal128(5, 2), 2, [None, digits])
    rows = pa.record_batch(columns)
    table = store.create_table(
        "t",
        pa.schema([SCHEMA.field("k"), pa.field("v", pa.int64() if damage == "dictionary" else columns["v"].type)]),
        "k",
    )
    for write in (
        lambda: table.upsert(rows),
        lambda: table.upsert(pa.Table.from_batches([rows])),
        lambda: table.bucket(0).apply(kvstore.Changes.upserts(rows)),
    ):
        with pytest.raises(SchemaMismatch, match="data is invalid"):
            write()
    assert table.offsets() == {0: (0, 0)}


@pytest.mark.parametrize("over", ["closed", "dropped"])
@pytest.mark.parametrize("read", ["scan", "changelog", "full"])
def test_what_is_being_read_ends_with_an_error_when_it_is_gone(store_path: Path, over: str, read: str) -> None:
    store = kvstore.open(store_path)
    table = store.create_table("t", SCHEMA, "k")
    rows = pa.table({"k": range(200_000), "v": ["x"] * 200_000})
    table.upsert(rows)
    batches = iter(table.scan() if read == "scan" else table.changelog("full" if read == "full" else "earliest"))
    next(batches)
    if over == "closed":
        store.close()
    else:
        store.drop_table("t")
    with pytest.raises(StoreClosed if over == "closed" else NoSuchTable):
        list(batches)
    store.close()


def test_a_log_of_many_segments_is_read_with_few_open_files(store_path: Path) -> None:
    with kvstore.open(store_path, segment_bytes_max=2000) as store:
        table = store.create_table("t", SCHEMA, "k")
        for key in range(600):
            table.upsert({"k": key, "v": "x" * 400})
        table.flush()
        assert len(list(store_path.glob("tables/1/0/log/*.log"))) > 100
        open_before = len(os.listdir("/proc/self/fd"))
        seen = 0
        for batch in table.changelog():
            seen += batch.num_rows
            assert len(os.listdir("/proc/self/fd")) < open_before + 10
        assert seen == 600


def test_ids_that_are_given_out_are_not_those_one_chooses(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    chosen = store.new_writer_id()
    for writer in range(3):
        table.bucket(0).apply(kvstore.Changes.of([("upsert", {"k": writer, "v": "a"})], SCHEMA), writer, 0)
    given = store.new_writer_id()
    assert min(chosen, given) >= 2**62
    assert not table.bucket(0).apply(kvstore.Changes.of([("upsert", {"k": 9, "v": "a"})], SCHEMA), given, 0).duplicated


def test_a_reader_beside_a_writer_of_the_same_process_stays_one_when_that_is_closed(store_path: Path) -> None:
    with kvstore.open(store_path) as writing:
        writing.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": "a"})
        reading = kvstore.open(store_path, read_only=True)
        scan = reading.table("t").scan()
        assert reading.table("t").get(1) == {"k": 1, "v": "a"}
    # The lock is given up, and what was acknowledged is committed.
    program = "import sys, kvstore; kvstore.open(sys.argv[1]).table('t').upsert({'k': 2, 'v': 'b'})"
    done = ran(program, store_path)
    assert done.returncode == 0, done.stderr
    assert scan.read_all().to_pylist() == [{"k": 1, "v": "a"}]
    assert reading.table("t").get(2) == {"k": 2, "v": "b"}
    reading.close()


def test_a_reader_that_comes_while_writing_begins_leaves_the_lock_to_the_writer(store: kvstore.Store) -> None:
    """It looked before there was a committer, and goes on once there is one with something that is not committed."""
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": 1, "v": "a"})
    handle = table.bucket(0).handle
    with handle.snapshot() as view:
        assert view.state().applied_offset == 1
    assert handle.writes
    table.upsert({"k": 2, "v": "b"})
    assert table.count() == 2


def descriptor_of(path: Path) -> int:
    """This process's descriptor of an open file."""
    (found,) = (
        int(each.name) for each in Path("/proc/self/fd").iterdir() if each.is_symlink() and each.resolve() == path
    )
    return found


@pytest.mark.parametrize("kind", [ProcessLock, Presence])
def test_a_lock_ends_though_a_child_that_is_being_started_has_its_descriptor(
    tmp_path: Path, kind: type[ProcessLock | Presence]
) -> None:
    """Between fork and exec a child has all descriptors; it must not have the locks too."""
    lock = kind(tmp_path / "LOCK")
    if isinstance(lock, ProcessLock):
        lock.acquire()
    else:
        lock.show()
    of_the_child = os.dup(descriptor_of(tmp_path / "LOCK"))
    lock.release()
    next_one = ProcessLock(tmp_path / "LOCK")
    assert next_one.try_acquire()
    next_one.release()
    os.close(of_the_child)


def test_a_table_is_dropped_though_the_disk_keeps_its_files(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so; they go with the next one that is created."""
    store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": None}])

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Files, "remove_tree", refuse)
        with pytest.raises(LogFailed):
            store.drop_table("t")
    assert store.list_tables() == []
    assert store.create_table("t", SCHEMA, "k").count() == 0
    assert [path.name for path in (store.path / "tables").iterdir()] == ["2"]
