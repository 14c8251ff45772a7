"""LMDB with threads, and on a disk that fails when something is opened."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

from kvstore.disk import environment as environments, lmdb_files, lock as locks
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import LogFailed, StoreFull
from tests.support.processes import Child, Pipe

MAP_BYTES = 1 << 24


def open_while_another_thread_writes(pipe: Pipe, path: Path) -> None:
    environment = open_environment(path, Files(), map_bytes=MAP_BYTES, create=True)
    transaction = environment.begin_write()
    environment.database_within(transaction, "a", create=True)
    transaction.commit()
    transaction = environment.begin_write()

    def read() -> None:
        with environment.read_databases() as reading:
            environment.database_within(reading, "a")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(30)
    pipe.send("the reader waits" if reader.is_alive() else "both went on")
    transaction.abort()


def test_a_reader_opens_a_database_while_another_thread_writes(tmp_path: Path) -> None:
    """Without a transaction of its own, open_db() of py-lmdb waits for LMDB's lock and holds the interpreter's."""
    with Child(open_while_another_thread_writes, tmp_path / "e") as child:
        assert child.hear(60) == "both went on"


class SlowGets:
    """An environment or transaction of LMDB whose gets wait, as for a slow disk."""

    def __init__(self, real: Any, begun: threading.Event, may_end: threading.Event) -> None:
        self._real, self._begun, self._may_end = real, begun, may_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def begin(self, **options: Any) -> SlowGets:
        return SlowGets(self._real.begin(**options), self._begun, self._may_end)

    def get(self, key: bytes) -> bytes | None:
        self._begun.set()
        self._may_end.wait(30)
        found: bytes | None = self._real.get(key)
        return found


def test_an_environment_grows_while_another_thread_is_in_a_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, open_lmdb = threading.Event(), threading.Event(), lmdb_files.open_lmdb
    monkeypatch.setattr(lmdb_files, "open_lmdb", lambda *a, **o: SlowGets(open_lmdb(*a, **o), begun, may_end))
    environment = open_environment(tmp_path, Files(), map_bytes=MAP_BYTES, create=True)
    with ThreadPoolExecutor() as threads:
        getting = threads.submit(environment.get, b"no key")
        assert begun.wait(30)
        growing = threads.submit(environment.grow)
        threads.submit(may_end.set)
        growing.result(30)
        assert getting.result(30) is None
        with environment.read(), pytest.raises(StoreFull, match="a scan of this process is open"):
            environment.grow()
    environment.close()


def test_an_environment_grows_once_short_views_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup holds one for some milliseconds; only a scan, which holds it for long, is named to the user."""
    environment = open_environment(tmp_path, Files(), map_bytes=MAP_BYTES, create=True)
    looks: list[float] = []
    with ExitStack() as view:
        view.enter_context(environment.read())

        def look_again(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 3:
                view.close()

        monkeypatch.setattr(environments, "time", SimpleNamespace(sleep=look_again))
        environment.grow()
    assert len(looks) == 3
    environment.close()


def test_commits_are_followed_without_a_spare_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    environment = open_environment(tmp_path, Files(), map_bytes=MAP_BYTES, create=True)
    monkeypatch.setattr(mmap, "mmap", refuse)
    environment.watch_commits()
    first = environment.last_committed()
    transaction = environment.begin_write()
    transaction.put(b"k", b"v")
    transaction.commit()
    assert environment.last_committed() == first + 1
    environment.close()


def test_too_many_open_files_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_environment(tmp_path, Files(), map_bytes=MAP_BYTES, create=True).close()

    def refuse(path: str, **_: object) -> None:
        raise lmdb.Error(f"{path}: {os.strerror(errno.EMFILE)}")  # as LMDB does

    monkeypatch.setattr(lmdb, "open", refuse)
    with pytest.raises(LogFailed, match="Too many files are open"):
        open_environment(tmp_path, Files(), map_bytes=MAP_BYTES)


def test_the_lock_file_has_all_its_blocks(tmp_path: Path) -> None:
    """Missing blocks are allocated when its map is written, and a full disk then kills the process; see tests/proof."""
    open_environment(tmp_path / "e", Files(), map_bytes=MAP_BYTES, create=True).close()
    status = (tmp_path / "e" / "lock.mdb").stat()
    assert status.st_blocks * 512 >= status.st_size == 1 << 16


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, StoreFull), (errno.EIO, LogFailed)])
def test_a_refused_lock_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    """The error is named, and opening succeeds once the disk is repaired."""
    lock = ProcessLock(tmp_path / "LOCK")

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(locks.os, "open", refuse)
        with pytest.raises(error):
            lock.acquire()
    lock.acquire()
    lock.release()


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, StoreFull), (errno.EIO, LogFailed)])
def test_a_refused_environment_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("kvstore.disk.environment.lmdb.open", refuse)
        with pytest.raises(error):
            open_environment(tmp_path / "e", Files(), map_bytes=MAP_BYTES, create=True)
    open_environment(tmp_path / "e", Files(), map_bytes=MAP_BYTES, create=True).close()
