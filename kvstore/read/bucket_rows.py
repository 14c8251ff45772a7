"""Rows of one bucket from a key on, as they are or as they were, and the offset as of which they are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import pyarrow as pa

from kvstore.bucket.handle import BucketHandle
from kvstore.errors import InvalidRequest, UnsupportedOperation
from kvstore.index.index import View
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.read.scan import KeyRange, offset_as_of, rows_as_of, scan_schema
from kvstore.request.row_layout import layout_of
from logformat.ids import Offset
from logformat.rows import intake
from logformat.rows.intake import Keys


@dataclass(frozen=True, slots=True)
class BucketRows:
    """Rows of a bucket in key order.

    Attributes:
        schema: Their columns.
        offset: They are as of this offset: after all changes before it.
        end: The end of the log when the read began.
        batches: The rows, read as they are asked for, until the context is left.
    """

    schema: pa.Schema
    offset: Offset
    end: Offset
    batches: Iterator[pa.RecordBatch]


@contextmanager
def bucket_rows(
    handle: BucketHandle,
    definition: Callable[[], TableDefinition],
    latest: Callable[[], TableDefinition],
    columns: Sequence[str] | None,
    key: Keys,
    after: Keys,
    as_of: int | dt.datetime | None,
    batch_rows: int,
) -> Iterator[BucketRows]:
    """See :meth:`kvstore.Bucket.scan`.

    Args:
        definition: Returns the definition by which columns are called; raises if the table was dropped.
        latest: Returns the one that has the schemas of all rows.
    """
    asked = definition()
    schema = scan_schema(asked, columns)
    if asked.primary_key is None:
        raise UnsupportedOperation("A log table has no rows by key; see its changes.", table=asked.name)
    within = _within(asked, key, after)
    with handle.snapshot() as view:
        end = view.state().applied_offset
        # Read after the view, so that it has the schemas of all rows.
        current = latest().named_as(asked)
        offset = end if as_of is None else offset_as_of(as_of, handle.log, end)
        batches = _rows(view, handle.log, current, offset, schema.names, within, batch_rows)
        left = Event()
        try:
            yield BucketRows(schema, offset, end, _until(left, batches, schema))
        finally:
            left.set()


def _until(left: Event, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while True:
        if left.is_set():
            raise InvalidRequest("The context of these rows was left, which ended the read; use them within it.")
        batch = next(batches, None)
        if batch is None:
            return
        yield batch.cast(schema)


def _within(definition: TableDefinition, key: Keys, after: Keys) -> KeyRange:
    if key is not None and after is not None:
        raise InvalidRequest("Give either `key` or `after`.")
    given = key if after is None else after
    if given is None:
        return KeyRange()
    layout = layout_of(definition)
    keys = intake.key_rows(given, layout.key_schema)
    if keys.num_rows != 1:
        raise InvalidRequest("Give one key.", given=keys.num_rows)
    start = bytes(layout.encode_keys(keys).to_list()[0])
    return KeyRange(start + b"\0") if key is None else KeyRange(start, start + b"\0")


def _rows(
    view: View,
    log: LogFiles,
    definition: TableDefinition,
    offset: Offset,
    columns: list[str],
    within: KeyRange,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    # Reads the log once it is asked for.
    yield from rows_as_of(view, log, definition, offset, columns, [within], batch_rows=batch_rows)
