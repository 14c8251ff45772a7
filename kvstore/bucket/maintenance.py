"""Maintenance of a bucket beside its writer: snapshots, and the beginning of the log when it has expired.

* One thing at a time, in a thread of its own or in that of whoever asks for a snapshot. The committer never waits for
  it, but for a piece of work to end when the index must grow: no transaction may be live then. The work begins anew.
* Segments go only below a snapshot that was found to be right just before.
* What fails is tried again later: until then there is more log than there might be, and nothing is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kvstore.bucket import snapshot
from kvstore.bucket.recovery import BucketPlace, synced_end
from kvstore.bucket.snapshot import Snapshot
from kvstore.calls import check_caller
from kvstore.clock import Clock
from kvstore.errors import StoreClosed, StoreError
from kvstore.files import Files, refusals
from kvstore.index.index import Index, View
from kvstore.log import retention
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from logformat.ids import Offset

LOOK_SECONDS = 60.0
"""The log is looked at when a segment begins, and this long after it was last."""
_REST = 4
"""Snapshots of its own accord are that many times as long apart as the last one took."""


class _Interrupted(Exception):
    """The work is to end, because the index must grow or the bucket is closed."""


class Maintenance:
    """Snapshots and retention of a bucket that this process writes.

    Args:
        index: Its index.
        flush: Returns once everything acknowledged is committed.
        current: The table as the catalog has it now; raises if it was dropped.
        standing: Who has yet to read the log, and said so.

    Attributes:
        failure: Why the last look at the log came to no end; None if it did.
    """

    def __init__(
        self,
        place: BucketPlace,
        index: Index,
        flush: Callable[[], None],
        current: Callable[[], TableDefinition],
        options: StoreOptions,
        files: Files,
        clock: Clock,
        reader_positions: retention.ReaderPositions = retention.nobody,
    ) -> None:
        self._place = place
        self._index = index
        self._flush = flush
        self._current = current
        self._options = options
        self._files = files
        self._clock = clock
        self._reader_positions = reader_positions
        self._retention_ms = current().options.retention_ms
        self._working = threading.Lock()
        self._state = threading.Condition()
        self._reading = self._growing = self._closing = False
        self._called = threading.Event()
        self._rested = 0.0
        self._thread: threading.Thread | None = None
        self.failure: StoreError | None = None

    @property
    def _cuts(self) -> bool:
        """Whether the log expires at all."""
        return self._retention_ms is not None or self._options.log_bytes_max < retention.UNLIMITED

    def snapshot(self) -> Snapshot:
        """Take a snapshot of everything acknowledged; returns once it is durable.

        Raises:
            StoreFull, LogFailed: The disk refused; nothing is left of it.
            CorruptData: The index is damaged.
            StoreClosed: The store was closed meanwhile.
        """
        with self._working:
            return self._take()

    def retain(self) -> None:
        """Look at the log once, and let go what has expired; takes a snapshot first if there must be a newer one.

        Raises:
            StoreError: Something refused; nothing that is needed is gone.
        """
        if not self._cuts:
            return
        self._files.verify()  # snapshots that stand for what goes are this store's
        with self._working, refusals(self._place.log):
            log = LogFiles(self._place.log, self._place.identity, self._files)
            expired = self._expired(log)
            if expired <= log.start():
                return
            newest = snapshot.newest_valid(self._place.directory, self._place.identity)
            if (newest is None or newest.log_end.base < expired) and self._clock.monotonic() >= self._rested:
                newest = self._take()
            if newest is None:
                return
            # Who took it may have died, or been refused, before its name was durable.
            self._files.sync_directory(newest.directory.parent)
            with self._view() as view:
                committed = synced_end(view.state())
            needed = retention.needed_from(newest.log_end, committed)
            retention.remove_before(
                self._place.log, log, Offset(min(expired, needed)), self._files, self._reader_positions
            )

    def look(self) -> None:
        """Have the log looked at soon, in the thread that does so."""
        if self._cuts and not self._closing:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvstore-upkeep", daemon=True)
                self._thread.start()
            self._called.set()

    @contextmanager
    def growing(self) -> Iterator[None]:
        """While the index grows, nothing reads it here."""
        with self._state:
            self._growing = True
            self._state.wait_for(lambda: not self._reading)
        try:
            yield
        finally:
            with self._state:
                self._growing = False
                self._state.notify_all()

    def close(self) -> None:
        """End whatever is at work, and do nothing any more."""
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._called.set()
        if self._thread is not None:
            self._thread.join()
        with self._working:
            pass  # whoever asked for a snapshot has it, or knows that there is none

    def _run(self) -> None:
        while not self._closing:
            self._called.wait(LOOK_SECONDS)
            self._called.clear()
            try:
                if not self._closing:
                    self.retain()
                self.failure = None
            except StoreError as error:
                self.failure = error

    def _expired(self, log: LogFiles) -> Offset:
        now = self._clock.now_ms()
        older_than = None if self._retention_ms is None else now - self._retention_ms
        bytes_max = self._options.log_bytes_max
        return retention.expired_before(log, older_than_ms=older_than, bytes_max=bytes_max, now_ms=now)

    def _take(self) -> Snapshot:
        began = self._clock.monotonic()
        while True:
            with suppress(_Interrupted):
                taken = self._try()
                now = self._clock.monotonic()
                self._rested = now + _REST * (now - began)
                return taken

    def _try(self) -> Snapshot:
        self._files.verify()
        self._flush()
        with refusals(self._place.directory):
            return snapshot.take(
                self._place.directory,
                self._place.identity,
                self._view,
                self._current,
                self._files,
                now_ms=self._clock.now_ms(),
                step=self._step,
            )

    @contextmanager
    def _view(self) -> Iterator[View]:
        with self._state:
            self._state.wait_for(lambda: not self._growing)
            if self._closing:
                raise StoreClosed("The store was closed; open it again.")
            self._reading = True
        try:
            with self._index.scan_view() as view:
                yield view
        finally:
            with self._state:
                self._reading = False
                self._state.notify_all()

    def _step(self) -> None:
        check_caller()
        if self._closing or (self._growing and self._reading):
            raise _Interrupted
