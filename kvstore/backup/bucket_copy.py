"""Copies the files of a bucket, as of a cut, into a directory that no process has open.

* A file gets its name when it is durable, so a copy that was cut short is continued: complete segments stay, and so
  does an index, even if it is of an earlier cut. The log after it is replayed into it.
* What is copied is verified where it arrives: the checksum of every batch, and the pages of the index.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvstore.backup.cut import BucketCut, log_of
from kvstore.bucket.context import BucketPaths
from kvstore.bucket.recovery import open_merged, replay_start, usable_index
from kvstore.bucket.snapshots import snapshot
from kvstore.clock import Clock
from kvstore.disk import pages
from kvstore.disk.files import Files, open_file
from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import CorruptData, OffsetOutOfRange
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.process.calls import check_caller
from logformat import paths
from logformat.ids import Offset

_PIECE_BYTES = 8 << 20
Done = Callable[[int], object]
"""Called with numbers of bytes that are there."""


def size_of(bucket: BucketCut) -> int:
    """Approximate number of bytes to copy."""
    _, bases = log_of(bucket)
    sizes = [_size(paths.segment_file(bucket.paths.log, base)) for base in bases[:-1]]
    return sum(sizes) + bucket.end.position + _size(bucket.paths.index / LMDB_FILES[0])


def copy_bucket(
    bucket: BucketCut, definition: TableDefinition, target: BucketPaths, files: Files, clock: Clock, done: Done
) -> None:
    """Copy a bucket, or what an earlier call has not copied; its index then has every change of its log.

    Raises:
        FileNotFoundError: A part of the log has expired meanwhile; begin with another cut.
        CorruptData: The store is damaged.
        OSError: The disk is full or failed.
    """
    for directory in (target.directory, target.log):
        files.make_directory(directory)
    _copy_log(bucket, target, files, done)
    _copy_snapshot(bucket, target, files)
    _copy_index(bucket, target, files, done)
    open_merged(target, definition, StoreOptions(), files, clock).close()


def _copy_log(bucket: BucketCut, target: BucketPaths, files: Files, done: Done) -> None:
    _, bases = log_of(bucket)
    sizes = {paths.segment_file(target.log, base): _size(paths.segment_file(bucket.paths.log, base)) for base in bases}
    sizes[paths.segment_file(target.log, bucket.end.base)] = bucket.end.position
    hints = [of(target.log, base) for base in bases for of in (paths.sparse_index_file, paths.writers_file)]
    for name in set(files.names_in(target.log)) - {path.name for path in (*sizes, *hints)}:
        files.remove(target.log / name)  # of an earlier cut
    for path, size in sizes.items():
        if not files.exists(path) or _size(path) != size:
            _copy_file(bucket.paths.log / path.name, path, size, files)
        done(size)
    for path in hints:
        # Of the last segment they may say more than the copy has; recovery makes its sparse index.
        if path != paths.sparse_index_file(target.log, bucket.end.base):
            with suppress(FileNotFoundError):
                _copy_file(bucket.paths.log / path.name, path, None, files)
    files.sync_directory(target.log)
    for _ in LogFiles(target.log, target.identity).batches(bases[0], bucket.end.offset):
        check_caller()


def _copy_snapshot(bucket: BucketCut, target: BucketPaths, files: Files) -> None:
    """Copy the newest snapshot from which the copied log goes on.

    Raises:
        OffsetOutOfRange: A later one has taken its place, and the log before it has expired; begin with another cut.
    """
    start, is_later = LogFiles(target.log, target.identity).start(), False
    files.remove_tree(target.directory / paths.SNAPSHOTS)
    for found in snapshot.readable(bucket.paths.directory, bucket.paths.identity):
        if found.offset <= bucket.end.offset and found.log_end.base >= start:
            directory = paths.snapshot_directory(target.directory, found.offset)
            files.make_directory(directory.parent)
            files.make_directory(directory)
            for name in (*found.manifest.files, paths.SNAPSHOT_MANIFEST):
                _copy_file(found.directory / name, directory / name, None, files)
            files.sync_directory(directory)
            snapshot.read(target.directory, target.identity, found.offset).verify()
            return
        is_later = is_later or found.offset > bucket.end.offset
    if start and is_later:
        raise OffsetOutOfRange("A snapshot was replaced by a later one meanwhile.", path=bucket.paths.directory)


def _copy_index(bucket: BucketCut, target: BucketPaths, files: Files, done: Done) -> None:
    if not _continues(target, files, bucket.end.offset):
        unfinished = target.directory / paths.REBUILT_INDEX
        for each in (unfinished, target.index):
            files.remove_tree(each)
        files.make_directory(unfinished)
        descriptor = files.open(unfinished / LMDB_FILES[0], create=True)
        try:
            bucket.environment.copy_to(descriptor, bucket.transaction)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        pages.verify(unfinished / LMDB_FILES[0], all_pages=False)
        files.sync_directory(unfinished)
        files.rename(unfinished, target.index)
        files.sync_directory(target.directory)
    done(_size(target.index / LMDB_FILES[0]))
    check_caller()


def _continues(target: BucketPaths, files: Files, end: Offset) -> bool:
    """Whether an earlier call has copied the index, and the copied log goes on from it."""
    index = usable_index(target, StoreOptions(), files)
    if index is None:
        return False
    try:
        log = LogFiles(target.log, target.identity)
        with index.view() as view:
            return log.start() <= replay_start(view.state(), log).base <= end
    except (CorruptData, OffsetOutOfRange):
        return False
    finally:
        index.close()


def _copy_file(source: Path, target: Path, size: int | None, files: Files) -> None:
    """Copy the first bytes of a file, or all of them."""
    unfinished = target.with_name(target.name + paths.TEMPORARY)
    with open_file(source) as file:
        end = os.fstat(file.fileno()).st_size if size is None else size
        if files.exists(unfinished):
            files.remove(unfinished)
        descriptor = files.open(unfinished, create=True)
        try:
            for position in range(0, end, _PIECE_BYTES):
                check_caller()
                piece = os.pread(file.fileno(), min(_PIECE_BYTES, end - position), position)
                files.write(descriptor, [memoryview(piece)], position)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
    files.rename(unfinished, target)


def _size(path: Path) -> int:
    return path.stat().st_size
