"""Checks for enough memory and disk before a checkpoint, so that the system does not end it midway."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import StoreError, StoreFull, Unavailable
from kvstore.meta import image
from kvstore.process.memory import available_memory
from logformat import paths

PROCESS_BYTES = 128 << 20
"""Memory of a worker before it loads the catalog; measured: 90 MiB."""
_STATE_PER_BYTE = 12
"""Memory for each byte of an image: its objects, twice, because it is read back; measured: 4 to 10."""
_SPARE_BYTES = 16 << 20


def obstacle(store: Path) -> StoreError | None:
    """The error of a checkpoint without enough memory or disk; None if there is enough, or the system does not say."""
    directory = store / paths.IMAGES
    listed = image.txids(directory)
    before = _size(paths.image_file(directory, listed[0])) if listed else 0
    # The next image may have everything that the journal has and this image lacks.
    journal = _size(store / paths.JOURNAL / LMDB_FILES[0])
    needed = PROCESS_BYTES + _STATE_PER_BYTE * before + 2 * journal
    available = available_memory()
    if available is not None and available < needed:
        return Unavailable(
            "There is too little memory for a checkpoint of the catalog; free some.",
            needed_bytes=needed,
            available_bytes=available,
        )
    space = os.statvfs(store)
    needed, available = before + journal + _SPARE_BYTES, space.f_bavail * space.f_frsize
    if available < needed:
        return StoreFull(
            "There is too little disk for a checkpoint of the catalog; free some.",
            path=store,
            needed_bytes=needed,
            available_bytes=available,
        )
    return None


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
