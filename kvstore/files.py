"""The disk comes in as an argument: the only place that writes, syncs, renames or removes files.

LMDB is the exception, it writes for itself (``kvstore/environment.py``); and what is gone with whoever made it needs
none of this. Everything is created for its owner alone, and no symbolic link to a file is followed. Files of a store
that is open are looked up in its directory, not by its path; see ``kvstore/place.py``.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import call
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvstore.errors import CorruptData, LogFailed, NotAStore, StoreFull, UnsupportedOperation
from kvstore.place import Below, StoreDirectory
from logformat.paths import TEMPORARY

_PIECES_MAX = 1000  # of one pwritev; the kernel takes 1,024
_NO_PLAIN_FILE = (
    "A file of a store is a plain file with one name; put a copy in the place of this one, which is none or has another"
    " name elsewhere (a hard link, perhaps of a backup)."
)
_NO_DIRECTORY = (
    "In the place of a directory of a store, or of one it is in, is something else; move that away, and put a copy of"
    " the directory there."
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "glusterfs")


class Files:
    """The real disk. Errors are OSErrors.

    Attributes:
        place: The store that is open; None if there is none, and then every file is opened by its path.
    """

    place: StoreDirectory | None = None

    def hold(self, directory: Path) -> None:
        """Hold a directory of the store, whose files are to be written; see :meth:`StoreDirectory.hold`."""
        if self.place is not None:
            self.place.hold(directory)

    def note(self, directory: Path) -> None:
        """Note which directory of the store has a path now; see :meth:`StoreDirectory.note`."""
        if self.place is not None:
            self.place.note(directory)

    def let_go(self, directory: Path) -> None:
        """Hold it no more; see :meth:`StoreDirectory.let_go`."""
        if self.place is not None:
            self.place.let_go(directory)

    def check(self) -> int:
        """See now and then whether the store's path still leads to it, and how often; see :meth:`StoreDirectory.check`.

        Raises:
            StoreReplaced: It does not.
        """
        return 0 if self.place is None else self.place.check()

    def verify(self) -> None:
        """See whether the store's path still leads to it.

        Raises:
            StoreReplaced: It does not.
        """
        if self.place is not None:
            self.place.verify()

    def open(self, path: Path, *, create: bool = False) -> int:
        """Descriptor of a regular file with one name, for reading and writing; with ``create``, of a new one."""
        if create:
            return self.open_name(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        return open_regular(path, os.O_RDWR, self)

    def open_name(self, path: Path, flags: int) -> int:
        """Descriptor of whatever has a name; what is created is for its owner alone."""
        at = self._at(path)
        return os.open(at.name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=at.descriptor)

    def read(self, path: Path, *, bytes_max: int) -> bytes:
        """All of a regular file; see :func:`read_file`."""
        with open_file(path, self) as file:
            return file.read(size_of(file.fileno(), path, bytes_max=bytes_max))

    def names_in(self, directory: Path) -> list[str]:
        """What a directory of a store lists; see :func:`names_in`."""
        at = self._at(directory)
        if at.descriptor is None:
            return names_in(directory)
        try:
            descriptor = os.open(at.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at.descriptor)
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
        """Whether something has a name, be it a link that leads nowhere."""
        at = self._at(path)
        try:
            os.stat(at.name, dir_fd=at.descriptor, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        """Write all the pieces, one behind the other, from ``position`` on.

        Raises:
            OSError: The disk took only a part of them, or nothing.
        """
        if len(pieces) > _PIECES_MAX:
            pieces = [memoryview(b"".join(pieces))]
        rest = [piece for piece in pieces if len(piece)]
        while rest:
            written = os.pwritev(descriptor, rest, position)
            position += written
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][written:]

    def sync(self, descriptor: int) -> None:
        """Return once everything written through any descriptor of the file is durable."""
        os.fsync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut the file off at ``length``."""
        os.ftruncate(descriptor, length)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or directory another name, in place of what had it."""
        source, target = self._at(old), self._at(new)
        os.rename(source.name, target.name, src_dir_fd=source.descriptor, dst_dir_fd=target.descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        at = self._at(path)
        os.remove(at.name, dir_fd=at.descriptor)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all it holds, if it is there."""
        at = self._at(path)
        shutil.rmtree(at.name, onerror=_ignore_missing, dir_fd=at.descriptor)

    def make_directory(self, path: Path) -> None:
        """Create a directory if it is not there, and make its name durable."""
        at = self._at(path)
        with suppress(FileExistsError):
            os.mkdir(at.name, 0o700, dir_fd=at.descriptor)
        # Also if it is there: whoever made it may have died, or been refused, before its name was durable.
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        """Return once the names in the directory are durable."""
        at = self._at(path)
        descriptor = os.open(at.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at.descriptor)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def create(self, path: Path, data: bytes) -> int:
        """Write a whole file and return its descriptor: after any crash it is there with all of ``data`` or not at all.

        What had the path before is replaced.
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
        except OSError:
            self.close(descriptor)
            raise
        return descriptor

    def publish(self, path: Path, data: bytes) -> None:
        """Like :meth:`create`, for a file that is not written any further."""
        self.close(self.create(path, data))

    def _at(self, path: Path) -> Below | _ByPath:
        """How calls of the system get at a path."""
        below = self.place.below(path) if self.place is not None else None
        return _ByPath(path) if below is None else below


class _ByPath(NamedTuple):
    """A path outside of the store that is open."""

    name: Path
    descriptor: None = None


_DISK = Files()


def refusal(error: OSError, path: Path) -> StoreFull | LogFailed:
    """What a disk that refused means to those who use a log."""
    if error.errno in _FULL:
        return StoreFull("No space on the disk; free some and try again.", path=path)
    if error.errno in _TOO_MANY_OPEN:
        return LogFailed(
            "Too many files are open; raise the limit (`ulimit -n`) and reopen the store. Each bucket has some.",
            path=path,
        )
    return LogFailed("The disk refuses; mend it and reopen the store.", path=path, reason=error.strerror)


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Whatever the disk refuses, as :func:`refusal` calls it."""
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from error


