"""DataFrames of a store that this process has not opened: :func:`read`."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

Value = str | int | bool | Mapping[int, int] | dt.datetime


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    table: str,
    *,
    columns: Sequence[str] | None = None,
    **options: Value,
) -> DataFrame:
    """Read a table, ``name$changelog`` or ``name$binlog`` of a store or a replica, as of now.

    The connector reads it where its jar is loaded, else the Python source.

    Args:
        path: Directory of the store, or the directory or URL of a replica.
        columns: Columns to read, in this order; of a binlog, those of the rows before and after. All if None.
        options: Options of ``format("kvstore")`` by name; offsets by bucket may be a dict, a time a datetime with a
            zone: ``asOf={0: 17}``, ``startingOffsets="full"``.

    Raises:
        AnalysisException: The store refuses; its error is in the message.
    """
    reader = spark.read.format("kvstore").options(path=os.fspath(path), table=table)
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    for name, value in options.items():
        reader = reader.option(name, _text(name, value))
    return reader.load()


def _text(name: str, value: Value) -> str:
    if isinstance(value, Mapping):
        return json.dumps({str(bucket): offset for bucket, offset in value.items()})
    if isinstance(value, dt.datetime):
        is_number = name.lower().endswith("timestamp")
        return str(int(value.timestamp() * 1000)) if is_number else value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)
