"""Which segments of a log are of no use any more, and how they go.

* Whole segments, the oldest first, never the last one; each is gone for good before the next goes, so that after any
  crash the log has no hole.
* Nothing goes that a recovery would read (:func:`needed_from`), or that somebody has yet to read. Who does is asked
  anew for each segment, and nobody else may say so until it is gone: whoever finds an offset then, keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path

from kvstore.files import Files
from kvstore.log.log import LogEnd
from kvstore.log.segments import LogFiles
from logformat import paths
from logformat.ids import OFFSET_MAX, Offset

UNLIMITED = OFFSET_MAX
"""Bytes that no log has."""

Standing = Callable[[], AbstractContextManager[Iterable[Offset]]]
"""Where those stand who have yet to read a log; while it is held they stay there, and no others come."""


def nobody() -> AbstractContextManager[Iterable[Offset]]:
    """The :data:`Standing` of a log that nobody reads."""
    return nullcontext(())


def expired_before(
    log: LogFiles, *, older_than_ms: int | None, bytes_max: int = UNLIMITED, now_ms: int = OFFSET_MAX
) -> Offset:
    """The offset up to which a log has expired; all that is there begins at it, if nothing has.

    A segment whose last commit timestamp is later than now, or earlier than that of one before it, says nothing about
    its age, for a clock was wrong: it expires with the next one.

    Args:
        older_than_ms: A segment has expired if its last commit timestamp is before this; None if age does not count,
        bytes_max: or if those behind it still have this many bytes.

    Raises:
        CorruptBatch: A segment is damaged where its last commit timestamp stands.
    """
    bases = log.bases()
    left = sum(log.segment(base).size for base in bases) if bytes_max < UNLIMITED else 0
    start, latest = bases[0], -OFFSET_MAX
    for base, following in pairwise(bases):
        left -= log.segment(base).size
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
    """The first offset that a recovery reads; the segment it is in stays as a whole.

    Args:
        snapshot: Where the log had the offset of the newest snapshot that is right: an index that is lost is made of
            it and of what comes after.
        index: The synced end that the index remembers: recovery begins there.
    """
    return min(snapshot.base, index.base)


def remove_before(directory: Path, log: LogFiles, offset: Offset, files: Files, standing: Standing = nobody) -> Offset:
    """Remove every segment that holds nothing from ``offset`` on; returns where the log begins now.

    Args:
        standing: Who has yet to read the log; nothing goes from where they stand on.

    Raises:
        OSError: The disk refused; what is left has no hole.
        StoreError: It can't be said who reads the log; nothing more went.
    """
    bases = log.bases()
    for base, following in pairwise(bases):
        with standing() as offsets:
            if following > min((offset, *offsets)):
                return base
            files.remove(paths.segment_file(directory, base))
        # Or a power cut might bring this one back and not the next.
        files.sync_directory(directory)
        for path in (paths.sparse_index_file(directory, base), paths.writers_file(directory, base)):
            with suppress(FileNotFoundError):
                files.remove(path)
    return bases[-1]


def _last_timestamp(log: LogFiles, base: Offset, following: Offset) -> int:
    entries = [entry.offset for entry in log.segment(base).sparse_index() if base <= entry.offset < following]
    last = 0
    for found in log.batches(entries[-1] if entries else base, following):
        last = found.header.commit_timestamp
    return last
