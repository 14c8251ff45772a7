"""Early write-back: lets the disk start on a large commit while LMDB is still writing it.

LMDB writes the pages of a commit one by one and then syncs. When they are spread over a large file, the writes take the
kernel half as long as the sync takes the disk; overlapped, both take little more than half of their sum
(docs/performance.md). Only LMDB's own sync counts: Linux reports a write error to every descriptor of a file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvstore.disk.files import write_back

BYTES_MIN = 16 << 20
"""Size of a commit from which a thread pays off."""
_PAUSE_SECONDS = 0.005


@contextmanager
def writing_back(path: Path) -> Iterator[None]:
    """Sync a file repeatedly inside the context; if that fails, only time is lost."""
    done = threading.Event()

    def write() -> None:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                while True:
                    write_back(descriptor)
                    if done.wait(_PAUSE_SECONDS):
                        break
            finally:
                os.close(descriptor)

    thread = threading.Thread(target=write, name="kvstore-writeback", daemon=True)
    with suppress(RuntimeError):  # no more threads can start
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()
