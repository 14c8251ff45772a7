"""One bucket of a table, as users and writers see it: where a numbered batch goes.

* It holds no state of its own: the handle has the bucket, and the catalog the table as it is at each call.
* A dropped table or a closed store is reported as such, whatever the handle met.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence as Several
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from kvstore.arguments import column_names, integer, integer_within, shown
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import InvalidRequest
from kvstore.history.bucket_log import BucketLog
from kvstore.history.bucket_status import BucketStatus, status_of
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Answer, answer_of
from kvstore.read.bucket_rows import BucketRows, bucket_rows
from kvstore.read.scan import SCAN_ROWS
from kvstore.request.partition import buckets_of_rows
from kvstore.request.preparation import fitted, request_of
from kvstore.request.results import AppendResult
from kvstore.table.reading import Reading
from logformat.ids import NO_SEQUENCE, NO_WRITER, SEQUENCE_MAX, Epoch, SchemaId, Sequence, WriterId
from logformat.log.writer_entry import WriterEntry
from logformat.rows.changes import Changes
from logformat.rows.intake import Keys


class Bucket:
    """A bucket of a table: its changes, one batch at a time, its rows from a key on, its log.

    Made by :meth:`kvstore.table.table.Table.bucket`.

    Attributes:
        handle: What this process has open of the bucket; for maintenance and inspection.
    """

    def __init__(self, handle: BucketHandle, reading: Reading) -> None:
        self.handle = handle
        self._reading = reading

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
        self._reading.access.check_writable()
        numbers = _numbers(writer_id, sequence, writer_epoch)
        if not isinstance(overwrite, bool):
            raise InvalidRequest("`overwrite` is True or False.", overwrite=shown(overwrite))
        definition = self._reading.current()
        id = definition.schema_id if schema_id is None else SchemaId(integer("schema_id", schema_id))
        fitting, targets = fitted(changes, definition, id, columns, overwrite=overwrite)
        self._check_own(fitting, definition)
        answer: Future[AppendResult] = Answer()
        request = request_of(fitting, definition, *numbers, targets=targets, overwrite=overwrite, answer=answer)
        self.handle.submit(request, waits=waits)
        return answer

    def begin(self, writer_id: int) -> int | None:
        """Become the bucket's writer, and tell the sequence of the last batch of a writer; None if there is none.

        If it has a name that was just opened, this is its last before the new incarnation's first.

        Raises:
            StoreLocked: Another process writes this bucket.
            CorruptData, StoreFull, LogFailed: The bucket can't be written.
        """
        self._reading.access.check_writable()
        self._reading.current()
        return self.handle.begin(WriterId(integer("writer_id", writer_id)))

    def last_sequence(self, writer_id: int) -> int | None:
        """Sequence of a writer's last batch; None if there is none.

        A writer is forgotten seven days after its last batch, and then there is none either: but its batches stand in
        the log, all of them before :meth:`remembered_from`.

        Raises:
            CorruptData: The index is damaged.
        """
        self._reading.current()
        return self.handle.last_sequence(WriterId(integer("writer_id", writer_id)))

    def remembered_from(self) -> int:
        """The first offset from which on every batch's writer is remembered.

        Raises:
            CorruptData: The index or the log is damaged.
        """
        self._reading.current()
        return self.handle.remembered_from()

    def status(self) -> BucketStatus:
        """How much is in the bucket, as every process sees it: rows, offsets and bytes.

        Raises:
            CorruptData: The index or the log is damaged.
        """
        counted = self._reading.current().options.changelog_image != "wal"
        return status_of(self.handle, counted=counted)

    def writers(self) -> dict[int, WriterEntry]:
        """What the bucket remembers of each writer, by its id: its last five batches, and their incarnation.

        Raises:
            CorruptData: The index is damaged.
        """
        self._reading.current()
        with self.handle.snapshot() as view:
            return {int(id): entry for id, entry in view.writers().items()}

    def scan(
        self,
        columns: Several[str] | None = None,
        *,
        key: Keys = None,
        after: Keys = None,
        as_of: int | dt.datetime | None = None,
        batch_rows: int = SCAN_ROWS,
    ) -> AbstractContextManager[BucketRows]:
        """Read rows of the bucket in the order of its index, from a key on; leaving the context ends the read.

        For programs that show rows page by page: the next page begins after the last key of this one.

        Args:
            columns: Columns to return, in this order; all if None.
            key: Only the row of this key.
            after: Only rows that come after this key, whether or not it is there.
            as_of: An offset of the bucket, or a time; see :meth:`kvstore.Table.scan`.
            batch_rows: Largest number of rows of a batch.

        Raises:
            InvalidRequest: An argument is not possible.
            UnsupportedOperation: A log table has no rows; or the changelog is a WAL image, which has no earlier rows.
            SchemaMismatch: There is no such column, or a key does not fit.
            OffsetOutOfRange: The log does not reach back to the time. The iterator raises it for an offset.
            CorruptData: A row or a change is damaged; the iterator raises it.
        """
        self._reading.current()
        names = None if columns is None else column_names("columns", columns)
        rows = integer_within("batch_rows", batch_rows, 1, SCAN_ROWS)
        return bucket_rows(self.handle, self._reading.current, self._reading.latest, names, key, after, as_of, rows)

    @property
    def log(self) -> BucketLog:
        """The log of the bucket: its segments, batches and times."""
        self._reading.current()
        return BucketLog(self.handle, self._reading.current, self._reading.latest, self._reading.origins)

    def _check_own(self, changes: Changes, definition: TableDefinition) -> None:
        if definition.buckets > 1 and definition.bucket_key is not None:
            own = self.handle.identity.bucket_id
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