def _ignore_missing(_call: object, _path: str, failure: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(failure[1], FileNotFoundError):  # another process may be removing it too
        raise failure[1]


def open_regular(path: Path, access: int = os.O_RDONLY, files: Files | None = None) -> int:
    """Descriptor of a regular file; to be written to, it has no second name either: that would be written to as well.

    Args:
        files: Of the store that it belongs to, if that is open.

    Raises:
        FileNotFoundError: It is not there.
        OSError: It can't be opened, or is something else. Nobody waits for the other end of a pipe.
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
        files: Of the store that it belongs to, if that is open.

    Raises:
        FileNotFoundError: It is not there.
        OSError: It is a symbolic link or something else, or can't be read.
    """
    at = (files or _DISK)._at(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    opening = partial(os.open, at.name, flags, dir_fd=at.descriptor)
    descriptors: list[int] = []
    opened: list[io.FileIO] = []
    try:
        # In one step of the interpreter: a result that is not stored yet is lost to an interrupt.
        descriptors.extend(map(call, (opening,)))
        if not stat.S_ISREG(os.fstat(descriptors[0]).st_mode):
            raise _no_plain_file(path)
        opened.extend(map(io.FileIO, descriptors))
        return io.BufferedReader(opened[0])
    except BaseException:
        for file in opened:
            file.close()
        for descriptor in descriptors if not opened else ():
            os.close(descriptor)
        raise


def read_file(path: Path, *, bytes_max: int) -> bytes:
    """All of a regular file.

    Args:
        bytes_max: The largest size that a file of this kind can have.

    Raises:
        FileNotFoundError: It is not there.
        OSError: It is a symbolic link or something else, or can't be read.
        CorruptData: It is larger than ``bytes_max``. Nothing was read.
    """
    return _DISK.read(path, bytes_max=bytes_max)


def size_of(descriptor: int, path: Path, *, bytes_max: int, error: type[CorruptData] = CorruptData) -> int:
    """Bytes of an open file.

    Raises:
        CorruptData: They are more than a file of this kind can have; or as ``error`` calls it.
    """
    size = os.fstat(descriptor).st_size
    if size > bytes_max:
        raise error(
            "A file is larger than any of its kind can be; run `kvstore repair`, or put it back from a copy.",
            path=path,
            bytes=size,
            bytes_max=bytes_max,
        )
    return size


def data_ranges(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of a file between two positions that the disk stores; all others are holes, which read as zeros."""
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
    """What to say of a path that could not be opened for what it is; None if that is not why."""
    return NotAStore(_NO_PLAIN_FILE, path=path) if error.errno in _NO_FILE else None


def refuse_links(path: Path) -> None:
    """Refuse a file that libraries would follow out of the store.

    Raises:
        NotAStore: The path is a symbolic link, no regular file, or has a second name.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise NotAStore(_NO_PLAIN_FILE, path=path)


def refuse_no_directory(path: Path) -> None:
    """Refuse what is in the place of a directory, if something is.

    Raises:
        NotAStore: The path is something else, leads through something else, or goes round in symbolic links.
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
    """What a directory of a store lists, in no order; nothing if it is not there.

    Raises:
        NotAStore: See :func:`refuse_no_directory`.
    """
    refuse_no_directory(directory)
    with suppress(FileNotFoundError):
        return os.listdir(directory)
    return []


def refuse_network(path: Path) -> None:
    """Refuse a directory on a file system where memory maps and locks are not what they seem.

    Raises:
        UnsupportedOperation: It is on a network file system.
    """
    best, kind = "", ""
    absolute = os.path.realpath(path)
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return  # not Linux: nothing is known of its mounts
    for mount in mounts:
        _, target, mounted_kind, *_ = mount.split(" ")
        target = target.replace("\\040", " ")
        inside = absolute == target or absolute.startswith(target.rstrip("/") + "/")
        if inside and len(target) >= len(best):
            best, kind = target, mounted_kind
    if kind in _NETWORK_FILE_SYSTEMS:
        raise UnsupportedOperation(
            "A store can't live on a network file system; use a local disk.", path=path, kind=kind
        )
