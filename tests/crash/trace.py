"""A process under ptrace: every call that touches a directory is seen, and may be made its last, or to fail.

All threads are followed. The kernel tells what the calls are (PTRACE_GET_SYSCALL_INFO, Linux 5.3), so that only numbers
of calls and, to make one fail, the place of a result depend on the machine. python-ptrace was tried: it has neither
this request nor waits for its own children only, and decodes every call at every stop.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
from dataclasses import dataclass, field

from tests.crash.syscalls import AT_FDCWD, NUMBERS, Call, decode

_TRACEME, _SYSCALL, _SETOPTIONS, _GETREGSET, _SETREGSET, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x4204, 0x4205, 0x420E
_TRACESYSGOOD, _TRACECLONE, _EXITKILL = 1, 8, 1 << 20
_ENTRY, _EXIT = 1, 2
_WALL = 0x40000000
_NT_PRSTATUS = 1
_NT_ARM_SYSTEM_CALL = 0x404
_NUMBER_REGISTER = {"x86_64": (_NT_PRSTATUS, 15), "aarch64": (_NT_ARM_SYSTEM_CALL, 0), "riscv64": (_NT_PRSTATUS, 17)}
_RESULT_REGISTER = {"x86_64": 10, "aarch64": 0, "riscv64": 10}
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_INFO = struct.Struct("=B3xIQQ")
_PATH_MAX = _LMDB_PAGE_BYTES = 4096
_DEAD = (errno.ESRCH,)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class TracingRefused(Exception):
    """This machine does not let a process trace its child; crash tests can't run, and must not pass."""


