"""Batch reads: their offsets are pinned before the first task, and then filtered and divided among tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from kvstore.errors import InvalidRequest
from kvstore.read.changelog import End, Start
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Kind, Options
from kvstore.spark.read.aggregates import Aggregate, Value, aggregates_of
from kvstore.spark.read.filters import expression_of, values_of
from kvstore.spark.read.place import TablePlace
from kvstore.spark.read.splits import ReadRange, ReadTask, read, tasks_of
from kvstore.spark.types import arrow_schema
from kvstore.table.table import Table
from logformat.ids import BucketId

BucketOf = Callable[[Mapping[str, pa.Scalar]], int | None]
"""The bucket of all rows with these values; None if several buckets may have such rows."""


@dataclass(frozen=True)
class Pinned:
    """The pinned offsets of a batch read.

    Attributes:
        ranges: Offsets of each bucket.
        lease: Name of the lease that keeps the log for this read.
    """

    place: TablePlace
    ranges: tuple[ReadRange, ...]
    lease: str = field(default_factory=lambda: uuid4().hex)

    def hold(self, table: Table, *, until_commit: bool = False) -> None:
        """Keep the log that this read needs, for the time of a lease; see :meth:`kvstore.Table.lease`.

        Args:
            until_commit: Whether a commit is to check the changes since this read.
        """
        if self.place.kind is Kind.ROWS and table.options.changelog_image == "wal" and not until_commit:
            return  # a WAL image has no earlier rows
        # Rows as of an offset are the current rows with the changes since then undone.
        table.parts.lease(self.lease, {each.bucket: each.start for each in self.ranges})


def pinned(place: TablePlace, table: Table, options: Options, *, keep_log: bool = True) -> Pinned:
    """Pin the offsets that the options select, and keep the log for them unless a stream may be meant.

    Args:
        keep_log: If false, the log is not kept before a query on these offsets is planned.

    Raises:
        InvalidRequest, OffsetOutOfRange: See :meth:`kvstore.Table.changelog` and :meth:`kvstore.Table.scan`.
    """
    found = Pinned(place, _ranges(table, options))
    if keep_log and (options.kind is Kind.ROWS or options.end is not None):
        # Spark asks for a stream's columns in the same way: a stream that is started often would keep the whole log.
        found.hold(table)
    return found


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
        begins = {bucket: first for bucket, (first, _) in table.offsets().items()}
        if isinstance(start, Mapping):
            start = {bucket: max(offset, begins.get(BucketId(bucket), 0)) for bucket, offset in start.items()}
        if isinstance(end, Mapping):
            end = {bucket: max(offset, begins.get(BucketId(bucket), 0)) for bucket, offset in end.items()}
    return tuple(ReadRange(bucket, *each) for bucket, each in table.offset_ranges(start, end).items())


@errors_shown_alone
class FilteredReader(DataSourceReader):
    """A reader of a table that uses filters if option ``pushFilters`` is true.

    Raises:
        InvalidRequest: An option is for streams only.
    """

    def __init__(self, kind: Kind, schema: StructType, options: Options) -> None:
        for name, given in (("maxOffsetsPerTrigger", options.offsets_max), ("consumer", options.consumer)):
            if given is not None:
                raise InvalidRequest(f"Option `{name}` is for streams; leave it out.")
        self._kind = kind
        self._target = arrow_schema(schema)
        self._push_filters = options.push_filters
        self._filter: pc.Expression | None = None
        self._bucket: int | None = None
        self.cores: int | None = None
        """Number of cores of the cluster; those of this machine if None."""
        self.stored: pa.Schema | None = None
        """Stored columns, which filters are for; known once there are some."""

    @property
    def pushFilters(self) -> PushFilters:  # noqa: N802
        """The method that Spark calls with the filters of a query."""
        return PushFilters(self)

    def take_filters(self, filters: list[Filter]) -> None:
        """Skip rows that can't pass the filters, if the option allows it; see :class:`PushFilters`."""
        if self._push_filters:
            self.use_filters(filters)

    def use_filters(self, filters: Iterable[Filter]) -> None:
        """Skip rows that can't pass the filters; only for a reader that serves one query."""
        with self._buckets() as (columns, bucket_of):
            self._filter = expression_of(filters, columns)
            if self._kind is not Kind.BINLOG:
                self._bucket = bucket_of(values_of(filters, columns))
        self.stored = columns

    @abstractmethod
    def _buckets(self) -> AbstractContextManager[tuple[pa.Schema, BucketOf]]:
        """Stored columns, and the function that finds the bucket of rows with certain values."""


@errors_shown_alone
class KvStoreReader(FilteredReader):
    """Reads the pinned offsets in a few large partitions."""

    def __init__(self, pinned: Pinned, schema: StructType, options: Options) -> None:
        super().__init__(pinned.place.kind, schema, options)
        self._pinned = pinned
        self.by_bucket = False
        """Whether each task reads one bucket only."""

    @contextmanager
    def _buckets(self) -> Iterator[tuple[pa.Schema, BucketOf]]:
        with self._pinned.place.open() as table:
            yield _stored(table, self._kind), table.parts.bucket_of

    def partitions(self) -> list[InputPartition]:
        """Partitions, one for each core, or fewer if there is little to read."""
        place = self._pinned.place
        ranges = [each for each in self._pinned.ranges if self._bucket in (None, each.bucket)]
        with place.open() as table:
            self._pinned.hold(table)
            return tasks_of(place, table, ranges, self._filter, self.cores, by_bucket=self.by_bucket)

    def aggregates(self, wanted: Sequence[Aggregate]) -> list[Value] | None:
        """See :func:`kvstore.spark.read.aggregates.aggregates_of`."""
        with self._pinned.place.open() as table:
            return aggregates_of(table, self._pinned.place.kind, self._pinned.ranges, wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        # Without any partition, Spark calls this with another object.
        if isinstance(partition, ReadTask):
            yield from read(partition, self._target, self._filter)


class PushFilters:
    """The method that Spark calls as ``reader.pushFilters(filters)``.

    Filters are used only if option ``pushFilters`` is true. A DataFrame of a Python data source has one plan of the
    read, which Spark (4.3) replaces whenever filters are pushed down, and uses for every query on that DataFrame
    without filters. After ``df.where("k = 1").count()``, ``df.count()`` counts only the rows of ``k = 1``; the same
    happens to all parts of a union but the last. So pushing filters down is correct only for a DataFrame that is used
    once, and the source can't know that.

    Spark fails every query on a reader that overrides this method while its setting
    ``spark.sql.python.filterPushdown.enabled`` is off, which is the default. So this object looks like the inherited
    method to Spark, and is called only if the setting is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: FilteredReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters, and return those that Spark must evaluate."""
        self._reader.take_filters(filters)
        return filters  # Spark evaluates all of them again


def _stored(table: Table, kind: Kind) -> pa.Schema:
    """Stored columns of a table, its changelog or its binlog."""
    if kind is Kind.ROWS:
        return table.scan_schema()
    return table.binlog_schema() if kind is Kind.BINLOG else table.changelog_schema()
