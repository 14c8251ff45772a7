"""Commits of many pages wait less for the disk: it begins with them while LMDB still hands them over.

LMDB writes the pages of a commit one by one and then syncs. Where they are spread over a large file, the first takes
the kernel half as long as the second takes the disk; at once, both take little over half of their sum
(docs/performance.md). The sync that counts stays LMDB's: Linux tells what went wrong to every descriptor of a file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BYTES_MIN = 16 << 20
"""Of a commit that is worth a thread."""
_PAUSE_SECONDS = 0.005


@contextmanager
def writing_back(path: Path) -> Iterator[None]:
    """Have the disk write what is written meanwhile to a file; if that can't be, nothing is lost but time."""
    done = threading.Event()

    def write_back() -> None:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                while True:
                    os.fdatasync(descriptor)  # noqa: TID251 - it promises nothing
                    if done.wait(_PAUSE_SECONDS):
                        break
            finally:
                os.close(descriptor)

    thread = threading.Thread(target=write_back, name="kvstore-writeback", daemon=True)
    with suppress(RuntimeError):  # there are too many threads
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()
