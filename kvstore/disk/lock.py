"""Locks between processes: one process at a time holds the lock of a bucket, and a process that ended holds none.

* The lock is ``flock`` on a file that is never removed, so it ends with the process, however that ends.
* A forked child would keep its parent's lock after the parent's end, so it closes every inherited lock descriptor.
* The content of the file (pid, host) only serves messages, and says whether the holder takes requests of others.
* A lock that others wait for is also ``flock``, on a file or a directory; the wait has a limit, and then an error.
* The holder of the lock of a store's directory also holds the directory, so a replaced directory is detected.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

from kvstore.clock import Clock
from kvstore.disk.files import Files, open_file, refusal, refusals
from kvstore.errors import CorruptData, NotAStore, StoreError, StoreLocked
from kvstore.process.calls import check_caller, uninterrupted
from logformat.paths import LOCK_FILE

EDIT_WAIT_SECONDS = 25
"""How long an edit waits for the one of another process, before it is refused."""
RECOVERY_WAIT_SECONDS = 10
"""How long a read or a write waits for another process to recover the bucket, before it is refused."""
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.0001, 0.003
_FACTS_BYTES = 512
_TAKES_REQUESTS = "takes_requests"


class _Flock:
    """A lock that ends with the descriptor of a file or directory."""

    def __init__(self) -> None:
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

    def forget(self) -> None:
        """Close the descriptor in a forked child, which leaves the lock to the parent."""
        if self.held:
            descriptor, self._descriptor = self._descriptor, -1  # first: it is never closed twice
            os.close(descriptor)


class ProcessLock(_Flock):
    """The lock of one file, held from :meth:`acquire` to :meth:`release`.

    Args:
        files: Disk of the open store that the lock belongs to, if any.
        takes_requests: Whether a holder takes requests of other processes; the file says so.
    """

    def __init__(self, path: Path, files: Files | None = None, *, takes_requests: bool = False) -> None:
        self._path = path
        self._files = files or Files()
        self._takes_requests = takes_requests
        super().__init__()

    def acquire(self) -> None:
        """Take the lock without waiting.

        Raises:
            StoreLocked: Another process holds it; the error names the process.
            CorruptData: The directory is missing.
            NotAStore: The file is a link or a directory.
            StoreFull, LogFailed: The disk is full or failed.
        """
        if not self.try_acquire():
            self.refuse()

    @contextmanager
    def taken(self, refusal: str) -> Iterator[None]:
        """Hold the lock during a block; raises what :meth:`acquire` raises, with this message if it is locked."""
        if not self.try_acquire():
            self.refuse(refusal)
        try:
            yield
        finally:
            self.release()

    def refuse(
        self, message: str = "Another process writes here; wait until it is done, or write through it."
    ) -> NoReturn:
        """Raise the error that names the holder.

        Raises:
            StoreLocked: Always.
        """
        raise StoreLocked(message, path=self._path.parent, **_holder(self._path))

    @uninterrupted
    def try_acquire(self) -> bool:
        """Take the lock unless another process holds it.

        Raises:
            CorruptData: The directory is missing.
            StoreFull, LogFailed: The disk is full or failed. The lock is not held.
            StoreReplaced: The directory is missing because the store's was moved, removed or replaced.
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
        _name_holder(descriptor, _own_facts(os.getpid(), takes_requests=self._takes_requests))
        return True

    def _refused(self, error: OSError) -> StoreError:
        if isinstance(error, FileNotFoundError):
            return _missing(self._path.parent)
        if error.errno in (errno.ELOOP, errno.EISDIR):
            return NotAStore("In the place of a lock is a link or a directory; remove it.", path=self._path)
        return refusal(error, self._path)

    @uninterrupted
    def release(self) -> None:
        """Release the lock, if it is held."""
        if self.held:
            self._files.let_go(self._path.parent)  # first: the next holder may remove the directory
            # A child between fork and exec has the descriptor too: closing alone would leave the lock with it.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forget()


