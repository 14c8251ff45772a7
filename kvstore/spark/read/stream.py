"""Streams: what is new since the last batch, as far as a limit allows.

* One process lives as long as the query and asks for the latest offset all the time; it keeps the store open, and
  looking costs it next to nothing. Others read, and open the store themselves.
* Every offset given out lies between two commits, so a batch has all of a commit or nothing: both halves of an update.
* Nothing is decided that is not in an offset: after a crash Spark plans the same batch again, in another process.
* With a consumer the catalog knows of an offset that is not beyond what has still to be read, from the moment Spark can
  write down where the stream starts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from itertools import count

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kvstore.clock import SystemClock
from kvstore.errors import InvalidRequest, OffsetOutOfRange, UnsupportedOperation
from kvstore.read.changelog import milliseconds
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Kind, Options, Place
from kvstore.spark.read.batch import changes_wanted
from kvstore.spark.read.offsets import Began, Raw, StreamOffset, by_name, decoded, initial, table_id
from kvstore.spark.read.place import TablePlace, opened
from kvstore.spark.read.splits import ReadRange, ReadTask, read, tasks_of
from kvstore.spark.types import arrow_schema
from kvstore.store import Store
from kvstore.table.table import Table
from logformat.ids import Offset


@errors_shown_alone
class KvStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the changes of a table.

    Args:
        table: Open here only while the stream is made.

    Raises:
        UnsupportedOperation, InvalidRequest: The options can't be had of this table, or not in a stream.
    """

    def __init__(self, place: TablePlace, table: Table, schema: StructType, options: Options) -> None:
        self._place = place
        self._schema = schema
        self._options = options
        self._start = _start_of(table, options)
        self._open: tuple[Store, Table] | None = None
        self._until: dict[int, Offset] | None = None
        self._turn = count()
        self._is_registered = False

    def initialOffset(self) -> Raw:  # noqa: N802
        """How to start; see :mod:`kvstore.spark.read.offsets`."""
        return initial(self._start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What option ``maxOffsetsPerTrigger`` says."""
        most = self._options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than what is there now."""
        self._until = _ends(self._table())

    def latestOffset(self, start: Raw, limit: ReadLimit) -> Raw:  # noqa: N802
        """How far the next batch goes; ``start`` itself if there is nothing new.

        Raises:
            NoSuchTable: The table was dropped.
            OffsetOutOfRange: The log ends before ``start``.
            UnsupportedOperation, StoreFull: With a consumer: the catalog can't be written. Nothing is decided.
        """
        table = self._table()
        place = decoded(start, self._place, table.buckets)
        began = self._begin(table) if place is None else None
        before = place.by_bucket if place is not None else _offsets_of(began)
        ends = _ends(table)
        for bucket, offset in before.items():
            _check_order(bucket, offset, ends[bucket])
        self._register(table, before, began=began is not None)
        if self._until is not None:
            ends = {bucket: max(before[bucket], min(end, self._until[bucket])) for bucket, end in ends.items()}
        if place is not None and ends == before:
            return start
        taken = self._limited(table, before, ends, limit)
        return StreamOffset(table_id(self._place), by_name(taken), began).raw()

    def reportLatestOffset(self) -> Raw:  # noqa: N802
        """Where the log ends, for the progress of the query."""
        return StreamOffset(table_id(self._place), by_name(_ends(self._table()))).raw()

    def partitions(self, start: Raw, end: Raw) -> list[InputPartition]:
        """What is between two offsets, in one share for each core, or fewer if it is little.

        Raises:
            OffsetOutOfRange: Some of it has expired, or the log ends before it.
        """
        table = self._table()
        first, last = (decoded(each, self._place, table.buckets) for each in (start, end))
        if last is None or (first is None and last.began is None):
            raise InvalidRequest("The checkpoint lacks where the stream started; start with a new one.", end=end)
        rows_of = last.began.rows_of if first is None and last.began is not None else None
        begin = first.by_bucket if first is not None else _offsets_of(last.began)
        ranges = table.offsets()
        wanted = []
        for bucket, stop in last.by_bucket.items():
            (log_start, log_end), place = ranges[bucket], begin[bucket]
            _check_order(bucket, place, stop)
            _check_order(bucket, stop, Offset(log_end))
            if place < log_start and (place < stop or rows_of is not None):
                self._check_loss(bucket, place, Offset(log_start), rows=rows_of is not None)
                place = min(Offset(log_start), stop)
            wanted.append(ReadRange(bucket, place, stop, None if rows_of is None else rows_of[str(bucket)]))
        return tasks_of(self._place, table, wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one share."""
        assert isinstance(partition, ReadTask)
        yield from read(partition, arrow_schema(self._schema))

    def commit(self, end: Raw) -> None:
        """Say how far the stream is, if it has a name to say so; Spark's checkpoint knows better.

        Raises:
            UnsupportedOperation, StoreFull: The catalog can't be written. The log is kept from where it was before.
        """
        if self._options.consumer is not None:
            table = self._table()
            place = decoded(end, self._place, table.buckets)
            if place is not None:
                table.hold(self._options.consumer, place.by_bucket)

    def stop(self) -> None:
        """Give the store up; Spark seldom says so, and then the process ends."""
        if self._open is not None:
            self._open[0].close()
            self._open = None

    def _table(self) -> Table:
        if self._open is None:
            store = opened(self._place.path)
            self._open = store, self._place.table_of(store)
        return self._open[1]

    def _register(self, table: Table, before: Mapping[int, Offset], *, began: bool) -> None:
        """Have the log kept from where the stream is, before it goes on from there.

        Args:
            began: Whether it starts there. Otherwise it is kept from there already, unless the name is new or was
                dropped, or the checkpoint is older.
        """
        name = self._options.consumer
        if name is None or (self._is_registered and not began):
            return
        known = table.consumers.get(name)
        if began or known is None or any(known[bucket] > offset for bucket, offset in before.items()):
            # What has expired is told of by partitions().
            table.hold(name, before)
        self._is_registered = True

    def _begin(self, table: Table) -> Began:
        """Decide where the stream starts."""
        wanted = changes_wanted(table, self._start, fail_on_data_loss=self._options.fail_on_data_loss)
        offsets = {each.bucket: each.start for each in wanted}
        if self._until is not None:
            offsets = {bucket: min(offset, self._until[bucket]) for bucket, offset in offsets.items()}
        if self._start != "full":
            return Began(by_name(offsets))
        return Began(by_name(offsets), by_name({each.bucket: each.inserted_at or 0 for each in wanted}))

    def _limited(
        self, table: Table, before: Mapping[int, Offset], ends: Mapping[int, Offset], limit: ReadLimit
    ) -> dict[int, Offset]:
        """How far each bucket is read, so that all together take no more offsets than allowed, or one commit.

        Each bucket has its share of them, and what those before it left; another one begins each time.
        """
        if isinstance(limit, ReadAllAvailable):
            return dict(ends)
        if not isinstance(limit, ReadMaxRows):
            raise UnsupportedOperation("A stream is limited by `maxOffsetsPerTrigger` only.", limit=limit)
        taken = dict(before)
        behind = [bucket for bucket, end in sorted(ends.items()) if before[bucket] < end]
        turn = next(self._turn) % max(1, len(behind))
        left = limit.max_rows
        for place, bucket in enumerate(behind[turn:] + behind[:turn]):
            if left <= 0:
                break
            share = -(-left // (len(behind) - place))
            # What has expired is told of by partitions().
            start = max(before[bucket], Offset(table.offsets()[bucket][0]))
            taken[bucket] = table.shares(bucket).commit_end(start, ends[bucket], share)
            left -= taken[bucket] - start
        return taken

    def _check_loss(self, bucket: int, offset: Offset, log_start: Offset, *, rows: bool) -> None:
        if not self._options.fail_on_data_loss and not rows:
            return
        raise OffsetOutOfRange(
            "The rows this stream starts with can't be read any more, for the log has expired up to a later offset; "
            "start with a new checkpoint."
            if rows
            else "Changes this stream has not read have expired; go on without them with option `failOnDataLoss` "
            "false, or start with a new checkpoint and startingOffsets `full`.",
            bucket=bucket,
            offset=offset,
            log_start=log_start,
        )


def _start_of(table: Table, options: Options) -> Place:
    """Where a stream starts that has no checkpoint."""
    if options.kind is Kind.ROWS:
        raise UnsupportedOperation(
            "A stream reads changes; option `table` is `name$changelog` or `name$binlog`.", table=options.table
        )
    if options.end is not None:
        raise UnsupportedOperation("A stream has no end; leave endingOffsets and endingTimestamp out.")
    start = options.start
    if start is None:
        start = "earliest" if table.primary_key is None else "full"
    if start == "full" and table.options.changelog_image == "wal":
        raise UnsupportedOperation(
            "A WAL image does not tell the rows of before, so a stream can't begin with them; set startingOffsets to "
            "`earliest` or `latest`.",
            table=table.name,
        )
    if isinstance(start, dt.datetime) and milliseconds(start) > SystemClock().now_ms():
        raise InvalidRequest("Option `startingTimestamp` is in the future; start at `latest`.", given=start)
    return start


def _ends(table: Table) -> dict[int, Offset]:
    """How far each bucket can be read."""
    return {bucket: offset for bucket, (offset, _) in table.committed().items()}


def _offsets_of(began: Began | None) -> dict[int, Offset]:
    assert began is not None
    return {int(bucket): Offset(offset) for bucket, offset in began.offsets.items()}


def _check_order(bucket: int, first: Offset, last: Offset) -> None:
    if last < first:
        raise OffsetOutOfRange(
            "The log ends before what this stream has read of it; was an older copy restored? Start with a new "
            "checkpoint.",
            bucket=bucket,
            offset=first,
            log_end=last,
        )
