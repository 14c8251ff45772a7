"""Replaces a copy by one that was rebuilt beside it; a process that died in between leaves nothing that can't go on.

A copy ``c`` is rebuilt in ``c.kvstore-rebuilding``. Then ``c`` becomes ``c.kvstore-before``, and the rebuilt copy
becomes ``c``. The former one is removed when the follower does its next round, or ends. No other program uses
directories with such names.
"""

from __future__ import annotations

from pathlib import Path

from kvstore.disk.files import Files, refusals
from kvstore.disk.lock import ProcessLock
from logformat import paths

_REBUILDING = ".kvstore-rebuilding"
_FORMER_REBUILDING = ".kvstore-anew"
"""The suffix in earlier versions, which could not continue: such a directory is removed."""
_BEFORE = ".kvstore-before"


def rebuilding(path: Path) -> Path:
    """The directory in which a copy is rebuilt."""
    return path.with_name(path.name + _REBUILDING)


def replace(path: Path, files: Files) -> None:
    """Replace a copy by the rebuilt one; the caller holds the lock of the copy.

    Raises:
        OSError: The disk is full or failed; :func:`complete` finishes this.
    """
    before = path.with_name(path.name + _BEFORE)
    files.remove_tree(before)
    files.rename(path, before)
    files.rename(rebuilding(path), path)
    files.sync_directory(path.parent)
    files.remove_tree(path.with_name(path.name + _FORMER_REBUILDING))


def remove_former(path: Path, files: Files) -> None:
    """Remove the copy that was replaced. Until then, processes that read it find its files.

    Raises:
        StoreFull, LogFailed: The disk failed.
    """
    with refusals(path):
        files.remove_tree(path.with_name(path.name + _BEFORE))


def complete(path: Path, files: Files) -> None:
    """Finish a replacement whose process died; does nothing if none was begun, or its process still runs.

    Raises:
        StoreLocked: Another process replaces the copy now.
        StoreFull, LogFailed: The disk is full or failed.
    """
    before = path.with_name(path.name + _BEFORE)
    if not (before / paths.SHIPPING).exists():
        return
    lock = ProcessLock(before / paths.SHIPPING)
    if path.exists():
        if not lock.try_acquire():
            return
    else:
        lock.acquire()
    try:
        with refusals(path):
            if not path.exists():
                new = rebuilding(path)
                files.rename(new if (new / paths.STORE_FILE).exists() else before, path)
                files.sync_directory(path.parent)
            files.remove_tree(before)
    finally:
        lock.release()
