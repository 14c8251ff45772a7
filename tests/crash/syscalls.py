"""System calls that change files or names, in one shape whatever the machine calls them.

The kernel's numbers differ between architectures; the arguments of a call do not.
"""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

AT_FDCWD = -100
AT_REMOVEDIR = 0x200

_CALLS = """
write 1 64 | open 2 - | close 3 57 | lseek 8 62 | mmap 9 222 | pwrite64 18 68
writev 20 66 | dup 32 23 | dup2 33 - | sendfile 40 71 | fcntl 72 25 | fsync 74 82
fdatasync 75 83 | truncate 76 45 | ftruncate 77 46 | rename 82 - | mkdir 83 - | rmdir 84 -
creat 85 - | link 86 - | unlink 87 - | symlink 88 - | openat 257 56 | mkdirat 258 34
unlinkat 263 35 | renameat 264 38 | linkat 265 37 | symlinkat 266 36 | sync_file_range 277 84 | fallocate 285 47
dup3 292 24 | pwritev 296 70 | syncfs 306 267 | renameat2 316 276 | copy_file_range 326 285 | pwritev2 328 287
openat2 437 437
"""
"""Name, number on x86-64, number where Linux came later (aarch64, riscv64)."""
_COLUMNS = {"x86_64": 1, "aarch64": 2, "riscv64": 2}
_ROWS = [cell.split() for line in _CALLS.split("\n") if line for cell in line.split(" | ")]
_COLUMN = _COLUMNS.get(platform.machine(), 0)
NUMBERS = {row[0]: int(row[_COLUMN]) for row in _ROWS if _COLUMN and row[_COLUMN] != "-"}
NAMES = {number: name for name, number in NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Call:
    """One system call.

    Attributes:
        kind: ``open close dup write seek sync truncate allocate rename remove make link map other exit``
            (``exit``, which no process calls itself, for the end of one).
        fd: Descriptor it works on, or directory that ``path`` starts from.
        other_fd, other_path: The second name of a rename or link.
        data: Bytes to be written.
        number: Position of a write (-1: where the descriptor stands), or length.
        flags: Of open, rename, remove, map, allocate.
        result: What it returned, negative errno if it failed.
    """

    name: str
    kind: str
    fd: int = -1
    path: str = ""
    other_fd: int = -1
    other_path: str = ""
    data: bytes = b""
    number: int = -1
    flags: int = 0
    result: int = 0

    def returned(self, result: int) -> Call:
        """The same call with its result."""
        return replace(self, result=result)


class Memory(Protocol):
    """Memory of the process that makes the call."""

    def text(self, address: int) -> str:
        """A path."""

    def bytes(self, address: int, size: int) -> bytes:
        """Some bytes."""


Decoder = Callable[[str, list[int], Memory], Call | None]


def decode(number: int, args: list[int], memory: Memory) -> Call | None:
    """What a call does to files; None if nothing."""
    name = NAMES.get(number)
    return None if name is None else _DECODERS[name](name, args, memory)


def _int(value: int) -> int:
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


def _long(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _on_descriptor(kind: str) -> Decoder:
    def decoder(name: str, args: list[int], memory: Memory) -> Call:
        return Call(name, kind, _int(args[0]))

    return decoder


def _with_length(name: str, args: list[int], memory: Memory) -> Call:
    return Call(name, "truncate", _int(args[0]), number=_long(args[1]))


def _allocate(name: str, args: list[int], memory: Memory) -> Call:
    end = _long(args[2]) + _long(args[3])
    return Call(name, "allocate", _int(args[0]), number=end, flags=_int(args[1]))


def _write(name: str, args: list[int], memory: Memory) -> Call:
    position = _long(args[3]) if name == "pwrite64" else -1
    return Call(name, "write", _int(args[0]), data=memory.bytes(args[1], args[2]), number=position)


def _write_pieces(name: str, args: list[int], memory: Memory) -> Call:
    if name == "pwritev2" and args[5]:
        return Call(name, "other", _int(args[0]), flags=args[5])
    vector = memory.bytes(args[1], 16 * args[2])
    words = [int.from_bytes(vector[at : at + 8], "little") for at in range(0, len(vector), 8)]
    data = b"".join(memory.bytes(base, size) for base, size in zip(words[::2], words[1::2], strict=True))
    return Call(name, "write", _int(args[0]), data=data, number=-1 if name == "writev" else _long(args[3]))


def _open(name: str, args: list[int], memory: Memory) -> Call:
    if name == "openat":
        return Call(name, "open", _int(args[0]), memory.text(args[1]), flags=_int(args[2]))
    flags = _int(args[1]) if name == "open" else os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    return Call(name, "open", AT_FDCWD, memory.text(args[0]), flags=flags)


def _rename(kind: str) -> Decoder:
    def decoder(name: str, args: list[int], memory: Memory) -> Call:
        if name in ("rename", "link"):
            return Call(name, kind, AT_FDCWD, memory.text(args[0]), AT_FDCWD, memory.text(args[1]))
        flags = _int(args[4]) if name == "renameat2" else 0
        return Call(name, kind, _int(args[0]), memory.text(args[1]), _int(args[2]), memory.text(args[3]), flags=flags)

    return decoder


def _one_name(kind: str, flags: int = 0) -> Decoder:
    def decoder(name: str, args: list[int], memory: Memory) -> Call:
        if name.endswith("at"):
            return Call(name, kind, _int(args[0]), memory.text(args[1]), flags=_int(args[2]))
        return Call(name, kind, AT_FDCWD, memory.text(args[0]), flags=flags)

    return decoder


def _duplicate(name: str, args: list[int], memory: Memory) -> Call | None:
    if name == "fcntl" and args[1] not in (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC):
        return None
    return Call(name, "dup", _int(args[0]))


def _map(name: str, args: list[int], memory: Memory) -> Call | None:
    shared, writable = 1, 2
    if _int(args[4]) < 0 or not args[3] & shared or not args[2] & writable:
        return None
    return Call(name, "map", _int(args[4]), flags=args[3])


def _other(name: str, args: list[int], memory: Memory) -> Call:
    place = {"openat2": 1, "truncate": 0, "symlink": 1, "symlinkat": 2}[name]
    descriptor = _int(args[place - 1]) if name.endswith(("at", "at2")) else AT_FDCWD
    return Call(name, "other", descriptor, memory.text(args[place]))


_DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("write", "pwrite64"), _write),
    **dict.fromkeys(("writev", "pwritev", "pwritev2"), _write_pieces),
    **dict.fromkeys(("open", "openat", "creat"), _open),
    **dict.fromkeys(("rename", "renameat", "renameat2"), _rename("rename")),
    **dict.fromkeys(("link", "linkat"), _rename("link")),
    **dict.fromkeys(("unlink", "unlinkat"), _one_name("remove")),
    **dict.fromkeys(("mkdir", "mkdirat"), _one_name("make")),
    **dict.fromkeys(("dup", "dup2", "dup3", "fcntl"), _duplicate),
    **dict.fromkeys(("fsync", "fdatasync"), _on_descriptor("sync")),
    **dict.fromkeys(("sync_file_range", "copy_file_range", "sendfile", "syncfs"), _on_descriptor("other")),
    "fallocate": _allocate,
    "ftruncate": _with_length,
    "close": _on_descriptor("close"),
    "lseek": _on_descriptor("seek"),
    "mmap": _map,
    "rmdir": _one_name("remove", AT_REMOVEDIR),
    "openat2": _other,
    "truncate": _other,
    "symlink": _other,
    "symlinkat": _other,
}
