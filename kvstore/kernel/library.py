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
from typing import Any, NamedTuple

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


def few_encoder() -> Callable[..., int] | None:
    """The function that encodes a few rows; see :class:`kvstore.kernel.writes.RowEncoder`."""
    library = kernel()
    return None if library is None else _of_few_rows(library).encode


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


_A, _N, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int  # an address, a number
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "kv_find": (_INT, _A, _N, _N, _A, _A, _N, _A, _A, _A),
    "kv_few_find": (_INT, _A, _N, _N, ctypes.c_char_p, _N, ctypes.c_char_p),
    "kv_copy": (None, _A, _A, _A, _N, _A),
    "kv_read": (_INT, _INT, _N, _A, _N, _A),
    "kv_leaves": (_INT, _A, _N, _A, _A, _N, ctypes.c_char_p, ctypes.c_uint32, _N, *[_A] * 4),
    "kv_verify": (_INT, _A, _A, _A, _N, *[_A] * 6),
    "kv_measure": (_INT, _A, _A, _A, *[_N] * 4, _A, _N, _N),
    "kv_decode": (None, _A, _A, _A, _N, _N, _N, _A, _N, _A),
    "kv_differ": (_INT, _A, _A, _N, *[_A] * 6, *[_N] * 3, _A, _N, _N, _A),
    "kv_group": (_INT, _A, _A, _A, _N, _A, _N, *[_A] * 8),
    "kv_encode": (_INT, _A, _A, _A, _N, *[_A] * 3, _N, *[_A] * 4),
    "kv_rows": (_INT, *[_A] * 4, _N, _A, _N, *[_A] * 9, _N, *[_A] * 4),
    "kv_entries": (_INT, ctypes.c_char_p, _N, *[_A] * 4, _N, *[_A] * 6),
    "kv_merge": (_N, _A, _N, *[_A] * 5),
    "kv_places": (None, _A, _A, _N, _A, _A, _N, _A),
    "kv_changes": (_INT, *[_A] * 3, _N),
}
"""What each function returns, and what it takes."""


@cache
def _loaded() -> ctypes.CDLL | None:
    path = library_path()
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # built for another machine
        return None
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _OfFewRows(NamedTuple):
    """Functions for single and few rows, which keep the interpreter's lock."""

    verify: Callable[[bytes, int, bytes, int], int]
    bucket: Callable[[bytes, int, int, int], int]
    hash: Callable[[bytes, int, bytes, int], int]
    changes: Callable[..., int]
    few_changes: Callable[..., int]
    decode: Callable[..., int]
    encode: Callable[..., int]


@cache
def _of_few_rows(loaded: ctypes.CDLL) -> _OfFewRows:
    library = ctypes.PyDLL(loaded._name, handle=loaded._handle)  # the file may be gone, and descriptors, too
    # Types of arguments are not declared: ctypes passes bytes and small numbers in half the time without.
    library.kv_hash.restype = ctypes.c_uint64
    library.kv_changes.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_uint64]
    library.kv_few.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    library.kv_few_rows.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_int] * 2, ctypes.c_char_p, *[ctypes.c_int] * 2]
    return _OfFewRows(
        *(library.kv_is_right, library.kv_bucket, library.kv_hash, library.kv_changes, library.kv_few_changes),
        *(library.kv_few, library.kv_few_rows),
    )
