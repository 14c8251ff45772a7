"""A table of an open store."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import integer, integer_within
from kvstore.calls import answer_of, uninterrupted, wait_for
from kvstore.errors import InvalidRequest, StoreError, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.meta.writers import NamedWriter
from kvstore.read.changelog import End, Start
from kvstore.request.partition import buckets_of_rows, row_indices_by_bucket, spread
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
from kvstore.table.reading import TableReads
from kvstore.table.replacing import check_replaceable, deletes_of_others
from logformat.ids import OFFSET_MAX, BucketId, SchemaId
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.intake import Data, Keys
from writer import TableWriter, WriterOptions


class Table(TableReads):
    """A table of an open store.

    Made by :meth:`kvstore.Store.table` and :meth:`kvstore.Store.create_table`; any thread may use it.

    Args:
        opened: What the process has open of the table.
        access: Whether the store is open, and may be written.
        batch_rows_max: Largest number of rows of one batch of a bucket.
    """

    def __init__(self, opened: OpenTable, access: Access, batch_rows_max: int) -> None:
        super().__init__(opened, access)
        self._writers = opened.writers
        self._consumers = opened.consumers
        self._batch_rows_max = batch_rows_max
        self._turn = count()

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

    # Consumers

    @property
    def consumers(self) -> dict[str, dict[int, int]]:
        """Who reads the table and said so: by name, for each bucket the next offset to read."""
        self._current()
        return self._consumers.lasting()

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


def _whole(results: Sequence[AppendResult]) -> AppendResult:
    first, last = results[0], results[-1]
    return AppendResult(first.first_offset, last.last_offset, False, last.timestamp_ms)
