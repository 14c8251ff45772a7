"""The turn to commit to all buckets of a table, and commits that a dead process has left open.

A table has one commit at a time (:mod:`kvstore.commit.parts`). The process takes every bucket for it; another process
that writes a bucket hands it over for the duration of the commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence as Several
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeAlias

from kvstore.bucket.commit_lock import COMMIT_WAIT_SECONDS, CommitLock, pause
from kvstore.bucket.committer import Committer
from kvstore.bucket.elsewhere import TAKES_NO_REQUESTS
from kvstore.bucket.handle import BucketHandle
from kvstore.clock import Clock
from kvstore.commit.ends import End, OpenEnds, end
from kvstore.commit.parts import TablePart, apply_together
from kvstore.commit.staging import Staging
from kvstore.errors import StoreError, StoreLocked
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.process.calls import uninterrupted
from kvstore.request.encoded import SmallRequest
from kvstore.request.request import Request
from kvstore.request.results import WriteResult
from logformat.ids import BucketId, Offset, Sequence, WriterId

Confirm: TypeAlias = Callable[[Mapping[BucketId, Offset]], None]
"""Called before a commit is decided, with the offset at which each bucket's batch is about to be appended.

Everything before these offsets is in the files of the log, and no bucket is written meanwhile, so it must not wait for
one. If it raises an error of the store, nothing of the commit is written.
"""


class Commits:
    """Commits over the buckets of one table.

    Args:
        handles: One for each bucket, in order.
        lock: Lets one commit run at a time, among all processes.
        staging: Holds their batches until every bucket has appended its own.
        catalog: The table in the catalog.
        ends: Commits of this process that end once the logs are durable.

    Attributes:
        ends: The argument.
        waiting: Commits of which this is the first table, and that wait for the turn; the thread that gets it may do
            the work of several.
    """

    def __init__(
        self,
        handles: Several[BucketHandle],
        lock: CommitLock,
        staging: Staging,
        catalog: TableCatalog,
        clock: Clock,
        ends: OpenEnds,
    ) -> None:
        self._table = catalog.table
        self._handles = {BucketId(bucket): handle for bucket, handle in enumerate(handles)}
        self._lock = lock
        self._staging = staging
        self._catalog = catalog
        self._journal = catalog.journal
        self._clock = clock
        self.ends = ends
        self.waiting: deque[Any] = deque()

    @contextmanager
    def turn(self, *, keeps: bool = False) -> Iterator[None]:
        """Take the commit lock and all buckets of the table; open commits of dead processes are completed first.

        Args:
            keeps: Whether this process keeps the buckets, also if others write, so that these send to it from then on.

        Raises:
            StoreLocked: Another commit takes too long, or another process writes a bucket and does not hand it over.
            CorruptData, StoreFull, LogFailed: An open commit can't be completed; nothing new was begun.
        """
        with self._lock.held():
            # A commit that is not visible yet would lose its staged rows.
            self._journal.show_last_commit()
            with self._all_taken(keeps=keeps):
                self._settle()
                yield

    @contextmanager
    def turn_here(self, *, waits: bool = True) -> Iterator[Mapping[BucketId, Committer] | None]:
        """Take the turn to commit only among the threads of this process: enough where it writes every bucket.

        Another process that commits to the table has to be given the buckets first, and these committers end then.

        Args:
            waits: Whether to wait for another commit of this process.

        Returns:
            Committers of all buckets; None if another process may write one, or a commit is not complete.

        Raises:
            StoreLocked: Another commit of this process takes too long.
        """
        with self._lock.held_here(waits=waits) as is_held:
            engines = {bucket: handle.engine for bucket, handle in self._handles.items()} if is_held else {}
            committers = {bucket: engine.committer for bucket, engine in engines.items() if engine is not None}
            is_whole = len(committers) == len(self._handles)
            yield (
                committers if is_whole and all(each in self.ends for each in self._catalog.writers().commits) else None
            )

    def knows(self, writer_id: WriterId) -> bool:
        """Whether any bucket has a batch of a writer with a name. It is the caller's turn."""
        return any(handle.last_sequence(writer_id) is not None for handle in self._handles.values())

    def last_sequence(self, writer_id: WriterId) -> Sequence | None:
        """Sequence of the last commit of a writer with a name; None if it has none. It is the caller's turn."""
        handle = self._handles[BucketId(0)]
        engine = handle.engine
        if engine is not None and (sequence := engine.committer.last_sequence(writer_id)) is not None:
            return sequence  # it never expires, so no view is needed
        return handle.last_sequence(writer_id)

    def last_of_all(self, writer_id: WriterId) -> Sequence | None:
        """Sequence of the last commit of a writer with a name that all buckets have; None if it has none."""
        last: Sequence | None = None
        for handle in self._handles.values():
            if (sequence := handle.last_sequence(writer_id)) is None:
                return None
            last = sequence if last is None else min(last, sequence)
        return last

    def settle(self) -> None:
        """Complete open commits of dead processes, unless another process is committing."""
        if self._catalog.writers().commits:
            with suppress(StoreError):  # then the turn completes them
                self.ends.settle()
        if self._catalog.writers().commits:
            self._settle_left()

    @uninterrupted
    def _settle_left(self) -> None:
        if not self._lock.held_elsewhere():
            with suppress(StoreLocked), self.turn():
                pass

    def apply(
        self,
        definition: TableDefinition,
        requests: Mapping[BucketId, Request | SmallRequest],
        confirm: Confirm | None = None,
    ) -> WriteResult:
        """Apply a batch to each bucket, all or none; it is the caller's turn.

        Args:
            requests: One for each bucket, all with the same writer, epoch and sequence.
            confirm: Not called if the commit was applied before.

        Raises:
            Conflict: ``confirm`` raised it. Nothing was written.
            InvalidRequest, WriterRejected: A bucket refuses its batch. Nothing was written.
            StoreFull, CorruptData, LogFailed: If the error has ``committed``, the commit is decided: it is completed
                when a bucket without its batch is written again. Otherwise nothing was written.
        """
        part = self.part(definition, requests)
        (result,) = apply_together([part], None if confirm is None else lambda: confirm(part.begins_at()))
        return result

    def part(
        self,
        definition: TableDefinition,
        requests: Mapping[BucketId, Request | SmallRequest],
        commit_id: str | None = None,
    ) -> TablePart:
        """What a commit has for this table; see :meth:`apply`.

        Args:
            commit_id: Id of the commit in this table; None for a new one.
        """
        return TablePart(self._handles, self._staging, self._catalog, definition, requests, commit_id)

    def _settle(self) -> None:
        if self._catalog.writers().commits:
            with suppress(StoreError):  # they are completed below
                self.ends.settle()
        if commits := self._catalog.writers().commits:
            for handle in self._handles.values():
                handle.writer().committer.settle()
            end([End(self._catalog, self._staging, commit) for commit in commits])
        self._staging.sweep(())

    @contextmanager
    def _all_taken(self, *, keeps: bool) -> Iterator[None]:
        """Take every bucket; those taken only for commits are released if other processes write single buckets."""
        try:
            with ExitStack() as asking:
                deadline = self._clock.monotonic() + COMMIT_WAIT_SECONDS
                for handle in self._handles.values():
                    while not self._takes(handle, deadline):
                        if not self._lock.wanted:
                            asking.enter_context(self._lock.wanting())
                        pause()
            yield
        finally:
            if self._lock.presence.others():
                for handle in self._handles.values():
                    if not (handle.writes_alone or (keeps and handle.takes_requests)):
                        with suppress(StoreError):  # all of it is in the log, and the next write reports the error
                            handle.stop_writing()

    def _takes(self, handle: BucketHandle, deadline: float) -> bool:
        try:
            handle.writer()
        except StoreLocked as error:
            if self._clock.monotonic() >= deadline:
                raise StoreLocked(TAKES_NO_REQUESTS, **error.where) from error
            return False
        return True
