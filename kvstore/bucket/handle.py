"""One bucket as this process has it open: read by anyone, written by the process that holds its lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from kvstore.bucket.commit_lock import COMMIT_WAIT_SECONDS, CommitLock, pause
from kvstore.bucket.committer import Committer
from kvstore.bucket.maintenance import Maintenance
from kvstore.bucket.recovery import BucketPlace, is_at_end, is_complete, open_for_writing, usable_index
from kvstore.bucket.snapshot import Snapshot
from kvstore.bucket.write_path import WritePath
from kvstore.calls import uninterrupted
from kvstore.clock import Clock
from kvstore.errors import CorruptData, StoreClosed, StoreError
from kvstore.files import Files, refusals
from kvstore.index.index import Index, View
from kvstore.lock import ProcessLock
from kvstore.log import recovery as log_recovery
from kvstore.log.retention import ReaderPositions
from kvstore.log.segments import LogFiles
from kvstore.log.writer_state import EXPIRY_MS, WriterStates, uncounted_after
from kvstore.meta.state import TableDefinition
from kvstore.meta.writers import OpenCommit, TableWriters
from kvstore.options import StoreOptions
from kvstore.request.request import Prepared, Request, RowRequest
from kvstore.request.results import AppendResult
from logformat import paths
from logformat.ids import Offset, Sequence, WriterId
from logformat.log.index_state import IndexState

T = TypeVar("T")
RECOVER_SECONDS = 0.25
"""How long a reader may not see what a writer that died has acknowledged."""


class BucketHandle:
    """A bucket's files, opened when they are needed.

    Args:
        current: The table as the catalog has it now; raises if it was dropped.
        writers: Likewise its writers.
        check_leads: Raises if nothing may be written any more.
        show_last_edit: Has these two know the last edit of the catalog, if its writer was killed before it said so.
        commits: Who commits to the table.
        staged: What a commit has for this bucket.
        standing: Who has yet to read its log.
        read_only: Whether nothing at all may be written; what a dead writer left to be recovered is not seen then.
    """

    def __init__(
        self,
        place: BucketPlace,
        current: Callable[[], TableDefinition],
        writers: Callable[[], TableWriters],
        check_leads: Callable[[], None],
        show_last_edit: Callable[[], None],
        commits: CommitLock,
        staged: Callable[[OpenCommit], Request],
        reader_positions: ReaderPositions,
        options: StoreOptions,
        files: Files,
        clock: Clock,
        *,
        read_only: Callable[[], bool],
    ) -> None:
        self.place = place
        self._current = current
        self._writers = writers
        self._check_leads = check_leads
        self._show_last_edit = show_last_edit
        self._commits = commits
        self._staged = staged
        self._reader_positions = reader_positions
        self._options = options
        self._files = files
        self._clock = clock
        self._read_only = read_only
        self._process_lock = ProcessLock(place.directory / paths.LOCK_FILE, files)
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._committer: Committer | None = None
        self._is_own = self._is_claimed = False
        self._recover_next = self._look_next = 0.0
        self._closed = False
        self._maintenance: Maintenance | None = None

    @property
    def log(self) -> LogFiles:
        """The log, for reading up to the ``applied_offset`` of a view."""
        return LogFiles(self.place.log, self.place.identity, self._files, self._back_offset)

    def _back_offset(self) -> Offset:
        committer = self._committer
        if committer is not None:
            return committer.state.back_offset  # not under its lock, which whoever asks may hold
        with self._reader().view() as view:
            return view.state().back_offset

    def submit(self, request: Request | RowRequest, *, waits: bool = True) -> Future[AppendResult]:
        """Have one batch applied, as the bucket's writer; see :class:`WritePath` for what may fail.

        Args:
            waits: For a commit of another process, to which the bucket was handed over.

        Raises:
            StoreLocked: Another process is.
        """
        self._show_presence()
        while True:
            committer = self._writer(waits=waits)
            try:
                answer = committer.submit(request)
                self._is_own = True
                return answer
            except StoreClosed:
                if not self._gave_up(committer):
                    raise

    def prepare(self, part: Prepared) -> None:
        """Have a batch applied as a part of a commit, as the bucket's writer; whoever asks has to decide about it."""
        self._writer().prepare(part)

    def settle(self) -> None:
        """Append what the bucket lacks of open commits; see :meth:`Committer.settle`.

        Raises:
            StoreLocked: Another process writes it, and will.
        """
        self._writer().settle()

    def flush(self) -> None:
        """Commit everything acknowledged, so that every process sees it."""
        committer = self._committer
        if committer is not None:
            try:
                committer.flush()
            except StoreClosed:
                if not self._gave_up(committer):
                    raise
                # It committed everything then.

    def begin(self, writer_id: WriterId) -> Sequence | None:
        """Become the bucket's writer; sequence of the last batch of a writer whose earlier incarnations are fenced.

        Raises:
            StoreLocked: Another process is.
        """
        self._show_presence()
        self._writer(waits=False)
        self._is_own = True
        self.flush()  # what was applied before they were fenced shows
        return self.last_sequence(writer_id)

    @contextmanager
    def latest(self) -> Iterator[View]:
        """Everything acknowledged; for short reads, because the bucket's writer waits meanwhile."""
        while True:
            committer = self._committer
            if committer is None:
                with self._reader().view() as view:
                    yield view
                return
            with self._lock:
                if not self._ended(committer):
                    index = committer.index
                    with index.written_view() if index.writing else index.view() as view:
                        yield view
                    return

    def value(self, key: bytes) -> bytes | None:
        """Value of a key as :meth:`latest` shows it; None if it is not there."""
        while (committer := self._committer) is not None:
            with self._lock:
                if not self._ended(committer):
                    return committer.index.value(key)
        return self._reader().value(key)

    def state(self) -> IndexState:
        """How far everything acknowledged is."""
        while (committer := self._committer) is not None:
            with self._lock:
                if not self._ended(committer):
                    return committer.state
        with self._reader().view() as view:
            return view.state()

    def committed(self) -> IndexState:
        """How far every process sees the bucket now, for those who ask often: nothing is committed for it.

        Whether a writer died, or the index was built anew, is looked after every ``RECOVER_SECONDS``.
        """
        with self._opening:
            if self._committer is not None:
                self._committer.check()
                return self._committer.index.committed_state()
            if self._index is not None and self._clock.monotonic() < self._look_next:
                return self._index.committed_state()
        return self._looked()

    @uninterrupted
    def _looked(self) -> IndexState:
        with self._opening:
            self._look_next = self._clock.monotonic() + RECOVER_SECONDS
            return self._reading().committed_state()

    def log_end(self) -> Offset:
        """The offset after everything acknowledged, by any process.

        Of what another process writes, this is where the whole batches of the log's files end: what is not committed
        to the index is counted, and so is a batch that is being written and not acknowledged yet.
        """
        if self._committer is not None:
            return self.state().applied_offset
        return self.log.end_after(self.committed().applied_offset)

    @contextmanager
    def snapshot(self) -> Iterator[View]:
        """Everything acknowledged, at this moment; writing goes on."""
        self.flush()
        with self._reader().scan_view() as view:
            yield view

    def last_sequence(self, writer_id: WriterId) -> Sequence | None:
        """Sequence of a writer's last batch; None if none is remembered."""
        with self.snapshot() as view:
            return WriterStates(view.writers()).last_sequence(writer_id, now_ms=self._counted_ms(view.state()))

    def remembered_from(self) -> Offset:
        """Who wrote a batch from this offset on is remembered."""
        with self.snapshot() as view:
            state = view.state()
            return self.log.first_counted_after(self._counted_ms(state) - EXPIRY_MS, state.applied_offset)

    def _counted_ms(self, state: IndexState) -> int:
        """Counted time of a batch that would be written now."""
        now = max(state.last_timestamp, self._clock.now_ms())
        return now - uncounted_after(state.last_timestamp, state.uncounted_ms, now)

    def take_snapshot(self) -> Snapshot:
        """Take a snapshot of everything acknowledged, as the bucket's writer; see :meth:`Maintenance.snapshot`."""
        return self._with_maintenance(Maintenance.snapshot)

    def retain(self) -> None:
        """Let go what has expired of the log, as the bucket's writer; see :meth:`Maintenance.retain`."""
        self._with_maintenance(Maintenance.retain)

    def verify_pages(self) -> None:
        """Verify the pages of what is committed of the index.

        Raises:
            CorruptData: One is damaged.
        """
        committer = self._committer
        index = committer.index if committer is not None else self._reader()
        index.verify()

    @uninterrupted
    def create(self) -> None:
        """Make the files of a new bucket; its directory is there."""
        with self._opening:
            self._process_lock.acquire()
            try:
                with refusals(self.place.directory):
                    log_recovery.create(self.place.log, self.place.identity, self._files)
                self._recovered().close()
            finally:
                self._process_lock.release()

    def claim(self) -> None:
        """Let no other process write the bucket from now on; who writes it here goes on.

        Raises:
            StoreLocked: One does.
        """
        with self._opening:
            self._check_open()
            self._process_lock.acquire()
            self._is_claimed = True

    def give_back(self) -> None:
        """Take a claim back: let other processes write, unless it is written here."""
        with self._opening:
            self._is_claimed = False
            if self._committer is None:
                self._process_lock.release()

    def write(self) -> None:
        """Become the bucket's writer, if that is nobody yet.

        Raises:
            StoreLocked: Another process is.
        """
        self._show_presence()
        self._writer()

    def take(self) -> None:
        """Like :meth:`write`, for a commit over several buckets."""
        self._writer()

    @property
    def writes(self) -> bool:
        """Whether this process is the bucket's writer."""
        return self._committer is not None

    @property
    def is_own(self) -> bool:
        """Whether it was written here otherwise than by commits over several buckets, since it was taken."""
        return self._is_own

    def hand_over(self) -> None:
        """Like :meth:`stop_writing`, unless nobody else is to write the bucket."""
        if not self._is_claimed:
            self.stop_writing()

    @uninterrupted
    def stop_writing(self) -> None:
        """Commit everything and let other processes write; who reads here goes on, and who writes here begins anew."""
        with self._opening:
            self._is_own = False
            self._stop_maintenance()
            committer, self._committer = self._committer, None
            try:
                if committer is not None:
                    try:
                        self._index = self._opened_index()
                    finally:
                        committer.close()
            finally:
                self._process_lock.release()

    @uninterrupted
    def close(self) -> None:
        """Commit everything and give the files up, for good."""
        with self._opening:
            self._closed = True
            try:
                self._stop()
            finally:
                self._process_lock.release()

    def _stop_maintenance(self) -> None:
        maintenance, self._maintenance = self._maintenance, None
        if maintenance is not None:
            maintenance.close()

    @uninterrupted
    def _with_maintenance(self, work: Callable[[Maintenance], T]) -> T:
        while True:
            self._writer()
            maintenance = self._maintenance
            try:
                if maintenance is not None:
                    return work(maintenance)
            except StoreClosed:
                if self._maintenance is maintenance:
                    raise
            # The bucket was handed over meanwhile.

    def _stop(self) -> None:
        self._stop_maintenance()
        committer, self._committer = self._committer, None
        try:
            if committer is not None:
                committer.close()
        finally:
            # Also if not everything could be committed: whoever opens the bucket next takes it from the log.
            if self._index is not None:
                self._index.close()
                self._index = None

    def _show_presence(self) -> None:
        with refusals(self.place.directory):
            self._commits.presence.show()

    def _writer(self, *, waits: bool = True) -> Committer:
        committer = self._committer
        return committer if committer is not None else self._become_writer(waits=waits)

    @uninterrupted
    def _become_writer(self, *, waits: bool) -> Committer:
        deadline = self._clock.monotonic() + COMMIT_WAIT_SECONDS
        while True:
            with refusals(self.place.directory):
                commits = waits and self._commits.held_elsewhere()
            with self._opening:
                self._check_open()
                if self._committer is None and self._process_lock.try_acquire():
                    self._committer = self._begin_writing()
                    self._maintenance = self._begin_maintenance(self._committer)
                if self._committer is not None:
                    return self._committer
            if not commits or self._clock.monotonic() >= deadline:
                self._process_lock.refuse()
            pause()

    def _begin_writing(self) -> Committer:
        """Begin to write a bucket whose lock is held."""
        try:
            committer = self._begun()
        except BaseException:
            self._process_lock.release()
            raise
        if self._index is not None:
            self._index.close()
            self._index = None
        return committer

    def _begun(self) -> Committer:
        """A committer for a bucket whose lock is held, which has all that was ever committed to it."""
        self._show_last_edit()  # of whoever had the bucket, and died
        committer = Committer(
            *(self._recovered(), self.log, self._lock, self._options, self._clock),
            *(self._check_leads, self._current, self._writers, self._staged),
        )
        if self._writers().commits:
            try:
                committer.settle()
            except BaseException:
                committer.close()
                raise
        return committer

    def _ended(self, committer: Committer) -> bool:
        """Whether a committer has ended because the bucket was given up.

        Raises:
            StoreError: It has ended for another reason.
        """
        try:
            committer.check()
        except StoreClosed:
            if not self._gave_up(committer):
                raise
            return True
        return False

    def _gave_up(self, committer: Committer) -> bool:
        return self._committer is not committer

    def _begin_maintenance(self, committer: Committer) -> Maintenance:
        maintenance = Maintenance(
            *(self.place, committer.index, committer.flush, self._current),
            *(self._options, self._files, self._clock, self._reader_positions),
        )
        committer.rolled, committer.growing = maintenance.look, maintenance.growing
        maintenance.look()
        return maintenance

    def _reader(self) -> Index:
        with self._opening:
            index = self._index
            if index is not None and self._committer is None and not (self._is_to_be_looked_at() or index.is_stale()):
                return index
        return self._opened_reader()

    @uninterrupted
    def _opened_reader(self) -> Index:
        with self._opening:
            return self._reading()

    def _is_to_be_looked_at(self) -> bool:
        """Whether a writer may have died since it was looked last, so that there is something to recover."""
        return not self._read_only() and (self._index is None or self._clock.monotonic() >= self._recover_next)

    def _reading(self) -> Index:
        self._check_open()
        if self._committer is not None:  # since the caller looked
            return self._committer.index
        if self._is_to_be_looked_at():
            self._recover()
            self._recover_next = self._clock.monotonic() + RECOVER_SECONDS
        if self._index is not None and self._index.is_stale():
            self._index.close()  # it was built anew
            self._index = None
        if self._index is None:
            self._index = self._opened_index()
        return self._index

    def _check_open(self) -> None:
        # Who comes from another thread a moment after close() would open files that nobody closes again.
        if self._closed:
            raise StoreClosed("The store was closed; open it again.", path=self.place.directory)

    def _recover(self) -> None:
        """Bring back what a dead writer had acknowledged, so that it can be read."""
        if self._index is None:
            complete = is_complete(self.place, self._options, self._files)
        else:
            with self._index.view() as view:
                complete = is_at_end(self.place, view.state())
        commits = self._writers().commits
        if (complete and self._has(commits)) or self._process_lock.held or not self._process_lock.try_acquire():
            return
        try:
            self._begun().close()
        except StoreError:
            if complete:
                return  # what is there can be read; why a commit comes to no end is told to who writes, and by a check
            raise
        finally:
            self._process_lock.release()

    def _has(self, commits: Iterable[OpenCommit]) -> bool:
        if not commits:
            return True
        index = self._opened_index()
        try:
            with index.view() as view:
                writers = WriterStates(view.writers())
        finally:
            index.close()
        return all(writers.has(commit.writer_id, commit.sequence) for commit in commits)

    def _recovered(self) -> WritePath:
        with refusals(self.place.directory):
            return open_for_writing(self.place, self._current(), self._options, self._files, self._clock)

    def _opened_index(self) -> Index:
        index = usable_index(self.place, self._options, self._files)
        if index is None:
            raise CorruptData(
                "The index of a bucket is missing or damaged; open the store for writing: it is built from the log.",
                path=self.place.index,
            )
        return index
