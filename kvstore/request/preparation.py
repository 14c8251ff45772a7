"""Conversion of given data to requests in the table's columns; data that does not fit is refused."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from kvstore.arguments import column_names
from kvstore.errors import BatchTooLarge, DeletionDisabled, InvalidRequest, SchemaMismatch, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Answer, Reply
from kvstore.request.encoded import SmallRequest, encoded_writes
from kvstore.request.request import NO_EPOCH, Request
from kvstore.request.results import AppendResult
from kvstore.request.row_layout import grouped, layout_of
from kvstore.request.rules import OVERWRITE, engine_of_table
from kvstore.request.sizes import bytes_of
from kvstore.request.targets import filled, renamed, schema_given, selected, targets_of
from logformat.ids import NO_SEQUENCE, NO_WRITER, Epoch, SchemaId, Sequence, WriterId
from logformat.log.arrow_message import RAW_BYTES_MAX
from logformat.log.batch import BATCH_BYTES_MAX
from logformat.rows.changes import Changes
from logformat.rows.schema import without_dropped

ROWS_BYTES_MAX = RAW_BYTES_MAX // 2
GROUPED_LATER_MAX = 64
"""Up to this number of rows, a request is sorted when its turn comes, if it has to be at all."""


def fitted(
    changes: Any, definition: TableDefinition, schema_id: SchemaId, columns: Any, *, overwrite: bool
) -> tuple[Changes, frozenset[str] | None]:
    """Changes built by the caller, reduced to the columns of the write, and these columns unless they are all.

    Raises:
        InvalidRequest: The changes are refused; see :meth:`Bucket.apply`.
    """
    if not isinstance(changes, Changes):
        raise SchemaMismatch(
            "Changes must be a kvstore.Changes: see Changes.of(), or use upsert() and delete().",
            given=type(changes).__name__,
        )
    definition.check_knows(schema_id)
    if names := definition.renamed_since(schema_id):
        changes = renamed(changes, names)
        if columns is not None:
            given = column_names("columns", columns)
            columns = [name for each in given if (name := names.get(each, each)) is not None]
    schema, key = without_dropped(definition.schema_of(schema_id)), definition.primary_key
    if key is None and (columns is not None or overwrite):
        raise UnsupportedOperation("A log table takes whole rows and never replaces a row.")
    engine = OVERWRITE if overwrite or key is None else engine_of_table(definition)
    targets = targets_of(definition, schema, engine, columns)
    wanted = schema_given(definition, schema, targets, overwrite=overwrite and columns is None)
    chosen = selected(changes, schema, wanted, definition.options.auto_increment)
    return chosen.conform(wanted, key or (), fills=targets is None), targets


def request_of(
    changes: Changes,
    definition: TableDefinition,
    writer_id: WriterId = NO_WRITER,
    sequence: Sequence = NO_SEQUENCE,
    epoch: Epoch = NO_EPOCH,
    *,
    targets: frozenset[str] | None = None,
    overwrite: bool = False,
    answer: Reply[AppendResult] | Future[AppendResult] | None = None,
) -> Request:
    """Build the request of a batch of changes that fit the table, for one bucket.

    Args:
        answer: Where its answer comes; a new future if None.

    Raises:
        InvalidRequest: The changes are too large, or the table takes no deletes.
        BatchTooLarge: A single row is.
    """
    if (size := bytes_of(changes.rows)) > ROWS_BYTES_MAX:
        if len(changes) == 1:
            raise BatchTooLarge(
                f"A row can have at most {BATCH_BYTES_MAX} bytes; keep what is larger in a file.", bytes=size
            )
        raise InvalidRequest(f"A batch can have at most {ROWS_BYTES_MAX} bytes; send several smaller ones.", bytes=size)
    if not overwrite:
        changes = _deletes_allowed(changes, definition)
    rows = filled(changes.rows, definition.schema)
    if rows is not changes.rows:
        changes = Changes(rows, changes.is_delete)
    grouping = encoded = None
    if definition.primary_key is None:
        if changes.is_delete.true_count:
            raise UnsupportedOperation("A log table is append-only; it has no key to delete by.")
    else:
        writes = encoded_writes(definition) if targets is None else None
        if writes is not None and writes.native is not None and rows.schema.equals(definition.schema):
            encoded = writes.encoded_rows(changes)
        if encoded is None and (len(changes) > GROUPED_LATER_MAX or definition.buckets > 1):
            # With several buckets, a key that is too long must be detected before any bucket is written.
            grouping = grouped(layout_of(definition), changes.rows)
    return Request(
        *(changes, writer_id, sequence, epoch, grouping, targets, overwrite, definition.schema_id),
        encoded=encoded,
        answer=Answer() if answer is None else answer,
    )


def up_to_date(request: Request | SmallRequest, definition: TableDefinition) -> Request | SmallRequest:
    """A request whose columns are called as they are now, if some have other names since it was made."""
    if isinstance(request, SmallRequest):
        if request.writes is encoded_writes(definition):
            return request
        request = request.request()  # the table was altered
    if request.schema_id is None or not (names := definition.renamed_since(request.schema_id)):
        return request
    targets = request.targets
    if targets is not None:
        targets = frozenset(new for each in targets if (new := names[each]) is not None)
    changes = renamed(request.changes, names)
    return replace(request, given=changes, targets=targets, schema_id=definition.schema_id, encoded=None)


def _deletes_allowed(changes: Changes, definition: TableDefinition) -> Changes:
    """The changes that remain under the table's delete behavior."""
    behavior = definition.options.delete_behavior
    if behavior == "allow" or not changes.is_delete.true_count:
        return changes
    if behavior == "disable":
        raise DeletionDisabled(
            "Delete operations are disabled for this table. The table.delete.behavior is set to 'disable'."
        )
    return Changes.upserts(changes.rows.filter(pc.invert(changes.is_delete)))
