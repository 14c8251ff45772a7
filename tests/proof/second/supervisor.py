"""Records how processes change files: they ask, this process does it for them and answers.

A filter (seccomp, user notification) stops the calls of :data:`CALLS` in a process and all its children. The supervisor
gets a descriptor of the file (``pidfd_getfd``), makes the call on it, notes what changed and returns the result. Calls
are made one after the other, so that what was noted is what happened, in one order. Files are distinguished by their
inodes.

Changes through a shared writable map can't be seen this way: only LMDB's lock file may have one. A call that the
recorder does not know is noted as ``unknown``, and no state of that recording may be believed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = 0
"""The node of the directory that is recorded."""


class NotPossible(Exception):
    """This machine has no such filter; the message says why."""


class Node(NamedTuple):
    """A file or directory that was created."""

    id: int
    is_directory: bool


class Names(NamedTuple):
    """Names changed in one step: directory, name, and the node it has now, None for none."""

    changes: tuple[tuple[int, str, int | None], ...]


class Write(NamedTuple):
    node: int
    position: int
    data: bytes


class Size(NamedTuple):
    node: int
    bytes: int


class Sync(NamedTuple):
    """All of a file, or the names of a directory, are durable."""

    node: int


class SyncRange(NamedTuple):
    """Some bytes of a file are durable: they were written with O_DSYNC."""

    node: int
    start: int
    end: int


class Mark(NamedTuple):
    """The workload says how far it is."""

    text: str


class Unknown(NamedTuple):
    """A call that changes files and that the recorder does not know."""

    what: str


Event = Node | Names | Write | Size | Sync | SyncRange | Mark | Unknown

_NUMBERS = {
    "write": 1,
    "open": 2,
    "mmap": 9,
    "pwrite64": 18,
    "writev": 20,
    "sendfile": 40,
    "fsync": 74,
    "fdatasync": 75,
    "truncate": 76,
    "ftruncate": 77,
    "rename": 82,
    "mkdir": 83,
    "rmdir": 84,
    "creat": 85,
    "link": 86,
    "unlink": 87,
    "symlink": 88,
    "openat": 257,
    "mkdirat": 258,
    "unlinkat": 263,
    "renameat": 264,
    "linkat": 265,
    "symlinkat": 266,
    "splice": 275,
    "fallocate": 285,
    "pwritev": 296,
    "renameat2": 316,
    "copy_file_range": 326,
    "pwritev2": 328,
}
CALLS = {number: name for name, number in _NUMBERS.items()}
"""Calls that are stopped, by their number on x86-64. What is not here changes no file of a store."""
_SECCOMP, _PIDFD_GETFD = 317, 438
_X86_64 = 0xC000003E
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_SET_FILTER, _NEW_LISTENER, _NO_NEW_PRIVILEGES = 1, 8, 38
_RECEIVE, _SEND, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103
_GO_ON, _ADD_AND_SEND = 1, 2
_AT_CWD, _AT_REMOVEDIR, _AT_FOLLOW = -100, 0x200, 0x400
_WRITABLE, _SHARED = 2, 1
_POLL_MS = 1000

_libc = ctypes.CDLL(None, use_errno=True)


def _argument(number: int) -> int:
    return 16 + 8 * number  # the low half; of struct seccomp_data


def _program() -> bytes:
    """Stop the calls; of opens only those that create or truncate, of maps only those that others see writes of."""
    steps: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _ALLOW)]
    conditions = {
        "open": [(1, os.O_CREAT | os.O_TRUNC)],
        "openat": [(2, os.O_CREAT | os.O_TRUNC)],
        "mmap": [(2, _WRITABLE), (3, _SHARED)],
    }
    steps.append((_LOAD, 0, 0, 0))
    for name, number in _NUMBERS.items():
        tests = conditions.get(name, [])
        steps.append((_EQUAL, 0, 2 * len(tests) + 1 + (1 if tests else 0), number))
        for place, (argument, bits) in enumerate(tests):
            left = 2 * (len(tests) - place - 1)
            steps += [(_LOAD, 0, 0, _argument(argument)), (_ANY_BIT, 0, left + 1, bits)]
        steps.append((_RETURN, 0, 0, _NOTIFY))
        if tests:
            steps.append((_RETURN, 0, 0, _ALLOW))
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def be_recorded(answers: socket.socket) -> None:
    """Have this process, which has one thread, and all it starts ask the other end of a socket from now on."""
    program = _program()
    memory = ctypes.create_string_buffer(program)
    given = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(memory))
    _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener = _libc.syscall(_SECCOMP, _SET_FILTER, _NEW_LISTENER, given)
    if listener < 0:
        answers.send(f"seccomp: {os.strerror(ctypes.get_errno())}".encode())
        os._exit(1)
    socket.send_fds(answers, [b"on"], [listener])
    os.close(listener)


def listener_of(questions: socket.socket) -> int:
    """The descriptor that calls come from.

    Raises:
        NotPossible: The process could not be given the filter.
    """
    if platform.machine() != "x86_64":
        raise NotPossible(f"the numbers of calls on {platform.machine()} are not known")
    said, descriptors, _, _ = socket.recv_fds(questions, 200, 1)
    if not descriptors:
        raise NotPossible(said.decode() or "the process died before it had a filter")
    return int(descriptors[0])


@dataclass(frozen=True, slots=True)
class _Call:
    """What a thread asks."""

    id: int
    thread: int
    name: str
    arguments: tuple[int, ...]

    def signed(self, number: int) -> int:
        return ctypes.c_int(self.arguments[number]).value


class _Process:
    """A process that asks: its descriptors and its memory."""

    def __init__(self, id: int) -> None:
        self.id = id
        self._handle = os.pidfd_open(id)
        self._memory = os.open(f"/proc/{id}/mem", os.O_RDONLY)

    def close(self) -> None:
        os.close(self._handle)
        os.close(self._memory)

    def descriptor(self, number: int) -> int:
        """A descriptor of the same open file."""
        got: int = _libc.syscall(_PIDFD_GETFD, self._handle, number, 0)
        if got < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return got

    def bytes(self, address: int, count: int) -> bytes:
        return os.pread(self._memory, count, address) if count else b""

    def text(self, address: int) -> str:
        found = b""
        while b"\0" not in found:
            found += os.pread(self._memory, 256 - (address + len(found)) % 256, address + len(found))
        return os.fsdecode(found.partition(b"\0")[0])

    def pieces(self, address: int, count: int) -> bytes:
        """What an array of struct iovec refers to."""
        vector = struct.iter_unpack("QQ", self.bytes(address, 16 * count))
        return b"".join(self.bytes(start, length) for start, length in vector)


class _Place(NamedTuple):
    """A name in a directory that is recorded."""

    directory: int
    name: str


class Supervisor:
    """Answers calls until no process is left that asks.

    Attributes:
        events: What happened, in order.
    """

    def __init__(self, root: Path, marks: Path) -> None:
        self.events: list[Event] = []
        self._processes: dict[int, _Process] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._held: list[int] = []
        self._marks = self._identity(os.stat(marks))
        self._add(os.fspath(root), os.stat(root))
        self._take(root, ROOT)
        self._do: dict[str, Callable[[_Call, _Process], int | None]] = {
            "write": self._write,
            "pwrite64": self._write,
            "writev": self._write,
            "pwritev": self._write,
            "pwritev2": self._write,
            "fsync": self._sync,
            "fdatasync": self._sync,
            "ftruncate": self._truncate,
            "fallocate": self._allocate,
            "open": self._open,
            "openat": self._open,
            "creat": self._open,
            "rename": self._rename,
            "renameat": self._rename,
            "renameat2": self._rename,
            "link": self._link,
            "linkat": self._link,
            "unlink": self._unlink,
            "unlinkat": self._unlink,
            "rmdir": self._unlink,
            "mkdir": self._make,
            "mkdirat": self._make,
            "mmap": self._map,
            "symlink": self._new_link,
            "symlinkat": self._new_link,
            "truncate": self._truncate_name,
            "sendfile": self._copy,
            "splice": self._copy,
            "copy_file_range": self._copy,
        }

    def serve(self, listener: int) -> None:
        """Do what is asked until all that ask have ended."""
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while True:
            for _, happened in poll.poll(_POLL_MS):
                if happened & select.POLLIN:
                    self._answer(listener)
                elif happened & (select.POLLHUP | select.POLLERR):
                    self._end()
                    return

    def _end(self) -> None:
        for process in self._processes.values():
            process.close()
        for descriptor in self._held:
            os.close(descriptor)

    def _answer(self, listener: int) -> None:
        asked = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, asked)
        except (FileNotFoundError, InterruptedError):
            return  # the thread was killed
        id, thread, _, number, _, _, *arguments = struct.unpack("QIIiIQ6Q", asked)
        call = _Call(id, thread, CALLS[number], tuple(arguments))
        value, error, flags = 0, 0, 0
        try:
            done = self._do[call.name](call, self._process(thread))
        except ProcessLookupError:
            done = None
        except OSError as refused:
            done, error = 0, -(refused.errno or errno.EIO)
        if done is None:
            flags = _GO_ON
        else:
            value = done
        with suppress(FileNotFoundError):
            if call.name in ("open", "openat", "creat") and done is not None and not error:
                closes = self._flags(call) & os.O_CLOEXEC
                added = struct.pack("QIIII", id, _ADD_AND_SEND, value, 0, closes)
                try:
                    fcntl.ioctl(listener, _ADD_DESCRIPTOR, added)
                finally:
                    os.close(value)
            else:
                fcntl.ioctl(listener, _SEND, struct.pack("QqiI", id, value, error, flags))

    def _process(self, thread: int) -> _Process:
        with open(f"/proc/{thread}/status") as status:
            id = next(int(line.split()[1]) for line in status if line.startswith("Tgid:"))
        if id not in self._processes:
            self._processes[id] = _Process(id)
        return self._processes[id]

    # Which file is meant

    @staticmethod
    def _identity(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def _node(self, status: os.stat_result) -> int | None:
        return self._nodes.get(self._identity(status))

    def _add(self, path: str, status: os.stat_result) -> int:
        """A new node; its inode is held, so that no later file gets its number."""
        node = self._nodes[self._identity(status)] = len(self._held)
        self._held.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        if node != ROOT:
            self.events.append(Node(node, stat.S_ISDIR(status.st_mode)))
        return node

    def _take(self, directory: Path, node: int) -> None:
        """What is there before the first call is durable."""
        for path in directory.iterdir():
            child = self._add(os.fspath(path), path.lstat())
            self.events.append(Names(((node, path.name, child),)))
            if path.is_dir():
                self._take(path, child)
            else:
                self.events += [Write(child, 0, path.read_bytes()), Sync(child)]
        self.events.append(Sync(node))

    @contextmanager
    def _file(self, process: _Process, number: int) -> Iterator[tuple[int, int | None]]:
        """A descriptor of the caller's, and which node it is."""
        descriptor = process.descriptor(number)
        try:
            yield descriptor, self._node(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    @contextmanager
    def _directory(self, call: _Call, process: _Process, number: int, path: str) -> Iterator[tuple[str, _Place | None]]:
        """A path that this process may use, and the place it is; None for the place if it is not recorded."""
        if path.startswith("/") or number == _AT_CWD:
            base = os.open("/" if path.startswith("/") else f"/proc/{call.thread}/cwd", os.O_PATH | os.O_CLOEXEC)
        else:
            base = process.descriptor(number)
        try:
            parent, _, name = path.rstrip("/").rpartition("/")
            above = f"/proc/self/fd/{base}/{parent}"
            try:
                node = self._node(os.stat(above))
            except (FileNotFoundError, NotADirectoryError):
                node = None
            yield f"{above}/{name}", None if node is None else _Place(node, name)
        finally:
            os.close(base)

    # Calls; None: the caller shall make it

    def _write(self, call: _Call, process: _Process) -> int | None:
        number, address, count, position, _, how = call.arguments
        with self._file(process, ctypes.c_int(number).value) as (descriptor, node):
            is_mark = self._identity(os.fstat(descriptor)) == self._marks
            if node is None and not is_mark:
                return None
            data = (
                process.bytes(address, count) if call.name in ("write", "pwrite64") else process.pieces(address, count)
            )
            if is_mark:
                self.events.append(Mark(data.decode()))
                return os.write(descriptor, data)
            assert node is not None
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if call.name in ("write", "writev"):
                at_end = flags & os.O_APPEND
                position = os.fstat(descriptor).st_size if at_end else os.lseek(descriptor, 0, os.SEEK_CUR)
                written = os.write(descriptor, data)
            else:
                written = os.pwrite(descriptor, data, position)
            if call.name == "pwritev2" and how:
                self.events.append(Unknown(f"pwritev2 with {how}"))
            self.events.append(Write(node, position, data[:written]))
            if flags & os.O_DSYNC:
                self.events.append(SyncRange(node, position, position + written))
            return written

    def _sync(self, call: _Call, process: _Process) -> int | None:
        with self._file(process, call.signed(0)) as (descriptor, node):
            if node is not None:
                os.fsync(descriptor)
                self.events.append(Sync(node))
            return None if node is None else 0

    def _truncate(self, call: _Call, process: _Process) -> int | None:
        with self._file(process, call.signed(0)) as (descriptor, node):
            if node is None:
                return None
            os.ftruncate(descriptor, call.arguments[1])
            self.events.append(Size(node, call.arguments[1]))
            return 0

    def _allocate(self, call: _Call, process: _Process) -> int | None:
        _, how, start, length, *_ = call.arguments
        with self._file(process, call.signed(0)) as (descriptor, node):
            if node is None:
                return None
            if how:
                self.events.append(Unknown(f"fallocate with {how}"))
                return None
            os.posix_fallocate(descriptor, start, length)
            self.events.append(Size(node, os.fstat(descriptor).st_size))
            return 0

    def _flags(self, call: _Call) -> int:
        if call.name == "creat":
            return os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        return call.arguments[1 if call.name == "open" else 2]

    def _open(self, call: _Call, process: _Process) -> int | None:
        first = 0 if call.name in ("open", "creat") else 1
        directory = call.signed(0) if first else _AT_CWD
        with self._directory(call, process, directory, process.text(call.arguments[first])) as (path, place):
            if place is None:
                return None
            existed = os.path.lexists(path)
            flags = self._flags(call)
            descriptor = os.open(path, flags, call.arguments[first + (1 if call.name == "creat" else 2)] & 0o7777)
            status = os.fstat(descriptor)
            if not existed:
                self.events.append(Names(((*place, self._add(path, status)),)))
            elif (node := self._node(status)) is not None and flags & os.O_TRUNC:
                self.events.append(Size(node, 0))
            return descriptor

    def _two(self, call: _Call) -> tuple[int, int, int, int, int]:
        """Directory and address of a name, twice, and flags."""
        if call.name in ("rename", "link"):
            return _AT_CWD, call.arguments[0], _AT_CWD, call.arguments[1], 0
        flags = call.signed(4) if call.name in ("renameat2", "linkat") else 0
        return call.signed(0), call.arguments[1], call.signed(2), call.arguments[3], flags

    def _rename(self, call: _Call, process: _Process) -> int | None:
        one, first, other, second, flags = self._two(call)
        with (
            self._directory(call, process, one, process.text(first)) as (old, source),
            self._directory(call, process, other, process.text(second)) as (new, target),
        ):
            if source is None and target is None:
                return None
            node = self._node(os.lstat(old))
            if source is None or target is None or flags or node is None:
                self.events.append(Unknown(f"rename of {old} to {new}, {flags}"))
                return None
            os.rename(old, new)
            self.events.append(Names(((*source, None), (*target, node))))
            return 0

    def _link(self, call: _Call, process: _Process) -> int | None:
        one, first, other, second, flags = self._two(call)
        with (
            self._directory(call, process, one, process.text(first)) as (old, source),
            self._directory(call, process, other, process.text(second)) as (new, target),
        ):
            if target is None:
                return None
            node = self._node(os.lstat(old))
            if source is None or node is None or flags & _AT_FOLLOW:
                self.events.append(Unknown(f"link of {old} as {new}, {flags}"))
                return None
            os.link(old, new, follow_symlinks=False)
            self.events.append(Names(((*target, node),)))
            return 0

    def _one(self, call: _Call) -> tuple[int, int]:
        if call.name.endswith("at"):
            return call.signed(0), call.arguments[1]
        return _AT_CWD, call.arguments[0]

    def _unlink(self, call: _Call, process: _Process) -> int | None:
        directory, address = self._one(call)
        with self._directory(call, process, directory, process.text(address)) as (path, place):
            if place is None:
                return None
            if call.name == "rmdir" or (call.name == "unlinkat" and call.arguments[2] & _AT_REMOVEDIR):
                os.rmdir(path)
            else:
                os.unlink(path)
            self.events.append(Names(((*place, None),)))
            return 0

    def _make(self, call: _Call, process: _Process) -> int | None:
        directory, address = self._one(call)
        with self._directory(call, process, directory, process.text(address)) as (path, place):
            if place is None:
                return None
            os.mkdir(path, call.arguments[2 if call.name == "mkdirat" else 1] & 0o7777)
            self.events.append(Names(((*place, self._add(path, os.stat(path))),)))
            return 0

    def _map(self, call: _Call, process: _Process) -> None:
        if call.signed(4) >= 0:
            with self._file(process, call.signed(4)) as (descriptor, node):
                name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
                if node is not None and name != "lock.mdb":
                    self.events.append(Unknown(f"a writable map of {name}"))

    def _new_link(self, call: _Call, process: _Process) -> None:
        number, address = (_AT_CWD, 1) if call.name == "symlink" else (call.signed(1), 2)
        with self._directory(call, process, number, process.text(call.arguments[address])) as (path, place):
            if place is not None:
                self.events.append(Unknown(f"a symbolic link {path}"))

    def _truncate_name(self, call: _Call, process: _Process) -> None:
        with self._directory(call, process, _AT_CWD, process.text(call.arguments[0])) as (path, place):
            if place is not None:
                self.events.append(Unknown(f"truncate of {path}"))

    def _copy(self, call: _Call, process: _Process) -> None:
        number = call.signed(0 if call.name == "sendfile" else 2)
        with self._file(process, number) as (_, node):
            if node is not None:
                self.events.append(Unknown(f"{call.name} to a file"))
