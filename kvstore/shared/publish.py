"""Publishes a table of a store as a shared table, with its whole history.

* Batches are those of the store, but for the id of the table: offsets, times, writers and their sequences stay.
* Everything is uploaded under the id of a new table, which nothing names before its definition is created. Creating
  that is the commit; a process that dies before leaves objects that no table has.
* A table is published as of one moment, at which no commit over several buckets is in some of them only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET, structs

from kvstore.bucket.handle import BucketHandle
from kvstore.clock import Clock
from kvstore.commit.named_writers import TRANSACTION
from kvstore.errors import UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import uninterrupted
from kvstore.replica.client import Client
from kvstore.replica.ship.merging import RANGE_BYTES
from kvstore.shared.table import Content, SharedTable
from kvstore.shared.write import check_age
from kvstore.table.open_table import OpenTable
from logformat.catalog.edits import CreateTable
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId, Offset, TableId
from logformat.log.batch import of_table
from logformat.replica.object_file import encode_object
from logformat.replica.shared_table import FIRST_ATTEMPT, WRITERS_MAX, SharedRange
from logformat.rows import schema as schemas


@dataclass(frozen=True)
class _Moment:
    """A table as of one moment.

    Attributes:
        ends: The end of each bucket.
        last_ms: Time of its last commit (ms).
        transactions: Names of Spark's batch writes that have taken place.
    """

    definition: TableDefinition
    ends: list[Offset]
    last_ms: int
    transactions: list[str]


def publish(table: OpenTable, url: str, client: Client, clock: Clock) -> SharedTable:
    """Make a shared table of a table of a store; see :meth:`kvstore.Store.publish`.

    Args:
        client: Of the URL.
    """
    moment = _moment_of(table)
    create = _created_from(moment.definition)
    for handle in table.handles:
        _check_whole(handle)
    return SharedTable.create(url, client, create, clock, partial(_content, table.handles, moment, clock))


@uninterrupted
def _moment_of(table: OpenTable) -> _Moment:
    with table.commits.turn():
        for handle in table.handles:
            handle.flush()
        states = [handle.committed() for handle in table.handles]
        definition, writers, _ = table.catalog.now()  # after the ends, so it has the schemas of all batches before them
        names = [
            name.removeprefix(TRANSACTION)
            for name, writer in writers.named.items()
            if name.startswith(TRANSACTION) and table.commits.last_sequence(writer.writer_id) is not None
        ]
    last_ms = max(state.last_timestamp for state in states)
    return _Moment(definition, [state.applied_offset for state in states], last_ms, names)


def _created_from(definition: TableDefinition) -> CreateTable:
    """The edit that creates a table of this definition.

    Raises:
        UnsupportedOperation: A shared table can't have the definition.
    """
    about = {"table": definition.name}
    if len(definition.schemas) > 1:
        raise UnsupportedOperation(
            "Columns of this table were added, renamed or dropped, and a shared table has the columns that it began "
            "with. Write the rows to a new table, and publish that.",
            **about,
        )
    if definition.options.auto_increment is not None:
        raise UnsupportedOperation(
            "A shared table can't number rows by itself; write the rows to a table without `auto_increment`, and "
            "publish that.",
            **about,
            column=definition.options.auto_increment,
        )
    return CreateTable(
        table_id=TableId(0),
        name=definition.name,
        columns=schemas.to_json(definition.stored),
        primary_key=None if definition.primary_key is None else list(definition.primary_key),
        buckets=definition.buckets,
        bucket_key=None if definition.bucket_key is None else list(definition.bucket_key),
        options=structs.replace(definition.options, indexes=UNSET),  # they are of what is on this machine
    )


def _check_whole(handle: BucketHandle) -> None:
    start = handle.log.start()
    if start > 0:
        raise UnsupportedOperation(
            "The log of this table has expired up to an offset, and a shared table has all changes. Write the rows to "
            "a new table, and publish that.",
            bucket=handle.identity.bucket_id,
            log_start=start,
        )


def _content(handles: Sequence[BucketHandle], moment: _Moment, clock: Clock, shared: SharedTable) -> Content:
    began = clock.monotonic()
    ranges = [list(_uploaded(handle, end, shared)) for handle, end in zip(handles, moment.ends, strict=True)]
    check_age(began, clock)
    return Content(ranges, dict.fromkeys(moment.transactions[-WRITERS_MAX:], 0), moment.last_ms)


def _uploaded(handle: BucketHandle, end: Offset, shared: SharedTable) -> Iterator[SharedRange]:
    """Upload the history of a bucket in objects of about ``RANGE_BYTES``; their ranges."""
    stream = Stream(shared.definition.id, BucketId(handle.identity.bucket_id))
    # The attempts of consecutive ranges increase: where one of a larger attempt begins, those of smaller ones end.
    for attempt, (first, last, parts) in enumerate(_pieces(handle, end, shared.definition.id), FIRST_ATTEMPT + 1):
        name = SharedRange(first, last, attempt, 0).name(stream)
        pieces = encode_object(name, shared.described.store_id, parts)
        # If it is there, an answer was lost: no other process knows the id of the table.
        shared.client.create(str(name), pieces)
        yield SharedRange(first, last, attempt, sum(map(len, pieces)))


def _pieces(handle: BucketHandle, end: Offset, table: TableId) -> Iterator[tuple[Offset, Offset, list[memoryview]]]:
    first, parts = Offset(0), list[memoryview]()
    for batch in handle.log.batches(first, end):
        parts.append(of_table(batch.data, table))
        last = batch.header.next_offset
        if last >= end or sum(map(len, parts)) >= RANGE_BYTES:
            yield first, last, parts
            first, parts = last, []
