"""A table as its users see it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import column_names, integer, integer_within, shown
from kvstore.bucket.handle import BucketHandle
from kvstore.calls import answer_of, uninterrupted, wait_for
from kvstore.errors import InvalidRequest, OffsetOutOfRange, StoreError, UnsupportedOperation
from kvstore.index.index import View
from kvstore.meta.state import TableDefinition
from kvstore.meta.writers import NamedWriter
from kvstore.read.binlog import binlog_of, binlog_schema, changelog_columns
from kvstore.read.changelog import End, Start, changelog_schema
from kvstore.read.follow import ChangeReader, range_between, together
from kvstore.read.lookup import prefix_row, row_of_key, rows_of_keys, rows_of_prefix
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
from kvstore.read.time_travel import check_undoable, first_changes
from kvstore.request.partition import bucket_of, buckets_of_rows, place_in, row_indices_by_bucket, spread
from kvstore.request.preparation import fitted, request_of
from kvstore.request.request import RowRequest
from kvstore.request.results import AppendResult, BucketSnapshot, TableSnapshot, WriteResult
from kvstore.request.row_layout import layout_of
from kvstore.request.rules import engine_of_table
from kvstore.request.sizes import of_size
from kvstore.request.targets import filled, schema_given, targets_of
from kvstore.table.access import Access
from kvstore.table.bucket import Bucket
from kvstore.table.open_table import OpenTable
from kvstore.table.replacing import check_replaceable, deletes_of_others
from logformat.catalog.edits import TableOptions
from logformat.ids import OFFSET_MAX, BucketId, Offset, SchemaId
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.intake import Data, Keys
from writer import TableWriter, WriterOptions


class Table:
    """A table of a store that is open.

    Made by :meth:`kvstore.Store.table` and :meth:`kvstore.Store.create_table`; it may be used from any thread.

    Args:
        opened: What the process has open of the table.
        access: Whether the store is open, and may be written.
        batch_rows_max: Rows of a batch that a bucket takes at once.
    """

    def __init__(self, opened: OpenTable, access: Access, batch_rows_max: int) -> None:
        self._handles = opened.handles
        self._writers = opened.writers
        self._consumers = opened.consumers
        self._catalog = opened.catalog
        self._access = access
        self._batch_rows_max = batch_rows_max
        self._turn = count()

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
        """Ids of the store and of the table: a name may be given anew, they never are."""
        identity = self._handles[0].place.identity
        return identity.store_id, identity.table_id

    @property
    def schema(self) -> pa.Schema:
        """Columns, typed as they are stored."""
        return self._current().schema

    @property
    def schema_id(self) -> int:
        """Of the current schema; it grows with each change of the columns."""
        return self._current().schema_id

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """Names of the key's columns in key order; None for a log table."""
        return self._current().primary_key

    @property
    def buckets(self) -> int:
        """How many there are, numbered from 0."""
        return self._current().buckets

    @property
    def bucket_key(self) -> tuple[str, ...] | None:
        """Names of the columns that say which bucket a row goes to; None for a log table whose rows go to any."""
        return self._current().bucket_key

    @property
    def options(self) -> TableOptions:
        """How the table behaves, as :meth:`kvstore.Store.create_table` was told."""
        return self._current().options

    # Writing

    def upsert(self, data: Data, columns: Sequence[str] | None = None) -> WriteResult:
        """Store rows, each in place of the one its key has; for a log table, append them.

        Up to ``batch_rows_max`` rows, if they have no more than 64 MiB, are one batch: one commit, all or nothing.
        More are applied in several. Of several buckets each has a batch of its own, and if it fails, others may have
        taken theirs: ``buckets_written`` of the error says which.

        Args:
            data: A dict, a list of dicts, or Arrow data (pyarrow, pandas, polars, duckdb …) with every column, but for
                an auto-increment one.
            columns: A partial update: those that ``data`` has and that are set, the key's among them; the others stay
                as they are, or null where there was no row.

        Raises:
            SchemaMismatch, KeyTooLarge, AggregateOverflow: A row does not fit. Nothing of its batch, or of those after
                it, was written; but see above of the last.
            InvalidTargetColumns: See ``columns``. Nothing was written.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`.
        """
        self._access.check_writable()
        definition = self._current()
        if type(data) is dict and columns is None and definition.buckets == 1:
            answer = self._handles[0].submit(RowRequest(data.copy()))
            return WriteResult({BucketId(0): answer_of(answer)})
        targets = self._targets(definition, columns)
        given = schema_given(definition, definition.schema, targets)
        batches = of_size(intake.record_batches(data, given), self._batch_rows_max)
        return self._apply_all((Changes.upserts(rows) for rows in batches), definition, targets)

    def delete(self, keys: Keys, columns: Sequence[str] | None = None) -> WriteResult:
        """Remove the rows of keys; a key that is not there is no error.

        Args:
            keys: A key (scalar, tuple or dict), a list of keys, or Arrow data: the key's columns, or the one it has.
            columns: A partial delete: those that become null, the key's among them; a row of which nothing is left is
                removed.

        Raises:
            SchemaMismatch: A key does not fit. Nothing of its batch, or of those after it, was written.
            InvalidTargetColumns, DeletionDisabled: See ``columns``; the table takes no deletes. Nothing was written.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`.
        """
        self._access.check_writable()
        definition = self._keyed()
        targets = self._targets(definition, columns)
        key_rows = intake.key_rows(keys, layout_of(definition).key_schema)
        batches = of_size(iter([key_rows]), self._batch_rows_max)
        return self._apply_all((Changes.deletes(rows, definition.schema) for rows in batches), definition, targets)

    def apply(self, changes: Changes) -> WriteResult:
        """Apply upserts and deletes in order; for each bucket they are one batch, see :meth:`Bucket.apply`.

        If that of one bucket fails, others may have taken theirs, see :meth:`upsert`.
        """
        self._access.check_writable()
        definition = self._current()
        fitting, targets = fitted(changes, definition, definition.schema_id, None, overwrite=False)
        return self._apply_all(iter([fitting]), definition, targets)

    def writer(self, name: str | None = None, **options: Any) -> TableWriter:
        """A writer that gathers rows into batches and sends each exactly once, whatever is lost on the way.

        With a name, it goes on where the last writer of that name was; that one, if it is still at work anywhere, is
        fenced. Without, it is someone new. A name is for batches or for :meth:`apply_epoch`, not for both. Rows that
        were not acknowledged when a process died are not known to the next one: exactly-once over a restart needs
        epochs, or sequences the caller keeps (:meth:`Bucket.apply`).

        Args:
            name: Belongs to this table, and never expires; :meth:`kvstore.Store.drop_writer` forgets it.
            options: Fields of :class:`writer.WriterOptions`: ``batch_rows``, ``batch_bytes``, ``linger_ms`` ….

        Raises:
            InvalidRequest: An argument is not possible, or the name sends epochs. Nothing was written.
        """
        self._access.check_writable()
        self._current()
        if unknown := set(options) - set(WriterOptions.__dataclass_fields__):
            raise InvalidRequest("There is no such option of a writer.", unknown=sorted(unknown))
        WriterOptions(**options)  # before anyone is fenced
        identity = self._writers.open(name)
        return uninterrupted(TableWriter)(self, identity, new_id=self._writers.new_id, **options)

    def apply_epoch(
        self, changes: Changes, writer: str, epoch: int, run: str | None = None, takeover: bool = False
    ) -> WriteResult:
        """Apply changes to all buckets as one epoch of a named writer: once, and all or nothing.

        Every bucket gets exactly one batch, empty where the epoch has nothing for it. An epoch that was applied before
        is answered as it was then, for the last five; whoever is not sure sends it again. If a process dies in the
        middle, the epoch was not applied at all, or it is brought to its end by whoever opens the table next.

        Args:
            changes: Upserts and deletes, in order; see :meth:`Bucket.apply`.
            writer: Name of who counts the epochs; it sends nothing else.
            epoch: Number of the epoch: any to begin with, then one more each time.
            run: Who counts them in the writer's name, such as the id of a Spark query. Another run is refused.
            takeover: Go on in the name of another run, which is refused from now on. Epochs count anew from this one.

        Raises:
            OutOfOrderSequence: The epoch is not the one after the last. Nothing was written.
            WriterFenced: Another run has the name. Nothing was written.
            InvalidRequest: The content is refused, or an argument; or the name sends batches. Nothing was written.
            StoreLocked: Another process writes a bucket and does not hand it over. Nothing was written.
            StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`. If ``committed`` stands in the error, the epoch
                takes place: it is brought to its end before anything else is written.
        """
        self._access.check_writable()
        definition = self._current()
        number = integer_within("epoch", epoch, 0, OFFSET_MAX)
        fitting, _ = fitted(changes, definition, definition.schema_id, None, overwrite=False)
        parts = dict(spread(definition, fitting, BucketId(number % definition.buckets)))
        return self._writers.apply_epoch(definition, parts, writer, number, run, takeover)

    def is_applied(self, writer: str, epoch: int) -> bool:
        """Whether an epoch is the last that was applied under a name, to all buckets.

        For whoever can't tell whether its last call of :meth:`apply_epoch` came to an end, and would rather not send it
        again. A commit that a dead process left open is brought to its end first.

        Raises:
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`apply_epoch`.
        """
        self._access.check_writable()
        self._current()
        return self._writers.is_last(writer, integer_within("epoch", epoch, 0, OFFSET_MAX))

    def apply_parts(
        self,
        parts: Mapping[BucketId, Changes],
        writer: str,
        epoch: int | None = None,
        run: str | None = None,
        takeover: bool = False,
        replaces: bool = False,
    ) -> WriteResult:
        """Like :meth:`apply_epoch`, for changes that are spread over the buckets already.

        Args:
            parts: What there is for each bucket, as :meth:`by_bucket` makes them, in any schema of the table.
            epoch: None for the one after the writer's last: then it is all or nothing, but not once.
            replaces: Whether all rows with other keys are deleted; what other threads of this process write meanwhile
                stays.

        Raises:
            InvalidRequest: Rows belong to another bucket; or see :meth:`apply_epoch`. Nothing was written.
            UnsupportedOperation: A table of this kind can't be replaced.
        """
        self._access.check_writable()
        definition = self._current()
        number = None if epoch is None else integer_within("epoch", epoch, 0, OFFSET_MAX)
        whole = {}
        for bucket, changes in parts.items():
            belongs = definition.bucket_key is None or (buckets_of_rows(definition, changes.rows) == bucket).all()
            if bucket not in self._bucket_ids() or not belongs:
                raise InvalidRequest("Rows belong to another bucket; see Table.by_bucket().", bucket=bucket)
            whole[bucket] = Changes(filled(changes.rows, definition.schema), changes.is_delete)

        def rest() -> dict[BucketId, Changes]:
            there = self.scan(list(definition.primary_key or ())).read_all()
            deletes = deletes_of_others(there, whole.values(), definition.schema)
            return dict(spread(definition, deletes, BucketId(0)))

        if replaces:
            check_replaceable(definition)
        return self._writers.apply_epoch(definition, whole, writer, number, run, takeover, rest if replaces else None)

    def check_replaceable(self) -> None:
        """See that a write can replace all rows.

        Raises:
            UnsupportedOperation: It has no key, merges rows, or takes no deletes.
        """
        check_replaceable(self._current())

    @property
    def writers(self) -> dict[str, NamedWriter]:
        """Writers with a name: what they send, and under which id and incarnation."""
        self._current()
        return self._writers.named()

    def by_bucket(
        self, changes: Changes, other: int = 0, overwrite: bool = False, schema_id: int | None = None
    ) -> dict[int, Changes]:
        """Changes by the bucket they belong to, for :meth:`Bucket.apply`; those of one stay in the order they came.

        Args:
            changes: With all columns, but for an auto-increment one.
            other: Where all go if the table has no bucket key.
            overwrite: Whether they are to be applied so; they may then have values of an auto-increment column.
            schema_id: Schema the rows follow, and then the batch too; the current one if None.

        Raises:
            SchemaMismatch, UnknownSchema, InvalidTargetColumns: They do not fit the table.
            InvalidRequest: The table has no such bucket.
        """
        home = self._handle(other).place.identity.bucket_id
        return dict(spread(self._current(), self.fitting(changes, overwrite, schema_id), home))

    def fitting(self, changes: Changes, overwrite: bool = False, schema_id: int | None = None) -> Changes:
        """Changes in the columns of the table; see :meth:`by_bucket`, also for what is raised."""
        definition = self._current()
        id = definition.schema_id if schema_id is None else SchemaId(integer("schema_id", schema_id))
        return fitted(changes, definition, id, None, overwrite=overwrite)[0]

    def row_indices_by_bucket(self, rows: pa.RecordBatch, other: int) -> list[tuple[BucketId, pa.Int64Array | None]]:
        """Which of rows that fit the table belong to each bucket; None for all.

        Args:
            other: Where all go if the table has no bucket key.

        Raises:
            InvalidRequest: The table has no such bucket.
        """
        return list(row_indices_by_bucket(self._current(), rows, self._handle(other).place.identity.bucket_id))

    def bucket(self, bucket: int) -> Bucket:
        """A bucket of the table, for numbered batches.

        Raises:
            InvalidRequest: The table has no such bucket.
        """
        return Bucket(self._handle(bucket), self._catalog, self._access)

    def flush(self) -> None:
        """Return once everything acknowledged is seen by every process, and is on the disk."""
        self._current()
        for handle in self._handles:
            handle.flush()

    def snapshot(self) -> TableSnapshot:
        """Write everything acknowledged into files that anything can read; writing goes on meanwhile.

        Recovery begins with the newest one if the index is lost, so a log may be cut below it. The newest two are kept.

        Returns:
            Once it is durable: which offsets it is of, and where it is.

        Raises:
            StoreLocked: Another process writes the table.
            StoreFull, LogFailed: The disk refused. Nothing is left of it, and writing goes on.
            CorruptData: A stored row is damaged.
        """
        self._access.check_writable()
        self._current()
        found = {}
        for bucket, handle in zip(self._bucket_ids(), self._handles, strict=True):
            taken = handle.take_snapshot()
            found[bucket] = BucketSnapshot(taken.offset, taken.directory)
        return TableSnapshot(found)

    @property
    def consumers(self) -> dict[str, dict[int, int]]:
        """Who reads the table and said so: by name, for each bucket the next offset to read."""
        self._current()
        return self._consumers.lasting()

    # Rows

    def get(self, key: Keys) -> dict[str, Any] | None:
        """The row of a key, or None.

        Args:
            key: A scalar, a tuple in key order, or a dict.

        Raises:
            SchemaMismatch: The key does not fit.
            CorruptData: The row is damaged.
        """
        return row_of_key(self._handles, self._keyed, key)

    def __getitem__(self, key: Keys) -> dict[str, Any]:
        row = self.get(key)
        if row is None:
            raise KeyError(key)
        return row

    def __contains__(self, key: Keys) -> bool:
        return self.get(key) is not None

    __iter__ = None  # a table is no sequence of its keys; scan() gives its rows

    def lookup(self, keys: Keys) -> pa.Table:
        """The rows of keys, one for each key, in order.

        Args:
            keys: A list of keys (scalars, tuples or dicts), or Arrow data: the key's columns, or the one it has.

        Returns:
            All columns, and ``_found``. Where it is false, the row holds its key and nulls.

        Raises:
            SchemaMismatch: A key does not fit.
            CorruptData: A row is damaged.
        """
        definition = self._keyed()
        key_rows = intake.key_rows(keys, layout_of(definition).key_schema)
        return rows_of_keys(self._handles, self._keyed, key_rows)

    def prefix_lookup(self, prefix: Mapping[str, Any] | Sequence[Any]) -> pa.Table:
        """The rows whose keys begin with some values, in key order; with several buckets, one bucket after the other.

        Only one bucket is read if the prefix has all columns of the bucket key.

        Args:
            prefix: Values of the first columns of the key: a dict, or a tuple in key order.

        Raises:
            SchemaMismatch: It is no beginning of a key, or a value does not fit.
            CorruptData: A row is damaged.
        """
        definition = self._keyed()
        values = prefix_row(prefix, layout_of(definition).key_schema)
        return rows_of_prefix(self._handles, self._keyed, values)

    def buckets_of(self, keys: Keys) -> list[int]:
        """For each key the bucket its row is in.

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
        """All rows in key order, as they are at the moment of the call.

        Args:
            columns: Those wanted, in this order; all if None.
            filter: Only rows for which it is true, such as ``pc.field("n") > 1``; it may use any column.
            limit: The first so many.
            as_of: As they were after all changes before this offset, or before the first commit at or after this time;
                its reading needs the log since then.

        Raises:
            InvalidRequest: An argument is not possible; a filter that fails for a row is raised by the reader.
            SchemaMismatch: There is no such column.
            OffsetOutOfRange: The log does not reach back to ``as_of``, or has not come to it.
            CorruptData: A row or a change is damaged; the reader may raise it.
        """
        definition = self._keyed()
        names = _names(columns)
        schema = scan_schema(definition, names)
        if filter is not None:
            check_filter(filter, definition.schema)
        if limit is not None:
            limit = integer_within("limit", limit, 0, OFFSET_MAX)
        needed = names if filter is None else definition.schema.names  # pyarrow does not tell what a filter uses
        wanted = schema.names if needed is None else needed
        buckets = self._bucket_ids()
        places = {bucket: place_in("as_of", as_of, bucket, buckets) for bucket in buckets}

        def read(handle: BucketHandle, view: View) -> Iterator[pa.RecordBatch]:
            # Of now, so that it has the schemas of all rows.
            current, place = self._keyed(), places[handle.place.identity.bucket_id]
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
        """Number of rows; of a log table, of records appended.

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
        """For each bucket the first offset the log holds, and the one after its last."""
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
    ) -> Iterator[pa.RecordBatch]:
        """Changes in the order they were made; with several buckets one bucket after the other, or as they come.

        Args:
            start: ``full`` (the current rows as inserts, then the changes after them), ``earliest``, ``latest``, an
                offset, an offset for each bucket, or a time: the first commit at or after it.
            end: Exclusive: ``latest``, an offset, one for each bucket, or a time: the first commit at or after it.
            bucket: Only this bucket's.
            columns: Those wanted, in this order; all if None.
            follow: Wait for changes to come, of this process or another, until ``end`` is reached. An offset or a time
                may be to come; ``latest`` is never reached. A change comes as soon as other processes see it, so in
                the process that writes nothing is committed for it; :meth:`flush` hastens it.

        Returns:
            Record batches of ``_bucket, _log_offset, _change_type, _commit_timestamp, _commit_version`` and the row,
            none of them empty. Waiting, it raises StoreClosed or NoSuchTable once the store is closed, or the table
            dropped.

        Raises:
            InvalidRequest: An argument is not possible, or ``end`` comes before ``start``.
            OffsetOutOfRange: The log does not hold ``start``, or has not come to ``end``.
            SchemaMismatch: There is no such column.
            CorruptBatch: The log is damaged; the iterator raises it.
        """
        return self._changes(self.changelog_schema(columns).names, start, end, bucket, follow)

    def binlog(
        self,
        start: Start = "earliest",
        end: End = "latest",
        bucket: int | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Changes in the order they were made, each in one row: an update with the row before and the row after.

        Args:
            start, end, bucket, follow: See :meth:`changelog`. Where a range of offsets divides an update, it belongs to
                the one that has its second half.
            columns: Those wanted of the rows before and after, in this order; all if None.

        Returns:
            Record batches of ``_bucket, _log_offset, _change_type, _commit_timestamp, _commit_version`` and two
            structs, ``before`` (null for an insert) and ``after`` (null for a delete). An update has offset and type
            of its second half, ``update_postimage``. In a log table every row is an ``append``.

        Raises:
            InvalidRequest, OffsetOutOfRange, SchemaMismatch, CorruptBatch: See :meth:`changelog`.
            UnsupportedOperation: The table's changelog is a WAL image.
        """
        schema = self.binlog_schema(columns)
        changes = self._changes(changelog_columns(schema), start, end, bucket, follow, whole_updates=True)
        return binlog_of(changes, schema)

    def undo(self, start: Start) -> Changes:
        """What makes the rows again what they were at ``start``, whatever was changed since.

        Nothing is written: apply it before anything else is, ``overwrite`` if the table's engine is not ``last_row`` or
        it fills a column; see :meth:`Bucket.apply`, and for several buckets :meth:`by_bucket`. Each key that changed is
        in it once, in key order: deleted if it had no row, else with its row. So it may be applied in parts, if it is
        very long.

        Args:
            start: An offset (as of :meth:`offsets`, or ``log_end_offset`` of a write), offsets for each bucket, a
                time, ``earliest`` or ``latest``; what comes before it stays.

        Raises:
            InvalidRequest: It is nothing of these.
            UnsupportedOperation: The table's changelog is a WAL image.
            OffsetOutOfRange: The log does not hold ``start``.
            CorruptBatch: The log is damaged.
        """
        definition = self._keyed()
        check_undoable(definition)
        if isinstance(start, str) and start == "full":
            raise InvalidRequest("Undo begins at an offset, a time, `earliest` or `latest`.", start=start)
        names = ["_change_type", *definition.schema.names]
        changes = self._changes(names, start, "latest", whole_updates=True)
        return first_changes(changes, definition).undo()

    # Spark

    def to_spark(
        self,
        spark: Any,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
    ) -> Any:
        """All rows as a DataFrame, as they are at the moment of the call; the fastest way for Spark to read them.

        Args:
            spark: The session, on this machine.
            columns, as_of: See :meth:`scan`.
            where: Only rows for which it is true; the ``filter`` of :meth:`scan`.

        Raises:
            InvalidRequest, SchemaMismatch, OffsetOutOfRange: See :meth:`scan`.
            UnsupportedOperation: Spark has no type for a column.
        """
        # Whoever has a session has pyspark; who has none need not.
        from kvstore.spark import frames

        return frames.rows_frame(self, spark, columns, where, as_of)

    def changelog_to_spark(
        self,
        spark: Any,
        start: Start = "earliest",
        end: End = "latest",
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> Any:
        """Changes as a DataFrame, up to the moment of the call; the fastest way for Spark to read them.

        Args:
            spark: The session, on this machine.
            start, end, columns: See :meth:`changelog`.
            where: Only changes for which it is true, such as ``pc.field("_change_type") == "delete"``.

        Raises:
            InvalidRequest, SchemaMismatch, OffsetOutOfRange: See :meth:`changelog`.
            UnsupportedOperation: Spark has no type for a column.
        """
        from kvstore.spark import frames

        return frames.changes_frame(self, spark, start, end, columns, where)

    # For readers in other processes, which share the work

    @property
    def store_path(self) -> Path:
        """Directory of the store."""
        return self._handles[0].place.directory.parents[2]

    def changelog_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Columns of the changelog; all if None.

        Raises:
            SchemaMismatch: There is no such column.
        """
        return changelog_schema(self._current(), _names(columns))

    def scan_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Columns of a scan; all if None.

        Raises:
            SchemaMismatch: There is no such column.
        """
        return scan_schema(self._keyed(), _names(columns))

    def binlog_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Columns of the binlog.

        Args:
            columns: Those of the rows before and after; all if None.

        Raises:
            SchemaMismatch: There is no such column.
            UnsupportedOperation: The table's changelog is a WAL image.
        """
        check_undoable(self._current())
        return binlog_schema(self._current(), _names(columns))

    def offset_ranges(self, start: Start = "earliest", end: End = "latest") -> dict[BucketId, tuple[Offset, Offset]]:
        """For each bucket the offsets that :meth:`changelog` would read from (inclusive) and to (exclusive).

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
        """For each bucket the offset before which lies what :meth:`scan` would read as of this.

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
        """For each bucket the offset after the last change that every process sees, and when that was committed (ms).

        For those who ask often: it costs next to nothing.
        """
        self._current()
        states = {bucket: handle.committed() for bucket, handle in zip(self._bucket_ids(), self._handles, strict=True)}
        return {bucket: (state.applied_offset, state.last_timestamp) for bucket, state in states.items()}

    def hold(self, consumer: str, offsets: Mapping[int, int]) -> None:
        """Like :meth:`kvstore.commit.consumers.Consumer.commit`, but what has expired of it is left out.

        Raises:
            UnsupportedOperation, StoreFull: See there.
        """
        self._access.check_registers()
        self._current()
        self._consumers.hold(consumer, offsets)

    def lease(self, name: str, offsets: Mapping[int, int]) -> None:
        """Have the log kept from these offsets on for a while, as far as it is there; done again, it lasts anew.

        Nothing is written if the log of this table never expires, as far as is known, or nothing may be written.

        Args:
            name: Of the lease; nobody else has it.
        """
        self._current()
        with suppress(UnsupportedOperation):
            self._access.check_registers()
            self._consumers.lease(name, offsets)

    def bucket_of(self, values: Mapping[str, pa.Scalar]) -> int | None:
        """The bucket of all rows with these values; None if there may be some in several."""
        return bucket_of(self._current(), values)

    def shares(self, bucket: int) -> Splits:
        """Reads of a bucket that are cut up among several.

        Raises:
            InvalidRequest: The table has no such bucket.
        """
        return Splits(self._handle(bucket), self._keyed, self._held)

    def _keyed(self) -> TableDefinition:
        definition = self._current()
        if definition.primary_key is None:
            raise UnsupportedOperation("A log table has no key; read it with changelog().", table=definition.name)
        return definition

    def _changes(
        self,
        names: Sequence[str],
        start: Start,
        end: End,
        bucket: int | None = None,
        follow: bool = False,
        *,
        whole_updates: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        buckets = self._bucket_ids() if bucket is None else [self._handle(bucket).place.identity.bucket_id]
        if not isinstance(follow, (bool, np.bool_)):
            raise InvalidRequest("`follow` is True or False.", follow=shown(follow))
        if isinstance(start, str) and start == "full":
            self._keyed()
        readers = []
        for each in buckets:
            reader = ChangeReader(self._handles[each], self._current, names, whole_updates)
            first, last = place_in("start", start, each, buckets), place_in("end", end, each, buckets)
            readers.append(reader.read(first, last, follow=bool(follow)))
        return self._while_current(together(readers))

    def _targets(self, definition: TableDefinition, columns: Any) -> frozenset[str] | None:
        if columns is None:
            return None
        if definition.primary_key is None:
            raise UnsupportedOperation("A log table takes whole rows; leave `columns` out.")
        return targets_of(definition, definition.schema, engine_of_table(definition), columns)

    def _apply_all(
        self, batches: Iterator[Changes], definition: TableDefinition, targets: frozenset[str] | None
    ) -> WriteResult:
        found: dict[BucketId, list[AppendResult]] = {}
        for changes in batches:
            self._apply_one(changes, definition, targets, found)
        if not found and len(self._handles) == 1:
            self._apply_one(Changes.upserts(intake.empty(definition.schema)), definition, targets, found)
        return WriteResult({bucket: _whole(results) for bucket, results in sorted(found.items())})

    def _apply_one(
        self,
        changes: Changes,
        definition: TableDefinition,
        targets: frozenset[str] | None,
        found: dict[BucketId, list[AppendResult]],
    ) -> None:
        """Apply changes to the buckets they belong to, all at once."""
        other = BucketId(next(self._turn) % len(self._handles))
        requests = [
            (bucket, request_of(part, definition, targets=targets))
            for bucket, part in spread(definition, changes, other)
        ]
        # What another process writes is found before anything is written to the other buckets.
        for bucket, _ in requests:
            self._handles[bucket].write()
        answers: dict[BucketId, Future[AppendResult]] = {}

        def submit() -> None:
            for bucket, request in requests:
                answers[bucket] = self._handles[bucket].submit(request)

        try:
            if len(requests) == 1:
                submit()
            else:
                uninterrupted(submit)()  # to all of them, or none
            for bucket, answer in answers.items():
                found.setdefault(bucket, []).append(answer_of(answer))
        except StoreError as error:
            for answer in answers.values():
                wait_for(answer)
            if len(requests) > 1:
                error.where["buckets_written"] = [
                    bucket for bucket, answer in answers.items() if answer.exception() is None
                ]
            raise

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
        """Iterate over what ``read`` makes of a view, which is taken now and given up with the iterator."""

        def run() -> Iterator[pa.RecordBatch]:
            with handle.snapshot() as view:
                batches = read(handle, view)
                yield pa.record_batch([], names=[])  # for the caller below: the view is taken
                yield from self._while_current(batches)

        iterator = run()
        next(iterator)
        return iterator

    def _while_current(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same, as long as there is the table, and the store is open here."""
        self._current()
        try:
            for batch in batches:
                yield batch
                self._current()
        except (StoreError, OSError):
            self._current()  # if it is not, that is why
            raise


def _names(columns: Any) -> list[str] | None:
    return None if columns is None else column_names("columns", columns)


def _whole(results: Sequence[AppendResult]) -> AppendResult:
    first, last = results[0], results[-1]
    return AppendResult(first.first_offset, last.last_offset, False, last.timestamp_ms)
