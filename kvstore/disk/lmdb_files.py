"""The files of an LMDB environment: what is done before LMDB opens them, and how it opens them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import lmdb

from kvstore.disk import address_space
from kvstore.disk.files import allocate, refusal
from kvstore.errors import CorruptData, StoreError, StoreFull, UnsupportedOperation

LMDB_FILES = DATA, LOCK = "data.mdb", "lock.mdb"
"""Files that LMDB creates in a directory."""
_READERS_MAX = 1022
_LOCK_BYTES = 1 << 16
"""Size of LMDB's lock file for this number of readers."""
_DATABASES_MAX = 1024
_PROBE_BYTES = 1 << 12
_OF_THE_DISK = (lmdb.Error, lmdb.DiskError, lmdb.MemoryError)
"""Types of LMDB's errors, exactly, that do not depend on the content of its file."""
DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError)
"""Types of LMDB's errors that mean damage."""

Identity = tuple[int, int]
"""Numbers of a file's device and inode."""


def refuse_inaccessible(directory: Path) -> None:
    """Refuse missing permissions, for which LMDB would raise its own error.

    Raises:
        UnsupportedOperation: Permissions are missing.
    """
    data = directory / DATA
    try:
        is_there = data.exists()
    except PermissionError as error:
        raise UnsupportedOperation(
            "Reading a store needs the right to enter its directories; grant it.",
            path=directory,
            reason=error.strerror,
        ) from error
    if is_there and not os.access(data, os.R_OK):
        raise UnsupportedOperation("Reading a store needs read access to data.mdb; grant it.", path=directory)


def allocate_lock(directory: Path) -> bool:
    """Allocate the blocks of the lock file; returns False if it may not be written, so that readers can't register.

    LMDB creates it sparse and writes it through a map: on a full disk, that would kill the process (SIGBUS).

    Raises:
        OSError: The disk is full.
    """
    path = directory / LOCK
    with suppress(FileNotFoundError):
        if path.stat().st_size >= _LOCK_BYTES:
            return os.access(path, os.R_OK | os.W_OK)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return False
        raise
    try:
        allocate(descriptor, _LOCK_BYTES)
    finally:
        os.close(descriptor)
    return True


def open_lmdb(
    directory: Path, map_bytes: int, read_only: bool, *, metasync: bool, locks: bool = True, has_databases: bool = True
) -> lmdb.Environment:
    """Open an environment by LMDB.

    Args:
        locks: Whether its readers register.
        has_databases: Whether it may have named databases. LMDB clears some bytes for each possible one whenever a
            transaction begins: without any a read is twice as fast.

    Raises:
        OutOfAddressSpace: The process has no room for a map of the file.
        StoreFull, LogFailed: The disk refuses.
        CorruptData: LMDB can't read it.
    """
    data = directory / DATA
    map_bytes = address_space.size_of_map(map_bytes, data.stat().st_size if data.exists() else 0, directory)
    try:
        return lmdb.open(
            str(directory),
            map_size=map_bytes,
            readonly=read_only,
            metasync=metasync,
            lock=locks,
            mode=0o600,
            max_readers=_READERS_MAX,
            max_dbs=_DATABASES_MAX if has_databases else 0,
            lib_version=0,
        )
    except lmdb.MemoryError as error:
        raise address_space.shortage(directory, error) from error
    except OSError as error:
        raise refusal(error, directory) from error
    except lmdb.DiskError as error:
        raise StoreFull("No space on the disk; free some and try again.", path=directory) from error
    except lmdb.Error as error:
        for code in (errno.EMFILE, errno.ENFILE):  # LMDB names the error in words only
            if os.strerror(code) in str(error):
                raise refusal(OSError(code, os.strerror(code)), directory) from error
        raise CorruptData(
            "LMDB can't read an environment; run `kvstore check`.", path=directory, reason=str(error)
        ) from error


def write_refusal(error: lmdb.Error, directory: Path) -> StoreError:
    """The error of the store for one of LMDB in writing an environment, which no other process may write now.

    It is CorruptData where LMDB met a damaged page, and StoreFull otherwise. Where the disk got full in the middle of a
    write, LMDB says that it failed; so the disk is asked for more room.
    """
    if isinstance(error, lmdb.MemoryError):
        return address_space.shortage(directory, error)
    if isinstance(error, DAMAGE):
        return CorruptData(
            "LMDB can't write an environment, because a page is damaged; run `kvstore check`.",
            path=directory,
            reason=str(error),
        )
    if isinstance(error, lmdb.DiskError) or not _has_room(directory / DATA):
        return StoreFull("No space on the disk; free some and try again.", path=directory)
    return StoreFull(
        "The disk refuses a write of LMDB; free some space, or repair the disk and reopen the store.",
        path=directory,
        reason=str(error),
    )


def _has_room(data: Path) -> bool:
    try:
        descriptor = os.open(data, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # After the last page: LMDB reads nothing there.
            return os.pwrite(descriptor, bytes(_PROBE_BYTES), os.fstat(descriptor).st_size) == _PROBE_BYTES
        finally:
            os.close(descriptor)
    except OSError as error:
        return not isinstance(refusal(error, data), StoreFull)


@contextmanager
def write_refusals(directory: Path) -> Iterator[None]:
    """Turn errors of the disk in writing an environment into those of :func:`write_refusal`; LMDB's others stay."""
    try:
        yield
    except lmdb.Error as error:
        if type(error) not in _OF_THE_DISK:
            raise
        raise write_refusal(error, directory) from error


def identity_of(file: str) -> Identity | None:
    """Which file has a path now; None if there is none."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
