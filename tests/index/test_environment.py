"""LMDB with threads, and on a disk that fails when something is opened."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kvstore import lock as locks
from kvstore.environment import open_environment
from kvstore.errors import LogFailed, StoreFull
from kvstore.files import Files
from kvstore.lock import ProcessLock
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
        patch.setattr("kvstore.environment.lmdb.open", refuse)
        with pytest.raises(error):
            open_environment(tmp_path / "e", Files(), map_bytes=MAP_BYTES, create=True)
    open_environment(tmp_path / "e", Files(), map_bytes=MAP_BYTES, create=True).close()
