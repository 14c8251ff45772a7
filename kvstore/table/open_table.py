"""A table that is open in a process, shared by all its users there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

from kvstore.bucket.commit_lock import OWNER_LOOK_MS, CommitLock
from kvstore.bucket.context import BucketContext, BucketPaths
from kvstore.bucket.elsewhere import NoOtherOwner, OtherOwner
from kvstore.bucket.handle import BucketHandle
from kvstore.clock import Clock
from kvstore.commit.consumers import Consumers
from kvstore.commit.coordinator import Commits
from kvstore.commit.ends import OpenEnds
from kvstore.commit.named_writers import Writers
from kvstore.commit.staging import Staging
from kvstore.disk.files import Files
from kvstore.errors import StoreError
from kvstore.index.open_readers import OpenReaders
from kvstore.memtable.budget import Budget
from kvstore.meta.journal import Journal
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.options import StoreOptions
from kvstore.process.meter import TableMeter
from kvstore.sending.receiver import Owned, Receiver
from logformat import paths
from logformat.ids import BucketId

_PAUSE_FACTOR, _PAUSE_SECONDS_MAX = 20, 0.5
"""How much longer the thread that looks for processes which want a bucket pauses than it looks; the longest pause."""


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table in this process, shared by every store object that has the directory open.

    Attributes:
        handles: One for each bucket, in order.
        catalog: The table in the catalog.
        meter: Counts and durations of its work.
    """

    handles: Sequence[BucketHandle]
    lock: CommitLock
    commits: Commits
    writers: Writers
    consumers: Consumers
    catalog: TableCatalog
    meter: TableMeter

    def one_moment(self, *_: object) -> AbstractContextManager[object]:
        """Nothing: each bucket is read as of its own moment."""
        return nullcontext()

    def stop_writing(self) -> None:
        """Commit everything and let other processes write; readers of this process continue."""
        with ExitStack() as stack:
            self._end_with(stack)
            for handle in self.handles:
                stack.callback(handle.stop_writing)

    def close(self) -> None:
        """Commit everything and close the files for good."""
        with ExitStack() as stack:
            self._end_with(stack)
            for handle in self.handles:
                stack.callback(handle.close)

    def _end_with(self, stack: ExitStack) -> None:
        stack.callback(self.lock.presence.release)
        if any(handle.writes for handle in self.handles):
            stack.callback(self.lock.forget_the_dead)

    def hand_over(self) -> None:
        """Release the buckets if another process commits to the table."""
        if any(handle.writes for handle in self.handles) and self.lock.is_wanted():
            for handle in self.handles:
                if handle.writes:
                    # Changes that could not be committed are in the log; the next write reports the error.
                    with suppress(StoreError):
                        handle.hand_over()


def open_table(
    store: Path,
    store_id: UUID,
    definition: TableDefinition,
    journal: Journal,
    options: StoreOptions,
    files: Files,
    clock: Clock,
    meter: TableMeter,
    *,
    budget: Budget,
    read_only: Callable[[], bool],
    readers: OpenReaders,
    ends: OpenEnds | None = None,
    other_of: Callable[[BucketContext], OtherOwner] = lambda _: NoOtherOwner(),
) -> OpenTable:
    """Open a table; no file is opened yet.

    Args:
        budget: See :class:`kvstore.bucket.context.BucketContext`.
        read_only, readers: See :class:`BucketHandle`.
        ends: See :class:`kvstore.commit.coordinator.Commits`; of all tables of a store the same.
        other_of: What takes requests of a bucket while another process owns it.
    """
    table = definition.id
    catalog = TableCatalog(journal, table, definition.name, clock)
    lock = CommitLock(store, table, files, clock, catalog.definition)
    staging = Staging(store, table, files)
    contexts = [
        BucketContext(
            BucketPaths.of(store, store_id, table, BucketId(bucket)),
            *(catalog, lock, staging, files, clock, options, meter, budget),
        )
        for bucket in range(definition.buckets)
    ]
    handles = [
        BucketHandle(context, read_only=read_only, readers=readers, other=other_of(context)) for context in contexts
    ]
    files.note(store / paths.TABLES)
    for each in handles:
        files.note(each.paths.directory)
        files.note(each.paths.log)
    commits = Commits(handles, lock, staging, catalog, clock, ends or OpenEnds(journal, clock))
    consumers = Consumers(handles, catalog, options, clock)
    return OpenTable(handles, lock, commits, Writers(commits, catalog), consumers, catalog, meter)


class HandOver:
    """Looks, while a process may write, whether another one wants its buckets, or sends to them.

    Args:
        tables: All that the process has open.
        receiver: Takes what others send.
        ends: Commits that end once the logs are durable.
    """

    def __init__(
        self, tables: Callable[[], Sequence[OpenTable]], receiver: Receiver, ends: OpenEnds, clock: Clock
    ) -> None:
        self._tables = tables
        self._ends = ends
        self._receiver = receiver
        self._clock = clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvstore-handover", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        pause = OWNER_LOOK_MS / 1000
        while not self._closing.wait(pause):
            begun = self._clock.monotonic()
            tables = self._tables()
            for table in tables:
                with suppress(OSError):  # too many open files, perhaps: it looks again
                    table.hand_over()
            if any(handle.writes for table in tables for handle in table.handles):
                with suppress(OSError, StoreError):
                    self._receiver.look(partial(_owned, tables))
            with suppress(StoreError):  # these commits stay open
                self._ends.look()
            # With thousands of tables a look takes long: then the pauses are longer, too.
            took = self._clock.monotonic() - begun
            pause = max(OWNER_LOOK_MS / 1000, min(_PAUSE_FACTOR * took, _PAUSE_SECONDS_MAX))


def _owned(tables: Sequence[OpenTable]) -> list[Owned]:
    return [Owned(handle, table.catalog) for table in tables for handle in table.handles if handle.writes]