@contextmanager
def directory_taken(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a directory in which something is made, during a block.

    Raises:
        StoreLocked: Another process, or thread, holds it; with this message.
        OSError: The directory can't be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreLocked(refusal, path=path) from error
        yield
    finally:
        os.close(descriptor)


class EditLock:
    """A lock that a process holds for as long as it edits something; others wait for it, but not for ever.

    LMDB's own writer lock has no limit of time and names no holder, so it is taken only under this one.

    Args:
        path: The lock file.
    """

    def __init__(self, path: Path, files: Files, clock: Clock) -> None:
        self._path = path
        self._files = files
        self._clock = clock
        self._open: set[int] = set()
        _locks.add(self)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; threads of one process wait for each other, too.

        Raises:
            StoreLocked: The holder did not release it within ``EDIT_WAIT_SECONDS``; the error names it.
            StoreFull, LogFailed: The disk refuses the lock file.
        """
        try:
            descriptor = self._files.open_name(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            self._files.verify()
            raise refusal(error, self._path) from error
        self._open.add(descriptor)
        try:
            if not _waited(descriptor, self._clock, EDIT_WAIT_SECONDS):
                raise StoreLocked(
                    "Another process edits the catalog and does not finish; continue or end that process.",
                    path=self._path,
                    **_holder(self._path),
                )
            _name_holder(descriptor, _own_facts(os.getpid()))
            yield
        finally:
            # A forked child forgets the descriptor; a child between fork and exec has it too.
            if descriptor in self._open:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                self._open.discard(descriptor)
                os.close(descriptor)

    def forget(self) -> None:
        """Close the descriptors in a forked child, which leaves the lock to the parent."""
        while self._open:
            os.close(self._open.pop())


class RecoveryLock(_Flock):
    """The lock on the directory of a bucket, held while its log may have more than its index; others wait for it.

    Args:
        directory: Directory of the bucket. Its file ``LOCK`` names the holder: a process that recovers a bucket holds
            that lock, too.
    """

    def __init__(self, directory: Path, files: Files, clock: Clock) -> None:
        self._directory = directory
        self._files = files
        self._clock = clock
        super().__init__()

    def acquire(self) -> None:
        """Take the lock, unless it is held here; waits while another process holds it.

        Raises:
            StoreLocked: That process did not release it within ``RECOVERY_WAIT_SECONDS``; the error names it.
            CorruptData: The directory is missing.
            StoreReplaced: It is missing because the store's was moved, removed or replaced.
            LogFailed: The disk failed.
        """
        if self._descriptor >= 0:
            return
        descriptor = self._opened()
        try:
            if not _waited(descriptor, self._clock, RECOVERY_WAIT_SECONDS):
                raise StoreLocked(
                    "Another process recovers or repairs this bucket, and does not finish; wait until it"
                    " is done, or continue or end that process.",
                    path=self._directory,
                    **_holder(self._directory / LOCK_FILE),
                )
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    @contextmanager
    def looked_at(self) -> Iterator[bool]:
        """Whether another process holds the lock; if not, none takes it meanwhile.

        Raises:
            StoreError: What :meth:`acquire` raises, but for StoreLocked.
        """
        descriptor = self._opened()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield True
        else:
            try:
                yield False
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _opened(self) -> int:
        try:
            return self._files.open_directory(self._directory)
        except OSError as error:
            self._files.verify()
            missing = isinstance(error, FileNotFoundError)
            raise _missing(self._directory) if missing else refusal(error, self._directory) from error

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor >= 0:
            # A child between fork and exec has the descriptor too: closing alone would leave the lock with it.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forget()


def _waited(descriptor: int, clock: Clock, seconds: float) -> bool:
    """Take a lock once no other process holds it; False if one held it for all that time."""
    deadline, pause = clock.monotonic() + seconds, _PAUSE_SECONDS_MIN
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() >= deadline:
                return False
            check_caller()
            threading.Event().wait(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        else:
            return True


def _name_holder(descriptor: int, facts: bytes) -> None:
    """Write into a lock file which process holds the lock, unless it is there: a write would make each sync slower."""
    with suppress(OSError):  # a full disk; the content only serves messages, and as a hint
        if os.pread(descriptor, _FACTS_BYTES, 0) != facts:
            os.pwrite(descriptor, facts, 0)


@cache
def _own_facts(pid: int, *, takes_requests: bool = False) -> bytes:
    """Content of a lock file, of a fixed size: it replaces a longer one as a whole."""
    facts = {"pid": pid, "host": socket.gethostname()} | ({_TAKES_REQUESTS: True} if takes_requests else {})
    return json.dumps(facts).encode().ljust(_FACTS_BYTES)


def takes_requests(path: Path) -> bool:
    """Whether the process that holds the :class:`ProcessLock` of a file takes requests of others.

    Only a hint: the file may not say yet what its new holder does.
    """
    return _facts_in(path).get(_TAKES_REQUESTS) is True


class Presence(_Flock):
    """A lock that any number of processes share: it shows that this process is present, and detects others."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or Files()
        super().__init__()
        self._mutex = threading.Lock()

    def show(self) -> None:
        """Take the shared lock until :meth:`release`.

        Raises:
            CorruptData: The directory is missing.
            StoreReplaced: The directory is missing because the store's was moved, removed or replaced.
            StoreFull, LogFailed: The disk refuses.
        """
        if self._descriptor < 0:
            self._show()

    @uninterrupted
    def _show(self) -> None:
        with self._mutex, refusals(self._path.parent):
            if self._descriptor < 0:
                try:
                    descriptor = self._files.open_name(self._path, os.O_RDWR | os.O_CREAT)
                except FileNotFoundError as error:
                    self._files.verify()
                    raise _missing(self._path.parent) from error
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                self._descriptor = descriptor

    def others(self) -> bool:
        """Whether other processes are present."""
        with self._mutex:
            if self._descriptor < 0:
                return _refuses(self._path, fcntl.LOCK_EX, self._files)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # a failed upgrade loses the shared lock
            return False

    def release(self) -> None:
        """Release the shared lock."""
        with self._mutex:  # another thread may be in `others` or `release`
            if self._descriptor >= 0:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                self.forget()


def is_locked(path: Path, files: Files | None = None) -> bool:
    """Whether another process holds the :class:`ProcessLock` of a file; not for a lock of this process."""
    # A shared lock, so that two processes that test do not take each other for a holder.
    return _refuses(path, fcntl.LOCK_SH, files or Files())


def _refuses(path: Path, kind: int, files: Files) -> bool:
    try:
        descriptor = files.open_name(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


_locks: weakref.WeakSet[_Flock | EditLock] = weakref.WeakSet()


_HOLDER_BYTES_MAX = 1 << 12


def _missing(directory: Path) -> CorruptData:
    return CorruptData("A directory of the store is missing; restore it.", path=directory)


def _facts_in(path: Path) -> dict[str, object]:
    try:
        with open_file(path) as file:
            facts = json.loads(file.read(_HOLDER_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _holder(path: Path) -> dict[str, object]:
    facts = _facts_in(path)
    return {f"holder_{name}": facts[name] for name in ("pid", "host") if name in facts}


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)
