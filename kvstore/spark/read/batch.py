"""Batch reads: what they read is pinned before the first task, and then filtered and divided among tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from kvstore.errors import InvalidRequest
from kvstore.request.partition import bucket_of
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Kind, Options
from kvstore.spark.read.filters import expression_of, values_of
from kvstore.spark.read.lookups import wanted_keys
from kvstore.spark.read.sources import read, reads_of
from kvstore.spark.read.tasks import Aggregate, Pinned, ReadTask, Value, tasks_of
from kvstore.spark.types import arrow_schema


@errors_shown_alone
class KvStoreReader(DataSourceReader):
    """Reads what is pinned in a few large partitions; it uses filters if option ``pushFilters`` is true.

    Raises:
        InvalidRequest: An option is for streams only.
    """

    def __init__(self, pinned: Pinned, schema: StructType, options: Options) -> None:
        for name, given in (("maxOffsetsPerTrigger", options.offsets_max), ("consumer", options.consumer)):
            if given is not None:
                raise InvalidRequest(f"Option `{name}` is for streams; leave it out.")
        self._pinned = pinned
        self._target = arrow_schema(schema)
        self._push_filters = options.push_filters
        self._filter: pc.Expression | None = None
        self._bucket: int | None = None
        self.cores: int | None = None
        """Number of cores of the cluster; those of this machine if None."""
        self.by_bucket = False
        """Whether each task reads one bucket only."""
        self.stored: pa.Schema | None = None
        """Stored columns, which filters are for; known once there are some."""
        self._wanted: dict[int, tuple[bytes, ...]] | None = None
        self.looks_up = False
        """Whether the tasks look up all rows that can pass the filters; known once there are tasks."""

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
        address = self._pinned.address
        self.stored = address.stored()
        filters = list(filters)
        if address.kind is Kind.ROWS:
            self._wanted = wanted_keys(address.definition, filters)
        self._filter = expression_of(filters, self.stored)
        if address.kind is not Kind.BINLOG:
            self._bucket = bucket_of(address.definition, values_of(filters, self.stored))

    def partitions(self) -> list[InputPartition]:
        """Partitions, one for each core; fewer if there is little to read; of a replica more if there is much."""
        address = self._pinned.address
        ranges = [each for each in self._pinned.ranges if self._bucket in (None, each.bucket)]
        with reads_of(address) as reads:
            reads.hold(self._pinned)
            self.looks_up = self._wanted is not None and reads.looks_up(sum(map(len, self._wanted.values())))
            if self.looks_up:
                assert self._wanted is not None
                ranges = [
                    replace(each, wanted=self._wanted[each.bucket]) for each in ranges if each.bucket in self._wanted
                ]
            return [*tasks_of(address, reads, ranges, self._filter, self.cores, by_bucket=self.by_bucket)]

    def aggregates(self, wanted: Sequence[Aggregate]) -> list[Value] | None:
        """Values of aggregates, without filters; None if rows must be read for one of them."""
        with reads_of(self._pinned.address) as reads:
            return reads.aggregates(self._pinned.ranges, wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; see :func:`kvstore.spark.read.sources.read`."""
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

    def __init__(self, reader: KvStoreReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters, and return those that Spark must evaluate."""
        self._reader.take_filters(filters)
        return filters  # Spark evaluates all of them again
