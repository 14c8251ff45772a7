"""DataFrames of a table that is open here: ``Table.to_spark`` and ``Table.changelog_to_spark``.

They are made with ``mapInArrow``, where Spark makes rows of Arrow batches with less work than of a data source's. What
they read is pinned, as it is there; each task opens the store itself, read-only.
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
from kvstore.spark.read.batch import Pinned, changes_wanted
from kvstore.spark.read.place import TablePlace
from kvstore.spark.read.splits import ReadRange, ReadTask, read, tasks_of
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
    schema = table.scan_schema(columns)
    table.flush()
    if as_of is None:
        ends = {bucket: last for bucket, (_, last) in table.offset_ranges("latest").items()}
    else:
        ends = table.offsets_as_of(as_of)
    wanted = [ReadRange(bucket, end, end) for bucket, end in ends.items()]
    return _frame(table, spark, Kind.ROWS, wanted, schema, table.scan_schema(), where)


def changes_frame(
    table: Table,
    spark: SparkSession,
    start: Start,
    end: End,
    columns: Sequence[str] | None,
    where: pc.Expression | None,
) -> DataFrame:
    """See :meth:`kvstore.Table.changelog_to_spark`."""
    schema = table.changelog_schema(None if columns is None else column_names("columns", columns))
    table.flush()
    wanted = changes_wanted(table, start, end)
    return _frame(table, spark, Kind.CHANGELOG, wanted, schema, table.changelog_schema(), where)


def _frame(
    table: Table,
    spark: SparkSession,
    kind: Kind,
    wanted: Sequence[ReadRange],
    schema: pa.Schema,
    whole: pa.Schema,
    where: pc.Expression | None,
) -> DataFrame:
    if where is not None:
        check_filter(where, whole)
    # pyarrow does not tell what a filter uses
    needed = schema.names if where is None else whole.names
    place = TablePlace.of(str(table.store_path), table, kind)
    Pinned(place, tuple(wanted)).hold(table)
    shares = tasks_of(place, table, wanted, where)
    columns = spark_schema(schema)
    if not shares:
        return spark.createDataFrame([], columns)
    tasks = spark.range(0, len(shares), 1, len(shares))  # each has its number, and nothing else
    return mapped(tasks, _reader(shares, columns, where, needed), columns)


def mapped(tasks: DataFrame, run: Any, columns: StructType) -> DataFrame:
    """``mapInArrow``, which asks for pandas before it does what needs none."""
    if find_spec("pandas") is not None:
        return tasks.mapInArrow(run, columns)
    from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]

    function = vectorized_udf(run, columns, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    applied = function(*[tasks[name] for name in tasks.columns])
    return type(tasks)(tasks._jdf.mapInArrow(applied._jc, False, None), tasks.sparkSession)


def _reader(shares: Sequence[Any], columns: StructType, where: pc.Expression | None, needed: Sequence[str]) -> Any:
    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = arrow_schema(columns)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                share = shares[number]
                assert isinstance(share, ReadTask)
                with shown_alone():
                    yield from read(share, target, where, needed)

    return run
