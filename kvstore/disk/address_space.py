"""Address space for LMDB's maps, of which a process may have little (`ulimit -v`).

* A map that can't have its full size gets a part of what is left: other maps, threads and batches need some, too.
* LMDB gives up its map before it makes another one, and is broken if it can't: so every size is tried first.
"""

from __future__ import annotations

import errno
import mmap
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from kvstore.errors import OutOfAddressSpace

ROOM_BYTES = 8 << 20
"""Room for new pages that a map has at least, and that is left beside it."""
_SHARE = 16
_PAGE_BYTES = mmap.PAGESIZE


def size_of_map(wanted: int, needed: int, path: Path) -> int:
    """Size of a new map, in bytes: ``wanted``, or less if that can't be reserved.

    Args:
        needed: Bytes that the file has in use.

    Raises:
        OutOfAddressSpace: There is no room for a map of what is needed.
    """
    wanted = size = max(wanted, needed)
    while not is_free(size):
        size //= 2
        if size < needed + ROOM_BYTES:
            return _first_free([needed + ROOM_BYTES], 0, path)
    return wanted if size == wanted else max(_whole_pages(size // _SHARE), needed + ROOM_BYTES)


def size_of_larger_map(now: int, needed: int, path: Path) -> int:
    """Size of the map that replaces one of ``now`` bytes.

    Raises:
        OutOfAddressSpace: There is no room for it; the map stays as it is.
    """
    least = max(now, needed) + ROOM_BYTES
    return _first_free(sorted({2 * max(now, needed), least}, reverse=True), now, path)


def shortage(path: Path, reason: object = None) -> OutOfAddressSpace:
    """The error for a map or memory that this process can't have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return OutOfAddressSpace(
        "The address space of this process is used up: raise its limit (`ulimit -v`), or have fewer tables and scans"
        " open in it.",
        path=path,
        limit="none" if limit == resource.RLIM_INFINITY else limit,
        **({} if reason is None else {"reason": str(reason)}),
    )


@contextmanager
def shortages(path: Path) -> Iterator[None]:
    """Turn LMDB's lack of memory into :func:`shortage`."""
    try:
        yield
    except lmdb.MemoryError as error:
        raise shortage(path, error) from error


def mapped(descriptor: int, size: int, path: Path) -> memoryview:
    """The first ``size`` bytes of a file, mapped for reading.

    Raises:
        OutOfAddressSpace: There is no room for the map.
        OSError: The file can't be mapped.
    """
    try:
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise shortage(path, error.strerror) from error


def _first_free(sizes: Iterable[int], now: int, path: Path) -> int:
    for size in sizes:
        if is_free(size - now):
            return size
    raise shortage(path)


def is_free(size: int) -> bool:
    """Whether that much can be reserved, and some room beside it."""
    try:
        mmap.mmap(-1, _whole_pages(size + ROOM_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except (OSError, OverflowError, ValueError):
        return False
    return True


def is_limited() -> bool:
    """Whether the process has a limit."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES
