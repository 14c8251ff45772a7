"""The engine of one bucket: its write path, its committer and its maintenance, opened and closed together.

An engine is opened while the process holds the bucket's lock. It recovers the bucket first; then everything that was
ever acknowledged, or decided by a commit over several buckets, is in it.
"""

from __future__ import annotations

from kvstore.bucket.committer import Committer
from kvstore.bucket.context import BucketContext, BucketPaths
from kvstore.bucket.maintenance import Maintenance
from kvstore.bucket.read_gate import ReadGate
from kvstore.bucket.recovery import open_for_writing, open_merged
from kvstore.clock import Clock
from kvstore.disk.files import Files, refusals
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData
from kvstore.log import recovery as log_recovery
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.process.calls import uninterrupted
from logformat import paths


class BucketEngine:
    """The engine of a bucket whose lock this process holds.

    Attributes:
        committer: Applies, syncs and commits.
        maintenance: Takes snapshots and lets expired segments go.

    Raises:
        CorruptData: The bucket can't be recovered. Nothing was changed.
        StoreFull, LogFailed: The disk refuses.
    """

    def __init__(self, context: BucketContext) -> None:
        context.catalog.show_last_commit()  # it may be of a process that wrote the bucket and died
        self._context = context
        bucket = context.paths
        with refusals(bucket.directory):
            definition, options = context.catalog.definition(), context.options
            path = open_for_writing(bucket, definition, options, context.files, context.clock, context.budget)
        gate = ReadGate()
        self.committer = Committer(path, context, gate, lambda: self.maintenance.begin())
        self.maintenance = Maintenance(context, path.memtable.index, self.committer.flush, gate)
        if context.catalog.writers().commits:
            try:
                self.committer.settle()
            except BaseException:
                self.close()
                raise

    def begin(self) -> None:
        """Begin maintenance; before any other thread may write. After an error the engine is closed."""
        try:
            self.maintenance.begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End its threads; everything acknowledged is durable then.

        Raises:
            LogFailed, StoreFull: See :meth:`Committer.close`. The threads have ended all the same.
            CorruptData: The index is damaged, and can't be built again. The same.
        """
        try:
            self.maintenance.close()
        finally:
            try:
                self.committer.close()
            except CorruptData:
                # A merge met damage that opening the bucket did not meet: this meets it, and builds the index again.
                self._merge_again()

    def _merge_again(self) -> None:
        context, self.maintenance.has_copy = self._context, False  # the index is built where the copy is
        with refusals(context.paths.directory):
            open_merged(
                context.paths, context.catalog.definition(), context.options, context.files, context.clock
            ).close()


@uninterrupted
def create_bucket(
    bucket: BucketPaths, definition: TableDefinition, options: StoreOptions, files: Files, clock: Clock
) -> None:
    """Create the files of a new bucket in its existing directory.

    Raises:
        StoreLocked: Another process has its lock.
        StoreFull, LogFailed: The disk refuses. What was made is no bucket yet.
    """
    lock = ProcessLock(bucket.directory / paths.LOCK_FILE, files)
    lock.acquire()
    try:
        with refusals(bucket.directory):
            log_recovery.create(bucket.log, bucket.identity, files)
            open_for_writing(bucket, definition, options, files, clock).close()
    finally:
        lock.release()
        # Until the catalog has the table another process may remove what is here, and give the same id to another.
        files.forget(bucket.directory)
