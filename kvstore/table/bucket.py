"""One bucket of a table, as users and writers see it: where a numbered batch goes."""

from __future__ import annotations

from collections.abc import Sequence as Several
from concurrent.futures import Future
from typing import Any

import numpy as np

from kvstore.arguments import integer, shown
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import InvalidRequest
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.process.calls import answer_of
from kvstore.request.partition import buckets_of_rows
from kvstore.request.preparation import fitted, request_of
from kvstore.request.results import AppendResult
from kvstore.table.access import Access
from logformat.ids import NO_SEQUENCE, NO_WRITER, SEQUENCE_MAX, Epoch, SchemaId, Sequence, WriterId
from logformat.rows.changes import Changes


class Bucket:
    """A bucket's changes, one batch at a time.

    Made by :meth:`kvstore.table.table.Table.bucket`.

    Attributes:
        handle: What this process has open of the bucket; for maintenance and inspection.
    """

    def __init__(self, handle: BucketHandle, catalog: TableCatalog, access: Access) -> None:
        self.handle = handle
        self._catalog = catalog
        self._access = access

    def _current(self) -> TableDefinition:
        self._access.check_open()
        return self._catalog.definition()

    def apply(
        self,
        changes: Changes,
        writer_id: int = NO_WRITER,
        sequence: int = NO_SEQUENCE,
        writer_epoch: int = 0,
        columns: Several[str] | None = None,
        overwrite: bool = False,
        schema_id: int | None = None,
    ) -> AppendResult:
        """Apply one batch: all of it or nothing, in order, as one commit of the changelog.

        Args:
            changes: Upserts and deletes; none at all is a batch too, and moves the writer's sequence on.
            writer_id: Writer of the batch; with -1 (no writer), a batch that is sent twice is applied twice.
            sequence: Number of the batch among its writer's: 0, then one more each time, 0 again after 2^31-1.
            writer_epoch: Incarnation of the writer; a lower one than was seen before is refused.
            columns: Columns that the batch sets, with those of the key; all if None. Upserts leave the others as they
                are; deletes set these to null, and remove a row without other values.
            overwrite: Whether rows are stored and removed as they come, whatever the table's engine and delete
                behaviour.
            schema_id: Schema the rows follow; the current one if None.

        Returns:
            The offsets of its changes. If it is one of the writer's last five batches, the offsets it got before.

        Raises:
            OutOfOrderSequence: A batch of the writer is missing before this one. Nothing was written.
            WriterFenced: A newer incarnation of the writer has written. Nothing was written.
            InvalidRequest: An argument is not possible. Nothing was written.
            SchemaMismatch, UnknownSchema, KeyTooLarge, InvalidTargetColumns, DeletionDisabled, AggregateOverflow: Its
                content is refused. Nothing was written.
            StoreLocked: Another process writes this bucket. Nothing was written.
            StoreFull: No space. Nothing was written.
            CorruptData: A stored row or batch is damaged. Nothing was written.
            LogFailed: The disk refused. Whether it was written shows after the store is opened again.
        """
        arguments = changes, writer_id, sequence, writer_epoch, columns, overwrite, schema_id
        return answer_of(self._submit(*arguments, waits=True))

    def submit(
        self,
        changes: Changes,
        writer_id: int = NO_WRITER,
        sequence: int = NO_SEQUENCE,
        writer_epoch: int = 0,
        columns: Several[str] | None = None,
        overwrite: bool = False,
        schema_id: int | None = None,
    ) -> Future[AppendResult]:
        """Like :meth:`apply`, without waiting for the answer: batches are applied in the order they are submitted.

        If another process has the bucket for a commit, this raises StoreLocked instead of waiting.

        Returns:
            The answer to come. What depends on stored rows or on sequences is raised by it, the rest by this call.
        """
        return self._submit(changes, writer_id, sequence, writer_epoch, columns, overwrite, schema_id, waits=False)

    def _submit(
        self,
        changes: Changes,
        writer_id: int,
        sequence: int,
        writer_epoch: int,
        columns: Several[str] | None,
        overwrite: bool,
        schema_id: int | None,
        *,
        waits: bool,
    ) -> Future[AppendResult]:
        self._access.check_writable()
        numbers = _numbers(writer_id, sequence, writer_epoch)
        if not isinstance(overwrite, bool):
            raise InvalidRequest("`overwrite` is True or False.", overwrite=shown(overwrite))
        definition = self._current()
        id = definition.schema_id if schema_id is None else SchemaId(integer("schema_id", schema_id))
        fitting, targets = fitted(changes, definition, id, columns, overwrite=overwrite)
        self._check_own(fitting, definition)
        request = request_of(fitting, definition, *numbers, targets=targets, overwrite=overwrite)
        self.handle.submit(request, waits=waits)
        return request.answer

    def begin(self, writer_id: int) -> int | None:
        """Become the bucket's writer, and tell the sequence of the last batch of a writer; None if there is none.

        If it has a name that was just opened, this is its last before the new incarnation's first.

        Raises:
            StoreLocked: Another process writes this bucket.
            CorruptData, StoreFull, LogFailed: The bucket can't be written.
        """
        self._access.check_writable()
        self._current()
        return self.handle.begin(WriterId(integer("writer_id", writer_id)))

    def last_sequence(self, writer_id: int) -> int | None:
        """Sequence of a writer's last batch; None if there is none.

        A writer is forgotten seven days after its last batch, and then there is none either: but its batches stand in
        the log, all of them before :meth:`remembered_from`.

        Raises:
            CorruptData: The index is damaged.
        """
        self._current()
        return self.handle.last_sequence(WriterId(integer("writer_id", writer_id)))

    def remembered_from(self) -> int:
        """The first offset from which on every batch's writer is remembered.

        Raises:
            CorruptData: The index or the log is damaged.
        """
        self._current()
        return self.handle.remembered_from()

    @property
    def log(self) -> LogFiles:
        """The log's files, for reading up to the end that :meth:`kvstore.Table.offsets` says."""
        self._current()
        return self.handle.log

    def _check_own(self, changes: Changes, definition: TableDefinition) -> None:
        if definition.buckets > 1 and definition.bucket_key is not None:
            own = self.handle.place.identity.bucket_id
            strange = int(np.count_nonzero(buckets_of_rows(definition, changes.rows) != own))
            if strange:
                raise InvalidRequest(
                    "Rows belong to other buckets; Table.buckets_of() says to which.", bucket=own, rows=strange
                )


def _numbers(writer_id: Any, sequence: Any, writer_epoch: Any) -> tuple[WriterId, Sequence, Epoch]:
    writer_id, sequence = integer("writer_id", writer_id), integer("sequence", sequence)
    writer_epoch = integer("writer_epoch", writer_epoch)
    numbered = 0 <= writer_id < 2**63 and 0 <= sequence <= SEQUENCE_MAX
    if not (numbered or (writer_id, sequence) == (NO_WRITER, NO_SEQUENCE)) or not 0 <= writer_epoch < 2**31:
        raise InvalidRequest(
            f"A writer has an id and an epoch from 0 on, and sequences 0 to {SEQUENCE_MAX}; without one, both are -1.",
            writer_id=writer_id,
            sequence=sequence,
            writer_epoch=writer_epoch,
        )
    return WriterId(writer_id), Sequence(sequence), Epoch(writer_epoch)
