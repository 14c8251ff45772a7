"""Reads of a table of a store on this machine: offsets are pinned, and every process opens the store by itself.

* A task reads exactly the pinned offsets, so it gives the same rows however often Spark starts it.
* The log is kept for a query by a lease, and for a stream by its consumer, if it has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import OffsetOutOfRange
from kvstore.read.binlog import AFTER, binlog_of, binlog_schema, changelog_columns
from kvstore.read.changelog import End, Start, changelog_schema
from kvstore.read.scan import KeyRange, matching
from kvstore.spark.options import Kind, Options, Place
from kvstore.spark.read.address import TableAddress, found, opened
from kvstore.spark.read.aggregates import JSON_TYPES, aggregates_of, count_of
from kvstore.spark.read.net import CHANGE_TYPE, net_changes
from kvstore.spark.read.offsets import StreamOffset
from kvstore.spark.read.tasks import (
    Aggregate,
    Loaded,
    Part,
    Pinned,
    ReadPiece,
    ReadRange,
    ReadTask,
    Value,
    columns_needed,
    columns_of_rows,
    tasks_of,
)
from kvstore.store.store import Store
from kvstore.table.table import Table
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId, Epoch, Offset

ROWS_TASK_BYTES_MIN = 4 << 20
"""Bytes of an index that cost as much to read as a task; fewer are not worth a task."""
LOOKUP_BYTES = 1 << 10
"""Bytes of an index that cost as much to read as a lookup."""
CHANGES_TASK_BYTES_MIN = 1 << 20
"""The same for a log, which is compressed."""


def load(options: Options, *, keep_log: bool = True) -> Loaded:
    """Find the table that options name, and pin the offsets that they select.

    The log is kept for them unless a stream may be meant.

    Args:
        keep_log: If false, the log is not kept before a query on these offsets is planned.

    Raises:
        NotAStore, NoSuchTable: The store or the table does not exist.
        InvalidRequest, OffsetOutOfRange: See :meth:`kvstore.Table.changelog` and :meth:`kvstore.Table.scan`.
    """
    with found(options) as (address, table):
        columns = address.stored(options.columns)
        try:
            return _loaded(address, table, columns, options, keep_log=keep_log)
        except OffsetOutOfRange as error:
            return Loaded(columns, None, late=error)


def _loaded(address: TableAddress, table: Table, columns: pa.Schema, options: Options, *, keep_log: bool) -> Loaded:
    pinned, reads = Pinned(address, _ranges(table, options)), StoreReads(address, table)
    if keep_log and (options.kind is Kind.ROWS or options.end is not None):
        # Spark asks for a stream's columns, too: one that is started often would keep the whole log.
        reads.hold(pinned)
    if address.kind is Kind.ROWS:
        rows, stored = count_of(table, address.kind, pinned.ranges), reads.row_bytes()
        key = address.definition.primary_key or ()
        return Loaded(columns, pinned, rows, stored, tuple(key), _bucketed(address, stored))
    if options.start == "full":
        return Loaded(columns, pinned)
    return Loaded(columns, pinned, changes_max(pinned.ranges), reads.change_bytes(pinned.ranges))


def _ranges(table: Table, options: Options) -> tuple[ReadRange, ...]:
    if options.kind is not Kind.ROWS:
        start = options.start or "earliest"
        return ranges_of_changes(table, start, options.end or "latest", options.fail_on_data_loss)
    if options.as_of is not None:
        ends = table.offsets_as_of(options.as_of)
    else:
        ends = {bucket: last for bucket, (_, last) in table.offset_ranges("latest").items()}
    return tuple(ReadRange(bucket, end, end) for bucket, end in ends.items())


def ranges_of_changes(
    table: Table, start: Start, end: End = "latest", fail_on_data_loss: bool = True
) -> tuple[ReadRange, ...]:
    """Ranges of the changes between two places in each bucket; for ``full``, the rows at the start come first.

    Args:
        fail_on_data_loss: If false, a log that no longer has ``start`` is read from its beginning.
    """
    if start == "full":
        table.scan_schema()  # refuses a log table, which has no rows
        now = table.committed()
        ranges = table.offset_ranges({bucket: offset for bucket, (offset, _) in now.items()}, end)
        return tuple(ReadRange(bucket, *each, now[bucket][1]) for bucket, each in ranges.items())
    if not fail_on_data_loss:
        begins = {bucket: log_start for bucket, (log_start, _) in table.offsets().items()}
        if isinstance(start, Mapping):
            start = {bucket: max(offset, begins.get(BucketId(bucket), 0)) for bucket, offset in start.items()}
        if isinstance(end, Mapping):
            end = {bucket: max(offset, begins.get(BucketId(bucket), 0)) for bucket, offset in end.items()}
    return tuple(ReadRange(bucket, *each) for bucket, each in table.offset_ranges(start, end).items())


def changes_max(ranges: Sequence[ReadRange]) -> int:
    """Largest number of changes: an offset has one or none."""
    return sum(each.end - each.start for each in ranges)


def _bucketed(address: TableAddress, stored_bytes: int) -> tuple[int, str] | None:
    key, buckets = address.definition.bucket_key, address.definition.buckets
    if buckets == 1 or key is None or len(key) > 1 or stored_bytes < buckets * ROWS_TASK_BYTES_MIN:
        return None
    # Of these, equal values of Spark are equal stored values, and so in the same bucket.
    return (buckets, key[0]) if address.definition.schema.field(key[0]).type in JSON_TYPES else None


class StoreReads:
    """Reads of a table of a store that is open; see :class:`kvstore.spark.read.tasks.Reads`."""

    tasks_max = 0.0

    def __init__(self, address: TableAddress, table: Table) -> None:
        self._address = address
        self._table = table

    def hold(self, pinned: Pinned, *, until_commit: bool = False) -> None:
        """Keep the log that a read needs, for the time of a lease.

        Args:
            until_commit: Whether a commit is to check the changes since the read.
        """
        if pinned.address.kind is Kind.ROWS and self._table.options.changelog_image == "wal" and not until_commit:
            return  # a WAL image has no earlier rows
        # Rows as of an offset are the current rows with the changes since then undone.
        self._table.parts.lease(pinned.lease, {each.bucket: each.start for each in pinned.ranges})

    def aggregates(self, ranges: Sequence[ReadRange], wanted: Sequence[Aggregate]) -> list[Value] | None:
        """See :func:`kvstore.spark.read.aggregates.aggregates_of`."""
        if self._address.filter is not None:
            return None
        return aggregates_of(self._table, self._address.kind, ranges, wanted)

    def looks_up(self, keys: int) -> bool:
        """See :meth:`kvstore.spark.read.tasks.Reads.looks_up`."""
        return keys * LOOKUP_BYTES <= max(self.row_bytes(), ROWS_TASK_BYTES_MIN)

    def row_bytes(self) -> int:
        """Approximate bytes of the index of all rows."""
        buckets = range(self._address.definition.buckets)
        return sum(self._table.parts.of_bucket(bucket).row_bytes([KeyRange()]) for bucket in buckets)

    def change_bytes(self, ranges: Sequence[ReadRange]) -> int:
        """Approximate bytes of the log in ranges."""
        there = ((self._table.parts.of_bucket(each.bucket), each) for each in ranges)
        return sum(splits.log.bytes_between(Offset(each.start), Offset(each.end)) for splits, each in there)

    def parts(self, given: ReadRange, filter: pc.Expression | None) -> Iterator[Part[ReadPiece]]:
        """Parts of a range that may have rows that pass a filter; cut by keys, or between commits."""
        splits, start, end = self._table.parts.of_bucket(given.bucket), Offset(given.start), Offset(given.end)
        rows = ReadPiece(given.bucket, given.start, given.end, ())
        wanted = given.wanted
        if wanted is None and self._address.kind is Kind.ROWS and given.keys is None:
            known_keys = splits.keys_found(filter, as_of=rows.end)
            wanted = None if known_keys is None or not self.looks_up(len(known_keys)) else tuple(known_keys.to_list())
        if wanted is not None:
            if wanted:
                yield Part(len(wanted) * LOOKUP_BYTES / ROWS_TASK_BYTES_MIN, partial(_lookups, rows, wanted))
            return
        if self._address.kind is not Kind.ROWS:
            rows = ReadPiece(given.bucket, given.start, given.start, (), given.inserted_at)
            is_whole = self._address.kind is Kind.NET and self._address.definition.primary_key is not None
            filter = None if is_whole else filter  # what a commit leaves of a key depends on the others
            for first, last in splits.offsets_where(self._address.stored(), filter, start, end):

                def cut(parts: int, first: Offset = first, last: Offset = last) -> list[ReadPiece]:
                    parts = 1 if is_whole else parts
                    return [ReadPiece(given.bucket, *each) for each in splits.log.split(first, last, parts)]

                yield Part(splits.log.bytes_between(first, last) / CHANGES_TASK_BYTES_MIN, cut)
            filter = None  # a filter on changes does not limit the keys
        if self._address.kind is not Kind.ROWS and given.inserted_at is None:
            return
        if ranges := [given.keys] if given.keys is not None else splits.keys_where(filter, as_of=rows.end):
            yield Part(
                splits.row_bytes(ranges) / ROWS_TASK_BYTES_MIN,
                lambda parts: [replace(rows, keys=keys) for keys in splits.split_keys(ranges, parts)],
            )

    def batches(
        self, piece: ReadPiece, target: pa.Schema, filter: pc.Expression | None, needed: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """What a piece has.

        Raises:
            OffsetOutOfRange: Its offsets have expired.
            CorruptData: The index or the log is damaged.
        """
        del filter  # pieces are divided by it
        table, kind, definition = self._table, self._address.kind, self._address.definition
        names = list(needed or columns_needed(target, kind, definition.primary_key))
        splits, bucket = table.parts.of_bucket(piece.bucket), piece.bucket
        if kind is Kind.ROWS:
            if piece.wanted is not None:
                return splits.rows_of_keys(BinaryColumn.from_list(piece.wanted), names, as_of=piece.end)
            assert piece.keys is not None
            return splits.rows(piece.keys, names, as_of=piece.end)
        shape = self._address.shape()
        whole = None
        if kind is Kind.BINLOG:
            whole = binlog_schema(definition, columns_of_rows(definition.schema, target))
        if piece.keys is not None:
            assert piece.inserted_at is not None
            columns = names if whole is None else changelog_columns(whole)
            wanted = columns if shape is None else changelog_schema(definition).names
            rows = splits.inserts(piece.keys, wanted, as_of=piece.end, timestamp=piece.inserted_at)
            if shape is not None:
                rows = (matching(batch, shape).select(columns) for batch in rows)
            return rows if whole is None else binlog_of(rows, whole)
        start, end = {bucket: piece.start}, {bucket: piece.end}
        if kind is Kind.NET:
            names = list(dict.fromkeys([*names, *definition.schema.names, CHANGE_TYPE]))
            return net_changes(table.changelog(start, end, bucket, names), definition)
        if whole is None:
            return table.changelog(start, end, bucket, names, filter=shape)
        return table.binlog(start, end, bucket, [field.name for field in whole.field(AFTER).type], filter=shape)


def _lookups(piece: ReadPiece, wanted: Sequence[bytes], parts: int) -> list[ReadPiece]:
    each = max(1, ceil(len(wanted) / parts))
    cuts = range(0, len(wanted), each)
    return [replace(piece, keys=None, wanted=tuple(wanted[cut : cut + each])) for cut in cuts]


class FollowedStore:
    """A table of a store that a stream follows; see :class:`kvstore.spark.read.followed.Followed`."""

    leader_epoch: Epoch | None = None
    """None: the store itself leads."""

    def __init__(self, address: TableAddress, options: Options) -> None:
        self._address = address
        self._options = options
        self._open: tuple[Store, Table] | None = None
        self._is_registered = False

    def close(self) -> None:
        """Close the store; Spark rarely asks for it before the process ends."""
        if self._open is not None:
            self._open[0].close()
            self._open = None

    def _table(self) -> Table:
        if self._open is None:
            store = opened(self._address.path)
            self._open = store, self._address.table_of(store)
        self._address.check_names(self._open[0])  # the columns of a stream are those that it began with
        return self._open[1]

    def renew(self) -> None:
        """Every call sees what is committed."""
        self._table()

    def bounds(self) -> dict[int, tuple[Offset, Offset]]:
        """Start and end of the committed changes of each bucket."""
        table = self._table()
        starts = table.offsets()
        return {bucket: (Offset(starts[bucket][0]), end) for bucket, (end, _) in table.committed().items()}

    def begin_at(self, start: Place) -> tuple[dict[int, Offset], dict[int, int] | None]:
        """For each bucket, where the stream starts; if that is with the rows, the time of the last commit before."""
        ranges = ranges_of_changes(self._table(), start, fail_on_data_loss=self._options.fail_on_data_loss)
        offsets = {each.bucket: Offset(each.start) for each in ranges}
        return offsets, {each.bucket: each.inserted_at or 0 for each in ranges} if start == "full" else None

    def check_continues(self, before: StreamOffset) -> None:
        """Nothing to verify: the log is the store's own."""

    def whole_ends(
        self, before: Mapping[int, Offset], ends: Mapping[int, Offset], records: int
    ) -> dict[int, Offset] | None:
        """None: buckets are read each to its own end."""
        del before, ends, records
        return None

    def commit_end(self, bucket: int, start: Offset, end: Offset, records: int) -> Offset:
        """The end of a read of whole commits: at most ``records`` changes, but at least one commit."""
        return self._table().parts.of_bucket(bucket).log.commit_end(start, end, records)

    def key_after(self, bucket: int, keys: KeyRange, rows: int, as_of: Offset) -> tuple[bytes | None, int]:
        """See :meth:`kvstore.read.splits.Splits.key_after`."""
        return self._table().parts.of_bucket(bucket).key_after(keys, rows, as_of=as_of)

    def tasks(self, ranges: Sequence[ReadRange], cores: int | None) -> list[ReadTask]:
        """Tasks that read the ranges."""
        return tasks_of(self._address, StoreReads(self._address, self._table()), ranges, cores=cores)

    def register(self, before: Mapping[int, Offset], *, began: bool) -> None:
        """Set the consumer's position before the stream continues from it, so that the log is kept from there.

        Args:
            began: Whether the stream starts there. Otherwise the position is already set, unless the consumer is new or
                was dropped, or the checkpoint is older.
        """
        name = self._options.consumer
        if name is None or (self._is_registered and not began):
            return
        position = self._table().consumers.get(name)
        if began or position is None or any(position[bucket] > offset for bucket, offset in before.items()):
            # The next plan reports expired changes.
            self._table().parts.hold(name, before)
        self._is_registered = True

    def committed(self, end: StreamOffset) -> None:
        """Record the progress of the stream in its consumer, if it has one; Spark's checkpoint is authoritative.

        Raises:
            UnsupportedOperation, StoreFull: The catalog can't be written. The consumer keeps its earlier position.
        """
        if self._options.consumer is not None:
            self._table().parts.hold(self._options.consumer, end.by_bucket)
