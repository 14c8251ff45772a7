"""All versions of one row, from the log of the bucket that its key belongs to.

* The key columns of the whole range are compared for many batches at once; other columns are decoded only of batches
  that have the key.
* A preimage and its postimage have the same key and follow each other, so a selection by key keeps both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.history.origin import ORIGIN_FIELDS
from kvstore.history.past import Past
from kvstore.log.segments import FoundBatch
from kvstore.meta.state import TableDefinition
from kvstore.read.binlog import binlog_of, binlog_schema
from kvstore.read.changelog import Start, changelog_schema, changes_between
from kvstore.read.time_travel import check_undoable
from kvstore.request.partition import buckets_of_rows
from kvstore.request.row_layout import layout_of
from logformat.ids import BucketId, Offset
from logformat.log.batch import BatchHeader
from logformat.rows import intake
from logformat.rows.intake import Keys

LOG_START = b"log_start"
"""Name, in the metadata of a history's schema, of the first offset that the log of the key's bucket holds."""

_VERSION = "_commit_version"


def history_schema(definition: TableDefinition, log_start: Offset) -> pa.Schema:
    """Columns of a history: those of the binlog, then those about the origin."""
    fields = [*binlog_schema(definition), *ORIGIN_FIELDS]
    return pa.schema(fields, metadata={LOG_START: str(int(log_start)).encode()})


def history_of(past: Past, key: Keys, start: Start) -> pa.Table:
    """Every version of a row; see :meth:`kvstore.Table.history`."""
    latest = past.current()
    check_undoable(latest)
    key_row = intake.key_rows([key], layout_of(latest).key_schema)
    bucket = BucketId(0)
    if len(past.handles) > 1:
        bucket = BucketId(int(buckets_of_rows(latest, key_row)[0]))
    log = past.handles[bucket].log
    with past.reading():
        begin, end, _ = past.range_of(bucket, start, "latest")
        definition = past.latest().named_as(latest)  # read after `end`, so that it has the schemas of all changes
        origins = past.origins()
        headers: dict[Offset, BatchHeader] = {}

        def noted() -> Iterator[FoundBatch]:
            for batch in batches_with_key(log.batches(begin, end), definition, bucket, begin, end, key_row):
                headers[batch.header.base_offset] = batch.header
                yield batch

        changes = [pa.RecordBatch.from_pylist([], changelog_schema(definition))]
        changes += [
            rows.take(pc.indices_nonzero(has_key(rows, key_row)))
            for rows in changes_between(noted(), definition, bucket, begin, end, whole_updates=True)
        ]
        log_start = log.start()
    schema = history_schema(definition, log_start)
    versions = pa.Table.from_batches(
        binlog_of([pa.concat_batches(changes)], binlog_schema(definition)), binlog_schema(definition)
    ).combine_chunks()
    origin = origins.columns([headers[version] for version in versions.column(_VERSION).to_pylist()])
    return pa.Table.from_arrays([*versions.columns, *origin], schema=schema)


def batches_with_key(
    batches: Iterable[FoundBatch],
    definition: TableDefinition,
    bucket: BucketId,
    start: Offset,
    end: Offset,
    key_row: pa.RecordBatch,
) -> Iterator[FoundBatch]:
    """Those batches of the log that have changes of a key between two offsets."""
    seen: dict[Offset, FoundBatch] = {}

    def noted() -> Iterator[FoundBatch]:
        for each in batches:
            seen[each.header.base_offset] = each
            yield each

    names = [_VERSION, *key_row.schema.names]
    for keys in changes_between(noted(), definition, bucket, start, end, names):
        versions = keys.column(_VERSION).filter(has_key(keys, key_row))
        for version in pc.unique(versions).to_pylist():
            yield seen[version]
        seen.clear()


def has_key(rows: pa.RecordBatch, key_row: pa.RecordBatch) -> pa.BooleanArray:
    """For each row, whether it has the key."""
    # Not `equal`, which knows no decimals of a negative scale.
    return reduce(pc.and_, (pc.is_in(rows.column(name), key_row.column(name)) for name in key_row.schema.names))
