"""What a process has open of one table, shared by all who use it there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from kvstore.bucket.commit_lock import HANDOVER_LOOK_MS, CommitLock
from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.recovery import BucketPlace
from kvstore.clock import Clock
from kvstore.commit.consumers import Consumers
from kvstore.commit.coordinator import Commits
from kvstore.commit.named_writers import Writers
from kvstore.commit.staging import Staging
from kvstore.errors import StoreError
from kvstore.files import Files
from kvstore.log.segments import LogIdentity
from kvstore.meta.journal import Journal
from kvstore.meta.state import TableDefinition
from kvstore.meta.writers import TableWriters
from kvstore.options import StoreOptions
from logformat import paths
from logformat.ids import BucketId, Offset


@dataclass(frozen=True, slots=True)
class OpenTable:
    """One table.

    Attributes:
        tablets: One for each bucket, in order.
    """

    handles: Sequence[BucketHandle]
    lock: CommitLock
    commits: Commits
    writers: Writers
    consumers: Consumers

    def stop_writing(self) -> None:
        """Commit everything and let other processes write; who reads here goes on."""
        with ExitStack() as stack:
            stack.callback(self.lock.presence.release)
            for handle in self.handles:
                stack.callback(handle.stop_writing)

    def close(self) -> None:
        """Commit everything and give the files up, for good."""
        with ExitStack() as stack:
            stack.callback(self.lock.presence.release)
            for handle in self.handles:
                stack.callback(handle.close)

    def hand_over(self) -> None:
        """Give the buckets up if another process commits to the table."""
        if any(handle.writes for handle in self.handles) and self.lock.is_wanted():
            for handle in self.handles:
                if handle.writes:
                    # What could not be committed is in the log; whoever writes next is told what is wrong.
                    with suppress(StoreError):
                        handle.hand_over()


def open_parts(
    store: Path,
    store_id: UUID,
    definition: TableDefinition,
    current: Callable[[], TableDefinition],
    journal: Journal,
    options: StoreOptions,
    files: Files,
    clock: Clock,
    *,
    read_only: Callable[[], bool],
) -> OpenTable:
    """The parts of a table; no file is opened yet.

    Args:
        current: The table as the catalog has it now; raises if it was dropped.
        read_only: See :class:`BucketHandle`.
    """
    table = definition.id

    def writers() -> TableWriters:
        return journal.state().writers_of(table)

    @contextmanager
    def reader_positions(bucket: BucketId) -> Iterator[list[Offset]]:
        with journal.still() as catalog:
            yield catalog.consumers_of(table).reader_positions(bucket, clock.now_ms())

    def handle(bucket: BucketId) -> BucketHandle:
        return BucketHandle(
            BucketPlace(paths.bucket_directory(store, table, bucket), LogIdentity(store_id, table, bucket)),
            *(
                current,
                writers,
                journal.check_leads,
                journal.show_last_commit,
                lock,
                lambda commit: staging.request(commit, current(), bucket),
            ),
            lambda: reader_positions(bucket),
            *(options, files, clock),
            read_only=read_only,
        )

    lock, staging = CommitLock(store, table, files, clock), Staging(store, table, files)
    handles = [handle(BucketId(bucket)) for bucket in range(definition.buckets)]
    for each in handles:
        files.note(each.place.directory)
        files.note(each.place.log)
    commits = Commits(table, handles, lock, staging, journal, writers, clock)
    consumers = Consumers(handles, journal, current, options, clock)
    return OpenTable(handles, lock, commits, Writers(table, commits, journal, writers), consumers)


class HandingOver:
    """Looks, while a process may write, whether another one wants its buckets.

    Args:
        parts: All that the process has open.
    """

    def __init__(self, parts: Callable[[], Sequence[OpenTable]]) -> None:
        self._parts = parts
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvstore-handover", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(HANDOVER_LOOK_MS / 1000):
            for parts in self._parts():
                with suppress(OSError):  # too many open files, perhaps: it looks again
                    parts.hand_over()
