"""The reading half of a table: its definition, rows and changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import column_names, integer, integer_within, shown
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import InvalidRequest, OffsetOutOfRange, StoreError, UnsupportedOperation
from kvstore.history.past import Past
from kvstore.history.reads import HistoryReads
from kvstore.index.index import View
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.process.meter import GETS_TIMED
from kvstore.read.binlog import binlog_of, binlog_schema, changelog_columns
from kvstore.read.changelog import End, Start, changelog_schema
from kvstore.read.changelog_reader import AsyncChanges, ChangelogReader
from kvstore.read.follow import ChangeReader, polled, range_between, together
from kvstore.read.lookup import SingleReads, prefix_row, rows_of_keys, rows_of_prefix
from kvstore.read.pruning import ranges_where
from kvstore.read.scan import (
    KeyRange,
    check_filter,
    first_rows,
    offset_as_of,
    rows_as_of,
    rows_now,
    rows_where,
    scan_schema,
)
from kvstore.read.splits import Splits
from kvstore.read.time_travel import check_undoable
from kvstore.request.partition import bucket_of, buckets_of_rows, place_in
from kvstore.request.row_layout import layout_of
from kvstore.table.access import Access
from kvstore.table.open_table import OpenTable
from logformat.catalog.edits import TableOptions
from logformat.ids import OFFSET_MAX, BucketId, Offset
from logformat.rows import intake
from logformat.rows.intake import Keys

B = TypeVar("B")


class TableReads(HistoryReads):
    """Definition, rows and changes of an open table.

    :class:`kvstore.table.everyday.EverydayReads` adds what other libraries expect, :class:`kvstore.Table` writing.

    Args:
        opened: What the process has open of the table.
        access: Whether the store is open, and may be written.
    """

    _change_reader: type[ChangeReader] = ChangeReader

    def __init__(self, opened: OpenTable, access: Access) -> None:
        self._access = access
        self.use(opened)

    def use(self, opened: OpenTable) -> None:
        """Read from now on what the process has open of the table, or of the copy of it that has replaced it."""
        self._handles = opened.handles
        self._meter = opened.meter
        self._gets = opened.meter.gets
        self._single = SingleReads(opened.handles)
        self.use_catalog(opened.catalog)

    def use_catalog(self, catalog: TableCatalog) -> None:
        """Ask another catalog whether the table is there, and for its definition."""
        self._catalog = catalog

    def _current(self) -> TableDefinition:
        """Definition of the table as the catalog has it now.

        Raises:
            NoSuchTable, StoreClosed: The table was dropped, or the store closed.
        """
        self._access.check_open()
        return self._catalog.definition()

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._current().name

    @property
    def identity(self) -> tuple[UUID, int]:
        """Ids of the store and of the table: unlike a name, an id is never used again."""
        identity = self._handles[0].place.identity
        return identity.store_id, identity.table_id

    @property
    def schema(self) -> pa.Schema:
        """Columns, typed as they are stored."""
        return self._current().schema

    @property
    def schema_id(self) -> int:
        """Id of the current schema; it grows with each change of the columns."""
        return self._current().schema_id

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """Names of the key's columns in key order; None for a log table."""
        return self._current().primary_key

    @property
    def buckets(self) -> int:
        """Number of buckets; they are numbered from 0."""
        return self._current().buckets

    @property
    def bucket_key(self) -> tuple[str, ...] | None:
        """Names of the columns that decide the bucket of a row; None for a log table whose rows may go to any."""
        return self._current().bucket_key

    @property
    def options(self) -> TableOptions:
        """Options of the table, as they were given to :meth:`kvstore.Store.create_table`, or changed since."""
        return self._current().options

    # Rows

    def get(self, key: Keys) -> dict[str, Any] | None:
        """The row of a key, or None.

        Args:
            key: A scalar, a tuple in key order, or a dict.

        Raises:
            SchemaMismatch: The key does not fit.
            CorruptData: The row is damaged.
        """
        if next(self._gets) % GETS_TIMED:
            self._access.check_open()
            return self._single.get(key, self._catalog.definition(), self._keyed)
        began = self._meter.get.now()
        row = self._single.get(key, self._keyed(), self._keyed)
        self._meter.get.since(began)
        return row

    def __getitem__(self, key: Keys) -> dict[str, Any]:
        row = self.get(key)
        if row is None:
            raise KeyError(key)
        return row

    def __contains__(self, key: Keys) -> bool:
        return self.get(key) is not None

    def lookup(self, keys: Keys) -> pa.Table:
        """The rows of keys, one for each key, in order.

        Args:
            keys: A list of keys (scalars, tuples or dicts), or Arrow data: the key's columns, or the one it has.

        Returns:
            All columns, and ``_found``. Where ``_found`` is false, the row holds the key and nulls.

        Raises:
            SchemaMismatch: A key does not fit.
            CorruptData: A row is damaged.
        """
        definition = self._keyed()
        key_rows = intake.key_rows(keys, layout_of(definition).key_schema)
        return rows_of_keys(self._handles, lambda: self._keyed().named_as(definition), key_rows)

    def prefix_lookup(self, prefix: Mapping[str, Any] | Sequence[Any]) -> pa.Table:
        """The rows whose keys begin with given values, in key order; with several buckets, one bucket after the other.

        Only one bucket is read if the prefix has all columns of the bucket key.

        Args:
            prefix: Values of the first columns of the key: a dict, or a tuple in key order.

        Raises:
            SchemaMismatch: The columns are not the first ones of the key, or a value does not fit.
            CorruptData: A row is damaged.
        """
        definition = self._keyed()
        values = prefix_row(prefix, layout_of(definition).key_schema)
        return rows_of_prefix(self._handles, lambda: self._keyed().named_as(definition), values)

    def buckets_of(self, keys: Keys) -> list[int]:
        """The bucket of each key.

        Args:
            keys: See :meth:`lookup`.

        Raises:
            SchemaMismatch: A key does not fit.
        """
        definition = self._keyed()
        found: list[int] = buckets_of_rows(definition, intake.key_rows(keys, layout_of(definition).key_schema)).tolist()
        return found

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
    ) -> pa.RecordBatchReader:
        """Read all rows in key order, as they are at the moment of the call.

        Args:
            columns: Columns to return, in this order; all if None.
            filter: Only rows for which it is true, such as ``pc.field("n") > 1``; it may use any column.
            limit: Largest number of rows.
            as_of: Read the rows as they were after all changes before this offset, or before the first commit at or
                after this time; this needs the log since then.

        Raises:
            InvalidRequest: An argument is not possible; a filter that fails for a row is raised by the reader.
            SchemaMismatch: There is no such column.
            OffsetOutOfRange: The log does not reach back to ``as_of``, or has not reached it yet.
            CorruptData: A row or a change is damaged; the reader may raise it.
        """
        definition = self._keyed()
        names = _names(columns)
        schema = scan_schema(definition, names)
        if filter is not None:
            check_filter(filter, definition.schema)
        if limit is not None:
            limit = integer_within("limit", limit, 0, OFFSET_MAX)
        needed = (
            names if filter is None else definition.schema.names
        )  # pyarrow does not report which columns a filter uses
        wanted = schema.names if needed is None else needed
        buckets = self._bucket_ids()
        places = {bucket: place_in("as_of", as_of, bucket, buckets) for bucket in buckets}

        def read(handle: BucketHandle, view: View) -> Iterator[pa.RecordBatch]:
            # The current definition has the schemas of all rows.
            current, place = self._keyed().named_as(definition), places[handle.place.identity.bucket_id]
            if place is None:
                ranges = [KeyRange()] if filter is None else ranges_where(view, current, filter)
                return chain.from_iterable(rows_now(view, current, wanted, keys) for keys in ranges)
            then = offset_as_of(place, handle.log, view.state().applied_offset)
            return rows_as_of(view, handle.log, current, then, wanted)

        rows: Iterator[pa.RecordBatch] = chain.from_iterable([self._held(handle, read) for handle in self._handles])
        if filter is not None:
            rows = (batch.select(schema.names) for batch in rows_where(rows, filter))
        return pa.RecordBatchReader.from_batches(schema, rows if limit is None else first_rows(rows, limit))

    def count(self) -> int:
        """Number of rows; for a log table, number of appended records.

        Raises:
            UnsupportedOperation: The table's changelog is a WAL image.
        """
        if self._current().options.changelog_image == "wal":
            raise UnsupportedOperation(
                "Row count is disabled for this table: its changelog is a WAL image; use scan()."
            )
        return sum(handle.state().row_count for handle in self._handles)

    # Changes

    def offsets(self) -> dict[int, tuple[int, int]]:
        """For each bucket, the first offset that the log holds and the offset after its last."""
        self._current()
        return {
            bucket: (handle.log.start(), handle.state().applied_offset) for bucket, handle in enumerate(self._handles)
        }

    def changelog(
        self,
        start: Start = "earliest",
        end: End = "latest",
        bucket: int | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
    ) -> ChangelogReader:
        """Read changes in commit order; several buckets one after the other, or, with ``follow``, as changes arrive.

        Args:
            start: ``full`` (the current rows as inserts, then the changes after them), ``earliest``, ``latest``, an
                offset, an offset for each bucket, or a time: the first commit at or after it.
            end: Exclusive: ``latest``, an offset, one for each bucket, or a time: the first commit at or after it.
            bucket: Read only this bucket.
            columns: Columns to return, in this order; all if None.
            follow: Wait for new changes, of this process or another, until ``end`` is reached. An offset or a time
                may be in the future; ``latest`` is never reached. A change is returned once other processes see it;
                the writing process does not commit earlier for it, but :meth:`flush` does.

        Returns:
            An iterator of record batches of ``_bucket, _log_offset, _change_type, _commit_timestamp, _commit_version``
            and the row, none of them empty; it is also one stream of Arrow data, and reads all of them at once. While
            it waits, it raises StoreClosed or NoSuchTable once the store is closed or the table dropped.

        Raises:
            InvalidRequest: An argument is not possible, or ``end`` comes before ``start``.
            OffsetOutOfRange: The log does not hold ``start``, or has not reached ``end``.
            SchemaMismatch: There is no such column.
            CorruptBatch: The log is damaged; the iterator raises it.
        """
        definition = self._current()
        schema = changelog_schema(definition, _names(columns))
        return ChangelogReader(schema, self._changes(definition, schema.names, start, end, bucket, follow))

    def follow(
        self,
        start: Start = "earliest",
        end: End = "latest",
        bucket: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> AsyncChanges:
        """Read changes as they arrive, for asyncio: ``async for batch in t.follow(): …``.

        Nothing runs between two batches. Leaving the loop or cancelling it ends what this began.

        Args:
            start, end, bucket, columns: See :meth:`changelog`, of which this is the form with ``follow``, also for
                errors.
        """
        definition = self._current()
        names = changelog_schema(definition, _names(columns)).names
        readers = self._readers(definition, names, start, end, bucket, follow=True)
        return AsyncChanges(self._while_current(polled(readers)))

    def binlog(
        self,
        start: Start = "earliest",
        end: End = "latest",
        bucket: int | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
    ) -> ChangelogReader:
        """Read changes in commit order, one row for each: an update has the row before and the row after.

        Args:
            start, end, bucket, follow: See :meth:`changelog`. An update belongs to the range of offsets that has its
                second half.
            columns: Columns of the rows before and after, in this order; all if None.

        Returns:
            As :meth:`changelog`, batches of ``_bucket, _log_offset, _change_type, _commit_timestamp, _commit_version``
            and two structs, ``before`` (null for an insert) and ``after`` (null for a delete). An update has the
            offset and the type of its second half, ``update_postimage``. In a log table every row is an ``append``.

        Raises:
            InvalidRequest, OffsetOutOfRange, SchemaMismatch, CorruptBatch: See :meth:`changelog`.
            UnsupportedOperation: The table's changelog is a WAL image.
        """
        definition = self._current()
        check_undoable(definition)
        schema = binlog_schema(definition, _names(columns))
        changes = self._changes(definition, changelog_columns(schema), start, end, bucket, follow, whole_updates=True)
        return ChangelogReader(schema, binlog_of(changes, schema))

    # For readers in several processes, which share the work

    @property
    def store_path(self) -> Path:
        """Directory of the store."""
        return self._handles[0].place.directory.parents[2]

    def changelog_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Schema of the changelog with these columns; all if None.

        Raises:
            SchemaMismatch: There is no such column.
        """
        return changelog_schema(self._current(), _names(columns))

    def scan_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Schema of a scan with these columns; all if None.

        Raises:
            SchemaMismatch: There is no such column.
        """
        return scan_schema(self._keyed(), _names(columns))

    def binlog_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Schema of the binlog.

        Args:
            columns: Columns of the rows before and after; all if None.

        Raises:
            SchemaMismatch: There is no such column.
            UnsupportedOperation: The table's changelog is a WAL image.
        """
        check_undoable(self._current())
        return binlog_schema(self._current(), _names(columns))

    def offset_ranges(self, start: Start = "earliest", end: End = "latest") -> dict[BucketId, tuple[Offset, Offset]]:
        """For each bucket, the offsets from which (inclusive) and to which (exclusive) :meth:`changelog` would read.

        Raises:
            InvalidRequest, OffsetOutOfRange: See :meth:`changelog`.
        """
        self._current()
        ranges, buckets = {}, self._bucket_ids()
        for bucket, handle in zip(buckets, self._handles, strict=True):
            with handle.snapshot() as view:
                now = view.state().applied_offset
            first, last = place_in("start", start, bucket, buckets), place_in("end", end, bucket, buckets)
            ranges[bucket] = range_between(first, last, handle.log, now)
        return ranges

    def offsets_as_of(self, as_of: int | Mapping[int, int] | dt.datetime) -> dict[BucketId, Offset]:
        """For each bucket, the offset that :meth:`scan` would read as of.

        Raises:
            InvalidRequest, OffsetOutOfRange: See :meth:`scan`.
            UnsupportedOperation: The table's changelog is a WAL image, or the table has no key.
        """
        check_undoable(self._keyed())
        found, buckets = {}, self._bucket_ids()
        for bucket, handle in zip(buckets, self._handles, strict=True):
            with handle.snapshot() as view:
                now = view.state().applied_offset
            offset = offset_as_of(place_in("as_of", as_of, bucket, buckets), handle.log, now)
            if not handle.log.start() <= offset <= now:
                raise OffsetOutOfRange(
                    "Rows can be read as of offsets that the log holds.",
                    as_of=offset,
                    log_start=handle.log.start(),
                    log_end=now,
                )
            found[bucket] = offset
        return found

    def committed(self) -> dict[BucketId, tuple[Offset, int]]:
        """For each bucket, the offset after the last change that every process sees, and its commit timestamp (ms).

        Cheap enough for frequent calls.
        """
        self._current()
        states = {bucket: handle.committed() for bucket, handle in zip(self._bucket_ids(), self._handles, strict=True)}
        return {bucket: (state.applied_offset, state.last_timestamp) for bucket, state in states.items()}

    def bucket_of(self, values: Mapping[str, pa.Scalar]) -> int | None:
        """The bucket of all rows with these values; None if several buckets may have some."""
        return bucket_of(self._current(), values)

    def shares(self, bucket: int) -> Splits:
        """Reads of a bucket that several readers share.

        Raises:
            InvalidRequest: The table has no such bucket.
        """
        return Splits(self._handle(bucket), self._keyed, self._held)

    def _keyed(self) -> TableDefinition:
        self._access.check_open()
        definition = self._catalog.definition()
        if definition.primary_key is None:
            raise UnsupportedOperation("A log table has no key; read it with changelog().", table=definition.name)
        return definition

    def _past(self) -> Past:
        return Past(self._handles, self._keyed, self._catalog.journal.state)

    def _changes(
        self,
        definition: TableDefinition,
        names: Sequence[str],
        start: Start,
        end: End,
        bucket: int | None = None,
        follow: bool = False,
        *,
        whole_updates: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        if not isinstance(follow, (bool, np.bool_)):
            raise InvalidRequest("`follow` is True or False.", follow=shown(follow))
        readers = self._readers(definition, names, start, end, bucket, follow=bool(follow), whole_updates=whole_updates)
        return self._while_current(together(readers))

    def _readers(
        self,
        definition: TableDefinition,
        names: Sequence[str],
        start: Start,
        end: End,
        bucket: int | None,
        *,
        follow: bool,
        whole_updates: bool = False,
    ) -> list[Iterator[pa.RecordBatch | None]]:
        buckets = self._bucket_ids() if bucket is None else [self._handle(bucket).place.identity.bucket_id]
        if isinstance(start, str) and start == "full":
            self._keyed()
        readers = []
        for each in buckets:
            reader = self._change_reader(
                self._handles[each], lambda: self._current().named_as(definition), names, whole_updates
            )
            first, last = place_in("start", start, each, buckets), place_in("end", end, each, buckets)
            readers.append(reader.read(first, last, follow=follow))
        return readers

    def _bucket_ids(self) -> list[BucketId]:
        return [BucketId(bucket) for bucket in range(len(self._handles))]

    def _handle(self, bucket: int) -> BucketHandle:
        self._current()
        if not 0 <= integer("bucket", bucket) < len(self._handles):
            raise InvalidRequest("The table has no such bucket.", bucket=bucket, buckets=len(self._handles))
        return self._handles[bucket]

    def _held(
        self, handle: BucketHandle, read: Callable[[BucketHandle, View], Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches that ``read`` returns for a view, taken now and closed with the iterator."""

        def run() -> Iterator[pa.RecordBatch]:
            with handle.snapshot() as view:
                batches = read(handle, view)
                yield pa.record_batch([], names=[])  # for the caller below: the view is taken
                yield from self._while_current(batches)

        iterator = run()
        next(iterator)
        return iterator

    def _while_current(self, batches: Iterator[B]) -> Iterator[B]:
        """The same batches, as long as the table exists and the store is open here."""
        self._current()
        try:
            for batch in batches:
                yield batch
                self._current()
        except (StoreError, OSError):
            self._current()  # a dropped table or closed store is the cause to report
            raise


def _names(columns: Any) -> list[str] | None:
    return None if columns is None else column_names("columns", columns)
