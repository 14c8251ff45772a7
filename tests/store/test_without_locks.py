"""Stores whose lock files may not be written, as on a read-only mount: they are read, and what is read is right."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk import lmdb_files
from kvstore.disk.environment import Environment, open_environment
from kvstore.disk.files import Files
from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import CorruptData, Unavailable, UnsupportedOperation
from tests.store.helpers import Program, run

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
ROWS = [{"k": key, "v": key} for key in range(2000)]

READER = """
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with kvstore.open(path, read_only=True) as store:
    assert store.list_tables() == ["t"]
    table = store.table("t")
    assert table.count() == table.scan().read_all().num_rows == 2000
    assert table.get(7) == {"k": 7, "v": 7}
    assert sum(1 for _ in table.changelog()) > 0
    assert table.writers == {} and store.consumers == {}
    assert store.health().txid > 0
    assert store.check()
    try:
        table.upsert({"k": 1, "v": 2})
    except UnsupportedOperation:
        print("read")
"""
"""Reads everything, as a user who may write nothing."""

WRITER = """
store = kvstore.open(path, commit_wait_ms=60_000, commit_idle_ms=60_000)
table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())]), "k")
table.upsert([{"k": key, "v": key} for key in range(2000)])
table.flush()
print("ready")
for number in range(20):
    sys.stdin.readline()
    table.upsert([{"k": key, "v": number} for key in range(2000)])
    table.flush()
    print("committed")
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that another user may read; ``tmp_path`` lies in one of its owner alone."""
    with tempfile.TemporaryDirectory(prefix="kvstore-test-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def filled(path: Path) -> Path:
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k").upsert(ROWS)
    return path


@pytest.mark.parametrize("locks", ["there", "missing"])
def test_a_store_without_write_permission_can_be_read(open_to_all: Path, locks: str) -> None:
    path = filled(open_to_all / "store")
    if locks == "missing":
        for each in path.rglob(LMDB_FILES[1]):
            each.unlink()
    for each in (path, *path.rglob("*")):
        each.chmod(0o555 if each.is_dir() else 0o444)
    try:
        assert run(path, READER) == "read"
        assert len(list(path.rglob(LMDB_FILES[1]))) == (2 if locks == "there" else 0)
    finally:
        for each in (path, *path.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)


@pytest.fixture
def store_of_others(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose lock files this process may not write."""
    filled(store_path)
    monkeypatch.setattr(lmdb_files, "allocate_lock", lambda _: False)
    return store_path


def test_the_medium_is_not_written(store_of_others: Path) -> None:
    store_path = store_of_others
    locks = {each: each.read_bytes() for each in store_path.rglob(LMDB_FILES[1])}
    with kvstore.open(store_path, read_only=True) as store:
        assert store.table("t").count() == 2000
        assert store.check()
    with kvstore.open(store_path) as store:
        assert store.table("t").count() == 2000
        with pytest.raises(UnsupportedOperation, match="may only be read"):
            store.create_table("u", SCHEMA, "k")
        with pytest.raises(UnsupportedOperation, match="may only be read"):
            store.new_writer_id()
    assert {each: each.read_bytes() for each in store_path.rglob(LMDB_FILES[1])} == locks


def test_a_read_whose_pages_another_process_wrote_is_refused(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_files, "allocate_lock", lambda _: False)
    with Program(store_path, WRITER) as other:
        assert other.line() == "ready"
        index = open_environment(store_path / "tables/1/0/index", Files(), map_bytes=1 << 30)
        commit_within(index, other, 1)
        with pytest.raises(Unavailable, match=r"grant this process write access to lock\.mdb"):
            commit_within(index, other, 3)
        with pytest.raises(Unavailable, match="try again"):
            commit_within(index, other, 3, CorruptData("a page of another time"))
        with pytest.raises(CorruptData, match="a damaged page"):
            commit_within(index, other, 1, CorruptData("a damaged page"))
        with index.read() as transaction:
            assert transaction.get(b"\x00") is not None
        index.close()
        with kvstore.open(store_path, read_only=True) as store:
            table = store.table("t")
            for _ in range(4):
                commit(other)
                assert table.count() == table.scan().read_all().num_rows == 2000
            scan = table.scan()
            scan.read_next_batch()
            for _ in range(3):
                commit(other)
            with pytest.raises((Unavailable, CorruptData)):
                scan.read_all()


def commit(other: Program) -> None:
    other.go_on()
    assert other.line() == "committed"


def commit_within(index: Environment, other: Program, times: int, error: Exception | None = None) -> None:
    with index.read():
        for _ in range(times):
            commit(other)
        if error is not None:
            raise error