@dataclass(frozen=True, slots=True)
class Failing:
    """Calls that change the disk, or names on it, and fail undone.

    Attributes:
        first, length: Of those calls, counted from 0 in the order they begin.
        code: What they fail with; an errno.
    """

    first: int
    length: int
    code: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to the process.

    Attributes:
        kill_at: It is killed when it is about to make its nth call on the directory (from 0); None lets it live.
        kill_in_commit: It is killed when its nth commit of LMDB (from 0) has written the page that makes it the last
            one, before it comes to tell readers so.
        fail_sync: Syncs (from 0) that fail with EIO although the kernel did its work, as after a lost page.
        failing: Calls that the kernel is kept from; None lets all pass.
        spared: Name of a file on which none fails: the tests' own.
    """

    kill_at: int | None = None
    kill_in_commit: int | None = None
    fail_sync: frozenset[int] = frozenset()
    failing: Failing | None = None
    spared: str = "marks"


UNDISTURBED = Plan()


@dataclass(slots=True)
class Trace:
    """What the process did.

    Attributes:
        calls: In the order they returned.
        status: As of ``os.waitstatus_to_exitcode``: negative for the signal that ended it.
    """

    calls: list[Call] = field(default_factory=list)
    status: int = 0


def stop_to_be_traced() -> None:
    """Called in the child: wait until the parent traces it."""
    _ptrace(_TRACEME)
    os.kill(os.getpid(), signal.SIGSTOP)


def follow(pid: int, directory: str, plan: Plan) -> Trace:
    """Let a child that stopped to be traced run to its end.

    Args:
        directory: Calls on files below it are kept; real, absolute path.

    Raises:
        TracingRefused: Nothing was traced.
    """
    if not NUMBERS:
        raise TracingRefused(f"No table of system calls for {platform.machine()}; add one to tests/crash/syscalls.py.")
    _, status = os.waitpid(pid, _WALL)
    if not os.WIFSTOPPED(status):
        raise TracingRefused("The child could not ask to be traced; is ptrace forbidden here (seccomp, container)?")
    _ptrace(_SETOPTIONS, pid, data=_TRACESYSGOOD | _TRACECLONE | _EXITKILL)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return _Follower(pid, directory, plan, _Memory(memory.fileno())).run()


class _Memory:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def text(self, address: int) -> str:
        return os.pread(self._descriptor, _PATH_MAX, address).split(b"\0", 1)[0].decode()

    def bytes(self, address: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, address) if size else b""


class _Follower:
    def __init__(self, pid: int, directory: str, plan: Plan, memory: _Memory) -> None:
        self._pid = pid
        self._inside = directory.rstrip("/") + "/"
        self._plan = plan
        self._memory = memory
        self._trace = Trace()
        self._descriptors: set[int] = set()
        self._begun: dict[int, Call] = {}
        self._calls = self._syncs = self._commits = self._changes = 0
        self._failing: dict[int, int] = {}
        self._spared: set[int] = set()
        self._info = ctypes.create_string_buffer(128)

    def run(self) -> Trace:
        _ptrace(_SYSCALL, self._pid)
        while True:
            thread, status = os.waitpid(-1, _WALL)
            if not os.WIFSTOPPED(status):
                if thread == self._pid:
                    self._trace.status = os.waitstatus_to_exitcode(status)
                    return self._trace
                continue
            deliver = 0
            if os.WSTOPSIG(status) == _SYSCALL_STOP:
                if not self._at_call(thread):
                    continue
            elif status >> 16 == 0 and os.WSTOPSIG(status) != signal.SIGSTOP:
                deliver = os.WSTOPSIG(status)
            _ptrace(_SYSCALL, thread, data=deliver)

    def _at_call(self, thread: int) -> bool:
        """Note a call that begins or ends; false if the process was killed."""
        size = _ptrace(_GET_SYSCALL_INFO, thread, len(self._info), ctypes.addressof(self._info))
        if size <= 0:
            return True
        operation = self._info.raw[0]
        if operation == _ENTRY:
            number, *args = struct.unpack_from("=7Q", self._info.raw, _INFO.size)
            call = decode(number, args, self._memory)
            if call is None or not self._is_inside(call):
                return True
            if self._calls == self._plan.kill_at:
                os.kill(self._pid, signal.SIGKILL)
                return False
            self._calls += 1
            if call.kind == "sync":
                if self._syncs in self._plan.fail_sync:
                    self._failing[thread] = errno.EIO
                self._syncs += 1
            if call.kind == "close":
                # Before it returns, another thread may get the number.
                self._ended(call.returned(0))
                return True
            if changes_disk(call) and not self._is_spared(call):
                failing = self._plan.failing
                if failing is not None and 0 <= self._changes - failing.first < failing.length:
                    self._failing[thread] = failing.code
                    _skip(thread)
                self._changes += 1
            self._begun[thread] = call
        elif operation == _EXIT and thread in self._begun:
            (result,) = struct.unpack_from("=q", self._info.raw, _INFO.size)
            if thread in self._failing:
                result = -self._failing.pop(thread)
                _return(thread, result)
            call = self._begun.pop(thread).returned(result)
            self._ended(call)
            if commits(call):
                if self._commits == self._plan.kill_in_commit:
                    os.kill(self._pid, signal.SIGKILL)
                    return False
                self._commits += 1
        return True

    def _is_inside(self, call: Call) -> bool:
        if call.path:
            return self._names(call.fd, call.path) or self._names(call.other_fd, call.other_path)
        return call.fd in self._descriptors

    def _names(self, descriptor: int, path: str) -> bool:
        if path.startswith("/"):
            return (path + "/").startswith(self._inside)
        return descriptor != AT_FDCWD and descriptor in self._descriptors

    def _is_spared(self, call: Call) -> bool:
        return call.fd in self._spared or call.path.endswith("/" + self._plan.spared)

    def _ended(self, call: Call) -> None:
        self._trace.calls.append(call)
        if call.kind in ("open", "dup") and call.result >= 0:
            self._descriptors.add(call.result)
            if self._is_spared(call):
                self._spared.add(call.result)
        elif call.kind == "close":
            self._descriptors.discard(call.fd)
            self._spared.discard(call.fd)


_CHANGES = ("write", "truncate", "allocate", "rename", "link", "make", "remove", "sync")


def changes_disk(call: Call) -> bool:
    """Whether a disk may refuse a call."""
    return call.kind in _CHANGES or (call.kind == "open" and bool(call.flags & os.O_CREAT))


def commits(call: Call) -> bool:
    """Whether it is the last write of a commit of LMDB: a part of one of the first two pages."""
    return call.name == "pwrite64" and 0 < call.number < 2 * _LMDB_PAGE_BYTES and len(call.data) < _LMDB_PAGE_BYTES


def _return(thread: int, result: int) -> None:
    """Have the call that just ended return something else."""
    _set_register(thread, _NT_PRSTATUS, _RESULT_REGISTER[platform.machine()], result)


def _skip(thread: int) -> None:
    """Have the call that just began not take place: the kernel knows none of its number."""
    _set_register(thread, *_NUMBER_REGISTER[platform.machine()], -1)


def _set_register(thread: int, registers_of: int, place: int, value: int) -> None:
    registers = (ctypes.c_uint64 * 64)()
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(registers), ctypes.sizeof(registers))
    _ptrace(_GETREGSET, thread, registers_of, ctypes.addressof(vector))
    registers[place] = value & (2**64 - 1)
    _ptrace(_SETREGSET, thread, registers_of, ctypes.addressof(vector))


def _ptrace(request: int, pid: int = 0, address: int = 0, data: int = 0) -> int:
    result: int = _libc.ptrace(request, pid, address, data)
    if result == -1:
        code = ctypes.get_errno()
        if code in _DEAD:
            return 0  # killed meanwhile; its end is reported by waitpid
        raise TracingRefused(f"ptrace request {request:#x} failed: {os.strerror(code)}; crash tests need ptrace.")
    return result
