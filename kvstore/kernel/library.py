"""The library of the kernel: where it is, and whether it is used.

* Its name has the checksum of its sources: a library of other sources is not loaded.
* It is loaded when it is first asked for, once in a process. Importing this module loads nothing.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOM = Path(__file__).parent
PREFIX = "kernel-"


class RecordMaker(NamedTuple):
    """The functions that make change records; see :class:`kvstore.kernel.changes.ChangeMaker`.

    Attributes:
        make: Its first argument says whether it keeps the interpreter's lock.
        make_few: Keeps it.
    """

    make: Callable[..., int]
    make_few: Callable[..., int]


def sources() -> list[Path]:
    """The files that the library is compiled from, each by itself."""
    return sorted(ROOM.glob("*.c"))


def library_path() -> Path:
    """Where the library of these sources is, if it was built."""
    checksum = 0
    for source in sorted(ROOM.glob("*.[ch]")):
        checksum = zlib.crc32(source.read_bytes(), checksum)
    return ROOM / f"{PREFIX}{checksum:08x}.so"


def kernel() -> ctypes.CDLL | None:
    """The library; None if there is none that this machine can load, or if it is switched off."""
    return None if _switched_off else _loaded()


def row_verifier() -> Callable[[bytes, int, bytes, int], int] | None:
    """The function that says whether a key and a value, each followed by its length, have the value's checksum.

    Like :func:`bucket_finder` it keeps the interpreter's lock: it takes less than giving that to another thread.
    """
    library = kernel()
    return None if library is None else _of_few_rows(library).verify


def bucket_finder() -> Callable[[bytes, int, int, int], int] | None:
    """The function from a code, its length, the first byte that counts and the number of buckets to the bucket."""
    library = kernel()
    return None if library is None else _of_few_rows(library).bucket


def row_hasher() -> Callable[[bytes, int, bytes, int], int] | None:
    """The function from a key and a value of whole words, each followed by its length, to the hash of the row."""
    library = kernel()
    return None if library is None else _of_few_rows(library).hash


def few_decoder() -> Callable[..., int] | None:
    """The function that decodes a few rows; see :class:`kvstore.kernel.few.FewRows`."""
    library = kernel()
    return None if library is None else _of_few_rows(library).decode


def record_maker() -> RecordMaker | None:
    """The functions that make change records."""
    library = kernel()
    if library is None:
        return None
    of_few, of_many = _of_few_rows(library), library.kv_changes
    return RecordMaker(
        lambda keeps_lock, *given: (of_few.changes if keeps_lock else of_many)(*given), of_few.few_changes
    )


@contextmanager
def switched_off() -> Iterator[None]:
    """Lookups, scans and writes of this process do without the kernel meanwhile; for tests and measurements."""
    _switched_off.append(None)
    try:
        yield
    finally:
        _switched_off.pop()


_switched_off: list[None] = []


@cache
def _loaded() -> ctypes.CDLL | None:
    path = library_path()
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # built for another machine
        return None
    address, number = ctypes.c_void_p, ctypes.c_uint64
    library.kv_find.argtypes = [address, number, number, address, address, number, address, address, address]
    library.kv_find.restype = ctypes.c_int
    library.kv_copy.argtypes = [address, address, address, number, address]
    library.kv_copy.restype = None
    library.kv_read.argtypes = [ctypes.c_int, number, address, number, address]
    library.kv_read.restype = ctypes.c_int
    library.kv_leaves.argtypes = [
        address,
        number,
        address,
        address,
        number,
        ctypes.c_char_p,
        ctypes.c_uint32,
        number,
        *[address] * 4,
    ]
    library.kv_leaves.restype = ctypes.c_int
    library.kv_verify.argtypes = [address, address, address, number, *[address] * 6]
    library.kv_verify.restype = ctypes.c_int
    library.kv_measure.argtypes = [address, address, address, *[number] * 4, address, number, number]
    library.kv_measure.restype = ctypes.c_int
    library.kv_decode.argtypes = [address, address, address, number, number, number, address, number, address]
    library.kv_decode.restype = None
    library.kv_differ.argtypes = [
        address,
        address,
        number,
        *[address] * 6,
        *[number] * 3,
        address,
        number,
        number,
        address,
    ]
    library.kv_differ.restype = ctypes.c_int
    library.kv_group.argtypes = [address, address, address, number, address, number, *[address] * 8]
    library.kv_group.restype = ctypes.c_int
    library.kv_encode.argtypes = [address, address, address, number, *[address] * 3, number, *[address] * 4]
    library.kv_encode.restype = ctypes.c_int
    library.kv_rows.argtypes = [*[address] * 4, number, address, number, *[address] * 9, number, *[address] * 4]
    library.kv_rows.restype = ctypes.c_int
    library.kv_entries.argtypes = [ctypes.c_char_p, number, *[address] * 4, number, *[address] * 6]
    library.kv_entries.restype = ctypes.c_int
    library.kv_merge.argtypes = [address, number, *[address] * 5]
    library.kv_merge.restype = number
    library.kv_changes.argtypes = [*[address] * 3, number]
    library.kv_changes.restype = ctypes.c_int
    return library


class _OfFewRows(NamedTuple):
    """Functions for single and few rows, which keep the interpreter's lock."""

    verify: Callable[[bytes, int, bytes, int], int]
    bucket: Callable[[bytes, int, int, int], int]
    hash: Callable[[bytes, int, bytes, int], int]
    changes: Callable[..., int]
    few_changes: Callable[..., int]
    decode: Callable[..., int]


@cache
def _of_few_rows(loaded: ctypes.CDLL) -> _OfFewRows:
    library = ctypes.PyDLL(loaded._name, handle=loaded._handle)  # the file may be gone, and descriptors, too
    # Types of arguments are not declared: ctypes passes bytes and small numbers in half the time without.
    library.kv_hash.restype = ctypes.c_uint64
    library.kv_changes.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_uint64]
    library.kv_few.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    return _OfFewRows(
        *(library.kv_is_right, library.kv_bucket, library.kv_hash, library.kv_changes, library.kv_few_changes),
        library.kv_few,
    )
