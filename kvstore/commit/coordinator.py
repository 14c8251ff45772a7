"""One commit over all buckets of a table: all of it or nothing, whatever dies on the way (docs/format.md).

1. Its rows are staged in files, every bucket is taken, and in each all checks and merges are run.
2. If one refuses, nothing was written. Otherwise the commit is journaled: from then on it takes place.
3. Every bucket appends its batch. Whoever takes a bucket that lacks it appends it first.
4. That it is over is journaled, and the staged files go.

One commit at a time is on its way in a table. A bucket that another process writes is handed over for the while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence as Several
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from uuid import uuid4

from kvstore.bucket.commit_lock import COMMIT_WAIT_SECONDS, CommitLock, pause
from kvstore.bucket.handle import BucketHandle
from kvstore.calls import uninterrupted
from kvstore.clock import Clock
from kvstore.commit.staging import Staging
from kvstore.errors import NoSuchTable, StoreError, StoreLocked
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.writers import OpenCommit
from kvstore.request.request import Prepared, Request
from kvstore.request.results import AppendResult, WriteResult
from logformat.catalog.edits import BeginCommit, EndCommit, Payload
from logformat.ids import BucketId, Sequence, WriterId


class Commits:
    """Commits over the buckets of one table.

    Args:
        handles: One for each bucket, in order.
        lock: Lets one commit at a time run, of all processes.
        staging: Where their batches wait until every bucket has its own.
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
        """Be the only one who commits to the table, and the writer of all its buckets.

        What others left open is brought to its end first.

        Raises:
            StoreLocked: It is another's turn, for long, or another writes a bucket and does not hand it over.
            CorruptData, StoreFull, LogFailed: An open commit can't be brought to its end; nothing new was begun.
        """
        with self._lock.held():
            # A commit that nobody can see yet would lose its staged rows.
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
        """Bring open commits of dead processes to their end, unless somebody is about to."""
        if self._catalog.writers().commits:
            self._settle_left()

    @uninterrupted
    def _settle_left(self) -> None:
        if not self._lock.held_elsewhere():
            with suppress(StoreLocked), self.turn():
                pass

    def apply(self, definition: TableDefinition, requests: Mapping[BucketId, Request]) -> WriteResult:
        """Apply a batch to each bucket, all or none; it is the caller's turn.

        Args:
            requests: One for each bucket, all with the same writer, epoch and sequence.

        Raises:
            InvalidRequest, WriterRejected: A bucket refuses its batch. Nothing was written.
            StoreFull, CorruptData, LogFailed: If ``committed`` stands in the error, the commit takes place: it is
                brought to its end when a bucket that lacks it is written again. Otherwise nothing was written.
        """
        first = requests[BucketId(0)]
        commit = OpenCommit(f"{self._table}-{uuid4().hex}", first.writer_id, first.writer_epoch, first.sequence)
        decision: Future[bool] = Future()
        parts = {bucket: Prepared(request, decision) for bucket, request in requests.items()}
        if len(parts) == 1:
            decision.set_result(True)  # one batch is all or nothing by itself
            self._handles[0].prepare(parts[BucketId(0)])
            return WriteResult({BucketId(0): parts[BucketId(0)].answer.result()})
        takes_place = False
        try:
            for bucket, part in parts.items():
                self._handles[bucket].prepare(part)
            self._staging.write(commit, definition, {b: request.changes for b, request in requests.items()})
            answers = {bucket: part.ready.result() for bucket, part in parts.items()}
            if all(answer.duplicated for answer in answers.values()):
                return WriteResult(answers)
            self._journal.append(self._about(BeginCommit, commit))
            takes_place = True
        finally:
            # Who is told no, though the commit is journaled, finds it there before anything else is appended.
            decision.set_result(takes_place)
            if not takes_place and commit not in self._catalog.writers().commits:
                self._staging.remove(commit.commit_id)
        return WriteResult(self._answers(parts, commit))

    def _answers(self, parts: Mapping[BucketId, Prepared], commit: OpenCommit) -> dict[BucketId, AppendResult]:
        wait([part.answer for part in parts.values()])
        try:
            answers = {bucket: part.answer.result() for bucket, part in parts.items()}
        except StoreError as error:
            error.where["committed"] = True
            raise
        with suppress(StoreError):  # it took place; that it is over is for the next turn to say
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
        # If it is lost, whoever goes on finds that every bucket has its batch.
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
        """Write every bucket; those that are not this process's own go to others afterwards, if there are any."""
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
                        with suppress(StoreError):  # all of it is in the log, and who writes next is told
                            handle.stop_writing()

    def _takes(self, handle: BucketHandle, deadline: float) -> bool:
        try:
            handle.take()
        except StoreLocked:
            if self._clock.monotonic() >= deadline:
                raise
            return False
        return True
