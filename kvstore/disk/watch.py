"""Readers that wait learn at once that a file was written, from the kernel (inotify of Linux).

* One thread and one inotify instance serve all watches of a process. They begin with the first watch that is open, and
  end with the last.
* A watch is a hint: it may wake a reader for nothing, and where the kernel has no inotify, or no instance left for this
  user, it does not wake. So readers look without it, too, only less often.
* To close a watch takes no lock, so that the garbage collector may close one at any instruction; the thread does the
  rest.
* A forked child has none of its parent's watches.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import select
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from kvstore.process.calls import uninterrupted

# Of <sys/inotify.h>
_MODIFY, _CREATE, _DELETE, _MOVED_FROM, _MOVED_TO = 0x2, 0x100, 0x200, 0x40, 0x80
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLY_DIRECTORIES = 0x1000000
_OF_FILES = _MODIFY | _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO
_EVENTS = _OF_FILES | _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORIES
_HEADER = struct.Struct("=iIII")  # of an event: watch, mask, cookie, length of the name
_READ_BYTES = 1 << 16


class Watch:
    """Waits until a file of some directories is written; for one thread or one task at a time.

    A call waits for what comes after the end of the call before it, so a reader looks between two calls.

    Args:
        directories: Where the file is, or comes.
        file: Its name.
    """

    _is_open = False  # also of one that a handler of signals left half made

    def __init__(self, directories: Iterable[Path], file: str) -> None:
        self._directories = list(directories)
        self._file = os.fsencode(file)
        self._wake = _Wake()

    def open(self) -> bool:
        """Watch from now on, if that is not so already; False if it can't be."""
        if self._is_open and not self._wake.is_lost and self._wake.pid == os.getpid():
            return True
        self.close()
        self._wake = _Wake()
        self._is_open = _notifier.add(self._wake, self._directories, self._file)
        return self._is_open

    def wait(self, seconds: float) -> bool:
        """Wait for so long at most; whether something was written, or a wait was ended by :func:`wake_all`."""
        event = self._wake.event
        woken = event.wait(seconds)
        event.clear()
        return woken

    async def wait_async(self, seconds: float) -> bool:
        """:meth:`wait` for asyncio."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        wake = self._wake
        wake.call = lambda: loop.call_soon_threadsafe(_done, woken)
        try:
            if not wake.event.is_set():
                await asyncio.wait([woken], timeout=seconds)
        finally:
            wake.call = None
            woken.cancel()
        is_woken = wake.event.is_set()
        wake.event.clear()
        return is_woken

    def wake(self) -> None:
        """End the wait of another thread or task, or the next one."""
        self._wake()

    def close(self) -> None:
        """Watch no more; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            _notifier.remove(self._wake)

    def __del__(self) -> None:
        self.close()


def wake_all() -> None:
    """End every wait of this process, so that readers look for what no file says, such as the close of a store."""
    _notifier.wake_all()


def _done(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class _Wake:
    """What the thread knows of a watch.

    Attributes:
        event: Set by a write.
        call: Called by a write, in the thread.
        is_lost: Whether a directory is not there any more.
    """

    __slots__ = ("call", "event", "is_lost", "pid")

    def __init__(self) -> None:
        self.event = threading.Event()
        self.call: Callable[[], object] | None = None
        self.is_lost = False
        self.pid = os.getpid()

    def __call__(self) -> None:
        self.event.set()
        if (call := self.call) is not None:
            with suppress(RuntimeError):  # the event loop was closed
                call()


class _Notifier:
    """The thread, and what it waits for."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._inotify = self._nudge = -1
        self._watched: dict[int, dict[_Wake, bytes]] = {}
        """For each directory, by its number in the kernel, those to wake and the file they wait for."""
        self._removed: deque[_Wake] = deque()

    @uninterrupted
    def add(self, wake: _Wake, directories: Sequence[Path], file: bytes) -> bool:
        """Wake a watch from now on; False if that can't be."""
        if sys.platform != "linux":
            return False
        with self._mutex, suppress(OSError, RuntimeError):  # no instance, watch, descriptor or thread is left
            if self._nudge < 0:
                self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            if self._inotify < 0:
                self._inotify = called("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                for directory in directories:
                    number = called("inotify_add_watch", self._inotify, os.fsencode(directory), _EVENTS)
                    self._watched.setdefault(number, {})[wake] = file
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="kvstore-watch", daemon=True)
                    thread.start()
                    self._thread = thread
                return True
            except (OSError, RuntimeError):
                self._forget([wake])
                if self._thread is None:
                    self._end()
                raise
        return False

    def remove(self, wake: _Wake) -> None:
        """Wake it no more; takes no lock."""
        self._removed.append(wake)
        if self._nudge >= 0:
            with suppress(OSError):
                os.eventfd_write(self._nudge, 1)

    def wake_all(self) -> None:
        with self._mutex:
            callbacks = {wake for wakes in self._watched.values() for wake in wakes}
        for wake in callbacks:
            wake()

    def forked(self) -> None:
        """Close the descriptors in a forked child, which leaves the watches to the parent."""
        for descriptor in (self._inotify, self._nudge):
            if descriptor >= 0:
                os.close(descriptor)
        self.__init__()  # type: ignore[misc]  # the thread and its lock are those of the parent

    def _run(self) -> None:
        ready = select.poll()
        inotify, nudge = self._inotify, self._nudge
        for descriptor in (inotify, nudge):
            ready.register(descriptor, select.POLLIN)
        while True:
            ready.poll()
            with suppress(BlockingIOError):
                os.eventfd_read(nudge)
            data = b""
            with suppress(BlockingIOError):
                data = os.read(inotify, _READ_BYTES)
            with self._mutex:
                woken = self._woken_by(data)
                gone = []
                while self._removed:
                    gone.append(self._removed.popleft())
                self._forget(gone)
                if not self._watched:
                    self._end()
                    self._thread = None
                    is_over = True
                else:
                    is_over = False
            for wake in woken:
                wake()
            if is_over:
                return

    def _woken_by(self, data: bytes) -> set[_Wake]:
        woken: set[_Wake] = set()
        for number, mask, name in _events(data):
            if mask & _OVERFLOW:
                woken.update(wake for wakes in self._watched.values() for wake in wakes)
            wakes = self._watched.get(number, {})
            if mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED):
                for wake in wakes:
                    wake.is_lost = True
                woken.update(wakes)
                if mask & _IGNORED:
                    self._watched.pop(number, None)
            else:
                woken.update(wake for wake, file in wakes.items() if file == name)
        return woken

    def _forget(self, gone: Sequence[_Wake]) -> None:
        for number, wakes in list(self._watched.items()) if gone else ():
            for wake in gone:
                wakes.pop(wake, None)
            if not wakes:
                del self._watched[number]
                with suppress(OSError):  # its directory was removed
                    called("inotify_rm_watch", self._inotify, number)

    def _end(self) -> None:
        os.close(self._inotify)
        self._inotify = -1


def _events(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number of the directory, mask, and name of the file, for each event."""
    position = 0
    while position < len(data):
        number, mask, _, length = _HEADER.unpack_from(data, position)
        position += _HEADER.size + length
        yield number, mask, data[position - length : position].rstrip(b"\0")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def called(name: str, *given: object) -> int:
    """A call of the C library.

    Raises:
        OSError: It failed, or there is no such call.
    """
    try:
        call = getattr(_libc(), name)
    except AttributeError as error:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
    result: int = call(*given)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


_notifier = _Notifier()
os.register_at_fork(after_in_child=_notifier.forked)
