"""A bucket that is open in this process: every thread reads it, and the process that owns it writes it.

* ``_opening`` is held while the index, the engine or the ownership changes. ``engine`` is read without it: a request
  that meets an engine which has just ended gets StoreClosed from it, and looks again.
* An engine is there only while this process owns the bucket. Then all reads go through its memtable; before, through
  an index of the handle's own and what the log has after it (:class:`kvstore.bucket.reading.reader.BucketReader`).
* A view has everything that this process has acknowledged before, and all that another process has published.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import NoReturn, Self, TypeVar

from kvstore.bucket.commit_lock import COMMIT_WAIT_SECONDS, pause
from kvstore.bucket.committer import Committer
from kvstore.bucket.context import BucketContext
from kvstore.bucket.elsewhere import OtherOwner, TooLarge
from kvstore.bucket.engine import BucketEngine
from kvstore.bucket.maintenance import Maintenance
from kvstore.bucket.ownership import BucketOwnership
from kvstore.bucket.reading.reader import BucketReader
from kvstore.bucket.snapshots.snapshot import Snapshot
from kvstore.bucket.turn import Hold
from kvstore.disk import lock
from kvstore.disk.environment import open_environment
from kvstore.disk.files import refusals
from kvstore.errors import (
    CorruptData,
    LogFailed,
    OffsetOutOfRange,
    StoreClosed,
    StoreFull,
    StoreLocked,
    UnsupportedOperation,
    UnsupportedVersion,
)
from kvstore.index.compaction import CompactedIndex, discard, swap
from kvstore.index.index import Index, View
from kvstore.index.open_readers import OpenReaders
from kvstore.index.space import IndexSpace
from kvstore.log.segments import LogFiles
from kvstore.log.writer_state import WriterStates, uncounted_after
from kvstore.memtable.memtable import Memtable
from kvstore.process.calls import Answer, uninterrupted
from kvstore.request.encoded import Submitted
from logformat import paths
from logformat.ids import Offset, Sequence, WriterId
from logformat.log.index_state import IndexState
from logformat.log.writer_entry import EXPIRY_MS

OVERLAID_ROWS_MAX = 4096
"""A scan has more rows than this merged into the index first: they are read from its pages faster."""

T = TypeVar("T")


class BucketHandle:
    """A bucket in this process: read by every thread, and written while the process owns it.

    Files are opened when they are needed. A handle reads through its own index until the bucket is written here, and
    through the engine's from then on.

    Args:
        context: Context of the bucket.
        read_only: See :class:`kvstore.bucket.reading.reader.BucketReader`.
        readers: All buckets of the process whose index is open for reading.
        other: Takes requests while another process owns the bucket.

    Attributes:
        identity: Ids of the store, the table and the bucket.
        watched: Directory of the bucket.
        engine: The engine; None while this process does not write the bucket.
    """

    def __init__(
        self, context: BucketContext, *, read_only: Callable[[], bool], readers: OpenReaders, other: OtherOwner
    ) -> None:
        self.paths, self.identity, self.watched = context.paths, context.paths.identity, context.paths.directory
        self._context = context
        self._readers = readers
        self._other = other
        self._presence = context.commit_lock.presence
        self._options = context.options
        self._files = context.files
        self._clock = context.clock
        self._ownership = BucketOwnership(
            *(context.paths.directory, context.files, context.clock), takes_requests=other.takes_requests
        )
        self._opening = threading.Lock()  # held while the index, the engine or the state changes
        self.engine: BucketEngine | None = None
        self._scans: dict[object, int] = {}
        self._reader = BucketReader(context, self._ownership, read_only, lambda: readers.add(self.close_reader))

    @property
    def log(self) -> LogFiles:
        """The log, for reading up to the ``applied_offset`` of a view."""
        return LogFiles(self.paths.log, self.paths.identity, self._files, self._back_offset)

    def _back_offset(self) -> Offset:
        engine = self.engine
        if engine is not None:
            return engine.committer.state.back_offset
        return self.committed().back_offset

    def submit(self, request: Submitted, *, waits: bool = True, here: bool = False) -> None:
        """Have a request answered, by the bucket's owner; see :class:`kvstore.bucket.write_path.WritePath` for errors.

        Args:
            waits: For a commit of another process, to which the bucket was handed over.
            here: See :meth:`Committer.submit`.

        Raises:
            StoreLocked: Another process owns the bucket, and takes no requests.
        """
        self._unless_dropped(self._presence.show)
        send = partial(self._other.send, request, here=here)
        while (engine := self.engine or self._owner(send, waits=waits)) is not None:
            if self._submitted(engine, engine.committer.submit, request, here=here):
                break

    def take_in(self, request: Submitted | Hold, *, here: bool = False) -> bool:
        """Have a request of another process answered, once what it has found and written is durable.

        False if this process does not own the bucket.
        """
        engine = self.engine
        return engine is not None and self._submitted(engine, engine.committer.submit_durably, request, here=here)

    def _submitted(
        self, engine: BucketEngine, submit: Callable[..., None], request: Submitted | Hold, *, here: bool
    ) -> bool:
        try:
            self._ownership.writes_alone = True
            submit(request, here=here)
        except StoreClosed:
            if self.engine is engine:
                raise
            return False  # the bucket was given up
        return True

    def transact(self, content: bytes, answer: Answer[tuple[int, bytes]]) -> bool:
        """Have the process that owns the bucket commit a transaction; see :meth:`OtherOwner.transact`.

        Returns:
            False if it is this process, or none, or one that takes no requests. Nothing was sent.
        """
        while self.engine is None:
            if self._other.transact(content, answer):
                return True
            if not self.is_owned_elsewhere():
                return False
            try:
                try:
                    self._ownership.refuse()
                except StoreLocked as refused:
                    self._other.meet(self, refused)
            except (StoreLocked, UnsupportedVersion):
                return False
        return False

    @property
    def takes_requests(self) -> bool:
        """Whether other processes may send to this one while it owns the bucket."""
        return self._other.takes_requests

    def flush(self) -> None:
        """Merge everything acknowledged into the index."""
        self._after_all(Committer.flush)

    def _after_all(self, work: Callable[[Committer], None]) -> None:
        engine = self.engine
        if engine is not None:
            try:
                work(engine.committer)
            except StoreClosed:
                if self.engine is engine:
                    raise
                # The bucket was given up: everything is durable, and another engine goes on.

    def begin(self, writer_id: WriterId) -> Sequence | None:
        """Be ready to write; returns the last sequence of a writer whose earlier epochs are fenced.

        Raises:
            StoreLocked: Another process owns the bucket, and takes no requests.
        """
        self._unless_dropped(self._presence.show)
        if self.engine is None and self._owner(lambda: self._other.is_met, waits=False) is None:
            self._other.wait()
        else:
            self._ownership.writes_alone = True
            self._after_all(Committer.settle)  # batches that were taken before the fencing are seen
        return self.last_sequence(writer_id)

    def latest(self) -> AbstractContextManager[View]:
        """A view of every acknowledged change, for short reads."""
        return self._view(Index.view)

    def value(self, key: bytes) -> bytes | None:
        """Value of a key as :meth:`latest` shows it; None if it is not there."""
        while True:
            if (engine := self.engine) is not None:
                try:
                    engine.committer.check()
                    return engine.committer.memtable.value(key)
                except StoreClosed:
                    if self.engine is engine:
                        raise
                    continue
            ready = self.ready_for(key)
            if ready is None:
                continue
            index, newer = ready
            if newer is not None:
                return newer or None
            try:
                return index.environment.get(key)
            except StoreClosed:
                if not self._was_closed(index):
                    raise

    def memtable(self) -> Memtable | None:
        """The memtable, if this process owns the bucket."""
        engine = self.engine
        if engine is None:
            return None
        engine.committer.check()
        return engine.committer.memtable

    def state(self) -> IndexState:
        """State of the bucket with every acknowledged change."""
        while (engine := self.engine) is not None:
            try:
                engine.committer.check()
                return engine.committer.state
            except StoreClosed:
                if self.engine is engine:
                    raise
        return self.committed()

    def committed(self) -> IndexState:
        """State of the bucket that every process sees; cheap enough for frequent calls, since it commits nothing."""
        return self._unless_dropped(self._committed)

    def _committed(self) -> IndexState:
        with self._opening:
            if self.engine is not None:
                self.engine.committer.check()
                return self.engine.committer.durable_state
            index = self._reader.ready()
            known = self._reader.state_at_rest() if index is None else self._reader.state_after(index.committed_state())
        return known if known is not None else self._looked()

    @uninterrupted
    def _looked(self) -> IndexState:
        with self._opening:
            index = self._reading()
            state = self._reader.state_after(index.committed_state()) if self.engine is None else None
        self._readers.shrink()
        return self._committed() if state is None else state

    def shown(self) -> IndexState:
        """State of the bucket with every acknowledged change, once every process sees these changes."""
        if self._options.durability != "sync":
            self.flush()
        return self.committed()

    def row_count(self) -> int:
        """See :meth:`kvstore.bucket.reads.BucketReads.row_count`."""
        self.check_counted()
        return self.state().row_count

    def check_counted(self) -> None:
        """Refuse a bucket whose rows are not counted.

        Raises:
            UnsupportedOperation: Its changelog is a WAL image.
        """
        if self._context.catalog.definition().options.changelog_image == "wal":
            raise UnsupportedOperation(
                "Row count is disabled for this table: its changelog is a WAL image; use scan()."
            )

    def offsets(self) -> tuple[Offset, Offset]:
        """The first offset that the log holds, and the offset after the last acknowledged change."""
        return self.log.start(), self.state().applied_offset

    def for_one_reader(self) -> Self:
        """This bucket: its log does not change under a reader."""
        return self

    @contextmanager
    def snapshot(self) -> Iterator[View]:
        """A view of every change acknowledged until now; writing goes on."""
        engine = self.engine
        if self._options.durability != "sync":
            self.flush()  # its changes are in the log for other processes, too
        elif engine is not None and len(engine.committer.memtable.published.rows) > OVERLAID_ROWS_MAX:
            with suppress(StoreFull):  # they are read all the same
                self.flush()
        scan = object()
        self._scans[scan] = self._clock.now_ms()
        try:
            with self._view(Index.scan_view) as view:
                yield view
        finally:
            del self._scans[scan]

    @contextmanager
    def indexed(self) -> Iterator[View]:
        """A view of what is committed to the index, and nothing else; of a bucket that is written here, all of it.

        If another process merges changes, or died meanwhile, it has some of these (:attr:`IndexState.merging`).
        """
        while True:
            engine = self.engine
            self.flush()
            with self._index_view(Index.scan_view) as (_, view):
                # If the bucket was taken for writing meanwhile, what its index lacks is in the memtable.
                if self.engine is engine and (engine is None or view.state().merging is None):
                    yield view
                    return

    def last_sequence(self, writer_id: WriterId) -> Sequence | None:
        """Sequence of a writer's last batch; None if none is remembered."""
        with self.latest() as view:
            known = WriterStates(view.writers_of([writer_id]))
            return known.last_sequence(writer_id, now_ms=self._counted_ms(view.state()))

    def remembered_from(self) -> Offset:
        """The offset from which on the writer of every batch is remembered."""
        with self.snapshot() as view:
            state = view.state()
            return self.log.first_counted_after(self._counted_ms(state) - EXPIRY_MS, state.applied_offset)

    def _counted_ms(self, state: IndexState) -> int:
        """Counted time of a batch that would be written now."""
        now = max(state.last_timestamp, self._clock.now_ms())
        return now - uncounted_after(state.last_timestamp, state.uncounted_ms, now)

    def take_snapshot(self) -> Snapshot:
        """Take a snapshot of everything acknowledged, as the bucket's writer; see :meth:`Maintenance.snapshot`."""
        return self.with_maintenance(Maintenance.snapshot)

    def retain(self) -> None:
        """Remove expired segments of the log, as the bucket's writer; see :meth:`Maintenance.retain`."""
        self.with_maintenance(Maintenance.retain)

    def verify_pages(self) -> None:
        """Verify the committed pages of the index.

        Raises:
            CorruptData: One is damaged.
        """
        self._of_reader(lambda index: index.environment.verify())

    def space(self) -> IndexSpace | None:
        """Space of the index; None if it can't be measured now."""
        return self._of_reader(Index.space)

    def _of_reader(self, look: Callable[[Index], T]) -> T:
        while True:
            index = self.reader()
            try:
                return look(index)
            except (StoreClosed, FileNotFoundError):  # its file is being replaced, here or by the bucket's writer
                if not (self._was_closed(index) or (self.engine is None and index.environment.is_stale())):
                    raise

    @property
    def scans_since_ms(self) -> int | None:
        """When the oldest open scan of this process began; None if there is none."""
        return min(list(self._scans.values()), default=None)

    @uninterrupted
    def compact(self) -> CompactedIndex:
        """Replace the index by a copy without free pages, as the bucket's writer.

        Reads and writes go on while the copy is written. They wait while it takes the index's place, and what was
        written meanwhile is replayed into it.

        Raises:
            StoreLocked: Another process writes the bucket. Nothing was changed.
            StoreFull, LogFailed: The disk refuses.
        """
        self._unless_dropped(self._presence.show)
        while True:
            self.with_maintenance(Maintenance.copy_index)
            # No commit over several buckets counts on this engine meanwhile.
            with refusals(self.paths.directory), self._context.commit_lock.held(), self._opening:
                done = None if self.engine is None else self.swap_index(self.engine)
            if done is not None:
                return done

    def swap_index(self, engine: BucketEngine) -> CompactedIndex | None:
        """Continue with the compacted copy; None if there is none, or if the log after it has expired."""
        self._ownership.recover_again()  # the copy has less than the index had
        old, self.engine = engine.committer.memtable.index, None
        done = None
        old.environment.share()  # for scans
        try:
            engine.close()
            if engine.maintenance.has_copy and self._copy_continues():  # another thread may have used it
                old.environment.retire()
                done = swap(self.paths.directory, self._files)
            else:
                discard(self.paths.directory, self._files)
            self.engine = BucketEngine(self._context)
            self._ownership.recovered()
            self.engine.maintenance.begin()
        except BaseException:
            self._ownership.stop()
            raise
        finally:
            old.close()
        return done

    def _copy_continues(self) -> bool:
        copy = self.paths.directory / paths.REBUILT_INDEX
        index = Index(open_environment(copy, self._files, map_bytes=self._options.map_bytes, has_databases=False))
        try:
            with index.view() as view:
                return view.state().applied_offset >= self.log.start()
        finally:
            index.close()

    def try_claim(self) -> bool:
        """Let no other process write the bucket from now on, while a writer here goes on; False if one writes it.

        Raises:
            StoreLocked: Another process recovers the bucket, and does not finish.
            NoSuchTable: The table was dropped.
        """
        with self._opening:
            return self._unless_dropped(self._ownership.try_claim)

    def refuse(self) -> NoReturn:
        """Report which process owns the bucket.

        Raises:
            StoreLocked: Always.
        """
        self._ownership.refuse()

    def give_back(self) -> None:
        """Release a claim: other processes may write, unless this process writes the bucket."""
        with self._opening:
            self._ownership.give_back()

    def write(self) -> None:
        """Become the bucket's owner, if no process is, or be ready to send to the one that is.

        Raises:
            StoreLocked: Another process owns the bucket, and takes no requests.
        """
        self._unless_dropped(self._presence.show)
        if self.engine is None:
            self._owner(lambda: self._other.is_met)

    def writer(self) -> BucketEngine:
        """Become the bucket's owner, such as for a commit over several buckets.

        Raises:
            StoreLocked: Another process is.
        """
        return self.engine or self._become_writer(waits=True)

    @property
    def writes(self) -> bool:
        """Whether this process is the bucket's writer."""
        return self.engine is not None

    @property
    def writes_alone(self) -> bool:
        """Whether this process has written the bucket other than by commits over several buckets, since it took it."""
        return self._ownership.writes_alone

    def hand_over(self) -> None:
        """Like :meth:`stop_writing`, unless the bucket is claimed."""
        if not self._ownership.is_claimed:
            self.stop_writing()

    @uninterrupted
    def stop_writing(self) -> None:
        """Commit everything and let other processes write. Reads here go on; a write here takes the bucket again."""
        with self._opening:
            engine, self.engine = self.engine, None
            try:
                if engine is not None:
                    try:
                        self._reader.open()
                    finally:
                        engine.close()
            finally:
                self._ownership.stop()

    @uninterrupted
    def close(self) -> None:
        """Commit everything and close the files for good."""
        self._other.close()
        with self._opening:
            engine, self.engine = self.engine, None
            try:
                if engine is not None:
                    engine.close()
            finally:
                # Even if not everything could be committed: the next process that opens the bucket replays the log.
                self._ownership.close()
                self._reader.close()

    @uninterrupted
    def with_maintenance(self, work: Callable[[Maintenance], T]) -> T:
        """Do work as the bucket's writer."""
        while True:
            engine = self.writer()
            try:
                return work(engine.maintenance)
            except StoreClosed:
                if self.engine is engine:
                    raise
                # The bucket was handed over meanwhile.

    def _owner(self, is_sent: Callable[[], bool], *, waits: bool = True) -> BucketEngine | None:
        """The engine; None if another process owns the bucket, and the request was sent to it."""
        try:
            deadline = self._clock.monotonic() + lock.RECOVERY_WAIT_SECONDS
            while not is_sent():
                try:
                    return self._become_writer(waits=waits)
                except StoreLocked as refused:
                    # A process that only asks for the bucket looks like one that recovers it, for a moment.
                    if self._unless_dropped(self._ownership.is_written) is not None:
                        self._other.meet(self, refused)
                    elif self._clock.monotonic() >= deadline:
                        raise  # that process does not finish
        except TooLarge:
            return self._taken_over()
        return None

    @uninterrupted
    def _taken_over(self) -> BucketEngine:
        """The engine, once the owner has handed the bucket over, as for a commit over several buckets."""
        commit_lock = self._context.commit_lock
        deadline = self._clock.monotonic() + COMMIT_WAIT_SECONDS
        with commit_lock.held(), commit_lock.wanting():
            while True:
                try:
                    return self._become_writer(waits=False)
                except StoreLocked:
                    if self._clock.monotonic() >= deadline:
                        raise
                pause()

    def is_owned_elsewhere(self) -> bool:
        """Whether another process owns the bucket, or recovers it now."""
        return self.engine is None and self._unless_dropped(self._ownership.is_written) is not False

    def _unless_dropped(self, ask: Callable[[], T]) -> T:
        """What a call returns.

        Raises:
            NoSuchTable: The table was dropped, so that files are missing.
        """
        try:
            return ask()
        except (CorruptData, LogFailed):
            self._context.catalog.definition()
            raise

    def lock_identity(self) -> tuple[int, int] | None:
        """Device and inode of the file of the bucket's lock; None if it is not there."""
        status = self._files.status(self.paths.directory / paths.LOCK_FILE)
        return None if status is None else (status.st_dev, status.st_ino)

    def try_own(self) -> bool:
        """Become the bucket's owner; False if another process is."""
        try:
            self._become_writer(waits=False)
        except StoreLocked:
            return False
        return True

    @uninterrupted
    def _become_writer(self, *, waits: bool) -> BucketEngine:
        deadline = self._clock.monotonic() + COMMIT_WAIT_SECONDS
        while True:
            with self._opening:
                self._ownership.check_open()  # the store's directory is held for as long as this does not refuse
                with refusals(self.paths.directory):
                    commits = waits and self._context.commit_lock.held_elsewhere()
                if self.engine is None and self._unless_dropped(self._ownership.try_take):
                    try:
                        engine = BucketEngine(self._context)
                        engine.begin()
                    except BaseException:
                        self._ownership.stop()
                        raise
                    self._ownership.recovered()
                    self.engine = engine
                    self._reader.close()
                if self.engine is not None:
                    return self.engine
            if not commits or self._clock.monotonic() >= deadline:
                self._ownership.refuse()
            pause()

    @contextmanager
    def _view(self, kind: Callable[[Index], AbstractContextManager[View]]) -> Iterator[View]:
        """A view of everything that is acknowledged here, or of all that another process has published."""
        while True:
            if (engine := self.engine) is not None:
                with ExitStack() as stack:
                    try:
                        engine.committer.check()
                        view = stack.enter_context(engine.committer.memtable.view(kind))
                    except StoreClosed:
                        if self.engine is engine:
                            raise
                        continue
                    yield view
                return
            with self._index_view(kind) as (index, view):
                try:
                    newer = self._newer(view)
                except OffsetOutOfRange:
                    # The log has expired up to a later commit, since the view was opened.
                    if index.committed_state() == view.state():
                        raise
                    continue
                if newer is None:
                    continue  # what the view lacks is in the engine now
                yield newer
                return

    @contextmanager
    def _index_view(self, kind: Callable[[Index], AbstractContextManager[View]]) -> Iterator[tuple[Index, View]]:
        with ExitStack() as stack:
            while True:
                index = self.reader()
                try:
                    view = stack.enter_context(kind(index))
                    break
                except StoreClosed:
                    if not self._was_closed(index):
                        raise
            yield index, view

    def _newer(self, view: View) -> View | None:
        """A view with what the log has after it; None if the bucket was taken for writing since the view was opened."""
        with self._opening:
            return self._unless_dropped(partial(self._reader.newer, view)) if self.engine is None else None

    def ready_for(self, key: bytes) -> tuple[Index, bytes | None] | None:
        """The index, and what the log has of a key that the index lacks, empty if it was deleted.

        None if another thread has taken the bucket for writing, or closed the index: the memtable may have the row.
        """
        with self._opening:
            try:
                found = self._reader.found(key) if self.engine is None else None
            except (CorruptData, LogFailed):
                self._context.catalog.definition()  # as _unless_dropped() has it, without a call for each row
                raise
        if found is not None:
            return found
        index = self._opened_reader()
        with self._opening:
            if self._reader.index is not index:
                return None
            return index, self._unless_dropped(partial(self._reader.newest, key))

    def _was_closed(self, index: Index) -> bool:
        """Whether an index was closed because others were opened, or was replaced, so that one may be opened again."""
        return index.environment.is_retired or (self.engine is None and self._reader.index is not index)

    def close_reader(self) -> bool:
        """Close the index until it is read again; False if it is in use now."""
        # Without waiting: the caller has just opened a bucket, and another one may be recovering.
        if not self._opening.acquire(blocking=False):
            return False
        try:
            return self._reader.close_if_unread()
        finally:
            self._opening.release()

    def reader(self) -> Index:
        """The index, to read its last commit."""
        with self._opening:
            index = self._reader.ready() if self.engine is None else self.engine.committer.memtable.index
        return self._opened_reader() if index is None else index

    @uninterrupted
    def _opened_reader(self) -> Index:
        with self._opening:
            index = self._unless_dropped(self._reading)
        self._readers.shrink()
        return index

    def _reading(self) -> Index:
        self._ownership.check_open()
        if self.engine is not None:  # taken since the caller checked
            return self.engine.committer.memtable.index
        return self._reader.opened()
