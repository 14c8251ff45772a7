"""What a disk may hold after a power cut, followed call by call.

* A file has the bytes that are durable, the writes that wait, and what a reader sees now.
* A name is durable after a sync of its directory (``strict``) or of anything (``ext4``, one journal for all names).
* A write through O_DSYNC makes its own bytes durable. A sync that failed makes nothing durable, and what waited never
  will be: the kernel called the pages clean.
* Stores through memory maps are not seen; only LMDB's ``lock.mdb`` and SQLite's ``-shm`` have them, and those are
  written again at the next open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.crash.syscalls import AT_FDCWD, AT_REMOVEDIR, Call

Mode = Literal["ext4", "strict"]
MODES: tuple[Mode, ...] = ("ext4", "strict")
_KEEP_SIZE = 1  # of fallocate()
UNSEEN = ("lock.mdb", "-shm")
"""How names of files end that are written through memory maps."""

Contents = dict[str, bytes | None]
"""By path; None for a directory."""


class NotModelled(Exception):
    """The process did something this model knows nothing of; it must be taught before its states can be trusted."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes on their way to the disk."""

    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A new length on its way to the disk."""

    length: int


class Node:
    """A file or directory; compared by identity."""


class File(Node):
    """Bytes of a file: durable ones, waiting changes, and what is seen."""

    def __init__(self, data: bytes = b"") -> None:
        self.durable = data
        self.waiting: list[Write | Cut] = []
        self._seen = bytearray(data)
        self._frozen: bytes | None = data

    @property
    def seen(self) -> bytes:
        if self._frozen is None:
            self._frozen = bytes(self._seen)
        return self._frozen

    def change(self, change: Write | Cut, *, synced: bool = False) -> None:
        apply(self._seen, change)
        self._frozen = None
        if synced and isinstance(change, Write):
            image = bytearray(self.durable)
            apply(image, change)
            self.durable = bytes(image)
            self.waiting = [rest for waiting in self.waiting for rest in _outside(waiting, change)]
        else:
            self.waiting.append(change)

    def sync(self) -> None:
        if self.waiting:
            image = bytearray(self.durable)
            for change in self.waiting:
                apply(image, change)
            self.durable = bytes(image)
            self.waiting = []

    def fail_sync(self) -> None:
        self.waiting = []

    @property
    def size(self) -> int:
        return len(self._seen)


class Directory(Node):
    """Names as they are seen."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}


@dataclass(frozen=True, slots=True)
class Renaming:
    """Names that change together: ``(directory, name, what it names from now on or None)``."""

    changes: tuple[tuple[Directory, str, Node | None], ...]


