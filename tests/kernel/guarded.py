"""Bytes in memory after which nothing may be read: the process would end."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROT_NONE = 0


def guarded(data: bytes) -> np.ndarray:
    """A copy of bytes at the end of the memory that may be read."""
    readable = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, readable + mmap.PAGESIZE), np.uint8)
    placed = memory[readable - len(data) : readable]
    placed[:] = np.frombuffer(data, np.uint8)
    last = ctypes.c_void_p(memory.ctypes.data + readable)
    assert _LIBC.mprotect(last, ctypes.c_size_t(mmap.PAGESIZE), _PROT_NONE) == 0
    return placed
