"""Maintenance of a bucket while it is written: takes snapshots, and removes expired segments of the log.

* One thing at a time, in a thread of its own or in that of a caller that asks for a snapshot. The committer never waits
  for it, except for a read of the index to end when the index must grow. The read begins again afterwards.
* Segments are removed only below a snapshot that was verified just before.
* Failed work is tried again later: until then the log is longer than necessary, and nothing is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kvstore.bucket.context import BucketContext
from kvstore.bucket.read_gate import ReadGate
from kvstore.bucket.recovery import replay_start, synced_end
from kvstore.bucket.snapshots import snapshot
from kvstore.bucket.snapshots.snapshot import Snapshot
from kvstore.disk.files import refusals
from kvstore.errors import StoreError
from kvstore.index.compaction import write_copy
from kvstore.index.index import Index, View
from kvstore.log import retention
from kvstore.log.segments import LogEnd, LogFiles
from kvstore.process.calls import check_caller
from logformat.ids import Offset

LOOK_SECONDS = 60.0
"""The log is checked when a segment begins, and this long after the last check."""
REST_FACTOR = 4
"""Pause between automatic snapshots, as a multiple of the duration of the last one."""


_log = logging.getLogger(__name__)


class _Interrupted(Exception):
    """The work must end, because the index must grow or the bucket is closed."""


class Maintenance:
    """Snapshots and retention of a bucket that this process writes.

    Args:
        context: Context of the bucket.
        index: Its index.
        flush: Returns once everything acknowledged is committed.
        gate: Keeps reads of the index apart from its growth.

    Attributes:
        failure: Error of the last check of the log; None if it succeeded.
        has_copy: Whether :meth:`copy_index` has completed a copy, which nobody has replaced since.
    """

    def __init__(
        self,
        context: BucketContext,
        index: Index,
        flush: Callable[[], None],
        gate: ReadGate,
    ) -> None:
        self._paths = context.paths
        self._context = context
        self._index = index
        self._flush = flush
        self._options = context.options
        self._files = context.files
        self._clock = context.clock
        self._gate = gate
        self._look = threading.Event()
        self._working = threading.Lock()
        self._beginning = threading.Lock()
        self._rested = 0.0
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None
        self.failure: StoreError | None = None
        self.has_copy = False

    def begin(self) -> None:
        """Have the log checked soon, by a thread, if it can expire by the table's present definition."""
        if self._gate.is_closed or not retention.can_expire(self._retention_ms(), self._options.log_bytes_max):
            return
        self._look.set()
        with self._beginning:
            if self._thread is None and not self._gate.is_closed:
                thread = threading.Thread(target=self._run, name="kvstore-maintenance", daemon=True)
                thread.start()
                self._thread = thread  # once it can be waited for

    def snapshot(self) -> Snapshot:
        """Take a snapshot of everything acknowledged; returns once it is durable.

        Raises:
            StoreFull, LogFailed: The disk refused; nothing is left of it.
            CorruptData: The index is damaged.
            StoreClosed: The store was closed meanwhile.
        """
        with self._working:
            return self._take()

    def copy_index(self) -> None:
        """Write a compacted copy of the index beside it; while it is written, the index does not grow.

        Raises:
            StoreFull, LogFailed: The disk refuses.
            StoreClosed: The bucket was closed or handed over meanwhile.
        """
        with self._working, refusals(self._paths.directory):
            self._files.verify()
            self._flush()
            with self._gate.reading():
                self.has_copy = False
                write_copy(self._index, self._paths.directory, self._files)
                self.has_copy = True

    def retain(self) -> None:
        """Check the log once and remove expired segments; takes a snapshot first if a newer one is needed.

        Raises:
            StoreError: Something refused; nothing that is needed is gone.
        """
        if not retention.can_expire(self._retention_ms(), self._options.log_bytes_max):
            return
        self._files.verify()  # the snapshots that replace removed segments are this store's
        with self._working, refusals(self._paths.log):
            log = LogFiles(self._paths.log, self._paths.identity, self._files)
            kept_from = self._kept_from(log)
            expired = self._expired(log)
            if expired <= log.start():
                return
            newest = snapshot.newest_valid(self._paths.directory, self._paths.identity)
            if (newest is None or newest.log_end.base < expired) and self._clock.monotonic() >= self._rested:
                newest = self._take()
            if newest is None:
                return
            # The process that took it may have died, or failed, before its name was durable.
            self._files.sync_directory(newest.directory.parent)
            needed = retention.needed_from(newest.log_end, self._replay_start(log))
            retention.remove_before(
                self._paths.log,
                log,
                Offset(min(expired, needed)),
                self._files,
                self._context.reader_positions,
                kept_from=kept_from,
            )

    def _kept_from(self, log: LogFiles) -> Offset:
        """The offset before which consumers keep nothing; warns of those that are near it."""
        bytes_max = self._options.consumer_log_bytes_max
        if bytes_max == retention.UNLIMITED:
            return Offset(0)
        bucket = self._paths.identity.bucket_id
        near = self._context.catalog.consumers_before(bucket, self._larger_than(log, bytes_max * 4 // 5))
        for name in sorted(near - self._warned):
            _log.warning(
                "consumer %r of table %r keeps four fifths of consumer_log_bytes_max of the log of bucket %d; have it "
                "read on, or drop it, else what it has yet to read expires",
                *(name, self._context.catalog.name, bucket),
            )
        self._warned = near
        return self._larger_than(log, bytes_max)

    def _larger_than(self, log: LogFiles, bytes_max: int) -> Offset:
        """The last segment's beginning from which on the log has so many bytes."""
        return retention.expired_before(log, self._committed_end(), older_than_ms=None, bytes_max=bytes_max)

    def close(self) -> None:
        """End the running work, and begin no more."""
        self._gate.close()
        self._look.set()
        with self._beginning:
            thread = self._thread
        if thread is not None:
            thread.join()
        with self._working:
            pass  # a caller that asked for a snapshot has it, or its error

    def _run(self) -> None:
        while not self._gate.is_closed:
            self._look.wait(LOOK_SECONDS)
            self._look.clear()
            try:
                if not self._gate.is_closed:
                    self.retain()
                self.failure = None
            except StoreError as error:
                self.failure = error

    def _retention_ms(self) -> int | None:
        return self._context.catalog.definition().options.retention_ms

    def _expired(self, log: LogFiles) -> Offset:
        now, retention_ms = self._clock.now_ms(), self._retention_ms()
        older_than = None if retention_ms is None else now - retention_ms
        bytes_max = self._options.log_bytes_max
        end = self._committed_end()
        return retention.expired_before(log, end, older_than_ms=older_than, bytes_max=bytes_max, now_ms=now)

    def _committed_end(self) -> LogEnd:
        with self._view() as view:
            return synced_end(view.state())

    def _replay_start(self, log: LogFiles) -> LogEnd:
        with self._view() as view:
            return replay_start(view.state(), log)

    def _take(self) -> Snapshot:
        began = self._clock.monotonic()
        while True:
            with suppress(_Interrupted):
                taken = self._try()
                now = self._clock.monotonic()
                self._rested = now + REST_FACTOR * (now - began)
                return taken

    def _try(self) -> Snapshot:
        self._files.verify()
        self._flush()
        with refusals(self._paths.directory):
            return snapshot.take(
                self._paths.directory,
                self._paths.identity,
                self._whole_view,
                self._context.catalog.definition,
                self._files,
                now_ms=self._clock.now_ms(),
                step=self._step,
            )

    @contextmanager
    def _view(self) -> Iterator[View]:
        with self._gate.reading(), self._index.scan_view() as view:
            yield view

    @contextmanager
    def _whole_view(self) -> Iterator[View]:
        while True:
            with self._view() as view:
                if view.state().merging is None:
                    yield view
                    return
            self._flush()  # a merge began since the last one

    def _step(self) -> None:
        check_caller()
        if self._gate.is_to_end:
            raise _Interrupted
