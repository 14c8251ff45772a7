"""DataFrames of a table that is open in this process: ``Table.to_spark`` and ``Table.changelog_to_spark``.

They use ``mapInArrow``, with which Spark converts Arrow batches to rows faster than those of a data source. Their
offsets are pinned as in the data source; each task opens the store by itself, read-only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from kvstore.arguments import column_names
from kvstore.read.changelog import End, Start
from kvstore.read.scan import check_filter
from kvstore.spark.failures import shown_alone
from kvstore.spark.options import Kind
from kvstore.spark.read.address import TableAddress
from kvstore.spark.read.sources import read
from kvstore.spark.read.store import StoreReads, ranges_of_changes
from kvstore.spark.read.tasks import Pinned, ReadRange, ReadTask, tasks_of
from kvstore.spark.types import arrow_schema, spark_schema
from kvstore.table.table import Table


def rows_frame(
    table: Table,
    spark: SparkSession,
    columns: Sequence[str] | None,
    where: pc.Expression | None,
    as_of: int | Mapping[int, int] | dt.datetime | None,
) -> DataFrame:
    """See :meth:`kvstore.Table.to_spark`."""
    table = table.with_fixed_columns()
    schema = table.scan_schema(columns)
    table.flush()
    if as_of is None:
        ends = {bucket: last for bucket, (_, last) in table.offset_ranges("latest").items()}
    else:
        ends = table.offsets_as_of(as_of)
    ranges = [ReadRange(bucket, end, end) for bucket, end in ends.items()]
    return _frame(table, spark, Kind.ROWS, ranges, schema, table.scan_schema(), where)


def changes_frame(
    table: Table,
    spark: SparkSession,
    start: Start,
    end: End,
    columns: Sequence[str] | None,
    where: pc.Expression | None,
) -> DataFrame:
    """See :meth:`kvstore.Table.changelog_to_spark`."""
    table = table.with_fixed_columns()
    schema = table.changelog_schema(None if columns is None else column_names("columns", columns))
    table.flush()
    ranges = ranges_of_changes(table, start, end)
    return _frame(table, spark, Kind.CHANGELOG, ranges, schema, table.changelog_schema(), where)


def _frame(
    table: Table,
    spark: SparkSession,
    kind: Kind,
    ranges: Sequence[ReadRange],
    schema: pa.Schema,
    whole: pa.Schema,
    where: pc.Expression | None,
) -> DataFrame:
    if where is not None:
        check_filter(where, whole)
    # pyarrow does not say which columns a filter uses
    needed = schema.names if where is None else whole.names
    address = TableAddress.of(str(table.parts.store_path), table, kind)
    reads = StoreReads(address, table)
    reads.hold(Pinned(address, tuple(ranges)))
    tasks = tasks_of(address, reads, ranges, where)
    columns = spark_schema(schema)
    if not tasks:
        return spark.createDataFrame([], columns)
    numbers = spark.range(0, len(tasks), 1, len(tasks))  # one partition for each task, with its number only
    return mapped(numbers, _reader(tasks, columns, where, needed), columns)


def mapped(tasks: DataFrame, run: Any, columns: StructType) -> DataFrame:
    """``mapInArrow``, also without pandas, which Spark's own method requires and does not use."""
    if find_spec("pandas") is not None:
        return tasks.mapInArrow(run, columns)
    from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]

    function = vectorized_udf(run, columns, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    applied = function(*[tasks[name] for name in tasks.columns])
    return type(tasks)(tasks._jdf.mapInArrow(applied._jc, False, None), tasks.sparkSession)


def _reader(tasks: Sequence[ReadTask], columns: StructType, where: pc.Expression | None, needed: Sequence[str]) -> Any:
    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = arrow_schema(columns)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with shown_alone():
                    yield from read(tasks[number], target, where, needed)

    return run
