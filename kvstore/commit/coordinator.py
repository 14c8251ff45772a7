"""One commit over all buckets of a table: all or nothing, even if a process dies (docs/format.md).

1. The process takes every bucket, stages the rows in a file, and runs all checks and merges in each bucket.
2. If a bucket refuses its batch, nothing was written. Otherwise the commit is journaled, and is decided from then on.
3. Every bucket appends its batch. A process that takes a bucket without its batch appends it first.
4. The end of the commit is journaled, and the staged file is removed.

A table has one commit at a time. Another process that writes a bucket hands it over for the duration of the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence as Several
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeAlias
from uuid import uuid4

from kvstore.bucket.commit_lock import COMMIT_WAIT_SECONDS, CommitLock, pause
from kvstore.bucket.handle import BucketHandle
from kvstore.clock import Clock
from kvstore.commit.staging import Staging
from kvstore.errors import NoSuchTable, StoreError, StoreLocked
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.writers import OpenCommit
from kvstore.process.calls import uninterrupted
from kvstore.request.request import Prepared, Request
from kvstore.request.results import AppendResult, WriteResult
from logformat.catalog.edits import BeginCommit, EndCommit, Payload
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
    """

    def __init__(
        self, handles: Several[BucketHandle], lock: CommitLock, staging: Staging, catalog: TableCatalog, clock: Clock
    ) -> None:
        self._table = catalog.table
        self._handles = dict(enumerate(handles))
        self._lock = lock
        self._staging = staging
        self._catalog = catalog
        self._journal = catalog.journal
        self._clock = clock

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Take the commit lock and all buckets of the table; open commits of dead processes are completed first.

        Raises:
            StoreLocked: Another commit takes too long, or another process writes a bucket and does not hand it over.
            CorruptData, StoreFull, LogFailed: An open commit can't be completed; nothing new was begun.
        """
        with self._lock.held():
            # A commit that is not visible yet would lose its staged rows.
            self._journal.show_last_commit()
            with self._all_taken():
                self._settle()
                yield

    def knows(self, writer_id: WriterId) -> bool:
        """Whether any bucket has a batch of a writer with a name. It is the caller's turn."""
        return any(handle.last_sequence(writer_id) is not None for handle in self._handles.values())

    def last_sequence(self, writer_id: WriterId) -> Sequence | None:
        """Sequence of the last commit of a writer with a name; None if it has none. It is the caller's turn."""
        return self._handles[BucketId(0)].last_sequence(writer_id)

    def settle(self) -> None:
        """Complete open commits of dead processes, unless another process is committing."""
        if self._catalog.writers().commits:
            self._settle_left()

    @uninterrupted
    def _settle_left(self) -> None:
        if not self._lock.held_elsewhere():
            with suppress(StoreLocked), self.turn():
                pass

    def apply(
        self, definition: TableDefinition, requests: Mapping[BucketId, Request], confirm: Confirm | None = None
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
        first = requests[BucketId(0)]
        commit = OpenCommit(f"{self._table}-{uuid4().hex}", first.writer_id, first.writer_epoch, first.sequence)
        decision: Future[bool] = Future()
        parts = {bucket: Prepared(request, decision) for bucket, request in requests.items()}
        if len(parts) == 1:
            self._append_alone(parts[BucketId(0)], confirm)
            return WriteResult({BucketId(0): parts[BucketId(0)].answer.result()})
        takes_place = False
        try:
            for bucket, part in parts.items():
                self._handles[bucket].prepare(part)
            self._staging.write(commit, definition, {b: request.changes for b, request in requests.items()})
            answers = {bucket: part.ready.result() for bucket, part in parts.items()}
            if all(answer.duplicated for answer in answers.values()):
                return WriteResult(answers)
            if confirm is not None:
                confirm({bucket: answer.first_offset for bucket, answer in answers.items() if not answer.duplicated})
            self._journal.append(self._about(BeginCommit, commit))
            takes_place = True
        finally:
            # A bucket that gets False although the commit is journaled appends the batch before anything else.
            decision.set_result(takes_place)
            if not takes_place and commit not in self._catalog.writers().commits:
                self._staging.remove(commit.commit_id)
        return WriteResult(self._answers(parts, commit))

    def _append_alone(self, part: Prepared, confirm: Confirm | None) -> None:
        """Append the batch of the only bucket: one batch is all or nothing by itself, and is not staged."""
        is_confirmed = confirm is None
        if is_confirmed:
            part.decision.set_result(True)
        try:
            self._handles[BucketId(0)].prepare(part)
            if confirm is not None:
                answer = part.ready.result()
                if not answer.duplicated:
                    confirm({BucketId(0): answer.first_offset})
                is_confirmed = True
        finally:
            if not part.decision.done():
                part.decision.set_result(is_confirmed)

    def _answers(self, parts: Mapping[BucketId, Prepared], commit: OpenCommit) -> dict[BucketId, AppendResult]:
        wait([part.answer for part in parts.values()])
        try:
            answers = {bucket: part.answer.result() for bucket, part in parts.items()}
        except StoreError as error:
            error.where["committed"] = True
            raise
        with suppress(StoreError):  # every bucket has its batch; the next turn journals the end
            self._end(commit)
        return answers

    def _settle(self) -> None:
        commits = self._catalog.writers().commits
        if commits:
            for handle in self._handles.values():
                handle.settle()
            for commit in commits:
                self._end(commit)
        self._staging.sweep(())

    def _end(self, commit: OpenCommit) -> None:
        # If this edit is lost, the next commit finds that every bucket has its batch.
        self._journal.append(self._about(EndCommit, commit), may_wait=True)
        self._staging.remove(commit.commit_id)

    def _about(
        self, kind: type[BeginCommit] | type[EndCommit], commit: OpenCommit
    ) -> Callable[[CatalogState], Payload]:
        def decide(state: CatalogState) -> Payload:
            if self._table not in state.tables:
                raise NoSuchTable("The table was dropped.", table_id=self._table)
            if kind is EndCommit:
                return EndCommit(table_id=self._table, commit_id=commit.commit_id)
            return BeginCommit(
                table_id=self._table,
                commit_id=commit.commit_id,
                writer_id=commit.writer_id,
                writer_epoch=commit.writer_epoch,
                sequence=commit.sequence,
            )

        return decide

    @contextmanager
    def _all_taken(self) -> Iterator[None]:
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
                    if not handle.writes_alone:
                        with suppress(StoreError):  # all of it is in the log, and the next write reports the error
                            handle.stop_writing()

    def _takes(self, handle: BucketHandle, deadline: float) -> bool:
        try:
            handle.take()
        except StoreLocked:
            if self._clock.monotonic() >= deadline:
                raise
            return False
        return True
