"""Applies changes to a bucket of a shared table, on the machine of one task.

* A directory of the machine holds a copy of the bucket, as of some epoch. Changes are applied, pending in its memtable,
  encoded, uploaded, and kept; if they are not committed, the next write undoes them.
* Losing or damaging the copy costs time only: it is made again from the ranges of the epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from kvstore.bucket.context import BucketPaths
from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData, OffsetOutOfRange
from kvstore.log.segment_writer import EncodedBatch
from kvstore.request.preparation import fitted, request_of
from kvstore.request.request import Request
from kvstore.shared.copy import open_copy
from kvstore.shared.table import SharedTable
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId
from logformat.replica.object_file import ObjectName
from logformat.replica.shared_table import SharedEpoch, SharedRange
from logformat.rows.changes import Changes

_LOCK = "LOCK"
LOCK_SECONDS = 60
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class _Moment:
    """A clock that shows one time, that of a commit, on all machines."""

    at_ms: int
    clock: Clock

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic(self) -> float:
        return self.clock.monotonic()


def apply_changes(
    table: SharedTable,
    base: SharedEpoch,
    bucket: BucketId,
    changes: Changes,
    cache: Path,
    clock: Clock,
    *,
    at_ms: int,
    columns: Sequence[str] | None = None,
) -> SharedRange | None:
    """Apply changes to a bucket as of an epoch, and upload the range that results; :meth:`SharedTable.commit` adds it.

    Args:
        changes: Changes of this bucket.
        cache: Directory of the machine for copies of buckets.
        at_ms: Time of the commit (ms), later than that of the epoch.
        columns: Columns of a partial update; None for whole rows.

    Returns:
        None if the epoch is not the newest any more, as the copy of this machine shows.

    Raises:
        InvalidRequest: The changes do not fit the table. Nothing was uploaded.
        StoreLocked: Another process of this machine has applied changes to the bucket for a minute; try again.
        CorruptData, MissingVersion: A range of the epoch is damaged or gone.
        StoreFull, LogFailed: The disk of the copy is full or failed.
        Unavailable: The object store can't be reached.
    """
    fit, targets = fitted(changes, table.definition, table.definition.schema_id, columns, overwrite=False)
    request, files = request_of(fit, table.definition, targets=targets), Files()
    bucket_paths = BucketPaths.of(cache / "shared" / str(base.store_id), base.store_id, table.definition.id, bucket)
    bucket_paths.directory.parent.mkdir(0o700, parents=True, exist_ok=True)
    clock = _Moment(at_ms, clock)
    lock = ProcessLock(bucket_paths.directory.with_name(f"{bucket}.{_LOCK}"), files)
    end = clock.monotonic() + LOCK_SECONDS
    while not lock.try_acquire():
        if clock.monotonic() >= end:
            lock.acquire()  # its error names the process that has it
        threading.Event().wait(_PAUSE_SECONDS)
    try:
        try:
            return _made(table, base, bucket_paths, request, files, clock)
        except (CorruptData, OffsetOutOfRange, lmdb.Error):
            # The copy is damaged, its parts are of different times, or a range of the epoch is damaged: raised again.
            files.remove_tree(bucket_paths.directory)
            return _made(table, base, bucket_paths, request, files, clock)
    finally:
        lock.release()


def _made(
    table: SharedTable, base: SharedEpoch, bucket_paths: BucketPaths, request: Request, files: Files, clock: Clock
) -> SharedRange | None:
    """The range that a request makes after the epoch, uploaded; None if the copy is of a later one."""
    copy = open_copy(table, base, bucket_paths, files, clock)
    if copy is None:
        return None
    try:
        encoded = copy.path.apply(request).batch
        assert encoded is not None, "only what has a writer's sequence is found to be a duplicate"
        made = _uploaded(table, base, bucket_paths.identity.bucket_id, encoded)
        copy.keep(encoded, made)
    finally:
        copy.close()
    return made


def _uploaded(table: SharedTable, base: SharedEpoch, bucket: BucketId, encoded: EncodedBatch) -> SharedRange:
    """Upload a range under a number that no other attempt has, and that is larger than those of the epoch."""
    stream = Stream(table.definition.id, bucket)

    def name(random: int) -> ObjectName:
        return SharedRange(encoded.base_offset, encoded.next_offset, base.next_attempt(random), 0).name(stream)

    made, size = table.upload(name, [b"".join(encoded.pieces)])
    return SharedRange(made.start, made.end, made.epoch, size)
