"""How a sender and the owner of a bucket meet: by a socket in the directory ``senders`` of their store.

Theory of operation. A sender binds a socket there, of a name that says which bucket it wants. The process that owns the
bucket looks into the directory from time to time, as it looks for processes that commit, and connects. The sender
removes the name at once. So a process that owns buckets has no socket of its own, a copy of the directory meets none,
and nothing has to be cleaned up after an owner that was killed. The name of a sender that was killed is removed by the
next owner that finds nobody listening.

* Only the user to whom the directory belongs can bind, connect or list.
* Names are bound below an open descriptor of the directory: the path of a store may be longer than a socket's.
* A forked child closes all sockets of its parent, or the other side would not notice the parent's end.
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from kvstore.clock import Clock
from kvstore.disk.files import Files, refusals
from kvstore.process.calls import check_caller
from logformat import paths
from logformat.ids import BucketId, TableId

MEET_SECONDS = 10.0
"""How long a sender waits for an owner to connect, and either side for the first frame of the other."""
_LOOK_SECONDS = 0.05
_REFUSALS_MAX = 20
"""Looks, some 20 ms one after the other, after which a name on which no process listens is removed."""
_NAME = re.compile(r"([0-9]+)\.([0-9]+)\.[0-9a-f]{32}\.socket")
_NO_LISTENER = (errno.ECONNREFUSED, errno.ENOENT)

Bucket = tuple[TableId, BucketId]


class NotMet(Exception):
    """The owner of a bucket has not connected."""


class MeetingPlace:
    """The directory in which the senders of a store wait for owners.

    Args:
        store: Directory of the store.
    """

    def __init__(self, store: Path, files: Files, clock: Clock) -> None:
        self.path = store / paths.SENDERS
        self._files = files
        self._clock = clock
        self._refusals: dict[str, int] = {}

    def owner_of(self, table: TableId, bucket: BucketId, is_owned: Callable[[], bool]) -> socket.socket | None:
        """Wait until the owner of a bucket has connected; None if the bucket has no owner any more.

        Args:
            is_owned: Whether another process owns the bucket; asked again and again.

        Raises:
            NotMet: It has not connected within :data:`MEET_SECONDS`.
            StoreFull, LogFailed: The disk refuses.
        """
        deadline = self._clock.monotonic() + MEET_SECONDS
        name = f"{table}.{bucket}.{uuid4().hex}.socket"
        with refusals(self.path):
            self._files.make_directory(self.path)
            with self._opened() as directory, _socket() as listener:
                _private(listener)
                listener.bind(_address(directory, name))
                try:
                    listener.listen(1)
                    waiting = select.poll()
                    waiting.register(listener, select.POLLIN)
                    while self._clock.monotonic() < deadline:
                        check_caller()
                        # A time that is over is no error here: one is that of a handler of signals of the program.
                        if waiting.poll(_LOOK_SECONDS * 1000):
                            return _kept(listener.accept()[0])
                        if not is_owned():
                            return None
                finally:
                    with suppress(FileNotFoundError):
                        self._files.remove(self.path / name)
        raise NotMet

    def waiting(self) -> list[tuple[str, Bucket]]:
        """Names of senders that wait, and the buckets that they want."""
        matches = filter(None, map(_NAME.fullmatch, self._files.names_in(self.path)))
        return [(each[0], (TableId(int(each[1])), BucketId(int(each[2])))) for each in matches]

    def connected(self, name: str) -> socket.socket | None:
        """Connect to a sender that waits; None if it does not any more."""
        with self._opened() as directory:
            other = _socket()
            other.settimeout(MEET_SECONDS)
            try:
                other.connect(_address(directory, name))
            except OSError as error:
                other.close()
                if error.errno not in _NO_LISTENER:
                    raise
                # It may have bound the name, and not listen yet.
                times = self._refusals[name] = self._refusals.get(name, 0) + 1
                if error.errno == errno.ENOENT or times > _REFUSALS_MAX:
                    del self._refusals[name]
                    with suppress(FileNotFoundError):
                        self._files.remove(self.path / name)
                return None
            self._refusals.pop(name, None)
            return _kept(other)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = self._files.open_directory(self.path)
        try:
            yield descriptor
        finally:
            self._files.close(descriptor)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _private(listener: socket.socket) -> None:
    with suppress(OSError):  # elsewhere than on Linux; the directory is private, too
        os.fchmod(listener.fileno(), 0o600)


def _address(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"


_kept_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _kept(given: socket.socket) -> socket.socket:
    _kept_sockets.add(given)
    return given


def _forget_all() -> None:
    for each in list(_kept_sockets):
        each.close()


os.register_at_fork(after_in_child=_forget_all)
