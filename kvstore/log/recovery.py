"""Finding the end of a log whose writer is gone (docs/format.md, Recovery).

The log has three zones, by what is known to be durable:

* Up to the synced end that the index remembers, everything must exist: a bad batch is damage, and nothing is truncated.
* After it, a bad batch is also damage if a later batch shows that the log was durable beyond it.
* Otherwise a crash tore the log there: recovery truncates the log at the bad batch. Nothing after it was promised.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from kvstore.disk.files import Files, read_file
from kvstore.errors import CorruptBatch, CorruptData
from kvstore.log.segment_writer import SegmentWriter, head_at
from kvstore.log.segments import LogEnd, LogFiles, LogIdentity, Segment
from logformat import paths
from logformat.ids import Offset, Position
from logformat.log import segment, sparse_index
from logformat.log.batch import decode_header, verify
from logformat.log.segment import NO_OFFSET
from logformat.log.sparse_index import Entry

_PIECE_BYTES = 1 << 24


def find_end(directory: Path, identity: LogIdentity, synced: LogEnd | None, files: Files | None = None) -> LogEnd:
    """Where the log ends, without changing anything.

    Args:
        directory: Where its files are.
        synced: Up to where the index says the log was durable; None if there is no index.
        files: Of the store, if that is open.

    Raises:
        CorruptBatch: Durable data is damaged or missing; the error names file, position and offset.
    """
    log = LogFiles(directory, identity, files)
    start, bases = log.start(), log.bases()
    if synced is None and log.segment(start).head.previous_base != NO_OFFSET:
        raise _missing(directory, log.segment(start).head.previous_base, Offset(0))
    end = synced or LogEnd(start, Position(segment.HEAD_BYTES), start)
    if end.base not in bases:
        raise _missing(directory, end.base, end.offset)
    for following in bases[bases.index(end.base) + 1 :]:
        # A sealed segment was durable as a whole before the next one began.
        stop = log.segment(following).head.previous_end
        while end.position != stop:
            end = _step(log, end)
        if end.offset != following:
            raise _missing(directory, end.offset, end.offset)
        end = LogEnd(following, Position(segment.HEAD_BYTES), following)
    last = log.segment(end.base)
    if end.position > last.size:
        raise CorruptBatch(
            "The log is shorter than its durable part; run `kvstore check`.",
            path=last.path,
            position=last.size,
            offset=end.offset,
        )
    while end.position < last.size:
        try:
            end = _step(log, end)
        except CorruptBatch:
            if was_durable_beyond(last, end.position, identity, end.offset):
                raise
            break
    return end


def create(directory: Path, identity: LogIdentity, files: Files) -> None:
    """Create the first segment of a log; the parent of its directory exists."""
    files.make_directory(directory)
    SegmentWriter.begin(directory, head_at(Offset(0), identity), files).close()


def prepare(directory: Path, identity: LogIdentity, synced: LogEnd | None, files: Files) -> LogEnd:
    """Prepare a log for appending: truncate it at its end.

    Afterwards everything up to the end is durable, writer snapshots exist only at the start of a segment and at the
    end, and sparse indexes exist only for segments and agree with the log.

    Raises:
        CorruptBatch: Durable data is damaged or missing. Nothing was truncated.
    """
    for leftover in directory.glob(f"*{paths.TEMPORARY}"):
        files.remove(leftover)
    end = find_end(directory, identity, synced, files)
    path = paths.segment_file(directory, end.base)
    descriptor = files.open(path)
    try:
        if os.fstat(descriptor).st_size > end.position:
            files.truncate(descriptor, end.position)
        # Readable data is not necessarily durable: an earlier sync may have failed and the kernel marked the pages
        # clean. So write and sync the tail again. Sync the directory too: the process that created the segment may have
        # died before it did.
        start = synced.position if synced is not None and synced.base == end.base else segment.HEAD_BYTES
        tail = LogFiles(directory, identity, files).segment(end.base).bytes_from(Position(start))
        for position in range(0, len(tail), _PIECE_BYTES):
            files.write(descriptor, [memoryview(bytes(tail[position : position + _PIECE_BYTES]))], start + position)
        files.sync(descriptor)
        files.sync_directory(directory)
    finally:
        files.close(descriptor)
    log = LogFiles(directory, identity, files)
    _remove_strays(directory, log.bases(), end.offset, files)
    _repair_sparse_indexes(directory, log, end, files)
    return end


def _step(log: LogFiles, end: LogEnd) -> LogEnd:
    return log.segment(end.base).batch_at(end.position, end.offset).after


def _missing(directory: Path, base: Offset, offset: Offset) -> CorruptBatch:
    return CorruptBatch(
        "A segment of the log is missing; run `kvstore check`.",
        path=paths.segment_file(directory, base),
        offset=offset,
    )


def was_durable_beyond(segment: Segment, position: Position, identity: LogIdentity, offset: Offset) -> bool:
    """Whether a whole batch lies from a position on that was written when the log was durable beyond ``offset``."""
    for data in segment.possible_batches(position):
        try:
            header = decode_header(data)
            if (header.table_id, header.bucket_id) != (identity.table_id, identity.bucket_id):
                continue
            if header.durable_end > offset:
                verify(header, data)
                return True
        except CorruptBatch:
            continue
    return False


def _remove_strays(directory: Path, bases: Collection[Offset], end: Offset, files: Files) -> None:
    """Remove files of segments that do not exist, except the writers at the end, where the next segment begins.

    They are left by a roll that was interrupted, a truncation, or a removed segment.
    """
    for path in directory.iterdir():
        writers, sparse = paths.writers_base(path.name), paths.sparse_index_base(path.name)
        if (writers is not None and writers not in {*bases, end}) or (sparse is not None and sparse not in bases):
            files.remove(path)


def _repair_sparse_indexes(directory: Path, log: LogFiles, end: LogEnd, files: Files) -> None:
    for base, following in pairwise(log.bases()):
        # They were synced before the next segment began, so check only those whose size looks wrong.
        if not _looks_whole(paths.sparse_index_file(directory, base)):
            # Damage before the synced end is reported by a read of that part.
            with suppress(CorruptBatch):
                stop = log.segment(following).head.previous_end
                _repair_sparse_index(directory, log, LogEnd(base, stop, following), files)
    _repair_sparse_index(directory, log, end, files)


def _looks_whole(path: Path) -> bool:
    size = path.stat().st_size if path.exists() else 0
    entries, rest = divmod(size - sparse_index.HEAD_BYTES, sparse_index.ENTRY_BYTES)
    return size <= sparse_index.SPARSE_INDEX_BYTES_MAX and entries > 0 and not rest


def _repair_sparse_index(directory: Path, log: LogFiles, end: LogEnd, files: Files) -> None:
    """Rebuild the sparse index of the segment that ends at ``end``, as far as its batches are readable."""
    entries = [entry for entry in log.segment(end.base).sparse_index() if entry.position < end.position]
    start = entries[-1].offset if entries else end.base
    with suppress(CorruptBatch):
        for batch in log.batches(start, end.offset):
            if sparse_index.is_due(batch.position, entries[-1].position if entries else None):
                entries.append(Entry(batch.header.base_offset, batch.header.commit_timestamp, batch.position))
    path, encoded = paths.sparse_index_file(directory, end.base), sparse_index.encode(entries)
    try:
        is_right = read_file(path, bytes_max=len(encoded)) == encoded
    except (FileNotFoundError, CorruptData):
        is_right = False
    if not is_right:
        files.publish(path, encoded)
