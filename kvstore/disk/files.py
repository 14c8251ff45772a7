"""The disk, passed as an argument: only this module writes, syncs, renames or removes files.

Exceptions are LMDB, which writes by itself (``kvstore/disk/environment.py``), and temporary files that end with their
process.

* All files are created for their owner alone, and no symbolic link to a file is followed.
* Files of an open store are looked up in its directory, not by its path; see ``kvstore/disk/held_directory.py``.
* No other module knows that macOS syncs, allocates and finds holes by other calls than Linux.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvstore.disk import address_space
from kvstore.disk.held_directory import Below, HeldDirectory
from kvstore.errors import CorruptData, LogFailed, NotAStore, StoreFull, UnsupportedOperation
from kvstore.process.meter import Timer
from logformat.paths import TEMPORARY

_REMOVE_TRIES = 10
_PIECES_MAX = 1000  # of one pwritev; the kernel takes 1,024
_NO_PLAIN_FILE = (
    "A file of a store is a plain file with one name; put a copy in the place of this one, which is none or has another"
    " name elsewhere (a hard link, perhaps of a backup)."
)
_NO_DIRECTORY = (
    "In the place of a store's directory, or of a directory above it, is something else; move that away and restore the"
    " directory from a copy."
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_SUPPORTED = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "glusterfs")


class Files:
    """The real disk. Errors are OSErrors.

    Attributes:
        held: Directory of the open store; None if no store is open: then files are opened by their paths.
        syncs: Durations of :meth:`sync`, if they are measured.
    """

    held: HeldDirectory | None = None
    syncs: Timer | None = None

    def hold(self, directory: Path) -> None:
        """Hold a directory of the store, to write its files; see :meth:`HeldDirectory.hold`."""
        if self.held is not None:
            self.held.hold(directory)

    def note(self, directory: Path) -> None:
        """Remember which directory has a path now; see :meth:`HeldDirectory.note`."""
        if self.held is not None:
            self.held.note(directory)

    def let_go(self, directory: Path) -> None:
        """Undo one :meth:`hold`; see :meth:`HeldDirectory.let_go`."""
        if self.held is not None:
            self.held.let_go(directory)

    def forget(self, directory: Path) -> None:
        """Forget the identity of a directory; see :meth:`HeldDirectory.forget`."""
        if self.held is not None:
            self.held.forget(directory)

    def check(self) -> int:
        """Verify the store's path from time to time; returns the number of checks. See :meth:`HeldDirectory.check`.

        Raises:
            StoreReplaced: The path leads to another directory.
        """
        return 0 if self.held is None else self.held.check()

    def verify(self, within: Path | None = None) -> None:
        """Verify that the store's path still leads to it; see :meth:`HeldDirectory.verify`.

        Raises:
            StoreReplaced: The path leads to another directory.
        """
        if self.held is not None:
            self.held.verify(within)

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a regular file with one name, or with ``create`` a new one, for reading and writing."""
        if create:
            return self.open_name(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        return open_regular(path, os.O_RDWR, self)

    def open_directory(self, path: Path) -> int:
        """Open a directory."""
        at = self._at(path)
        return _opened(at.name, os.O_RDONLY | os.O_DIRECTORY, at.descriptor)

    def open_name(self, path: Path, flags: int) -> int:
        """Open a file of any kind by its name; a new file is readable and writable by its owner only."""
        at = self._at(path)
        return _opened(at.name, flags | os.O_NOFOLLOW, at.descriptor)

    def read(self, path: Path, *, bytes_max: int) -> bytes:
        """All of a regular file; see :func:`read_file`."""
        with open_file(path, self) as file:
            return file.read(size_of(file.fileno(), path, bytes_max=bytes_max))

    def names_in(self, directory: Path) -> list[str]:
        """Names in a directory of a store; see :func:`names_in`."""
        at = self._at(directory)
        if at.descriptor is None:
            return names_in(directory)
        try:
            descriptor = _opened(at.name, os.O_RDONLY | os.O_DIRECTORY, at.descriptor)
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise NotAStore(_NO_DIRECTORY, path=directory) from error
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def exists(self, path: Path) -> bool:
        """Whether a name exists, also as a broken link."""
        return self.status(path) is not None

    def status(self, path: Path) -> os.stat_result | None:
        """Status of a name, also of a link itself; None if there is none."""
        at = self._at(path)
        try:
            return os.stat(at.name, dir_fd=at.descriptor, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    close: Callable[[int], None] = staticmethod(os.close)
    """Close a descriptor. Without a frame of Python's own, no interrupt comes between a ``finally`` and the call."""

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        """Write all the pieces, one after the other, from ``position`` on.

        Raises:
            OSError: The disk failed; a part of the pieces may be written.
        """
        if len(pieces) > _PIECES_MAX:
            pieces = [memoryview(b"".join(pieces))]
        rest = [*pieces]
        while rest:
            written = os.pwritev(descriptor, rest, position)
            position += written
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][written:]

    def fill(self, descriptor: int, position: int, length: int) -> None:
        """Write zeros.

        Raises:
            OSError: The disk failed; some of them may be written.
        """
        end = position + length
        while position < end:
            position += os.pwrite(descriptor, bytes(end - position), position)

    def sync(self, descriptor: int) -> None:
        """Return when everything written through any descriptor of the file is durable, and its length."""
        if self.syncs is None:
            _sync(descriptor, _DATA)
            return
        began = self.syncs.now()
        _sync(descriptor, _DATA)
        self.syncs.since(began)

    def truncate(self, descriptor: int, length: int) -> None:
        """Truncate the file to ``length`` bytes."""
        os.ftruncate(descriptor, length)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or directory; an existing file of the new name is replaced."""
        source, target = self._at(old), self._at(new)
        os.rename(source.name, target.name, src_dir_fd=source.descriptor, dst_dir_fd=target.descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        at = self._at(path)
        os.remove(at.name, dir_fd=at.descriptor)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its contents, if it exists."""
        self.forget(path)
        at = self._at(path)
        for tries_left in reversed(range(_REMOVE_TRIES)):
            try:
                shutil.rmtree(at.name, onerror=_ignore_missing, dir_fd=at.descriptor)
                break
            except OSError as error:
                # A reader of another process may have opened an index meanwhile, which creates a file of its locks.
                if error.errno != errno.ENOTEMPTY or not tries_left:
                    raise

    def make_directory(self, path: Path) -> None:
        """Create a directory if it does not exist, and make its name durable."""
        at = self._at(path)
        with suppress(FileExistsError):
            os.mkdir(at.name, 0o700, dir_fd=at.descriptor)
        # Also if it exists: the process that created it may have died, or its sync failed, before the name was durable.
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the directory are durable."""
        descriptor = self.open_directory(path)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def create(self, path: Path, data: bytes) -> int:
        """Write a whole file and return its descriptor; an existing file is replaced.

        After a crash the path has the old file, or the new one with all of ``data``. After an error no temporary file
        is left, unless the disk refuses to remove it, too.
        """
        temporary = path.with_name(path.name + TEMPORARY)
        if self.exists(temporary):
            self.remove(temporary)
        descriptor = self.open(temporary, create=True)
        try:
            self.write(descriptor, [memoryview(data)], 0)
            self.sync(descriptor)
            self.rename(temporary, path)
            self.sync_directory(path.parent)
        except BaseException:
            self.close(descriptor)
            with suppress(OSError):
                self.remove(temporary)
            raise
        return descriptor

    def publish(self, path: Path, data: bytes) -> None:
        """Write a whole file like :meth:`create`, and close it."""
        self.close(self.create(path, data))

    def _at(self, path: Path) -> Below | _ByPath:
        """A path as arguments of system calls."""
        below = self.held.below(path) if self.held is not None else None
        return _ByPath(path) if below is None else below


class _ByPath(NamedTuple):
    """A path outside the open store."""

    name: Path
    descriptor: None = None


_DISK = Files()


_DATA = "fdatasync"
"""A sync of a file's bytes and its length, but not of its times: what writes over bytes needs no entry in a journal."""


def _sync(descriptor: int, kind: str = "fsync") -> None:
    """Have the disk itself store what was written: fsync on Linux; on macOS, fsync ends in the disk's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
        else:
            return
    getattr(os, kind, os.fsync)(descriptor)


def write_back(descriptor: int) -> None:
    """Have the system write what the file has in memory, to save time later; nothing is durable because of it."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def allocate(descriptor: int, length: int) -> None:
    """Give a file at least ``length`` bytes, for which the disk has room from then on.

    Raises:
        OSError: The disk is full.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, length)
        return
    # A byte that was never written has no room yet, and writing zeros over others would lose them.
    size = os.fstat(descriptor).st_size
    while size < length:
        size += os.pwrite(descriptor, bytes(length - size), size)


def is_too_many_open(error: OSError) -> bool:
    """Whether a file could not be opened since too many are open: it says nothing about the file, or the disk."""
    return error.errno in _TOO_MANY_OPEN


def refusal(error: OSError, path: Path) -> StoreFull | LogFailed:
    """The error of the store for an error of the disk."""
    if error.errno in _FULL:
        return StoreFull("No space on the disk; free some and try again.", path=path, reason=error.strerror)
    if error.errno == errno.ENOMEM:
        return address_space.shortage(path)
    if is_too_many_open(error):
        return LogFailed(
            "Too many files are open; close some, or raise the limit (`ulimit -n`), and try again. If the error stays,"
            " reopen the store. Each bucket has some.",
            path=path,
        )
    if error.errno in _FORBIDDEN:
        return LogFailed(
            "This user may not write here; give it the rights, or open the store with `read_only=True`.",
            path=path,
            reason=error.strerror,
        )
    return LogFailed("The disk failed; repair it and reopen the store.", path=path, reason=error.strerror)


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn errors of the disk into those of :func:`no_file` and :func:`refusal`."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # that of a handler of signals, such as TimeoutError
            raise
        raise no_file(error, path) or refusal(error, path) from error


def _ignore_missing(_call: object, _path: str, failure: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(failure[1], FileNotFoundError):  # another process may be removing it, too
        raise failure[1]


def open_regular(path: Path, access: int = os.O_RDONLY, files: Files | None = None) -> int:
    """Open a regular file; for writing it must have only one name, or the other name would be written, too.

    Args:
        files: Disk of the open store that the file belongs to, if any.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: It can't be opened, or is not such a file. A pipe is refused without waiting for its other end.
    """
    descriptor = (files or _DISK).open_name(path, access | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (access != os.O_RDONLY and status.st_nlink > 1):
        os.close(descriptor)
        raise _no_plain_file(path)
    return descriptor


def _no_plain_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "It is no plain file with one name", os.fspath(path))


def open_file(path: Path, files: Files | None = None) -> BinaryIO:
    """A regular file, to be read from its beginning; its descriptor goes with it, whatever interrupts the caller.

    Args:
        files: Files of the store that it belongs to, if that is open.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: It is not a regular file, or can't be read.
    """
    at = (files or _DISK)._at(path)
    descriptor = _opened(at.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, at.descriptor)
    opened: list[io.FileIO] = []
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _no_plain_file(path)
        opened.extend(map(io.FileIO, (descriptor,)))  # see _opened
        return io.BufferedReader(opened[0])
    except BaseException:
        for file in opened:
            file.close()
        if not opened:
            os.close(descriptor)
        raise


def _opened(name: str | Path, flags: int, directory: int | None) -> int:
    """Like :func:`os.open`; but no interrupt loses the descriptor between the call and what stores it.

    Python looks for signals after a call of C, when its result is nowhere yet; not after a function returns.
    """
    descriptors: list[int] = []
    try:
        descriptors.extend(map(partial(os.open, dir_fd=directory), (name,), (flags | os.O_CLOEXEC,), (0o600,)))
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return descriptors[0]


def read_file(path: Path, *, bytes_max: int) -> bytes:
    """Read a whole regular file.

    Args:
        bytes_max: The largest size that a file of this kind can have.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: It is not a regular file, or can't be read.
        CorruptData: It is larger than ``bytes_max``. Nothing was read.
    """
    return _DISK.read(path, bytes_max=bytes_max)


def size_of(descriptor: int, path: Path, *, bytes_max: int, error: type[CorruptData] = CorruptData) -> int:
    """Size of an open file in bytes.

    Raises:
        CorruptData: The file is larger than a file of its kind can be; raised as ``error``.
    """
    size = os.fstat(descriptor).st_size
    if size > bytes_max:
        raise error(
            "A file is larger than any of its kind can be; run `kvstore repair`, or restore it from a copy.",
            path=path,
            bytes=size,
            bytes_max=bytes_max,
        )
    return size


def data_ranges(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of a file between two positions that have data; the rest are holes, which read as zeros."""
    if not hasattr(os, "SEEK_DATA"):
        yield start, end
        return
    while start < end:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # a hole up to the end of the file
        start = os.lseek(descriptor, begin, os.SEEK_HOLE)
        if begin < end:
            yield begin, min(start, end)


_NO_FILE = (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO)


def no_file(error: OSError, path: Path) -> NotAStore | None:
    """The error for a file that is not a plain one; None if it is the error of another reason, or of another call.

    Args:
        path: Its path, or that of a directory with it, for an error that has only its name.
    """
    if error.errno not in _NO_FILE or not isinstance(error.filename, str):  # only calls with a path have one
        return None
    if os.path.isabs(error.filename):
        return NotAStore(_NO_PLAIN_FILE, path=error.filename)
    return NotAStore(_NO_PLAIN_FILE, path=path, name=error.filename)


def refuse_links(path: Path) -> None:
    """Refuse a file that is a link, because libraries would follow it out of the store.

    Raises:
        NotAStore: The path is a symbolic link, not a regular file, or has a second name.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise NotAStore(_NO_PLAIN_FILE, path=path)


def resolved(path: Path) -> Path:
    """A path whose symbolic links are followed; what it leads to need not exist.

    Raises:
        NotAStore: Its symbolic links form a loop.
    """
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotAStore("The symbolic links of a path form a loop; give another path.", path=path) from error
    return Path(os.path.realpath(path))


def refuse_no_directory(path: Path) -> None:
    """Refuse a path that exists and is not a directory.

    Raises:
        NotAStore: The path, or a part of it, is not a directory, or its symbolic links form a loop.
    """
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        is_directory = False
    if not is_directory:
        raise NotAStore(_NO_DIRECTORY, path=path)


def names_in(directory: Path) -> list[str]:
    """Names in a directory of a store, in no order; none if it does not exist.

    Raises:
        NotAStore: See :func:`refuse_no_directory`.
    """
    refuse_no_directory(directory)
    with suppress(FileNotFoundError):
        return os.listdir(directory)
    return []


def refuse_network(path: Path) -> None:
    """Refuse a directory on a network file system, where memory maps and locks are unreliable.

    Raises:
        UnsupportedOperation: The directory is on such a file system.
    """
    best, kind = "", ""
    absolute = os.path.realpath(path)
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return  # not Linux: its mounts are unknown
    for mount in mounts:
        _, target, mounted_kind, *_ = mount.split(" ")
        target = target.replace("\\040", " ")
        inside = absolute == target or absolute.startswith(target.rstrip("/") + "/")
        if inside and len(target) >= len(best):
            best, kind = target, mounted_kind
    if kind in _NETWORK_FILE_SYSTEMS:
        raise UnsupportedOperation("A store can't be on a network file system; use a local disk.", path=path, kind=kind)
