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
from uuid import uuid4

from kvstore.bucket.committer import Committer
from kvstore.bucket.handle import BucketHandle
from kvstore.commit.ends import End, check_there, end
from kvstore.commit.staging import Staging
from kvstore.errors import InvalidRequest, StoreError
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.writers import OpenCommit
from kvstore.process.calls import wait_for
from kvstore.request.encoded import SmallRequest
from kvstore.request.prepared import Prepared
from kvstore.request.request import Request
from kvstore.request.results import WriteResult
from logformat.catalog.edits import BeginCommit
from logformat.ids import BucketId, Offset

IN_EDIT_BYTES_MAX = 1 << 12
"""Most bytes of the batches of a table that are in the edit that decides a transaction; else they are in a file.

The journal keeps its edits for long, and versions before this can't read such an edit. So commits to one table that
these versions know, which are no transactions, have a file.
"""


class TablePart:
    """What a commit has for one table.

    Args:
        handles: The table's buckets.
        requests: A batch for each bucket, all with the same writer, epoch and sequence.
        commit_id: None for a new one.

    Attributes:
        committers: Those of its buckets, once they have their batches.
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
        request = requests[BucketId(0)]
        commit_id = f"{catalog.table}-{uuid4().hex}" if commit_id is None else commit_id
        self._commit = OpenCommit(commit_id, request.writer_id, request.writer_epoch, request.sequence)
        self._handles = handles
        self._staging = staging
        self._catalog = catalog
        self._definition = definition
        self._requests = requests
        self._batches: dict[BucketId, Prepared] = {}
        self.committers: dict[BucketId, Committer] = {}
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
            self.prepare(decision)
            if confirm is not None:
                if self.begins_at():
                    confirm()
                is_confirmed = True
        finally:
            if not decision.done():
                decision.set_result(is_confirmed)
        return WriteResult({bucket: batch.answer.result() for bucket, batch in self._batches.items()})

    def prepare(self, decision: Future[bool]) -> None:
        """Have every bucket apply its batch and wait for the decision."""
        self._batches = {bucket: Prepared(request, decision) for bucket, request in self._requests.items()}
        for bucket, batch in self._batches.items():
            committer = self.committers[bucket] = self._handles[bucket].writer().committer
            committer.put(batch)

    @property
    def requests(self) -> Mapping[BucketId, Request | SmallRequest]:
        """The batch of each bucket."""
        return self._requests

    def stage_in_edit(self) -> bool:
        """Keep the batches for a process that may have to complete the commit, in the edit that decides it.

        Returns:
            Whether they are few bytes; else :meth:`stage` is to be called.
        """
        if sum(request.size for request in self._requests.values()) > IN_EDIT_BYTES_MAX:
            return False
        batches = self._staging.batches(self._commit, self._definition, self._requests)
        if sum(map(len, batches)) > IN_EDIT_BYTES_MAX:
            return False
        self._commit = replace(self._commit, staged=b"".join(batches))
        return True

    def stage(self) -> None:
        """Keep the batches in a file, which is durable on return."""
        self._has_file = True  # even if only a part of it can be written
        self._staging.write(self._commit, self._staging.batches(self._commit, self._definition, self._requests))

    def discard(self) -> None:
        """Remove what was staged in a file, unless the commit is journaled after all."""
        if self._has_file and self._commit not in self._catalog.writers().commits:
            self._staging.remove(self._commit)

    def begun(self, state: CatalogState) -> BeginCommit:
        """The edit that decides the commit.

        Raises:
            NoSuchTable: The table was dropped.
        """
        check_there(self._catalog, state)
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

    decision: Future[bool] = Future()
    takes_place = False
    try:
        for part in parts:
            part.prepare(decision)
        for part in parts:
            if len(parts) == 1 or not part.stage_in_edit():
                part.stage()
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
