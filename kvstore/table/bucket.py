"""One bucket of a table, as users and writers see it: where a numbered batch goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Several
from typing import Any

from kvstore.arguments import integer, refuse_later
from kvstore.errors import InvalidRequest, SchemaMismatch, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.table.layout import layout_of
from kvstore.table.request import Request, group
from kvstore.table.results import AppendResult
from kvstore.table.tablet import Tablet
from logformat.arrow_message import RAW_BYTES_MAX
from logformat.changes import Changes
from logformat.ids import NO_SEQUENCE, NO_WRITER, SEQUENCE_MAX, Epoch, SchemaId, Sequence, WriterId

ROWS_BYTES_MAX = RAW_BYTES_MAX // 2


class Bucket:
    """A bucket's changes, one batch at a time.

    Made by :meth:`kvstore.table.table.Table.bucket`.
    """

    def __init__(
        self, tablet: Tablet, current: Callable[[], TableDefinition], check_writable: Callable[[], None]
    ) -> None:
        self._tablet = tablet
        self._current = current
        self._check_writable = check_writable

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
            writer_id: Who sends it; -1 for nobody, and then a batch that is sent twice is applied twice.
            sequence: Number of the batch among its writer's: 0, then one more each time, 0 again after 2^31-1.
            writer_epoch: Incarnation of the writer; a lower one than was seen before is refused.
            columns, overwrite: Not supported by this version.
            schema_id: Schema the rows follow; the current one if None.

        Returns:
            The offsets of its changes. If it is one of the writer's last five batches, the offsets it got before.

        Raises:
            OutOfOrderSequence: A batch of the writer is missing before this one. Nothing was written.
            WriterFenced: A newer incarnation of the writer has written. Nothing was written.
            InvalidRequest: An argument is not possible. Nothing was written.
            SchemaMismatch, UnknownSchema, KeyTooLarge: Its content is refused. Nothing was written.
            StoreLocked: Another process writes this bucket. Nothing was written.
            StoreFull: No space. Nothing was written.
            CorruptData: A stored row or batch is damaged. Nothing was written.
            LogFailed: The disk refused. Whether it was written shows after the store is opened again.
        """
        self._check_writable()
        refuse_later(columns=columns, overwrite=overwrite)
        if not isinstance(changes, Changes):
            raise SchemaMismatch(
                "Changes are a kvstore.Changes: see Changes.of(), or use upsert() and delete().",
                given=type(changes).__name__,
            )
        numbers = _numbers(writer_id, sequence, writer_epoch)
        definition = self._current()
        id = definition.schema_id if schema_id is None else SchemaId(integer("schema_id", schema_id))
        fitting = changes.conform(definition.schema_of(id), definition.primary_key or ())
        return self._submit(fitting, definition, id, *numbers)

    def apply_fitting(self, changes: Changes, definition: TableDefinition) -> AppendResult:
        """Like :meth:`apply`, for changes in the schema of a definition, from nobody in particular."""
        return self._submit(changes, definition, definition.schema_id, NO_WRITER, NO_SEQUENCE, Epoch(0))

    def _submit(
        self,
        changes: Changes,
        definition: TableDefinition,
        schema_id: SchemaId,
        writer_id: WriterId,
        sequence: Sequence,
        epoch: Epoch,
    ) -> AppendResult:
        if changes.rows.nbytes > ROWS_BYTES_MAX:
            raise InvalidRequest(
                f"A batch holds at most {ROWS_BYTES_MAX} bytes; send several smaller ones.", bytes=changes.rows.nbytes
            )
        if definition.primary_key is None:
            if changes.is_delete.true_count:
                raise UnsupportedOperation("A log table is only appended to; it has no key to delete.")
            grouping = None
        else:
            grouping = group(layout_of(definition).encode_keys(changes.rows))
        return self._tablet.apply(Request(changes, schema_id, writer_id, sequence, epoch, grouping))


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
