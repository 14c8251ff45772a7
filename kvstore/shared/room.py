"""Keeps room on a disk that has copies of buckets of shared tables: copies that nobody writes any more are removed.

A copy that is removed while its table is still written is made again, from the object store.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import StoreError

FREE = 10
"""Copies are removed while less than this fraction of the disk is free."""
IDLE_MS = 3_600_000
"""A copy that was used since then stays, however full the disk: without it each write would make it again."""
_LOCKS = "shared/*/tables/*/*.LOCK"


def make_room(cache: Path, clock: Clock) -> None:
    """Remove copies that were not used for an hour while the disk is nearly full, those used least recently first.

    Args:
        cache: Directory of the machine for copies of buckets. What can't be removed stays.
    """
    if _has_room(cache):
        return
    files, now_ms = Files(), clock.now_ms()
    used = []
    for path in cache.glob(_LOCKS):  # a process that uses a copy writes its id there
        with suppress(OSError):
            used.append((path.stat().st_mtime_ns // 1_000_000, path))
    for used_ms, path in sorted(used):
        if now_ms - used_ms < IDLE_MS or _has_room(cache):
            return
        lock = ProcessLock(path, files)
        with suppress(StoreError, OSError):
            if lock.try_acquire():
                try:
                    files.remove_tree(path.with_suffix(""))
                finally:
                    lock.release()


def _has_room(cache: Path) -> bool:
    try:
        disk = shutil.disk_usage(cache)
    except OSError:  # it is gone, and its copies are
        return True
    return disk.free * FREE >= disk.total
