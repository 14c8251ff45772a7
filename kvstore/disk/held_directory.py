"""The directory of an open store, held by a descriptor: it stays the same directory whatever happens to its path.

* Files of the store are opened by names below a held directory, never by the store's path: no byte goes into another
  directory that replaced it, such as a restored copy.
* A held directory keeps its inode: device and inode distinguish it from any other directory at its path.
* While the store is in use, its path is checked at least every ``LOOK_SECONDS``. After another directory was found
  there, this process must open the store again.
* The directories of a table that was dropped are removed by the process that dropped it. Others may hold one for a
  moment even then, such as to take its lock; that it is gone says nothing about the store.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvstore.clock import Clock
from kvstore.errors import StoreReplaced

LOOK_SECONDS = 0.25
"""Time between two checks of the path: writes acknowledged meanwhile may be in a directory that was moved away."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_REPLACED = "was replaced since the store was opened"

Identity = tuple[int, int]
"""Device and inode."""


class _Held:
    """A directory, open as long as it is referenced; a lookup of a name below it is a reference."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.identity = _identity(os.fstat(descriptor))
        self.users = 1
        weakref.finalize(self, os.close, descriptor).atexit = False


@dataclass(frozen=True, slots=True)
class Below:
    """A name below a held directory; keep the reference until the name was looked up."""

    name: str
    _held: _Held

    @property
    def descriptor(self) -> int:
        """Descriptor of the directory."""
        return self._held.descriptor


class HeldDirectory:
    """The directory of one store and the directories in it that are being written; thread-safe.

    Args:
        path: Absolute path without links.

    Attributes:
        is_dropped: Whether a directory, by its path, is of a table that was dropped.

    Raises:
        OSError: The directory can't be opened.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.is_dropped: Callable[[str], bool] = lambda _: False
        self._monotonic = clock.monotonic
        self._mutex = threading.Lock()
        at_path = _Held(os.open(path, _DIRECTORY))
        self._root = os.fspath(path)
        self._held = {self._root: at_path}
        """By path; as text, as all that is called for every file: text has its hash and its parts at hand."""
        self.identity = at_path.identity
        self._noted: dict[str, Identity] = {}
        self._in: dict[str, set[str]] = {}
        """For a directory, the directories in it that were noted, or that lead to such ones."""
        self._looks, self._look_next = 0, 0.0
        self._failure: StoreReplaced | None = None

    def below(self, path: Path) -> Below | None:
        """A path as a name below the nearest held directory; None if it is not in the store."""
        text = os.fspath(path)
        if text == self._root and (held := self._held.get(text)) is not None:
            return Below(".", held)
        end = len(text)
        while (end := text.rfind("/", 0, end)) > 0:
            if (held := self._held.get(text[:end])) is not None:
                return Below(text[end + 1 :], held)
        return None

    def hold(self, directory: Path) -> None:
        """Hold a directory of the store, to write its files; each call needs its own :meth:`let_go`.

        Raises:
            StoreReplaced: It is another directory than was noted or held before.
            OSError: It can't be opened.
        """
        with self._mutex:
            text = os.fspath(directory)
            held = self._held.get(text)
            if held is not None:
                held.users += 1
            elif (below := self.below(directory)) is not None:
                held = _Held(os.open(below.name, _DIRECTORY, dir_fd=below.descriptor))
                if held.identity != self._known(text, held.identity):
                    self._failure = _replaced(text, _REPLACED)
                    raise self._failure
                self._held[text] = held

    def note(self, directory: Path) -> None:
        """Remember which directory has a path now, for a later :meth:`hold`; does nothing if there is none."""
        with suppress(OSError):
            identity = _identity(os.stat(directory))
            with self._mutex:
                self._known(os.fspath(directory), identity)

    def _known(self, directory: str, identity: Identity) -> Identity:
        """The identity that is noted of a directory, which is the one found if there was none."""
        noted = self._noted.setdefault(directory, identity)
        child = directory
        while child not in (self._root, "") and child not in self._in.setdefault(_parent(child), set()):
            self._in[_parent(child)].add(child)
            child = _parent(child)
        return noted

    def forget(self, directory: Path) -> None:
        """Forget which directory has a path, and those below it: this process removes them and may make others."""
        with self._mutex:
            text = os.fspath(directory)
            self._in.get(_parent(text), set()).discard(text)
            forgotten = [text]
            while forgotten:
                each = forgotten.pop()
                self._noted.pop(each, None)
                forgotten += self._in.pop(each, ())

    def let_go(self, directory: Path) -> None:
        """Undo one :meth:`hold` of a directory; after the last one it is no longer verified."""
        with self._mutex:
            text = os.fspath(directory)
            held = self._held.get(text)
            if held is not None:
                held.users -= 1
                if not held.users:
                    del self._held[text]

    @property
    def is_replaced(self) -> bool:
        """Whether the path leads to another directory now, or did at an earlier check."""
        try:
            self.verify()
        except StoreReplaced:
            return True
        return False

    def check(self) -> int:
        """Call :meth:`verify` if the last check is ``LOOK_SECONDS`` old; returns the number of checks so far."""
        now = self._monotonic()
        if now >= self._look_next or self._failure is not None:
            self._look_next = now + LOOK_SECONDS
            self._looks += 1
            self.verify()
        return self._looks

    def identity_of(self, directory: Path) -> Identity:
        """Which directory has a path, or had it when it was noted or held.

        Raises:
            OSError: There is none.
        """
        self.note(directory)
        return self._noted[os.fspath(directory)]

    def expect(self, directory: Path, identity: Identity) -> None:
        """Hold a directory that another process has, the store's or one in it; see :meth:`hold`.

        Raises:
            StoreReplaced: Its path leads to another one.
            OSError: It can't be opened.
        """
        if os.fspath(directory) == self._root:
            if self.identity != identity:
                raise _replaced(self._root, "was replaced: its path leads to another one")
            return
        with self._mutex:
            self._known(os.fspath(directory), identity)
        self.hold(directory)

    def verify(self, within: Path | None = None) -> None:
        """Verify that the paths of all held directories lead to them.

        Args:
            within: A path in the store: only the directories on the way to it, and those of the store that lead to
                others, are verified, also if they are not held but noted.

        Raises:
            StoreReplaced: One leads elsewhere, or did at an earlier check.
        """
        if self._failure is None:
            directories = self._held.copy() if within is None else self._on_the_way_to(within)
            for path, held in directories.items():
                event = what_happened(path, held)
                if event is not None and not os.path.lexists(path) and self.is_dropped(path):
                    continue
                with self._mutex:
                    # A directory that was let go meanwhile may be removed, also by other processes.
                    if event is not None and self._held.get(path) is held:
                        self._failure = event
                        break
        if self._failure is not None:
            raise StoreReplaced(self._failure.message, **self._failure.where)

    def _on_the_way_to(self, path: Path) -> dict[str, _Held]:
        """The held directories on the way to a path; notices if another one was noted in the place of one."""
        with self._mutex:
            way, above = {self._root, *self._in.get(self._root, ())}, os.fspath(path)
            while above and above not in way:
                way.add(above)
                above = _parent(above)
            directories = {}
            for each in way:
                if (held := self._held.get(each)) is not None:
                    directories[each] = held
                elif (noted := self._noted.get(each)) is not None and _is_another(each, noted):
                    self._failure = _replaced(each, _REPLACED)
            return directories

    def close(self) -> None:
        """Let all directories go: each is closed, once no thread looks up a name in it."""
        with self._mutex:
            self._held = {}


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _parent(path: str) -> str:
    """The directory that a path is in; empty at the root."""
    return path.rpartition("/")[0]


def _is_another(path: str, identity: Identity) -> bool:
    try:
        return _identity(os.stat(path)) != identity
    except OSError:
        return False  # another process may have removed it with its table


def what_happened(path: str, held: _Held) -> StoreReplaced | None:
    """The error of a directory's path; None if it still leads to the directory."""
    try:
        if _identity(os.stat(path)) == held.identity:
            return None
        what = "was replaced: its path leads to another one" + (", through a link" if os.path.islink(path) else "")
    except OSError as error:
        what = "can't be reached by its path any more: " + (error.strerror or str(error))
        if error.errno in _NOT_THERE:
            what = "was moved away" if os.fstat(held.descriptor).st_nlink else "was removed"
    return _replaced(path, what)


def _replaced(path: str, what: str) -> StoreReplaced:
    return StoreReplaced(
        f"A directory of the store {what}. Nothing more is written; close the store, and open what is there now.",
        path=Path(path),
    )
