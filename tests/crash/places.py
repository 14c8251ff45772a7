"""Directories for runs and states."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.vfs import Contents

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 1 << 30


@contextmanager
def materialised(contents: Contents, work: Path) -> Iterator[Path]:
    """A directory that holds what a state holds."""
    directory = Path(tempfile.mkdtemp(dir=work))
    try:
        fill(directory, contents)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def fill(directory: Path, contents: Contents) -> None:
    """Write what a state holds into an empty directory."""
    for name in sorted(contents):
        data = contents[name]
        path = f"{directory}/{name}"
        if data is None:
            os.mkdir(path, 0o700)
            continue
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        os.write(descriptor, data)
        os.close(descriptor)


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory in memory, if there is enough of it."""
    place = None
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES_MIN:
        place = _MEMORY
    with tempfile.TemporaryDirectory(prefix="kvstore-crash-", dir=place, ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()