class Names:
    """Durable names in one mode, and changes of names that wait."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.durable: dict[Directory, dict[str, Node]] = {}
        self.waiting: list[Renaming] = []

    def add(self, renaming: Renaming) -> None:
        self.waiting.append(renaming)

    def sync(self, node: Node) -> None:
        if self.mode == "ext4":
            done, rest = self.waiting, []
        else:
            done = [renaming for renaming in self.waiting if any(node is where for where, *_ in renaming.changes)]
            rest = [renaming for renaming in self.waiting if renaming not in done]
        rename(self.durable, done)
        self.waiting = rest


@dataclass(slots=True)
class _Opened:
    node: Node
    flags: int
    position: int = 0


@dataclass(slots=True)
class Disk:
    """A directory and all below it, as the calls of one process change it."""

    path: str
    root: Directory = field(default_factory=Directory)
    names: dict[Mode, Names] = field(default_factory=lambda: {mode: Names(mode) for mode in MODES})
    _opened: dict[int, _Opened] = field(default_factory=dict)

    @classmethod
    def holding(cls, path: str, contents: Contents) -> Disk:
        """A disk on which everything is durable."""
        disk = cls(path)
        for name in sorted(contents):
            data = contents[name]
            node = Directory() if data is None else File(data)
            parent, last = disk._place(AT_FDCWD, f"{path}/{name}")
            parent.names[last] = node
            for names in disk.names.values():
                names.durable.setdefault(parent, {})[last] = node
        return disk

    def run(self, call: Call) -> None:
        """Follow one call."""
        if call.kind == "sync":
            self._sync(call)
        elif call.kind == "close":
            self._opened.pop(call.fd, None)
        elif call.result >= 0:
            getattr(self, f"_run_{call.kind}")(call)

    def _run_exit(self, _: Call) -> None:
        self._opened.clear()

    def seen(self) -> Contents:
        """What a process sees now, and after a kill."""
        return contents_of(self.root, lambda directory: directory.names, lambda file: file.seen)

    def file(self, descriptor: int) -> str | None:
        """Path of an open file."""
        opened = self._opened.get(descriptor)
        return None if opened is None else _path_of(self.root, opened.node)

    def _run_open(self, call: Call) -> None:
        parent, name = self._place(call.fd, call.path)
        node = parent.names.get(name) if name else parent
        if node is None:
            if not call.flags & os.O_CREAT:
                raise NotModelled(f"{call} opens what is not there")
            node = File()
            self._rename((parent, name, node))
        elif call.flags & os.O_TRUNC and isinstance(node, File) and node.size:
            node.change(Cut(0))
        self._opened[call.result] = _Opened(node, call.flags)

    def _run_dup(self, call: Call) -> None:
        self._opened[call.result] = self._opened[call.fd]

    def _run_write(self, call: Call) -> None:
        opened = self._opened[call.fd]
        file = self._file(call)
        position = call.number
        if position < 0:
            position = file.size if opened.flags & os.O_APPEND else opened.position
            opened.position = position + call.result
        if call.result:
            synced = opened.flags & os.O_DSYNC == os.O_DSYNC
            file.change(Write(position, call.data[: call.result]), synced=synced)

    def _run_seek(self, call: Call) -> None:
        self._opened[call.fd].position = call.result

    def _run_truncate(self, call: Call) -> None:
        file = self._file(call)
        if call.number != file.size:
            file.change(Cut(call.number))

    def _sync(self, call: Call) -> None:
        node = self._opened[call.fd].node
        if call.result < 0:
            if isinstance(node, File):
                node.fail_sync()
            return
        if isinstance(node, File):
            node.sync()
        for names in self.names.values():
            names.sync(node)

    def _run_make(self, call: Call) -> None:
        parent, name = self._place(call.fd, call.path)
        self._rename((parent, name, Directory()))

    def _run_remove(self, call: Call) -> None:
        parent, name = self._place(call.fd, call.path)
        node = parent.names[name]
        if isinstance(node, Directory) != bool(call.flags & AT_REMOVEDIR):
            raise NotModelled(str(call))
        self._rename((parent, name, None))

    def _run_rename(self, call: Call) -> None:
        if call.flags:
            raise NotModelled(str(call))
        old, old_name = self._place(call.fd, call.path)
        new, new_name = self._place(call.other_fd, call.other_path)
        node = old.names[old_name]
        self._rename((new, new_name, node), (old, old_name, None))

    def _run_map(self, call: Call) -> None:
        path = self.file(call.fd)
        if path is not None and not path.endswith(UNSEEN):
            raise NotModelled(f"{path} is written through a memory map")

    def _run_allocate(self, call: Call) -> None:
        file = self._file(call)
        if call.flags not in (0, _KEEP_SIZE):
            raise NotModelled(str(call))
        if not call.flags and call.number > file.size:
            file.change(Cut(call.number))

    def _run_link(self, call: Call) -> None:
        old, old_name = self._place(call.fd, call.path)
        new, new_name = self._place(call.other_fd, call.other_path)
        self._rename((new, new_name, old.names[old_name]))

    def _run_other(self, call: Call) -> None:
        raise NotModelled(str(call))

    def _rename(self, *changes: tuple[Directory, str, Node | None]) -> None:
        renaming = Renaming(changes)
        for where, name, node in renaming.changes:
            if node is None:
                del where.names[name]
            else:
                where.names[name] = node
        for names in self.names.values():
            names.add(renaming)

    def _file(self, call: Call) -> File:
        node = self._opened[call.fd].node
        if not isinstance(node, File):
            raise NotModelled(str(call))
        return node

    def _place(self, descriptor: int, path: str) -> tuple[Directory, str]:
        """The directory a path ends in, and the last name; no name for a directory itself."""
        if path.startswith("/"):
            if not (path + "/").startswith(self.path + "/"):
                raise NotModelled(f"{path} is outside of {self.path}")
            node: Node = self.root
            path = path[len(self.path) :]
        else:
            node = self._opened[descriptor].node
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for part in parts[:-1]:
            assert isinstance(node, Directory)
            node = node.names[part]
        assert isinstance(node, Directory)
        return node, parts[-1] if parts else ""


def apply(image: bytearray, change: Write | Cut) -> None:
    """Change bytes as a file is changed; a hole is zeros."""
    if isinstance(change, Cut):
        del image[change.length :]
        image.extend(bytes(change.length - len(image)))
        return
    image.extend(bytes(max(0, change.position - len(image))))
    image[change.position : change.position + len(change.data)] = change.data


def rename(names: dict[Directory, dict[str, Node]], renamings: list[Renaming]) -> None:
    """Carry out changes of names."""
    for renaming in renamings:
        for where, name, node in renaming.changes:
            if node is None:
                names.setdefault(where, {}).pop(name, None)
            else:
                names.setdefault(where, {})[name] = node


def contents_of(
    root: Directory, names: Callable[[Directory], Mapping[str, Node]], bytes_of: Callable[[File], bytes]
) -> Contents:
    """All below a directory.

    Args:
        names: What a directory holds.
        bytes_of: What a file holds.
    """
    found: Contents = {}

    def walk(directory: Directory, prefix: str) -> None:
        for name, node in names(directory).items():
            if isinstance(node, Directory):
                found[prefix + name] = None
                walk(node, f"{prefix}{name}/")
            elif isinstance(node, File):
                found[prefix + name] = bytes_of(node)

    walk(root, "")
    return found


def _outside(change: Write | Cut, written: Write) -> list[Write | Cut]:
    """What is left of a waiting change once ``written`` is durable over it."""
    if isinstance(change, Cut):
        return [change]
    start, stop = written.position, written.position + len(written.data)
    before, following = change.data[: max(0, start - change.position)], change.data[max(0, stop - change.position) :]
    rest: list[Write | Cut] = [Write(change.position, before)] if before else []
    if following:
        rest.append(Write(change.position + len(change.data) - len(following), following))
    return rest


def _path_of(directory: Directory, wanted: Node, prefix: str = "") -> str | None:
    for name, node in directory.names.items():
        if node is wanted:
            return prefix + name
        if isinstance(node, Directory) and (found := _path_of(node, wanted, f"{prefix}{name}/")):
            return found
    return None
