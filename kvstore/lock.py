"""Who may write: one process at a time holds the lock of a bucket, and a dead process holds none.

* The lock is ``flock`` on a file that is never removed, so it ends with the process, however that ends.
* A forked child would keep its dead parent's lock alive: it closes every lock descriptor it inherited.
* What stands in the file (pid, host) is for people and messages; it decides nothing.
* Who holds the lock of a directory of the store holds the directory: another one in its place is found out.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from kvstore.calls import uninterrupted
from kvstore.errors import CorruptData, NotAStore, StoreError, StoreLocked
from kvstore.files import Files, open_file, refusal


class ProcessLock:
    """The lock of one file, held from :meth:`acquire` to :meth:`release`.

    Args:
        files: Of the store that it belongs to, if that is open.
    """

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or Files()
        self._descriptor = -1
        _locks.add(self)

    def __del__(self) -> None:
        """Give the lock up: nobody can release it any more."""
        if hasattr(self, "_descriptor"):
            self.forget()

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self._descriptor >= 0

    def acquire(self) -> None:
        """Take the lock, at once or not at all.

        Raises:
            StoreLocked: Another process holds it; the message says which.
            CorruptData: The directory is not there.
            NotAStore: The file is a link, or a directory.
            StoreFull, LogFailed: The disk refuses the file.
        """
        if not self.try_acquire():
            self.refuse()

    def refuse(
        self, message: str = "Another process writes here; wait until it is done, or write through it."
    ) -> NoReturn:
        """Say who holds it.

        Raises:
            StoreLocked: Always.
        """
        raise StoreLocked(message, path=self._path.parent, **_holder(self._path))

    @uninterrupted
    def try_acquire(self) -> bool:
        """Take the lock unless another process holds it.

        Raises:
            CorruptData: The directory is not there.
            StoreFull, LogFailed: The disk refuses the file. It is not held.
            StoreReplaced: The directory is not there because the store's was moved, removed or replaced.
        """
        if self.held:
            return True
        try:
            self._files.hold(self._path.parent)
        except OSError as error:
            self._files.verify()
            raise self._refused(error) from error
        try:
            taken = self._try_flock()
        except BaseException:
            self._files.let_go(self._path.parent)
            raise
        if not taken:
            self._files.let_go(self._path.parent)
        return taken

    def _try_flock(self) -> bool:
        try:
            descriptor = self._files.open_name(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            self._files.verify()
            raise self._refused(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        with suppress(OSError):  # a full disk; it is only for people
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        return True

    def _refused(self, error: OSError) -> StoreError:
        if isinstance(error, FileNotFoundError):
            return _missing(self._path.parent)
        if error.errno in (errno.ELOOP, errno.EISDIR):
            return NotAStore("What should be a lock is a link or a directory; remove it.", path=self._path)
        return refusal(error, self._path)

    def release(self) -> None:
        """Give the lock up, if it is held."""
        if self.held:
            self._files.let_go(self._path.parent)  # first: who has the lock next may remove the directory
            # A child between fork and exec has the descriptor too: closing alone would leave the lock with it.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """In a forked child: leave the lock to the parent."""
        if self.held:
            descriptor, self._descriptor = self._descriptor, -1  # first: it is never closed twice
            os.close(descriptor)


class Presence:
    """That this process is one of those that hold a file's lock together, and whether there are others."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or Files()
        self._descriptor = -1
        self._mutex = threading.Lock()
        _locks.add(self)

    def show(self) -> None:
        """Be there, from now until :meth:`release`.

        Raises:
            CorruptData: The directory is not there.
            StoreReplaced: It is not there because the store's was moved, removed or replaced.
        """
        if self._descriptor < 0:
            self._show()

    @uninterrupted
    def _show(self) -> None:
        with self._mutex:
            if self._descriptor < 0:
                try:
                    descriptor = self._files.open_name(self._path, os.O_RDWR | os.O_CREAT)
                except FileNotFoundError as error:
                    self._files.verify()
                    raise _missing(self._path.parent) from error
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                self._descriptor = descriptor

    def others(self) -> bool:
        """Whether other processes are there."""
        with self._mutex:
            if self._descriptor < 0:
                return _refuses(self._path, fcntl.LOCK_EX, self._files)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # who fails to get the other one has lost this one
            return False

    def release(self) -> None:
        """Be there no more."""
        with self._mutex:  # another thread may be asking for others at this moment, or leaving, too
            if self._descriptor >= 0:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                self.forget()

    def forget(self) -> None:
        """In a forked child: leave it to the parent to be there."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1  # first: it is never closed twice
            os.close(descriptor)


def is_locked(path: Path, files: Files | None = None) -> bool:
    """Whether someone holds the :class:`ProcessLock` of a file; who holds it here asks otherwise."""
    return _refuses(
        path, fcntl.LOCK_SH, files or Files()
    )  # shared, so that two who look do not take each other for a holder


def _refuses(path: Path, kind: int, files: Files) -> bool:
    try:
        descriptor = files.open_name(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


_locks: weakref.WeakSet[ProcessLock | Presence] = weakref.WeakSet()


_HOLDER_BYTES_MAX = 1 << 12


def _missing(directory: Path) -> CorruptData:
    return CorruptData("A directory of the store is missing; restore it.", path=directory)


def _holder(path: Path) -> dict[str, object]:
    try:
        with open_file(path) as file:
            facts = json.loads(file.read(_HOLDER_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    known = facts if isinstance(facts, dict) else {}
    return {f"holder_{name}": known[name] for name in ("pid", "host") if name in known}


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)
