"""The reads of a table, wherever it is: in a store of this machine, in a replica, or in a place of shared tables.

* A call calls the columns by the names that they have when it begins, to its end, also if they are renamed meanwhile.
* A scan shows each bucket as it is at the call; what is written later is not in it, and writing goes on meanwhile.
* Once the table is dropped or the store closed, every call, and the next batch of every reader, says so.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import InvalidRequest, OffsetOutOfRange, StoreError, UnsupportedOperation
from kvstore.history.versions import history_of
from kvstore.indexing.conditions import conditions_of
from kvstore.indexing.entries import columns_of
from kvstore.indexing.single import UNKNOWN
from kvstore.meta.state import TableDefinition
from kvstore.process.meter import GETS_TIMED
from kvstore.read.binlog import binlog_of, binlog_schema, changelog_columns
from kvstore.read.changelog import End, Start, changelog_schema
from kvstore.read.changelog_reader import AsyncChanges, ChangelogReader
from kvstore.read.follow import polled, range_between
from kvstore.read.frames import html_of, pandas_frame, polars_frame, stream_of
from kvstore.read.lookup import FOUND, rows_of_keys, rows_of_prefix
from kvstore.read.ranges import Span, check_not_whole, prefix_row, span_of
from kvstore.read.scan import check_filter, offset_as_of, rows_where, scan_schema
from kvstore.read.time_travel import check_undoable
from kvstore.request.partition import bound_in, buckets_of_rows
from kvstore.request.row_layout import layout_of
from kvstore.table.access import Access, Opened
from kvstore.table.declared_schema import check_class, made_of
from kvstore.table.reading import Reading, names_of
from logformat.catalog.edits import TableOptions
from logformat.ids import BucketId, Offset
from logformat.rows import intake
from logformat.rows.intake import Keys
from logformat.rows.python_rows import rows_of

if TYPE_CHECKING:
    from kvstore.table.queries.dataset import Read, TableDataset

Made = TypeVar("Made")

SHOWN_ROWS = 10
"""Number of rows that a notebook shows of a table."""


class ReadTable:
    """A table that is read: its definition, rows and changes. :class:`kvstore.Table` adds writing.

    Made by :meth:`kvstore.StoreInReplica.table`; any thread may use it. In a replica or a shared table, ``as_of``,
    ``start`` or ``end`` after its end is ReplicaBehind.

    Args:
        opened: What the process has open of the table.
        access: Whether the store is open.
    """

    def __init__(self, opened: Opened, access: Access) -> None:
        self._reading = Reading(opened, access)

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._reading.current().name

    @property
    def identity(self) -> tuple[UUID, int]:
        """Ids of the store and of the table: unlike a name, an id is never used again."""
        identity = self._reading.handles[0].identity
        return identity.store_id, identity.table_id

    @property
    def schema(self) -> pa.Schema:
        """Columns, typed as they are stored."""
        return self._reading.current().schema

    @property
    def schema_id(self) -> int:
        """Id of the current schema; it grows with each change of the columns."""
        return self._reading.current().schema_id

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """Names of the key's columns in key order; None for a log table."""
        return self._reading.current().primary_key

    @property
    def buckets(self) -> int:
        """Number of buckets; they are numbered from 0."""
        return self._reading.current().buckets

    @property
    def bucket_key(self) -> tuple[str, ...] | None:
        """Names of the columns that decide the bucket of a row; None for a log table whose rows may go to any."""
        return self._reading.current().bucket_key

    @property
    def options(self) -> TableOptions:
        """Options of the table, as they were given to :meth:`kvstore.Store.create_table`, or changed since."""
        return self._reading.current().options

    # Rows

    @overload
    def get(self, key: Keys, *, into: None = None) -> dict[str, Any] | None: ...

    @overload
    def get(self, key: Keys, *, into: type[Made]) -> Made | None: ...

    def get(self, key: Keys, *, into: type[Any] | None = None) -> Any:
        """The row of a key, or None.

        Args:
            key: A scalar, a tuple in key order, or a dict.
            into: A dataclass, a pydantic model or a TypedDict: the row as one of these instead of a dict. Columns that
                it does not have are left out; UUIDs and members of enumerations are made of what is stored.

        Raises:
            SchemaMismatch: The key does not fit, or the row does not fit into the class.
            InvalidRequest: ``into`` is no such class.
            CorruptData: The row is damaged.
        """
        if into is not None:
            return self._got_into(key, into)
        reading = self._reading
        try:
            if next(reading.gets) % GETS_TIMED:
                reading.access.check_open()
                return reading.single.get(key, reading.catalog.definition())
            began = reading.meter.get.now()
            definition = reading.keyed()  # first: it may find that another copy is to be read
            row = reading.single.get(key, definition)
            reading.meter.get.since(began)
            return row
        except (StoreError, OSError):
            reading.current()  # a dropped table or closed store is the cause to report
            raise

    def _got_into(self, key: Keys, into: type[Any]) -> Any:
        check_class(into)
        row = self.get(key)
        return None if row is None else made_of(row, into)

    def __getitem__(self, key: Keys) -> dict[str, Any]:
        row = self.get(key)
        if row is None:
            raise KeyError(key)
        return row

    def __contains__(self, key: Keys) -> bool:
        try:
            return self.get(key) is not None
        except UnsupportedOperation:  # Python may have no value for a time of the row, which is there all the same
            return self.lookup([key]).column(FOUND)[0].as_py()

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
        definition = self._reading.keyed()
        key_rows = intake.key_rows(keys, layout_of(definition).key_schema)
        reading = self._reading
        with reading.one_moment():
            return rows_of_keys(reading.handles, lambda: reading.latest().named_as(definition), key_rows)

    def prefix_lookup(self, prefix: Mapping[str, Any] | Sequence[Any]) -> pa.Table:
        """The rows whose keys begin with given values, in key order; with several buckets, one bucket after the other.

        Only one bucket is read if the prefix has all columns of the bucket key. The values are whole: keys that begin
        with a part of a text are found by ``prefix`` of :meth:`scan`.

        Args:
            prefix: Values of the first columns of the key: a dict, or a tuple in key order.

        Raises:
            SchemaMismatch: The columns are not the first ones of the key, or a value does not fit.
            InvalidRequest: The prefix is a whole key, and its last column is text or bytes.
            CorruptData: A row is damaged.
        """
        definition = self._reading.keyed()
        values = prefix_row(prefix, layout_of(definition).key_schema)
        check_not_whole(values, layout_of(definition).key_schema)
        reading = self._reading
        with reading.one_moment():
            return rows_of_prefix(reading.handles, lambda: reading.latest().named_as(definition), values)

    def buckets_of(self, keys: Keys) -> list[int]:
        """The bucket of each key.

        Args:
            keys: See :meth:`lookup`.

        Raises:
            SchemaMismatch: A key does not fit.
        """
        definition = self._reading.keyed()
        numbers: list[int] = buckets_of_rows(
            definition, intake.key_rows(keys, layout_of(definition).key_schema)
        ).tolist()
        return numbers

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
        *,
        start: Keys = None,
        stop: Keys = None,
        reverse: bool = False,
        prefix: Keys = None,
    ) -> pa.RecordBatchReader:
        """Read all rows, or a range of keys, in key order, as they are at the moment of the call.

        A table of several buckets gives the order of keys over all of them once ``start``, ``stop``, ``prefix`` or
        ``reverse`` is given, and otherwise one bucket after the other, which costs less. Only rows of the range are
        read, and with a ``limit`` hardly more than so many; memory holds one batch of each bucket.

        Args:
            columns: Columns to return, in this order; all if None.
            filter: Only rows for which it is true, such as ``pc.field("n") > 1``; it may use any column.
            limit: Largest number of rows.
            start: First key (inclusive), which need not be there: a scalar, a tuple in key order, or a dict. Of a key
                of several columns, the first of them are enough: all keys from those that begin with them on.
            stop: Key that ends the range (exclusive), in the same forms.
            reverse: Whether to read from the last key to the first; ``start`` is the lower end all the same.
            prefix: Only keys that begin with it, in the same forms. The last column that is given may be the beginning
                of a text or of bytes, such as ``"u001:"``; of any other type, and before it, values are whole.
            as_of: Read the rows as they were after all changes before this offset, or before the first commit at or
                after this time; this needs the log since then.

        Raises:
            InvalidRequest: An argument is not possible; a filter that fails for a row is raised by the reader.
            SchemaMismatch: There is no such column, or a key does not fit.
            OffsetOutOfRange: The log does not reach back to ``as_of``, or has not reached it yet.
            CorruptData: A row or a change is damaged; the reader may raise it.
        """
        definition = self._reading.keyed()
        span = span_of(definition, start, stop, prefix, reverse)
        return self._reading.rows(definition, columns, filter, limit, as_of, span)

    @property
    def indexes(self) -> dict[str, tuple[str, ...]]:
        """Columns of each secondary index, by its name; see :meth:`kvstore.Store.create_index`."""
        definition = self._reading.current()
        return {each.name: tuple(columns_of(definition, each)) for each in definition.indexes}

    def find(self, **columns: Any) -> pa.Table:
        """The rows that have given values, found by a secondary index if one has the columns, otherwise by a scan.

        The rows are those of :meth:`scan` with the same condition, as they are at the call, in the same order.

        Args:
            columns: For each column a value, such as ``mail="a@x"``, where None finds nulls; a list of values, of which
                the row has one; or a range, a tuple of its two ends such as ``age=(18, 30)``, which both belong to it,
                and of which one may be None. With several columns, rows have all of it.

        Raises:
            SchemaMismatch: There is no such column, its values have no order, or a value does not fit.
            InvalidRequest: No column is given, or a range has not two ends.
            UnsupportedOperation: It is a log table.
            CorruptData: A row or an entry is damaged.
        """
        few = self._reading.found_few(columns)
        if few is not None:
            return few
        definition = self._reading.keyed()
        return self._reading.found(definition, conditions_of(columns, definition.schema))

    def find_one(self, **columns: Any) -> dict[str, Any] | None:
        """The first row that :meth:`find` would return, as a dict; None if there is none.

        Args:
            columns: See :meth:`find`, also for errors.
        """
        row = self._reading.found_one(columns)
        if row is UNKNOWN:
            one = self.find(**columns).slice(0, 1)
            return next(iter(rows_of(one, one.schema)), None)
        return row

    def explain(self, filter: pc.Expression | None = None, **columns: Any) -> str:
        """Say how rows are found: by which index, in which part of the keys, or by reading all rows.

        Args:
            filter: As of :meth:`scan`.
            columns: In place of a filter, as of :meth:`find`.

        Returns:
            One line of text for people; its words may change.

        Raises:
            InvalidRequest: Both are given, or neither is, or the filter does not fit the columns.
            SchemaMismatch: See :meth:`find`.
            UnsupportedOperation: It is a log table.
        """
        definition = self._reading.keyed()
        if (filter is None) == (not columns):
            raise InvalidRequest("Give a filter, as of scan(), or columns, as of find().", columns=list(columns))
        if filter is not None:
            check_filter(filter, definition.schema)
            return self._reading.explained(definition, filter)
        return self._reading.explained(definition, conditions_of(columns, definition.schema))

    def count(self) -> int:
        """Number of rows; for a log table, number of appended records.

        Raises:
            UnsupportedOperation: The changelog of a store's table is a WAL image: its rows are not counted.
        """
        self._reading.current()
        with self._reading.one_moment():
            return sum(handle.row_count() for handle in self._reading.handles)

    # Changes

    def offsets(self) -> dict[int, tuple[int, int]]:
        """For each bucket, the first offset that the log holds and the offset after its last."""
        self._reading.current()
        with self._reading.one_moment():
            return {bucket: handle.offsets() for bucket, handle in enumerate(self._reading.handles)}

    def changelog(
        self,
        start: Start = "earliest",
        end: End = "latest",
        bucket: int | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        filter: pc.Expression | None = None,
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
            filter: Only what changes the rows for which it is true, such as ``pc.field("n") > 3``: a row that comes
                into the filter is an ``insert``, one that leaves it a ``delete`` (the row before it, at the offset of
                the row after it), an update within it stays one, and all else is left out. So the changes up to an
                offset, put together, are the rows of ``scan(filter=…)`` at that offset. It may use any column.

        Returns:
            An iterator of record batches of ``_bucket, _log_offset, _change_type, _commit_timestamp, _commit_version``
            and the row, none of them empty; it is also one stream of Arrow data, and reads all of them at once. While
            it waits, it raises StoreClosed or NoSuchTable once the store is closed or the table dropped.

        Raises:
            InvalidRequest: An argument is not possible, or ``end`` comes before ``start``.
            OffsetOutOfRange: The log does not hold ``start``, or has not reached ``end``.
            SchemaMismatch: There is no such column.
            UnsupportedOperation: There is a filter, and the table's changelog is a WAL image.
            CorruptBatch: The log is damaged; the iterator raises it.
        """
        return self._reading.changelog(self._reading.current(), start, end, bucket, columns, follow, filter)

    def follow(
        self,
        start: Start = "earliest",
        end: End = "latest",
        bucket: int | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> AsyncChanges:
        """Read changes as they arrive, for asyncio: ``async for batch in t.follow(): …``.

        Nothing runs between two batches. Leaving the loop or cancelling it ends what this began.

        Args:
            start, end, bucket, columns, filter: See :meth:`changelog`, of which this is the form with ``follow``, also
                for errors.
        """
        definition = self._reading.current()
        names = changelog_schema(definition, names_of(columns)).names
        readers = self._reading.readers(definition, names, start, end, bucket, follow=True, filter=filter)
        return AsyncChanges(self._reading.while_current(polled(readers)), self._reading.waits(bucket))

    def binlog(
        self,
        start: Start = "earliest",
        end: End = "latest",
        bucket: int | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        filter: pc.Expression | None = None,
    ) -> ChangelogReader:
        """Read changes in commit order, one row for each: an update has the row before and the row after.

        Args:
            start, end, bucket, follow, filter: See :meth:`changelog`. An update belongs to the range of offsets that
                has its second half.
            columns: Columns of the rows before and after, in this order; all if None.

        Returns:
            As :meth:`changelog`, batches of ``_bucket, _log_offset, _change_type, _commit_timestamp, _commit_version``
            and two structs, ``before`` (null for an insert) and ``after`` (null for a delete). An update has the
            offset and the type of its second half, ``update_postimage``. In a log table every row is an ``append``.

        Raises:
            InvalidRequest, OffsetOutOfRange, SchemaMismatch, CorruptBatch: See :meth:`changelog`.
            UnsupportedOperation: The table's changelog is a WAL image.
        """
        definition = self._reading.current()
        check_undoable(definition)
        schema = binlog_schema(definition, names_of(columns))
        names = changelog_columns(schema)
        waits = self._reading.waits(bucket)
        how: dict[str, Any] = {"whole_updates": True, "filter": filter, "waits": waits}
        changes = self._reading.changes(definition, names, start, end, bucket, follow, **how)
        return ChangelogReader(schema, binlog_of(changes, schema), waits)

    def history(self, key: Keys, start: Start = "earliest") -> pa.Table:
        """Every version of a row that the log holds, in order, and who wrote it.

        Only the log of the key's bucket is read, all of it after ``start``.

        Args:
            key: A scalar, a tuple in key order, or a dict. It need not have a row now.
            start: See :meth:`changelog`; ``full`` is refused.

        Returns:
            The columns of :meth:`binlog`, and for each change: ``writer`` (the name, or the id of a writer without
            one), ``writer_id``, ``epoch`` (its number if the writer sends epochs, else the writer's incarnation),
            ``sequence``, ``run`` (such as a query of Spark), and the ingestion ``job``, its ``task`` and ``file`` (for
            the latest tasks). A batch without a writer has nulls there. The schema's metadata has ``log_start``, the
            first offset that the log holds: versions before it are gone.

        Raises:
            SchemaMismatch: The key does not fit.
            InvalidRequest: ``start`` is not possible.
            OffsetOutOfRange: The log does not hold ``start``.
            UnsupportedOperation: It is a log table, or the changelog is a WAL image.
            CorruptBatch: The log is damaged.
        """
        with self._reading.one_moment(start):
            return history_of(self._reading.past(), key, start)

    # For readers that divide the work, or have a schema of their own

    def changelog_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Schema of the changelog with these columns; all if None.

        Raises:
            SchemaMismatch: There is no such column.
        """
        return changelog_schema(self._reading.current(), names_of(columns))

    def scan_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Schema of a scan with these columns; all if None.

        Raises:
            SchemaMismatch: There is no such column.
        """
        return scan_schema(self._reading.keyed(), names_of(columns))

    def binlog_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Schema of the binlog.

        Args:
            columns: Columns of the rows before and after; all if None.

        Raises:
            SchemaMismatch: There is no such column.
            UnsupportedOperation: The table's changelog is a WAL image.
        """
        check_undoable(self._reading.current())
        return binlog_schema(self._reading.current(), names_of(columns))

    def offset_ranges(self, start: Start = "earliest", end: End = "latest") -> dict[BucketId, tuple[Offset, Offset]]:
        """For each bucket, the offsets from which (inclusive) and to which (exclusive) :meth:`changelog` would read.

        Raises:
            InvalidRequest, OffsetOutOfRange: See :meth:`changelog`.
        """
        self._reading.current()
        ranges, buckets = {}, self._reading.buckets
        with self._reading.one_moment(start, end):
            for bucket, handle in zip(buckets, self._reading.handles, strict=True):
                now = handle.shown().applied_offset
                begin, stop = bound_in("start", start, bucket, buckets), bound_in("end", end, bucket, buckets)
                ranges[bucket] = range_between(begin, stop, handle.log, now)
        return ranges

    def offsets_as_of(self, as_of: int | Mapping[int, int] | dt.datetime) -> dict[BucketId, Offset]:
        """For each bucket, the offset that :meth:`scan` would read as of.

        Raises:
            InvalidRequest, OffsetOutOfRange: See :meth:`scan`.
            UnsupportedOperation: The table's changelog is a WAL image, or the table has no key.
        """
        check_undoable(self._reading.keyed())
        offsets, buckets = {}, self._reading.buckets
        with self._reading.one_moment(as_of):
            for bucket, handle in zip(buckets, self._reading.handles, strict=True):
                now = handle.shown().applied_offset
                offset = offset_as_of(bound_in("as_of", as_of, bucket, buckets), handle.log, now)
                if not handle.log.start() <= offset <= now:
                    raise OffsetOutOfRange(
                        "Rows can be read as of offsets that the log holds.",
                        as_of=offset,
                        log_start=handle.log.start(),
                        log_end=now,
                    )
                offsets[bucket] = offset
        return offsets

    def committed(self) -> dict[BucketId, tuple[Offset, int]]:
        """For each bucket, the offset after the last change that every process sees, and its commit timestamp (ms).

        Cheap enough for frequent calls; of a replica, the last commit of each bucket is read once it has changed.
        """
        self._reading.current()
        with self._reading.one_moment():
            states = [handle.committed() for handle in self._reading.handles]
        return {BucketId(bucket): (state.applied_offset, state.last_timestamp) for bucket, state in enumerate(states)}

    # For Python and its libraries

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
        *,
        start: Keys = None,
        stop: Keys = None,
        reverse: bool = False,
        prefix: Keys = None,
    ) -> pa.Table:
        """All rows in key order, in memory; :meth:`scan` reads them batch by batch.

        Args:
            columns, filter, limit, as_of, start, stop, reverse, prefix: See :meth:`scan`.

        Raises:
            InvalidRequest, SchemaMismatch, OffsetOutOfRange, CorruptData: See :meth:`scan`.
            UnsupportedOperation: It is a log table.
        """
        reading = self._reading
        definition = reading.keyed()
        span = span_of(definition, start, stop, prefix, reverse)
        if filter is None and as_of is None and (few := reading.few(definition, columns, limit, span)) is not None:
            return few
        return reading.rows(definition, columns, filter, limit, as_of, span).read_all()

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
        *,
        start: Keys = None,
        stop: Keys = None,
        reverse: bool = False,
        prefix: Keys = None,
    ) -> Any:
        """All rows in key order as a ``pandas.DataFrame``.

        A column of integers with nulls gets a nullable type of pandas, such as ``Int64``, so that each value is exact.

        Args:
            columns, filter, limit, as_of, start, stop, reverse, prefix: See :meth:`scan`.

        Raises:
            UnsupportedOperation: pandas is not installed, or it is a log table.
            InvalidRequest, SchemaMismatch, OffsetOutOfRange, CorruptData: See :meth:`scan`.
        """
        rows = self.to_arrow(columns, filter, limit, as_of, start=start, stop=stop, reverse=reverse, prefix=prefix)
        return pandas_frame(rows)

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
        *,
        start: Keys = None,
        stop: Keys = None,
        reverse: bool = False,
        prefix: Keys = None,
    ) -> Any:
        """All rows in key order as a ``polars.DataFrame``.

        Args:
            columns, filter, limit, as_of, start, stop, reverse, prefix: See :meth:`scan`.

        Raises:
            UnsupportedOperation: Polars is not installed, or it is a log table.
            InvalidRequest, SchemaMismatch, OffsetOutOfRange, CorruptData: See :meth:`scan`.
        """
        rows = self.to_arrow(columns, filter, limit, as_of, start=start, stop=stop, reverse=reverse, prefix=prefix)
        return polars_frame(rows)

    def dataset(self) -> TableDataset:
        """The rows as a ``pyarrow.dataset.Dataset``, which DuckDB, Polars and pyarrow scan lazily.

        Each scan reads the columns and rows that it needs, as they are when it begins; there may be any number of
        them. The rows of a log table are in the order in which they were appended.
        """
        definition = self._reading.current()
        if definition.primary_key is None:
            return self._changes_dataset(definition, definition.schema, "earliest", "latest")

        def read(columns: Sequence[str] | None, filter: pc.Expression | None) -> pa.RecordBatchReader:
            return self._reading.rows(definition, columns, filter)  # by this table, which knows which copy is read

        return _dataset(definition.schema, read)

    def changes_dataset(self, start: Start = "earliest", end: End = "latest") -> TableDataset:
        """The changes from ``start`` to ``end`` as a dataset; see :meth:`changelog` and :meth:`dataset`."""
        definition = self._reading.current()
        return self._changes_dataset(definition, changelog_schema(definition), start, end)

    def _changes_dataset(self, definition: TableDefinition, schema: pa.Schema, start: Start, end: End) -> TableDataset:
        def read(columns: Sequence[str] | None, filter: pc.Expression | None) -> pa.RecordBatchReader:
            # A filter may be about any column.
            names = schema.names if filter is not None else columns
            changes = self._reading.changelog(definition, start, end, columns=names)
            rows: Iterator[pa.RecordBatch] = changes if filter is None else rows_where(changes, filter)
            wanted = changes.schema if columns is None else pa.schema([changes.schema.field(name) for name in columns])
            return pa.RecordBatchReader.from_batches(wanted, (batch.select(wanted.names) for batch in rows))

        return _dataset(schema, read)

    def __len__(self) -> int:
        definition = self._reading.current()
        # The rows of a table with a WAL image are not counted.
        if definition.options.changelog_image == "wal" and definition.primary_key is not None:
            return sum(batch.num_rows for batch in self._reading.rows(definition, definition.primary_key))
        return self.count()

    def __bool__(self) -> bool:
        return True  # an empty table is a table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._dicts(Span())

    def __reversed__(self) -> Iterator[dict[str, Any]]:
        return self._dicts(Span(reverse=True))

    def _dicts(self, span: Span) -> Iterator[dict[str, Any]]:
        rows = self._reading.rows(self._reading.keyed(), span=span)
        return (row for batch in rows for row in rows_of(batch, rows.schema))

    def __repr__(self) -> str:
        name = self._reading.catalog.name
        try:
            name = self.name
            key, rows = self.primary_key, None if self.options.changelog_image == "wal" else self.count()
        except StoreError as error:
            return f"<kvstore.Table {name}: {error.message}>"
        about = "append-only" if key is None else f"key {', '.join(key)}"
        return f"<kvstore.Table {name}: {about}{'' if rows is None else f', {rows:,} rows'}>"

    def _repr_html_(self) -> str | None:
        """The first rows as an HTML table, for notebooks; None if the table can't be read."""
        try:
            if self.primary_key is None:
                changes = self.changelog(columns=self.schema.names)
                rows = pa.Table.from_batches(islice(changes, 1), changes.schema)
            else:
                rows = self.to_arrow(limit=SHOWN_ROWS)
            return html_of(repr(self)[1:-1], rows.slice(0, SHOWN_ROWS))
        except StoreError:
            return None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream, as of the call: ``pa.table(t)``, ``polars.DataFrame(t)`` and others ask for it.

        Args:
            requested_schema: See :func:`kvstore.read.frames.stream_of`, also for errors.
        """
        return stream_of(self.scan(), requested_schema)


def _dataset(schema: pa.Schema, read: Read) -> TableDataset:
    from kvstore.table.queries.dataset import TableDataset  # it imports pandas where there is one, which takes long

    return TableDataset(schema, read)
