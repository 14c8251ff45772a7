"""Streams: the changes since the last batch, up to a limit.

* One process lives as long as the query and often asks for the latest offset; it keeps the store or replica open, so
  that this is cheap. Other processes read, and open the store by themselves.
* Every offset lies between two commits, so a batch has all of a commit or nothing, and both halves of an update.
* Every decision is part of an offset: after a crash Spark plans the same batch again, in another process.
* With a consumer, the catalog has a position that is not after the first unread change, even before Spark can save
  the start of the stream.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kvstore.clock import SystemClock
from kvstore.errors import InvalidRequest, OffsetOutOfRange, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import milliseconds
from kvstore.read.scan import KeyRange
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Kind, Options, Place
from kvstore.spark.read.address import TableAddress
from kvstore.spark.read.followed import Followed
from kvstore.spark.read.offsets import Began, Raw, StreamOffset, by_name, decoded, initial, table_id
from kvstore.spark.read.sources import read
from kvstore.spark.read.tasks import ReadRange, ReadTask
from kvstore.spark.types import arrow_schema
from logformat.ids import Offset


@errors_shown_alone
class KvStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the changes of a table, of a store or of a replica.

    Raises:
        UnsupportedOperation, InvalidRequest: The options do not apply to this table, or not to a stream.
    """

    def __init__(self, address: TableAddress, followed: Followed, schema: StructType, options: Options) -> None:
        self._address = address
        self._followed = followed
        self._schema = schema
        self._options = options
        self._start = _start_of(address.definition, options)
        self._until: dict[int, Offset] | None = None
        self._turns = 0
        self.cores: int | None = None
        """Number of cores of the cluster; those of this machine if None."""

    def _offset(self, offsets: Mapping[int, Offset], began: Began | None = None) -> StreamOffset:
        return StreamOffset(table_id(self._address), by_name(offsets), began, self._followed.leader_epoch)

    def _decoded(self, raw: Raw) -> StreamOffset | None:
        return decoded(raw, self._address, self._address.definition.buckets)

    def _ends(self) -> dict[int, Offset]:
        return {bucket: end for bucket, (_, end) in self._followed.bounds().items()}

    def initialOffset(self) -> Raw:  # noqa: N802
        """The initial offset; see :mod:`kvstore.spark.read.offsets`."""
        return initial(self._start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of option ``maxOffsetsPerTrigger``."""
        most = self._options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the stream to the changes that exist now."""
        self._followed.renew()
        self._until = self._ends()

    def latestOffset(self, start: Raw, limit: ReadLimit) -> Raw:  # noqa: N802
        """End offset of the next batch; ``start`` itself if there is nothing new.

        Raises:
            NoSuchTable: The table was dropped.
            SchemaMismatch: Columns of the table were renamed or dropped since the stream began.
            OffsetOutOfRange: The log ends before ``start``.
            UnsupportedOperation, StoreFull: The catalog can't be written for the consumer. Nothing was changed.
        """
        self._followed.renew()
        reached = self._decoded(start)
        if reached is not None:
            self._followed.check_continues(reached)
        began = self._begin() if reached is None else None
        before = reached.by_bucket if reached is not None else _offsets_of(began)
        ends = self._ends()
        for bucket, offset in before.items():
            _check_order(bucket, offset, ends[bucket])
        self._followed.register(before, began=began is not None)
        left = _rows_left(reached, began)
        if left and isinstance(limit, ReadMaxRows):
            return self._copied(reached.began if reached is not None else began, left, limit.max_rows).raw()
        if self._until is not None:
            ends = {bucket: max(before[bucket], min(end, self._until[bucket])) for bucket, end in ends.items()}
        if reached is not None and ends == before and not left:
            return start
        return self._offset(self._limited(before, ends, limit), began).raw()

    def reportLatestOffset(self) -> Raw:  # noqa: N802
        """End of the log, for the progress report of the query."""
        return self._offset(self._ends()).raw()

    def metrics(self, end: Raw) -> dict[str, str]:
        """Lag of the stream for the progress report of the query, as text; empty before its first batch.

        Args:
            end: End of the last batch.
        """
        position = self._decoded(end)
        if position is None:
            return {}
        ends = self._ends()
        lag = sum(ends[bucket] - offset for bucket, offset in position.by_bucket.items())
        return {"offsetsBehindLatest": str(lag), "bucketsToCopy": str(len(position.rows_from or {}))}

    def partitions(self, start: Raw, end: Raw) -> list[InputPartition]:
        """Partitions of the changes between two offsets, one for each core, or fewer if there are few changes.

        Raises:
            OffsetOutOfRange: Some of the changes have expired, or the log ends before ``end``.
        """
        first, last = (self._decoded(each) for each in (start, end))
        if last is None or (first is None and last.began is None):
            raise InvalidRequest("The checkpoint lacks the start of the stream; start with a new one.", end=end)
        began = last.began if first is None else first.began
        left, left_after = _rows_left(first, began), _rows_left(last, None)
        begin = first.by_bucket if first is not None else _offsets_of(last.began)
        logs = self._followed.bounds()
        ranges = []
        for bucket, stop in last.by_bucket.items():
            (log_start, log_end), reached = logs[bucket], begin[bucket]
            _check_order(bucket, reached, stop)
            _check_order(bucket, stop, log_end)
            name = str(bucket)
            has_rows = name in left and left[name] != left_after.get(name)
            if reached < log_start and (reached < stop or has_rows):
                self._check_loss(bucket, reached, log_start, rows=has_rows)
                reached = min(log_start, stop)
            if has_rows:
                assert began is not None
                assert began.rows_of is not None
                keys = KeyRange(left[name], left_after.get(name))
                ranges.append(ReadRange(bucket, reached, stop, began.rows_of[name], keys))
            else:
                ranges.append(ReadRange(bucket, reached, stop))
        return [*self._followed.tasks(ranges, self.cores)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one partition."""
        assert isinstance(partition, ReadTask)
        yield from read(partition, arrow_schema(self._schema))

    def commit(self, end: Raw) -> None:
        """Say that the changes before an offset were read, to the consumer if there is one.

        Raises:
            UnsupportedOperation, StoreFull: The catalog can't be written. The consumer keeps its earlier position.
        """
        offset = self._decoded(end)
        if offset is not None:
            self._followed.committed(offset)

    def stop(self) -> None:
        """Close what is open; Spark rarely calls this before the process ends."""
        self._followed.close()

    def _begin(self) -> Began:
        """Fix the start of the stream."""
        offsets, rows_of = self._followed.begin_at(self._start)
        if self._until is not None:
            offsets = {bucket: min(offset, self._until[bucket]) for bucket, offset in offsets.items()}
        return Began(by_name(offsets), None if rows_of is None else by_name(rows_of))

    def _copied(self, began: Began | None, left: dict[str, bytes], most: int) -> StreamOffset:
        """End offset of a batch of the rows at the start: at most ``most`` of them, of one bucket after the other.

        Args:
            left: The first key in each bucket that has some left.
        """
        assert began is not None
        rows_from = dict(left)
        offsets, bounds = _offsets_of(began), self._followed.bounds()
        for name, key in left.items():
            if most <= 0:
                break
            bucket = int(name)
            offset, log_start = offsets[bucket], bounds[bucket][0]
            if offset < log_start:
                self._check_loss(bucket, offset, log_start, rows=True)
            following, rows = self._followed.key_after(bucket, KeyRange(key), most, offset)
            most -= rows
            if following is None:
                del rows_from[name]
            else:
                rows_from[name] = following
        return msgspec.structs.replace(self._offset(offsets, began), rows_from=rows_from or None)

    def _limited(self, before: Mapping[int, Offset], ends: Mapping[int, Offset], limit: ReadLimit) -> dict[int, Offset]:
        """End offset of each bucket, so that all buckets together have at most the allowed offsets, or one commit.

        Each bucket gets an equal part of the limit, plus what buckets before it have left; each call begins with the
        next bucket.
        """
        if isinstance(limit, ReadAllAvailable):
            return dict(ends)
        if not isinstance(limit, ReadMaxRows):
            raise UnsupportedOperation("A stream is limited by `maxOffsetsPerTrigger` only.", limit=limit)
        if (whole := self._followed.whole_ends(before, ends, limit.max_rows)) is not None:
            return whole
        taken = dict(before)
        lagging = [bucket for bucket, end in sorted(ends.items()) if before[bucket] < end]
        turn = self._turns % max(1, len(lagging))
        self._turns += 1
        left, starts = limit.max_rows, self._followed.bounds()
        for nth, bucket in enumerate(lagging[turn:] + lagging[:turn]):
            if left <= 0:
                break
            quota = -(-left // (len(lagging) - nth))
            # partitions() reports expired changes.
            start = max(before[bucket], starts[bucket][0])
            taken[bucket] = self._followed.commit_end(bucket, start, ends[bucket], quota)
            left -= taken[bucket] - start
        return taken

    def _check_loss(self, bucket: int, offset: Offset, log_start: Offset, *, rows: bool) -> None:
        if not self._options.fail_on_data_loss and not rows:
            return
        raise OffsetOutOfRange(
            "The rows this stream starts with can no longer be read, because the log has expired up to a later offset; "
            "start with a new checkpoint."
            if rows
            else "Changes this stream has not read have expired; continue without them with option `failOnDataLoss` "
            "false, or start with a new checkpoint and startingOffsets `full`.",
            bucket=bucket,
            offset=offset,
            log_start=log_start,
        )


def _start_of(table: TableDefinition, options: Options) -> Place:
    """Start of a stream without a checkpoint."""
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
            "A WAL image has no earlier rows, so a stream can't begin with them; set startingOffsets to `earliest` or "
            "`latest`.",
            table=table.name,
        )
    if isinstance(start, dt.datetime) and milliseconds(start) > SystemClock().now_ms():
        raise InvalidRequest("Option `startingTimestamp` is in the future; start at `latest`.", given=start)
    return start


def _offsets_of(began: Began | None) -> dict[int, Offset]:
    assert began is not None
    return {int(bucket): Offset(offset) for bucket, offset in began.offsets.items()}


def _rows_left(reached: StreamOffset | None, began: Began | None) -> dict[str, bytes]:
    """Rows at the start of a stream that are not read yet: in each bucket that has some, the first key.

    Args:
        began: Start of the stream, if ``reached`` is None, which is before all rows.
    """
    if reached is not None:
        return reached.rows_from or {}
    return {} if began is None or began.rows_of is None else dict.fromkeys(began.rows_of, KeyRange().start)


def _check_order(bucket: int, begin: Offset, stop: Offset) -> None:
    if stop < begin:
        raise OffsetOutOfRange(
            "The log ends before what this stream has read of it; was an older copy restored? Start with a new "
            "checkpoint.",
            bucket=bucket,
            offset=begin,
            log_end=stop,
        )
