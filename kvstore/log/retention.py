"""Retention: which segments of a log are no longer needed, and their removal.

* Whole segments are removed, oldest first, never the last one; each removal is durable before the next, so that after
  any crash the log has no hole.
* Segments that a recovery (:func:`needed_from`) or a registered reader needs are kept. The reader positions are read
  again for each segment and locked until it is removed, so an offset that a new reader finds stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path

from kvstore.disk.files import Files
from kvstore.log.segments import LogEnd, LogFiles
from logformat import paths
from logformat.ids import OFFSET_MAX, Offset
from logformat.log.segment import HEAD_BYTES

UNLIMITED = OFFSET_MAX
"""No size limit: more bytes than any log has."""

ReaderPositions = Callable[[], AbstractContextManager[Iterable[Offset]]]
"""Positions of registered readers. While the context is open, no position moves and no reader registers."""


def no_readers() -> AbstractContextManager[Iterable[Offset]]:
    """Reader positions of a log without readers."""
    return nullcontext(())


def can_expire(retention_ms: int | None, bytes_max: int) -> bool:
    """Whether a log has a limit, by age (ms) or by size: without one, nothing of it ever expires."""
    return retention_ms is not None or bytes_max < UNLIMITED


def expired_before(
    log: LogFiles, end: LogEnd, *, older_than_ms: int | None, bytes_max: int = UNLIMITED, now_ms: int = OFFSET_MAX
) -> Offset:
    """The offset up to which a log has expired; all that is there begins at it, if nothing has.

    A segment whose last commit timestamp is later than now, or earlier than that of one before it, says nothing about
    its age, for a clock was wrong: it expires with the next one.

    Args:
        end: Up to where the log is counted: the last file may be longer.
        older_than_ms: A segment has expired if its last commit timestamp is before this; None ignores age,
        bytes_max: or if the segments after it still have this many bytes.

    Raises:
        CorruptBatch: A segment is damaged at its last commit timestamp.
    """
    bases = log.bases()
    left = sum(_sizes(log, bases, end)) if bytes_max < UNLIMITED else 0
    start, latest = bases[0], -OFFSET_MAX
    for (base, following), size in zip(pairwise(bases), _sizes(log, bases, end), strict=False):
        left -= size
        if bytes_max == UNLIMITED or left < bytes_max:
            if older_than_ms is None:
                break
            last = _last_timestamp(log, base, following)
            if not latest <= last <= now_ms:
                continue
            if last >= older_than_ms:
                break
            latest = last
        start = following
    return start


def needed_from(snapshot: LogEnd, index: LogEnd) -> Offset:
    """The first offset that a recovery reads; the segment that contains it is kept whole.

    Args:
        snapshot: Position of the newest valid snapshot's offset in the log: a lost index is rebuilt from the snapshot
            and the log after it.
        index: Where the changes begin that the index lacks; recovery begins there.
    """
    return min(snapshot.base, index.base)


def remove_before(
    directory: Path,
    log: LogFiles,
    offset: Offset,
    files: Files,
    reader_positions: ReaderPositions = no_readers,
    *,
    kept_from: Offset = Offset(0),
) -> Offset:
    """Remove every segment that has nothing from ``offset`` on; returns the new start of the log.

    Args:
        reader_positions: Positions of the log's readers; everything from there on is kept.
        kept_from: Readers keep nothing before this offset.

    Raises:
        OSError: The disk failed; the remaining log has no hole.
        StoreError: The reader positions are not known; nothing more was removed.
    """
    bases = log.bases()
    for base, following in pairwise(bases):
        with reader_positions() as offsets:
            if following > min((offset, *(max(each, kept_from) for each in offsets))):
                return base
            files.remove(paths.segment_file(directory, base))
        # Otherwise a power cut might restore this segment and not the next.
        files.sync_directory(directory)
        for path in (paths.sparse_index_file(directory, base), paths.writers_file(directory, base)):
            with suppress(FileNotFoundError):
                files.remove(path)
    return bases[-1]


def _sizes(log: LogFiles, bases: Sequence[Offset], end: LogEnd) -> Iterator[int]:
    """Bytes of each segment."""
    for following in bases[1:]:
        yield log.segment(following).head.previous_end
    yield end.position if end.base == bases[-1] else HEAD_BYTES


def _last_timestamp(log: LogFiles, base: Offset, following: Offset) -> int:
    entries = [entry.offset for entry in log.segment(base).sparse_index() if base <= entry.offset < following]
    last = 0
    for batch in log.batches(entries[-1] if entries else base, following):
        last = batch.header.commit_timestamp
    return last
