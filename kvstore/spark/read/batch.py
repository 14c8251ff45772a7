"""Batch reads: what they read is known before the first task, and only then is it cut up and filtered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from kvstore.spark.read.filters import expression_of, values_of
from kvstore.spark.read.place import TablePlace
from kvstore.spark.read.splits import ReadRange, ReadTask, read, tasks_of
from kvstore.spark.types import arrow_schema
from kvstore.table.table import Table
from logformat.ids import BucketId

BucketOf = Callable[[Mapping[str, pa.Scalar]], int | None]
"""The bucket of all rows with some values; None if there may be some in several."""


@dataclass(frozen=True)
class Pinned:
    """What is read, whenever it is.

    Attributes:
        lease: Name under which the log is kept for it.
    """

    place: TablePlace
    wanted: tuple[ReadRange, ...]
    lease: str = field(default_factory=lambda: uuid4().hex)

    def hold(self, table: Table) -> None:
        """Have the log kept as far as this needs it, for a while from now; see :meth:`kvstore.Table.lease`."""
        if self.place.kind is Kind.ROWS and table.options.changelog_image == "wal":
            return  # it does not tell the rows of before
        # Rows as of an offset are those of now with the changes since then undone.
        table.lease(self.lease, {each.bucket: each.start for each in self.wanted})


def pinned(place: TablePlace, table: Table, options: Options) -> Pinned:
    """What the options ask for, as of now; the log is kept for it, unless it may be for a stream.

    Raises:
        InvalidRequest, OffsetOutOfRange: See :meth:`kvstore.Table.changelog` and :meth:`kvstore.Table.scan`.
    """
    found = Pinned(place, _wanted(table, options))
    if options.kind is Kind.ROWS or options.end is not None:
        # Spark asks for a stream's columns the same way: one that is started often would keep the whole log.
        found.hold(table)
    return found


def _wanted(table: Table, options: Options) -> tuple[ReadRange, ...]:
    if options.kind is not Kind.ROWS:
        start = options.start or "earliest"
        return changes_wanted(table, start, options.end or "latest", options.fail_on_data_loss)
    if options.as_of is not None:
        ends = table.offsets_as_of(options.as_of)
    else:
        ends = {bucket: last for bucket, (_, last) in table.offset_ranges("latest").items()}
    return tuple(ReadRange(bucket, end, end) for bucket, end in ends.items())


def changes_wanted(
    table: Table, start: Start, end: End = "latest", fail_on_data_loss: bool = True
) -> tuple[ReadRange, ...]:
    """Which changes of each bucket are between two places, and the rows at the first if that is ``full``.

    Args:
        fail_on_data_loss: If false, and the log does not reach back to ``start``, begin where it begins.
    """
    if start == "full":
        table.scan_schema()  # it has a key
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
    """A reader of a table in buckets that makes use of filters, if option ``pushFilters`` says so.

    Raises:
        InvalidRequest: An option says nothing of a batch.
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

    @property
    def pushFilters(self) -> PushFilters:  # noqa: N802
        """Takes the filters of a query."""
        return PushFilters(self)

    def take_filters(self, filters: list[Filter]) -> None:
        """Leave out what can't pass them, as far as that is known here; or do not, see :class:`PushFilters`."""
        if not self._push_filters:
            return
        with self._buckets() as (columns, bucket_of):
            self._filter = expression_of(filters, columns)
            if self._kind is not Kind.BINLOG:
                self._bucket = bucket_of(values_of(filters, columns))

    @abstractmethod
    def _buckets(self) -> AbstractContextManager[tuple[pa.Schema, BucketOf]]:
        """Columns as they are stored, and which bucket has rows with certain values."""


@errors_shown_alone
class KvStoreReader(FilteredReader):
    """Reads what was pinned, in a few large partitions."""

    def __init__(self, pinned: Pinned, schema: StructType, options: Options) -> None:
        super().__init__(pinned.place.kind, schema, options)
        self._pinned = pinned

    @contextmanager
    def _buckets(self) -> Iterator[tuple[pa.Schema, BucketOf]]:
        with self._pinned.place.open() as table:
            yield _stored(table, self._kind), table.bucket_of

    def partitions(self) -> list[InputPartition]:
        """One for each core, or fewer if there is little to read."""
        place = self._pinned.place
        wanted = [each for each in self._pinned.wanted if self._bucket in (None, each.bucket)]
        with place.open() as table:
            self._pinned.hold(table)
            return tasks_of(place, table, wanted, self._filter)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        # Where there is no partition, Spark asks for one that is none.
        if isinstance(partition, ReadTask):
            yield from read(partition, self._target, self._filter)


class PushFilters:
    """What Spark calls as ``reader.pushFilters(filters)``.

    Filters are made use of only where option ``pushFilters`` says so. A DataFrame of a Python data source has one plan
    of what is read, which Spark (4.3) replaces whenever filters are pushed down, and uses for every query on that
    DataFrame that has none. After ``df.where("k = 1").count()``, ``df.count()`` has the rows of ``k = 1`` only, and so
    have all parts of a union but the last. What is right for a DataFrame that is used once is wrong for any other, and
    nobody here can tell them apart.

    Spark fails every query on a reader that has such a method of its own while its setting
    ``spark.sql.python.filterPushdown.enabled`` is off, as it is by default. So this one passes for the inherited method
    where Spark looks, and is called only where the setting is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: FilteredReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters; which of them are left to Spark."""
        self._reader.take_filters(filters)
        return filters  # Spark evaluates them again, on what is left


def _stored(table: Table, kind: Kind) -> pa.Schema:
    """Columns as they are stored."""
    if kind is Kind.ROWS:
        return table.scan_schema()
    return table.binlog_schema() if kind is Kind.BINLOG else table.changelog_schema()
