"""How much is in a bucket: its rows, changes and bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvstore.bucket.handle import BucketHandle
from logformat import paths
from logformat.ids import Offset


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """How much is in a bucket.

    Attributes:
        rows: Number of rows; None if the table's changelog is a WAL image.
        log_start, log_end: The first offset that the log holds, and the offset after the last change.
        last_ms: Commit time of the last change, in milliseconds since the Unix epoch; None if there never was one.
        log_bytes, index_bytes: What the files of the log and of the index take on the disk.
    """

    rows: int | None
    log_start: Offset
    log_end: Offset
    last_ms: int | None
    log_bytes: int
    index_bytes: int


def status_of(handle: BucketHandle, *, counted: bool) -> BucketStatus:
    """The status of a bucket, as every process sees it.

    Args:
        counted: Whether its rows are counted.

    Raises:
        CorruptData: The index or the log is damaged.
    """
    state, directory = handle.committed(), handle.paths.directory
    return BucketStatus(
        state.row_count if counted else None,
        handle.log.start(),
        state.applied_offset,
        state.last_timestamp if state.applied_offset else None,
        _bytes_in(directory / paths.LOG),
        _bytes_in(directory / paths.INDEX),
    )


def _bytes_in(directory: Path) -> int:
    size = 0
    with suppress(FileNotFoundError), os.scandir(directory) as files:
        for file in files:
            with suppress(FileNotFoundError):  # removed meanwhile
                size += file.stat(follow_symlinks=False).st_blocks * 512  # files of LMDB have holes
    return size
