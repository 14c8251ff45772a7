"""No room for an index or the catalog: each change says so by StoreFull, however LMDB puts it, and reads go on.

With room again, nothing that was acknowledged is missing.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk.files import Files
from kvstore.errors import LogFailed
from tests.crash.workload import squeezed
from tests.proof.full_disk import disk
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
ROWS = [{"k": k, "v": f"{k:0100d}"} for k in range(2_000)]
NEVER_COMMITTED: dict[str, Any] = {"commit_wait_ms": 60_000, "commit_idle_ms": 60_000}
INDEX = "tables/1/0/index/data.mdb"
ROOM = [0, 100, 5 * 4096 + 1]
"""Bytes that there is room for; if it is more than nothing, a write of LMDB is short."""
READ: dict[str, Callable[[kvstore.Store], bool]] = {
    "get": lambda store: store.table("t").get(7) == ROWS[7],
    "count": lambda store: store.table("t").count() == len(ROWS),
    "scan": lambda store: rows_of(store.table("t")) == ROWS,
    "changelog": lambda store: store.table("t").changelog().read_all().num_rows == len(ROWS),
    "check": lambda store: store.check().ok,
}


def limited_file(path: Path, room: int) -> AbstractContextManager[None]:
    return squeezed((path / INDEX).stat().st_size + room)


@contextmanager
def filled_disk(path: Path, room: int) -> Iterator[None]:
    found = os.statvfs(path)
    filler = path.parent / "filler"
    filler.write_bytes(b"x" * (found.f_bavail * found.f_frsize - room))
    yield
    filler.unlink()


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def write_much(path: Path) -> None:
    with kvstore.open(path) as store:
        store.table("t").upsert({"k": 0, "v": "new" * (1 << 20)})


def run_out(pipe: Pipe, path: Path, fill: Callable[[Path, int], AbstractContextManager[None]], room: int) -> None:
    """Acknowledge rows, and try everything while the index can't have them; sends what each call said."""
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k")
    store = kvstore.open(path, **NEVER_COMMITTED)
    store.table("t").upsert(ROWS)
    said: dict[str, str] = {}
    with fill(path, room):
        said["flush"] = refused(store.table("t").flush)
        assert refused(store.close) == "done"  # a program would take the error for one of its last write
        said["upsert"] = refused(lambda: write_much(path))
        for name, read in READ.items():
            with kvstore.open(path) as store:
                assert read(store), name
    pipe.send(said)
    with kvstore.open(path) as store:
        pipe.send((rows_of(store.table("t")) == ROWS, store.check().ok))


def check(said: dict[str, str]) -> None:
    for name, what in said.items():
        assert what.startswith("StoreFull: No space on the disk; free some and try again."), (name, what)
        assert "Input/output" not in what, (name, what)


@pytest.mark.parametrize("room", ROOM)
def test_a_file_that_may_not_grow(tmp_path: Path, room: int) -> None:
    with Child(run_out, tmp_path / "store", limited_file, room) as child:
        check(child.hear())
        assert child.hear() == (True, True)


def edit(pipe: Pipe, path: Path, room: int) -> None:
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k")
        with squeezed((path / "meta/journal/data.mdb").stat().st_size + room):
            pipe.send({"rename": refused(lambda: store.rename_table("t", "u"))})
        pipe.send(store.list_tables())
        store.rename_table("t", "u")
        pipe.send(store.list_tables())


@pytest.mark.parametrize("room", ROOM[:2])
def test_a_catalog_that_may_not_grow(store_path: Path, room: int) -> None:
    with Child(edit, store_path, room) as child:
        check(child.hear())
        assert child.hear() == ["t"]
        assert child.hear() == ["u"]


@pytest.mark.parametrize("room", [0, 5 * 4096])
def test_a_disk_that_is_full(tmp_path: Path, room: int) -> None:
    try:
        with (
            disk(tmp_path / "disk", {"size": 16 << 20}),
            Child(run_out, tmp_path / "disk/store", filled_disk, room) as child,
        ):
            check(child.hear())
            assert child.hear() == (True, True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted: {error.stderr.decode().strip()}")


def write_beyond(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(ROWS)
        with squeezed(1 << 20):
            pipe.send(refused(lambda: table.upsert({"k": 1, "v": "new" * (1 << 20)})))
        pipe.send(rows_of(table) == ROWS)


def test_a_limit_of_files_is_named(store_path: Path) -> None:
    """So that a user with `ulimit -f` does not look at the free space of the disk."""
    with Child(write_beyond, store_path) as child:
        assert child.hear().endswith(f"reason={os.strerror(errno.EFBIG)}")
        assert child.hear()


def test_a_user_who_may_not_write_is_told_so(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", {"k": "int64"}, "k")
    open_name = Files.open_name

    def refused(self: Files, path: Path, flags: int, *given: Any) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_name(self, path, flags, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "open_name", refused)
        with pytest.raises(LogFailed, match=r"may not write here.*read_only.*Permission denied"):
            table.upsert({"k": 1})
    table.upsert({"k": 2})
    assert [row["k"] for row in table] == [2]
