"""One commit of what one table or several are to get: all or nothing, even if a process dies (docs/format.md).

1. Every bucket checks and merges its batch and waits; meanwhile the batches are staged, in a file for each table.
2. If a bucket refuses its batch, nothing was written. Otherwise the commit is journaled, for all tables in one step,
   and is decided from then on.
3. Every bucket appends its batch. A process that takes a bucket without its batch appends it first.
4. The end of the commit is journaled, for all tables in one step, and the staged files are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Several
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple
from uuid import uuid4

from kvstore.bucket.committer import Committer
from kvstore.bucket.handle import BucketHandle
from kvstore.commit.staging import Staging
from kvstore.errors import InvalidRequest, NoSuchTable, StoreError
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.writers import OpenCommit
from kvstore.process.calls import wait_for
from kvstore.request.encoded import ROWS_MAX, SmallRequest
from kvstore.request.prepared import Prepared
from kvstore.request.request import Request
from kvstore.request.results import WriteResult
from logformat.catalog.edits import BeginCommit, EndCommit
from logformat.ids import BucketId, Offset

IN_EDIT_BYTES_MAX = 1 << 12
"""Most bytes of the batches of a table that are in the edit that decides a commit to several tables.

The journal keeps its edits for long, and versions before this can't read such an edit. So commits to one table, which
these versions know, have a file.
"""
TURN_SECONDS = 1.0
"""How long a commit of few rows waits for a bucket that does something else, before it queues like others."""


class TablePart:
    """What a commit has for one table.

    Args:
        handles: The table's buckets.
        requests: A batch for each bucket, all with the same writer, epoch and sequence.
        commit_id: None for a new one.
    """

    def __init__(
        self,
        handles: Mapping[BucketId, BucketHandle],
        staging: Staging,
        catalog: TableCatalog,
        definition: TableDefinition,
        requests: Mapping[BucketId, Request | SmallRequest],
        commit_id: str | None = None,
    ) -> None:
        first = requests[BucketId(0)]
        commit_id = f"{catalog.table}-{uuid4().hex}" if commit_id is None else commit_id
        self._commit = OpenCommit(commit_id, first.writer_id, first.writer_epoch, first.sequence)
        self._handles = handles
        self._staging = staging
        self._catalog = catalog
        self._definition = definition
        self._requests = requests
        self._batches: dict[BucketId, Prepared] = {}
        self._begun: list[tuple[Committer, Prepared]] = []
        self._has_file = False

    @property
    def is_one_batch(self) -> bool:
        """Whether the table has one bucket."""
        return len(self._requests) == 1

    @property
    def table(self) -> str:
        """Name of the table."""
        return self._definition.name

    @property
    def is_empty(self) -> bool:
        """Whether the table gets no changes, and takes part only so that it is not written meanwhile."""
        return not any(request.count for request in self._requests.values())

    @property
    def journal(self) -> Journal:
        """The journal of the store."""
        return self._catalog.journal

    def begins_at(self) -> dict[BucketId, Offset]:
        """The offset at which each batch is about to be appended, for those that were not applied before."""
        ready = {bucket: batch.ready.result() for bucket, batch in self._batches.items()}
        return {bucket: answer.first_offset for bucket, answer in ready.items() if not answer.duplicated}

    def append_alone(self, confirm: Callable[[], None] | None) -> WriteResult:
        """Append the batch of the only bucket: one batch is all or nothing by itself, and is not staged."""
        decision: Future[bool] = Future()
        is_confirmed = confirm is None
        if is_confirmed:
            decision.set_result(True)
        try:
            self.prepare(decision, here=True)
            if confirm is not None:
                if self.begins_at():
                    confirm()
                is_confirmed = True
        finally:
            if not decision.done():
                decision.set_result(is_confirmed)
            self.decided()
        return WriteResult({bucket: batch.answer.result() for bucket, batch in self._batches.items()})

    def prepare(self, decision: Future[bool], *, here: bool) -> None:
        """Have every bucket apply its batch and wait for the decision.

        Args:
            here: Whether few rows of the last bucket may be applied in this thread, if it is idle. No queue of another
                bucket is entered after that: it would be in the wrong order of locks.
        """
        self._batches = {bucket: Prepared(request, decision) for bucket, request in self._requests.items()}
        for bucket, batch in self._batches.items():
            handle = self._handles[bucket]
            is_last = bucket == max(self._batches)
            committer = handle.writer().committer
            if here and is_last and batch.request.count <= ROWS_MAX and committer.begin_part(batch):
                self._begun.append((committer, batch))
            else:
                committer.put(batch)

    def begin_here(self, decision: Future[bool], committers: Mapping[BucketId, Committer]) -> bool:
        """Have every bucket apply its batch in this thread and wait for the decision, if all are idle.

        Returns:
            False if one is not; then the decision is not to append, and :meth:`decided` follows.
        """
        self._batches = {bucket: Prepared(request, decision) for bucket, request in self._requests.items()}
        for bucket, batch in self._batches.items():
            if not committers[bucket].begin_part(batch, TURN_SECONDS):
                return False
            self._begun.append((committers[bucket], batch))
        return True

    def decided(self) -> None:
        """Let the buckets go on that applied their batch in this thread; the decision is made."""
        for committer, batch in self._begun:
            committer.end_part(batch)

    def stage(self, *, in_edit: bool) -> None:
        """Keep the batches for a process that may have to complete the commit.

        Args:
            in_edit: Whether few bytes go with the edit that decides it; else they are in a file, durable on return.
        """
        batches = self._staging.batches(self._commit, self._definition, self._requests)
        if in_edit and sum(map(len, batches)) <= IN_EDIT_BYTES_MAX:
            self._commit = replace(self._commit, staged=b"".join(batches))
        else:
            self._has_file = True  # even if only a part of it can be written
            self._staging.write(self._commit, batches)

    def discard(self) -> None:
        """Remove what was staged in a file, unless the commit is journaled after all."""
        if self._has_file and self._commit not in self._catalog.writers().commits:
            self._staging.remove(self._commit)

    def begun(self, state: CatalogState) -> BeginCommit:
        """The edit that decides the commit.

        Raises:
            NoSuchTable: The table was dropped.
        """
        _check_there(self._catalog, state)
        commit = self._commit
        return BeginCommit(
            table_id=self._catalog.table,
            commit_id=commit.commit_id,
            writer_id=commit.writer_id,
            writer_epoch=commit.writer_epoch,
            sequence=commit.sequence,
            staged=commit.staged,
        )

    def earlier(self) -> WriteResult | None:
        """The first answer, if every bucket had its batch before.

        Raises:
            InvalidRequest, WriterRejected: A bucket refuses its batch.
        """
        ready = {bucket: batch.ready.result() for bucket, batch in self._batches.items()}
        return WriteResult(ready) if all(answer.duplicated for answer in ready.values()) else None

    def appended(self) -> WriteResult:
        """Wait until every bucket has appended its batch.

        Raises:
            StoreFull, CorruptData, LogFailed: A bucket could not. The commit stays open.
        """
        for batch in self._batches.values():
            wait_for(batch.answer)
        return WriteResult({bucket: batch.answer.result() for bucket, batch in self._batches.items()})

    @property
    def end(self) -> End:
        """The end of the commit."""
        return End(self._catalog, self._staging, self._commit)


def apply_together(parts: Several[TablePart], confirm: Callable[[], None] | None = None) -> list[WriteResult]:
    """Apply the parts of a commit, all or none; it is the caller's turn in each table.

    Args:
        parts: At most one for each table.
        confirm: Called before the commit is decided, unless it was applied before. No bucket of these tables is written
            meanwhile, so it must not wait for one. If it raises an error of the store, nothing is written.

    Returns:
        The result of each part.

    Raises:
        InvalidRequest, WriterRejected: A bucket refuses its batch, or some of the tables had theirs before and others
            not. Nothing was written.
        StoreFull, CorruptData, LogFailed: If the error has ``committed``, the commit is decided: it is completed when a
            bucket without its batch is written again. Otherwise nothing was written.
    """
    if len(parts) == 1 and parts[0].is_one_batch:
        return [parts[0].append_alone(confirm)]

    def prepare(decision: Future[bool]) -> bool:
        for part in parts:
            part.prepare(decision, here=part is parts[-1])
        return True

    results = _applied(parts, prepare, confirm)
    assert results is not None
    return results


def apply_here(
    parts: Several[TablePart],
    committers: Several[Mapping[BucketId, Committer]],
    confirm: Callable[[], None] | None = None,
) -> list[WriteResult] | None:
    """Apply the parts of a commit of few rows in this thread; see :func:`apply_together`.

    Args:
        committers: Of the buckets of each part's table; this process writes all of them.

    Returns:
        None if a bucket was not idle. Nothing was written then.
    """

    def begin(decision: Future[bool]) -> bool:
        return all(part.begin_here(decision, each) for part, each in zip(parts, committers, strict=True))

    return _applied(parts, begin, confirm)


def _applied(
    parts: Several[TablePart], begin: Callable[[Future[bool]], bool], confirm: Callable[[], None] | None
) -> list[WriteResult] | None:
    decision: Future[bool] = Future()
    takes_place = False
    try:
        if not begin(decision):
            return None
        for part in parts:
            part.stage(in_edit=len(parts) > 1)
        earlier = [part.earlier() for part in parts]
        if new := _new(parts, earlier):
            if confirm is not None:
                confirm()
            parts[0].journal.append(lambda state: [part.begun(state) for part in new])
            takes_place = True
    finally:
        # A bucket that gets False although the commit is journaled appends the batch before anything else.
        decision.set_result(takes_place)
        for part in parts:
            part.decided()
        for part in parts:
            if not takes_place:
                part.discard()
    results: list[WriteResult] = []
    ended: list[End] = []
    failed: StoreError | None = None
    for part, result in zip(parts, earlier, strict=True):
        if part not in new:
            if takes_place:
                part.discard()
            results.append(result or WriteResult({}))
            continue
        try:
            results.append(part.appended())
            ended.append(part.end)
        except StoreError as error:
            failed = failed or error
    with suppress(StoreError):  # every bucket has its batch; the next turn journals the end
        end(ended)
    if failed is not None:
        failed.where["committed"] = True
        raise failed
    return results


def _new(parts: Several[TablePart], earlier: Several[WriteResult | None]) -> list[TablePart]:
    """The parts that are to be written: all that were not before, or none if the commit was applied before.

    Raises:
        InvalidRequest: It was applied before, but to other tables.
    """
    new = [part for part, result in zip(parts, earlier, strict=True) if result is None]
    deciding = [part for part in parts if not part.is_empty] or parts
    missing = [part.table for part in deciding if part in new]
    if missing and len(missing) < len(deciding):
        raise InvalidRequest(
            "A commit of this number was applied before, to other tables, and nothing of this one was written; give it"
            " the next number.",
            new_tables=missing,
        )
    return new if missing else []


class End(NamedTuple):
    """The end of a commit to one table."""

    catalog: TableCatalog
    staging: Staging
    commit: OpenCommit

    def edit(self, state: CatalogState) -> EndCommit:
        """The edit that every bucket of the table has its batch."""
        _check_there(self.catalog, state)
        return EndCommit(table_id=self.catalog.table, commit_id=self.commit.commit_id)


def end(ends: Several[End]) -> None:
    """Record that every bucket of some tables has its batch of a commit, and remove what was staged for it."""
    if ends:
        # If this edit is lost, the next commit finds that every bucket has its batch. So it need not be synced alone.
        ends[0].catalog.journal.append_later(lambda state: [each.edit(state) for each in ends])
    for each in ends:
        each.staging.remove(each.commit)


def _check_there(catalog: TableCatalog, state: CatalogState) -> None:
    if catalog.table not in state.tables:
        raise NoSuchTable("The table was dropped.", table_id=catalog.table)
