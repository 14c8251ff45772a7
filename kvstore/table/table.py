"""A table of an open store.

* Each call asks the catalog for the definition, and works with that one to its end; a copy by
  :meth:`Table.with_fixed_columns` keeps the one it was made with.
* What is wrong with a batch is found before any bucket is asked for it. Then each bucket writes its part or refuses it
  for itself, and the error lists ``buckets_written``.
* There is no lock here: buckets take turns, and what is open of a table is replaced as a whole (``use``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from itertools import count
from typing import Any, Self
from weakref import WeakSet

import pyarrow.compute as pc

from kvstore.arguments import integer, integer_within, shown
from kvstore.commit.consumers import consumer_name
from kvstore.commit.named_writers import CountedWriter
from kvstore.errors import (
    BatchTooLarge,
    DeletionDisabled,
    InvalidRequest,
    SchemaMismatch,
    StoreError,
    UnsupportedOperation,
)
from kvstore.history.origin import Origins
from kvstore.history.selection import Selection
from kvstore.history.undoing import Undo, undo_of
from kvstore.index.compaction import CompactedIndex
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.writers import OpenCommit
from kvstore.process.calls import Reply, answer_of, uninterrupted, wait_for
from kvstore.read.changelog import End, Start
from kvstore.read.scan import check_filter
from kvstore.request.encoded import SmallConditional, SmallRequest, encoded_writes
from kvstore.request.increments import Incremented, first_row
from kvstore.request.partition import spread
from kvstore.request.preparation import fitted, request_of
from kvstore.request.request import Request
from kvstore.request.results import AppendResult, BucketSnapshot, TableSnapshot, WriteResult, spanning
from kvstore.request.row_layout import layout_of
from kvstore.request.rules import engine_of_table
from kvstore.request.sizes import of_size
from kvstore.request.sums import Amounts
from kvstore.request.targets import renamed, schema_given, targets_of
from kvstore.subscription.subscription import Feed, Subscription
from kvstore.table.access import Access
from kvstore.table.bucket import Bucket
from kvstore.table.conditional import (
    Decide,
    apply_if,
    check_last_row,
    deletion,
    replacement,
    small_replacement,
    update,
)
from kvstore.table.open_table import OpenTable
from kvstore.table.parts import TableParts
from kvstore.table.read_table import ReadTable
from kvstore.table.reading import names_of
from logformat.ids import OFFSET_MAX, BucketId, SchemaId, WriterId
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.given import row_of
from logformat.rows.intake import Data, Keys
from writer import TableWriter, WriterOptions


class Table(ReadTable):
    """A table of an open store.

    Made by :meth:`kvstore.Store.table` and :meth:`kvstore.Store.create_table`; any thread may use it.

    Args:
        opened: What the process has open of the table.
        access: Whether the store is open, and may be written.
        batch_rows_max: Largest number of rows of one batch of a bucket.
    """

    def __init__(self, opened: OpenTable, access: Access, batch_rows_max: int) -> None:
        super().__init__(opened, access)
        self._batch_rows_max = batch_rows_max
        self._turn = count()
        self._fixed_of: Table | None = None
        self._fixed: WeakSet[Table] = WeakSet()
        self._take(opened)

    def use(self, opened: OpenTable) -> None:
        """Read from now on what the process has open of the copy that has replaced the table's."""
        self._reading.use(opened)
        self._take(opened)
        for each in list(self._fixed):
            each.use(opened)

    def use_catalog(self, catalog: TableCatalog) -> None:
        """Ask another catalog whether the table is there, and for its definition."""
        self._reading.use_catalog(catalog)
        self._catalog = catalog
        for each in list(self._fixed):
            each.use_catalog(catalog)

    def _take(self, opened: OpenTable) -> None:
        self._opened = opened
        self._handles = opened.handles
        self._catalog = opened.catalog

    @property
    def parts(self) -> TableParts:
        """The table in parts, for tools that divide work between processes."""
        return TableParts(self._reading, lambda: self._opened)

    def with_fixed_columns(self, schema_id: int | None = None, since: str | None = None) -> Self:
        """The same table with the columns that it has now, for a caller that asks for them more than once.

        It calls each column by the name that it has now, also if columns are renamed or dropped meanwhile; it does not
        have columns that are added. The changes that it undoes (:meth:`undo`) have the names of the call.

        Args:
            schema_id: A schema by which the caller already calls the columns; one that the table does not have is taken
                for the current one.
            since: End of the message if they were renamed: since when, and what to do.

        Raises:
            SchemaMismatch: Columns of that schema were renamed or dropped since.
            InvalidRequest: ``schema_id`` is no integer.
            NoSuchTable, StoreClosed: The table was dropped, or the store closed.
        """
        definition = self._reading.current()
        if schema_id is not None:
            id = SchemaId(integer("schema_id", schema_id))
            definition.check_names_of(id, *([] if since is None else [since]))
        fixed = copy(self)
        fixed._reading = self._reading.with_fixed(definition)
        fixed._fixed_of, fixed._fixed = self, WeakSet()  # this table stays, and tells which copy is read
        self._fixed.add(fixed)
        return fixed

    # Writing

    def upsert(self, data: Data, columns: Sequence[str] | None = None) -> WriteResult:
        """Store rows, each in place of the stored row of its key; for a log table, append them.

        Up to ``batch_rows_max`` rows of at most 64 MiB are one batch: one commit, all or nothing. More rows are applied
        in several batches, and so are rows that take more than 256 MiB with those that they replace. Each bucket has a
        batch of its own; if one fails, other buckets may have written theirs: ``buckets_written`` of the error lists
        them.

        Args:
            data: A row (a dict, dataclass or pydantic model), a list or iterator of rows, a frame of pandas or Polars,
                a dataset, or other Arrow data. A nullable column that is left out is null, also in a row that has a
                value there now; an auto-increment column is always left out.
            columns: For a partial update, the columns that ``data`` has, with those of the key; the others stay as they
                are, or are null where there was no row.

        Raises:
            SchemaMismatch, KeyTooLarge, AggregateOverflow: A row does not fit. Nothing of its batch, or of the batches
                after it, was written; with several buckets, see above.
            InvalidTargetColumns: See ``columns``. Nothing was written.
            BatchTooLarge: A row takes more than 256 MiB with the one that it replaces. It was not written.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`.
        """
        self._reading.access.check_writable()
        return self._upsert(self._reading.catalog.definition(), data, columns)

    def _upsert(self, definition: TableDefinition, data: Data, columns: Sequence[str] | None = None) -> WriteResult:
        writes = encoded_writes(definition) if columns is None else None
        if writes is not None:
            requests: Mapping[BucketId, Request | SmallRequest] | None = None
            if (few := writes.upserts(data, self._batch_rows_max)) is not None:
                requests = writes.requests(few)
            elif (request := writes.arrow(data, self._batch_rows_max)) is not None:
                requests = {BucketId(0): request}
            if requests is not None and (result := self._in_one_batch(requests)) is not None:
                return result
        targets = self._targets(definition, columns)
        given = schema_given(definition, definition.schema, targets)
        batches = of_size(intake.record_batches(data, given, fills=targets is None), self._batch_rows_max)
        return self._apply_all((Changes.upserts(rows) for rows in batches), definition, targets)

    def delete(
        self, keys: Keys = None, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> WriteResult:
        """Remove the rows of keys, or all for which an expression is true; a key without a row is no error.

        Args:
            keys: A key (scalar, tuple or dict), a list of keys, Arrow data (the key's columns, or the one it has), or a
                pandas frame whose index is the key.
            columns: For a partial delete, the columns that become null, with those of the key; a row without other
                values is removed.
            where: In place of keys, remove the rows for which it is true now, such as ``pc.field("n") > 3``. Each row
                is tested again when its bucket's turn comes. Many rows are removed in several batches, and only
                buckets with such rows are in the result.

        Raises:
            SchemaMismatch: A key does not fit. Nothing of its batch, or of the batches after it, was written.
            InvalidRequest: ``where`` is no condition, or is given with other arguments; or nothing is given. Nothing
                was written.
            InvalidTargetColumns, DeletionDisabled: See ``columns``; the table takes no deletes. Nothing was written.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`.
        """
        definition = self._written()
        if where is not None:
            if keys is not None or columns is not None:
                raise InvalidRequest("Give either `keys` or `where`; `where` removes whole rows.")
            return self._apply_where(definition, where, deletion(where))
        if keys is None:
            raise InvalidRequest("Give keys, or a condition by `where`.", table=self.name)
        writes = encoded_writes(definition) if columns is None else None
        if writes is not None and (few := writes.deletes(keys, self._batch_rows_max)) is not None:
            result = self._in_one_batch(writes.requests(few))
            if result is not None:
                return result
        targets = self._targets(definition, columns)
        key_rows = intake.key_rows(keys, layout_of(definition).key_schema)
        batches = of_size(iter([key_rows]), self._batch_rows_max)
        return self._apply_all((Changes.deletes(rows, definition.schema) for rows in batches), definition, targets)

    def truncate(self) -> WriteResult:
        """Remove all rows that there are now; rows of keys that are new meanwhile stay.

        Each row is a delete in the changelog, so that everything that follows the table loses it, too, and
        :meth:`undo` brings all back. Numbers of an auto-increment column are not given again. To be rid of rows and
        changes, drop the table and create it again.

        Many rows are removed in several batches, each of them a commit. After an error, or a program that was killed,
        the rows of some batches are gone; call it again.

        Returns:
            The results of the buckets that had rows.

        Raises:
            DeletionDisabled: The table takes no deletes, or ignores them. Nothing was written.
            UnsupportedOperation: It is a log table.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`.
        """
        definition = self._written()
        if (behavior := definition.options.delete_behavior) != "allow":
            raise DeletionDisabled(
                "The table takes no deletes, so no row would go; drop the table and create it again, or allow deletes"
                " by alter_table.",
                table=self.name,
                delete_behavior=behavior,
            )
        return self._apply_where(definition, None, deletion())

    def update_where(self, where: pc.Expression, values: Mapping[str, Any]) -> WriteResult:
        """Set columns of all rows for which an expression is true now; their other columns stay as they are.

        Each row is tested again when its bucket's turn comes, and what is computed is computed then: writes of others
        in between are not lost. Many rows are updated in several batches.

        Args:
            where: Such as ``pc.field("n") > 3``.
            values: For each column its new value, or an expression over the row such as ``pc.field("n") + 1``.

        Returns:
            The results of the buckets that have such rows.

        Raises:
            InvalidRequest: An expression or value does not fit the table, or the row for which it is computed. Of the
                batch with that row, and of the batches after it, nothing was written.
            UnsupportedOperation: The table has no key, or its engine is not ``last_row``.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`.
        """
        definition = self._written()
        check_filter(where, definition.schema)
        return self._apply_where(definition, where, update(definition, where, values))

    def put_if(self, row: Any, expected: Any) -> bool:
        """Store a row if the row of its key is the expected one, compared as they are stored.

        The comparison and the write are one: to change a row by what it is, read it, and repeat until this is true.

        Args:
            row: A dict, a dataclass or a pydantic model.
            expected: The whole row as it should be now, as :meth:`get` returns it; None if there should be none. A
                nullable column that is left out is expected to be null.

        Returns:
            Whether the row was stored; if not, nothing was written.

        Raises:
            InvalidRequest: A row does not fit, or the two have different keys. Nothing was written.
            UnsupportedOperation: The table has no key, or its engine is not ``last_row``.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`.
        """
        definition = self._written()
        if (small := small_replacement(definition, row, expected)) is not None:
            return self._apply_small(*small)
        key_row, decide = replacement(definition, row, expected)
        return bool(apply_if(self._handles, definition, iter([key_row]), decide).by_bucket)

    def increment(self, key: Keys, amounts: Mapping[str, Any], default: Any = None) -> dict[str, Any]:
        """Add numbers to columns of one row, atomically: no increment of another thread in between is lost.

        Args:
            key: A scalar, a tuple in key order, or a dict.
            amounts: For each column the number that is added, such as ``{"n": 1}``; negative ones subtract.
            default: The row to begin with if there is none, without its key: the amounts are added to it. A column of
                ``amounts`` that it leaves out begins at 0, another nullable one is null. So ``{}`` begins a counter.

        Returns:
            The row after it.

        Raises:
            KeyError: There is no row, and no ``default``. Nothing was written.
            InvalidRequest: A column has no numbers, is null, or can't have the sum; or an argument does not fit.
                Nothing was written.
            UnsupportedOperation: The table has no key, or its engine is not ``last_row``; or there is a ``default``,
                and the table has an auto-increment column; or Python has no such value as the row has in a column.
                Nothing was written.
            NotAcknowledged: Another process owns the bucket, and its answer is lost. The numbers may have been added;
                they have been if the error's ``where`` says ``committed``.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`.
        """
        definition = self._written()
        check_last_row(definition)
        given = Amounts.given(definition, amounts)
        first = None if default is None else first_row(definition, key, given, default)
        asked = Incremented(definition, key, given, first)
        if (small := asked.small()) is not None:
            is_done = self._apply_small(*small)
        else:
            keys = intake.key_rows([key], layout_of(definition).key_schema)
            is_done = bool(apply_if(self._handles, definition, iter([keys]), asked.decide).by_bucket)
        if not is_done:
            raise KeyError(key)
        assert asked.row is not None
        return asked.row

    def __setitem__(self, key: Keys, row: Any) -> None:
        definition = self._written()
        names, given = definition.primary_key or (), row_of(row)
        if not isinstance(given, Mapping):
            raise SchemaMismatch("A row is a dict from column name to value.", row=shown(row))
        named = intake.key_row(key, names)
        if other := [name for name in names if name in given and given[name] != named[name]]:
            raise InvalidRequest("The row has another key than the one it is stored under.", key=key, columns=other)
        self._upsert(definition, {**given, **named})

    def __delitem__(self, key: Keys) -> None:
        definition = self._written()
        keys = intake.key_rows([key], layout_of(definition).key_schema)
        if not apply_if(self._handles, definition, iter([keys]), deletion()).by_bucket:
            raise KeyError(key)

    def apply(self, changes: Changes) -> WriteResult:
        """Apply upserts and deletes in order, as one batch for each bucket; see :meth:`Bucket.apply`.

        They are several batches, if with the rows that they replace they take more than 256 MiB. If the batch of one
        bucket fails, other buckets may have written theirs; see :meth:`upsert`. What :meth:`undo` returns is stored as
        it is, also where the engine would merge it with the rows that are there.
        """
        self._reading.access.check_writable()
        definition = self._reading.current()
        options = definition.options
        merges = options.merge_engine != "last_row" or options.auto_increment is not None
        overwrite = merges and isinstance(changes, Undo)
        id = SchemaId(changes.schema_id) if isinstance(changes, Undo) else definition.schema_id
        fitting, targets = fitted(changes, definition, id, None, overwrite=overwrite)
        return self._apply_all(iter([fitting]), definition, targets, overwrite=overwrite)

    def writer(self, name: str | None = None, **options: Any) -> TableWriter:
        """A writer that collects rows into batches and applies each exactly once, even if answers are lost.

        With a name, it continues after the last writer of that name, and fences that writer if it still works anywhere.
        Without a name, it is a new writer. A name is for batches or for :meth:`apply_epoch`, not for both. A new
        process does not know the rows that were not acknowledged when the last one died: exactly-once over a restart
        needs epochs, or sequences that the caller keeps (:meth:`Bucket.apply`).

        Args:
            name: Name of the writer in this table. It never expires; :meth:`kvstore.Store.drop_writer` forgets it.
            options: Fields of :class:`writer.WriterOptions`: ``batch_rows``, ``batch_bytes``, ``linger_ms`` ….

        Raises:
            InvalidRequest: An argument is not possible, or the name sends epochs. Nothing was written.
        """
        self._reading.access.check_writable()
        self._reading.current()
        if unknown := set(options) - set(WriterOptions.__dataclass_fields__):
            raise InvalidRequest("There is no such option of a writer.", unknown=sorted(unknown))
        WriterOptions(**options)  # checked before another writer is fenced
        identity = self._opened.writers.open(name)
        return uninterrupted(TableWriter)(self, identity, new_id=self._opened.writers.new_id, **options)

    def apply_epoch(
        self, changes: Changes, writer: str, epoch: int, run: str | None = None, takeover: bool = False
    ) -> WriteResult:
        """Apply changes to all buckets as one epoch of a named writer: once, and all or nothing.

        Every bucket gets exactly one batch, empty where the epoch has no changes for it. One of the last five epochs
        gets its first answer when it is sent again, so a caller that is not sure may do so. If a process dies
        meanwhile, the epoch is either not applied at all, or completed by the next process that opens the table.

        Args:
            changes: Upserts and deletes, in order; see :meth:`Bucket.apply`.
            writer: Name of the writer that counts the epochs; it sends nothing else.
            epoch: Number of the epoch: any number at first, then one more each time.
            run: Run that counts them under this name, such as the id of a Spark query. Another run is refused.
            takeover: Take the name over from another run, which is refused from now on. Epochs count from this one on.

        Raises:
            OutOfOrderSequence: The epoch is not the one after the last. Nothing was written.
            WriterFenced: Another run has the name. Nothing was written.
            InvalidRequest: The content is refused, or an argument; or the name sends batches. Nothing was written.
            StoreLocked: Another process writes a bucket and does not hand it over. Nothing was written.
            StoreFull, CorruptData, LogFailed: See :meth:`Bucket.apply`. If the error has ``committed``, the epoch is
                decided: it is completed before anything else is written.
        """
        self._reading.access.check_writable()
        definition = self._reading.current()
        number = integer_within("epoch", epoch, 0, OFFSET_MAX)
        fitting, _ = fitted(changes, definition, definition.schema_id, None, overwrite=False)
        parts = dict(spread(definition, fitting, BucketId(number % definition.buckets)))
        return self._opened.writers.apply_epoch(definition, parts, writer, number, run, takeover)

    def is_applied(self, writer: str, epoch: int) -> bool:
        """Whether an epoch is the last one that was applied under a name, to all buckets.

        For a caller that does not know whether its last :meth:`apply_epoch` was completed, and can't send it again. An
        open commit of a dead process is completed first.

        Raises:
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`apply_epoch`.
        """
        self._reading.access.check_writable()
        self._reading.current()
        return self._opened.writers.is_last(writer, integer_within("epoch", epoch, 0, OFFSET_MAX))

    @property
    def writers(self) -> dict[str, CountedWriter]:
        """Named writers: what they send, under which id, and, of those that count epochs, the ``last_epoch``."""
        self._reading.current()
        return self._opened.writers.named()

    @property
    def fenced_writers(self) -> frozenset[WriterId]:
        """Ids of writers that lost their name: it was dropped or taken over. They never write again."""
        self._reading.current()
        return self._catalog.writers().former

    @property
    def open_commits(self) -> tuple[OpenCommit, ...]:
        """Commits that some buckets may not have yet, the oldest first; the next process that writes completes them."""
        self._reading.current()
        return self._catalog.writers().commits

    def by_bucket(
        self, changes: Changes, other: int = 0, overwrite: bool = False, schema_id: int | None = None
    ) -> dict[int, Changes]:
        """Split changes by bucket, for :meth:`Bucket.apply`; the changes of each bucket keep their order.

        Args:
            changes: Changes with all columns except an auto-increment one.
            other: Bucket of all changes if the table has no bucket key.
            overwrite: Whether they will be applied with ``overwrite``; then they may fill an auto-increment column.
            schema_id: Schema of the rows, also of the result; the current one if None. The batch must be applied with
                the same.

        Raises:
            SchemaMismatch, UnknownSchema, InvalidTargetColumns: The changes do not fit the table.
            InvalidRequest: The table has no such bucket.
        """
        home = self._reading.number_of(other)
        definition = self._reading.current()
        id = definition.schema_id if schema_id is None else SchemaId(integer("schema_id", schema_id))
        parts = spread(definition, fitted(changes, definition, id, None, overwrite=overwrite)[0], home)
        then = {now: name for name, now in definition.renamed_since(id).items() if now is not None}
        return {bucket: renamed(part, then) if then else part for bucket, part in parts}

    def bucket(self, bucket: int) -> Bucket:
        """A bucket of the table, for numbered batches.

        Raises:
            InvalidRequest: The table has no such bucket.
        """
        number = self._reading.number_of(bucket)
        return Bucket(self._handles[number], self._reading)

    def flush(self) -> None:
        """Make all acknowledged changes durable, and visible to every process."""
        self._reading.current()
        for handle in self._handles:
            handle.flush()

    def snapshot(self) -> TableSnapshot:
        """Write all rows into Parquet files; writing goes on meanwhile.

        If an index is lost, recovery begins with the newest snapshot, so the log before it may expire. The newest two
        snapshots are kept.

        Returns:
            Offset and directory of each bucket's snapshot, which is durable.

        Raises:
            StoreLocked: Another process writes the table.
            StoreFull, LogFailed: The disk failed. Nothing is left of the snapshot, and writing goes on.
            CorruptData: A stored row is damaged.
        """
        self._reading.access.check_writable()
        self._reading.current()
        snapshots = {}
        for bucket, handle in zip(self._reading.buckets, self._handles, strict=True):
            taken = handle.take_snapshot()
            snapshots[bucket] = BucketSnapshot(taken.offset, taken.directory)
        return TableSnapshot(snapshots)

    def compact(self) -> dict[int, CompactedIndex]:
        """Replace the index of each bucket by a copy without free pages, so that the file is as small as its rows.

        An index grows while a scan is open, and does not become smaller by itself. Reads and writes go on meanwhile;
        they wait for a moment when the copy takes the place of a bucket's index. Open scans, of any process, go on in
        the old file, which is gone from the disk when they have ended.

        Returns:
            For each bucket, the size of the file before and after.

        Raises:
            StoreLocked: Another process writes a bucket; those before it are compacted.
            StoreFull, LogFailed: The disk refuses, for example because it has no room for the copy. The bucket's index
                is as it was.
        """
        self._reading.access.check_writable()
        self._reading.current()
        return {bucket: handle.compact() for bucket, handle in zip(self._reading.buckets, self._handles, strict=True)}

    def undo(
        self,
        start: Start,
        end: End | None = None,
        writer: str | int | None = None,
        epoch: int | None = None,
        job: str | None = None,
        task: int | None = None,
    ) -> Undo:
        """The changes that undo others: all since ``start``, or only some of them while later changes of others stay.

        Nothing is written. With ``start`` alone, the result restores all rows to their state at ``start``. Apply it
        before other changes, by :meth:`apply`; or under a sequence by :meth:`Bucket.apply` and :meth:`by_bucket`, with
        ``overwrite`` if the table's engine is not ``last_row`` or the table fills a column. A :class:`kvstore.Patch` of
        it finds out whether there were other changes, and is applied once.

        With any other argument, only the changes of that range and origin are undone, column by column: each column
        that they changed gets its earlier value. If another change came later and changed the same column of a row, or
        if it removed the row or stored it again, the row stays as it is, and its key is in ``conflicts`` of the result.

        Each changed key is in the result once, in key order: with a delete if it had no row, otherwise with its row.
        So a very long result may be applied in parts. Memory holds every change of the rows concerned, from the first
        that is undone on.

        Args:
            start: An offset (as of :meth:`offsets`, or ``log_end_offset`` of a write), offsets for each bucket, a
                time, ``earliest`` or ``latest``; changes before it stay.
            end: Exclusive, in the same forms; changes from there on stay.
            writer: Name or id of a writer, as :meth:`history` shows it; changes of others stay. A name stands for all
                runs that had it; the id for one of them.
            epoch: Number of an epoch of ``writer``; or the incarnation of a writer that sends batches. Alone, the epoch
                of this number if only one writer has it.
            job: Name of an ingestion job, in place of a writer.
            task: Number of a task of ``job``.

        Raises:
            InvalidRequest: An argument is none of these; no change in the range has this origin; or several runs of the
                writer have an epoch of this number.
            UnsupportedOperation: The table's changelog is a WAL image; or its engine is not ``last_row``, and there are
                arguments other than ``start``.
            OffsetOutOfRange: The log does not hold ``start`` or ``end``.
            CorruptBatch: The log is damaged.
        """
        return undo_of(self._reading.past(), start, end, Selection.of(writer, epoch, job, task))

    def origins(self) -> Origins:
        """Says of batches of the log who wrote them, by what the catalog says now."""
        return self._reading.origins()

    # Consumers

    def subscribe(
        self,
        name: str,
        start: Start = "full",
        filter: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = True,
        ack_ms: int = 0,
    ) -> Subscription:
        """Read changes under a name whose position moves with what is acknowledged.

        ``with t.subscribe("mailer") as changes: for batch in changes: …; changes.ack(batch)``. A batch that was not
        acknowledged when the reader ended, or was killed, comes again to the next one of this name; nothing else does.
        While the current rows are delivered, there is no position: a reader that ends before it has acknowledged the
        last of them begins again with all rows. The log keeps what a subscription has yet to acknowledge, as for any
        consumer (:attr:`consumers`, :meth:`kvstore.Store.drop_consumer`).

        Args:
            name: Name of the consumer, of which one reader at a time reads.
            start: See :meth:`changelog`; counts only for a new name.
            filter: See :meth:`changelog`. Under one name it stays the same; its columns may be renamed. What is
                delivered for a name without a filter is all rows.
            columns: Columns to return, in this order; all if None.
            follow: Whether to wait for new changes; else it ends at what there is at the call.
            ack_ms: 0: each acknowledgement is durable on return, which costs an edit of the catalog with its sync.
                Otherwise those of so many milliseconds are one edit. It is made by the next call of the subscription
                once they are over, before it waits for changes, and when it is closed: a reader that is killed gets
                again what it has acknowledged since the last edit, and nothing else.

        Returns:
            An iterator of batches as of :meth:`changelog`, also for ``async for``; ``ack(batch)`` acknowledges it and
            all before it.

        Raises:
            InvalidRequest: An argument is not possible; or the name has been read with another filter. Its position
                stays.
            SchemaMismatch: There is no such column.
            OffsetOutOfRange: The log does not hold ``start``.
            UnsupportedOperation: The store is read-only; or there is a filter, and the changelog is a WAL image; or
                ``start`` is ``full``, and it is a log table.
        """
        self._reading.access.check_registers()
        definition = self._reading.keyed() if isinstance(start, str) and start == "full" else self._reading.current()
        if not isinstance(follow, bool):
            raise InvalidRequest("`follow` is True or False.", follow=shown(follow))
        consumers = self._opened.consumers
        feed = Feed(self._handles, definition, self._reading.latest, consumers, self._catalog.clock)
        ack_ms = integer_within("ack_ms", ack_ms, 0, OFFSET_MAX)
        return Subscription(feed, consumer_name(name), start, filter, names_of(columns), follow, ack_ms)

    @property
    def consumers(self) -> dict[str, dict[int, int]]:
        """Registered consumers: by name, the next offset to read of each bucket."""
        self._reading.current()
        return self._opened.consumers.lasting()

    # Spark

    def to_spark(
        self,
        spark: Any,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
    ) -> Any:
        """Read all rows into a DataFrame, as of the moment of the call; the fastest way for Spark to read them.

        Args:
            spark: A Spark session on this machine.
            columns, as_of: See :meth:`scan`.
            where: Only rows for which it is true; see ``filter`` of :meth:`scan`.

        Raises:
            InvalidRequest, SchemaMismatch, OffsetOutOfRange: See :meth:`scan`.
            UnsupportedOperation: Spark has no type for a column.
        """
        # Imported here, so that pyspark is needed only with a Spark session.
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
        """Read changes into a DataFrame, up to the moment of the call; the fastest way for Spark to read them.

        Args:
            spark: A Spark session on this machine.
            start, end, columns: See :meth:`changelog`.
            where: Only changes for which it is true, such as ``pc.field("_change_type") == "delete"``.

        Raises:
            InvalidRequest, SchemaMismatch, OffsetOutOfRange: See :meth:`changelog`.
            UnsupportedOperation: Spark has no type for a column.
        """
        from kvstore.spark import frames

        return frames.changes_frame(self, spark, start, end, columns, where)

    def _written(self) -> TableDefinition:
        """The definition of a table with a key that may be written; raises what :meth:`Reading.keyed` raises."""
        self._reading.access.check_writable()
        return self._reading.keyed_in(self._reading.catalog.definition())

    def _targets(self, definition: TableDefinition, columns: Any) -> frozenset[str] | None:
        if columns is None:
            return None
        if definition.primary_key is None:
            raise UnsupportedOperation("A log table takes whole rows; leave `columns` out.")
        return targets_of(definition, definition.schema, engine_of_table(definition), columns)

    def _apply_where(self, definition: TableDefinition, where: pc.Expression | None, decide: Decide) -> WriteResult:
        # Read before anything is written, so that no read lasts as long as the writes.
        keys = self._reading.rows(definition, definition.primary_key, where).read_all()
        batches = of_size(iter(keys.to_batches()), self._batch_rows_max)
        return apply_if(self._handles, definition, batches, decide)

    def _apply_small(self, bucket: BucketId, request: SmallConditional) -> bool:
        """Submit a conditional request, and wait for the answer: whether anything was written."""
        self._handles[bucket].submit(request, here=True)
        return answer_of(request.answer) is not None

    def _apply_all(
        self,
        batches: Iterator[Changes],
        definition: TableDefinition,
        targets: frozenset[str] | None,
        *,
        overwrite: bool = False,
    ) -> WriteResult:
        results_of: dict[BucketId, list[AppendResult]] = {}
        for changes in batches:
            self._apply_one(changes, definition, targets, results_of, overwrite=overwrite)
        if not results_of and len(self._handles) == 1:
            self._apply_one(Changes.upserts(intake.empty(definition.schema)), definition, targets, results_of)
        return WriteResult({bucket: spanning(results) for bucket, results in sorted(results_of.items())})

    def _apply_one(
        self,
        changes: Changes,
        definition: TableDefinition,
        targets: frozenset[str] | None,
        results_of: dict[BucketId, list[AppendResult]],
        *,
        overwrite: bool = False,
    ) -> None:
        """Apply changes to the buckets they belong to, all at once; in parts, if what they replace is too large."""
        other = BucketId(next(self._turn) % len(self._handles))
        parts = dict(spread(definition, changes, other))
        how: dict[str, Any] = {"targets": targets, "overwrite": overwrite}
        requests = {bucket: request_of(part, definition, **how, answer=Reply()) for bucket, part in parts.items()}
        rest: list[Changes] = []
        try:
            results = self._apply_requests(requests)
        except BatchTooLarge as error:
            if len(changes) == 1:
                if len(self._handles) > 1:
                    error.where["buckets_written"] = sorted(results_of)
                raise
            written: Any = error.where.pop("buckets_written", [])
            results = {bucket: answer_of(requests[bucket].answer) for bucket in written}
            rest = [half for bucket, part in parts.items() if bucket not in results for half in part.halves()]
        for bucket, result in results.items():
            results_of.setdefault(bucket, []).append(result)
        for half in rest:
            self._apply_one(half, definition, targets, results_of, overwrite=overwrite)

    def _in_one_batch(self, requests: Mapping[BucketId, Request | SmallRequest]) -> WriteResult | None:
        """See :meth:`_apply_requests`; None if what is replaced is too large for a batch, and nothing was written."""
        try:
            return WriteResult(self._apply_requests(requests))
        except BatchTooLarge as error:
            if error.where.get("buckets_written"):
                raise
        return None

    def _apply_requests(self, requests: Mapping[BucketId, Request | SmallRequest]) -> dict[BucketId, AppendResult]:
        """Submit a request to each bucket, to all at once, and wait for the answers."""
        if len(requests) == 1:
            ((bucket, request),) = requests.items()
            self._handles[bucket].submit(request, here=True)
            return {bucket: answer_of(request.answer)}
        # A bucket that another process writes is found before anything is written to the other buckets.
        for bucket in requests:
            self._handles[bucket].write()
        answers: dict[BucketId, Future[AppendResult] | Reply[AppendResult]] = {}

        def submit() -> None:
            for bucket, request in requests.items():
                self._handles[bucket].submit(request)
                answers[bucket] = request.answer

        try:
            uninterrupted(submit)()  # to all buckets, or to none
            return {bucket: answer_of(answer) for bucket, answer in answers.items()}
        except StoreError as error:
            for answer in answers.values():
                wait_for(answer)
            error.where["buckets_written"] = [
                bucket for bucket, answer in answers.items() if answer.exception() is None
            ]
            raise
