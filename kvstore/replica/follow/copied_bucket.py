"""One bucket of a copy that follows a replica: batches are appended as their leader wrote them."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.bucket.bucket_lock import BucketLock
from kvstore.bucket.context import BucketContext
from kvstore.bucket.maintenance import LOOK_SECONDS, Maintenance
from kvstore.bucket.read_gate import ReadGate
from kvstore.bucket.recovery import open_merged
from kvstore.bucket.write_path import WritePath
from kvstore.log.segment_writer import EncodedBatch
from kvstore.log.segments import LogFiles
from logformat.ids import Offset, WriterId
from logformat.log.batch import BatchHeader, decode_verified

COMMIT_BYTES = 64 << 20
"""The index is committed when it lacks this much of the log: a process that is killed loses no more of its work."""


class CopiedBucket:
    """A bucket's files, open for a follower; recovered first.

    Args:
        context: Of the bucket, with the copy's catalog.

    Raises:
        StoreLocked: Another process follows with this copy.
        CorruptData: The bucket can't be recovered.
    """

    def __init__(self, context: BucketContext) -> None:
        bucket = context.paths
        self._catalog = context.catalog
        self._clock = context.clock
        self._log = LogFiles(bucket.log, bucket.identity, context.files)
        self._lock = BucketLock(bucket.directory, context.files, context.clock)
        self._lock.acquire()
        try:
            self._path = open_merged(
                bucket, context.catalog.definition(), context.options, context.files, context.clock
            )
        except BaseException:
            self._lock.release()
            raise
        self._lock.recovered()
        self._maintenance = Maintenance(context, self._path.memtable.index, lambda: None, ReadGate())
        self._looked = context.clock.monotonic()

    @property
    def log(self) -> LogFiles:
        """The log."""
        return self._log

    @property
    def end(self) -> Offset:
        """The offset after its last batch."""
        return self._path.state.applied_offset

    def last_sequences(self) -> dict[WriterId, int]:
        """The last sequence of each remembered writer."""
        return self._path.last_sequences()

    def append(self, batches: Iterable[tuple[BatchHeader, memoryview]]) -> int:
        """Append consecutive batches and publish them; returns the number of changes in them.

        Raises:
            StoreFull, LogFailed: The disk is full or failed; close the bucket, and open it again.
            CorruptData: A batch is damaged; earlier batches may have been appended.
        """
        began = self.end
        self._path.use(self._catalog.definition())
        append_to(self._path, self._log, batches)
        if self._clock.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = self._clock.monotonic()
            self._maintenance.retain()
        return self.end - began

    def close(self) -> None:
        """Close the files and release the lock."""
        self._maintenance.close()
        try:
            self._path.close()
        finally:
            self._lock.release()


def append_to(path: WritePath, log: LogFiles, batches: Iterable[tuple[BatchHeader, memoryview]]) -> None:
    """Append consecutive batches to a bucket and commit its index, also after every ``COMMIT_BYTES``.

    Raises:
        StoreFull, LogFailed: The disk is full or failed; close the bucket, and open it again.
        CorruptData: A batch is damaged; earlier batches may have been appended.
    """
    waiting = 0
    for header, data in batches:
        decode_verified(header, data, path.definition.schema_of(header.schema_id), validate=True)
        if waiting >= COMMIT_BYTES or path.log.is_full:
            _apply(path, log)
            path.commit()
            waiting = 0
        if path.log.is_full:
            path.roll()
        path.log.append([EncodedBatch.of(header, [data])])
        waiting += len(data)
    _apply(path, log)
    path.commit()


def _apply(path: WritePath, log: LogFiles) -> None:
    path.log.sync()
    path.catch_up(log)
