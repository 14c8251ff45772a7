"""Disks that fail the way disks do."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from kvstore.disk.files import Files


class FailingDisk(Files):
    """The real disk, until the test has it fail.

    Attributes:
        fail: Asked before every call with its name and path or descriptor; an errno makes the call fail.
        short: Bytes a failing write or fill still takes before it fails.
    """

    def __init__(self) -> None:
        self.fail: Callable[[str], int] = lambda _: 0
        self.short = 0
        self.calls: list[str] = []

    def _ask(self, call: str) -> None:
        self.calls.append(call)
        if code := self.fail(call):
            raise OSError(code, os.strerror(code))

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        try:
            self._ask("write")
        except OSError:
            os.pwrite(descriptor, b"".join(pieces)[: self.short], position)
            raise
        super().write(descriptor, pieces, position)

    def fill(self, descriptor: int, position: int, length: int) -> None:
        try:
            self._ask("fill")
        except OSError:
            super().fill(descriptor, position, min(self.short, length))
            raise
        super().fill(descriptor, position, length)

    def sync(self, descriptor: int) -> None:
        self._ask("sync")
        super().sync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        self._ask("truncate")
        super().truncate(descriptor, length)

    def rename(self, old: Path, new: Path) -> None:
        self._ask("rename")
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._ask("sync_directory")
        super().sync_directory(path)


def failing(call: str, code: int = errno.EIO, *, after: int = 0, times: int = 1) -> Callable[[str], int]:
    """Fails calls of that name: the first ``after`` pass, the next ``times`` fail, the rest pass."""
    seen = 0

    def fail(name: str) -> int:
        nonlocal seen
        seen += name == call
        return code if name == call and after < seen <= after + times else 0

    return fail


class Mortal(Files):
    """A disk whose process is killed at a call that writes."""

    def __init__(self, lives: int) -> None:
        self.lives = lives

    def _live(self) -> None:
        self.lives -= 1
        if not self.lives:
            os.kill(os.getpid(), signal.SIGKILL)

    def open_name(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._live()
        return super().open_name(path, flags)

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        self._live()
        super().write(descriptor, pieces, position)

    def make_directory(self, path: Path) -> None:
        self._live()
        super().make_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        self._live()
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._live()
        super().sync_directory(path)

    def remove_tree(self, path: Path) -> None:
        self._live()
        super().remove_tree(path)
