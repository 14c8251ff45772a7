"""Compaction of an index: a copy without free pages takes its place.

* The copy is an index as of a commit. What the log has after it is replayed when the bucket is opened with the copy.
* Transactions that are open go on in the old file; it is gone from the disk when the last of them has ended.
* Whatever is left when a process dies is used, or rebuilt from the log: see docs/format.md, Compaction of an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvstore.disk.files import Files
from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.index.index import Index
from logformat import paths

OLD = paths.INDEX + paths.TEMPORARY


@dataclass(frozen=True, slots=True)
class CompactedIndex:
    """Result of a compaction: the size of the index file in bytes, before and after."""

    bytes_before: int
    bytes_after: int


def write_copy(index: Index, bucket: Path, files: Files) -> None:
    """Write a copy of the last commit, without free pages, under another name, and make it durable.

    Raises:
        StoreFull, LogFailed: The disk refuses.
        OSError: The same.
    """
    directory = bucket / paths.REBUILT_INDEX
    files.remove_tree(directory)
    files.make_directory(directory)
    descriptor = files.open(directory / LMDB_FILES[0], create=True)
    try:
        index.environment.copy_to(descriptor)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.sync_directory(directory)


def swap(bucket: Path, files: Files) -> CompactedIndex:
    """Put the copy in the place of the index; the caller has the bucket's lock, and nothing writes the index.

    Raises:
        OSError: The disk refuses. Without an index the bucket rebuilds it.
    """
    index, old = bucket / paths.INDEX, bucket / OLD
    before = (index / LMDB_FILES[0]).stat().st_size
    files.remove_tree(old)
    files.rename(index, old)
    files.rename(bucket / paths.REBUILT_INDEX, index)
    files.sync_directory(bucket)
    files.remove_tree(old)
    return CompactedIndex(before, (index / LMDB_FILES[0]).stat().st_size)


def discard(bucket: Path, files: Files) -> None:
    """Remove a copy that is not used, and what an interrupted compaction left."""
    files.remove_tree(bucket / paths.REBUILT_INDEX)
    files.remove_tree(bucket / OLD)
