"""Spark's type for each stored type (docs/types.md), and conversion of batches for Spark's Arrow reader."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kvstore.errors import UnsupportedOperation

_WIDENED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's schema for stored columns; every column is nullable, as Spark's reader requires.

    Raises:
        UnsupportedOperation: Spark has no type for a column.
    """
    return cast(StructType, from_arrow_schema(pa.schema([(field.name, spark_type(field.type)) for field in schema])))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark expects of batches for a Spark schema."""
    return to_arrow_schema(schema, timezone="UTC")


def for_spark(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Convert a batch for Spark's reader.

    Raises:
        UnsupportedOperation: A value would change, such as nanoseconds in Spark's microseconds.
    """
    if not target.names:
        return batch.select([])  # it keeps the number of rows
    columns = []
    for field in target:
        column = batch.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise UnsupportedOperation(
                "A value does not fit Spark's type for its column; leave the column out with option `columns`.",
                column=field.name,
                type=column.type,
                reason=str(error),
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=target)


def spark_type(stored: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark reads for a stored type."""
    types = pa.types
    if stored in _WIDENED:
        return _WIDENED[stored]
    if types.is_fixed_size_binary(stored) and not types.is_decimal(stored):
        return pa.binary()
    if types.is_timestamp(stored):
        return pa.timestamp("us", stored.tz)
    if types.is_duration(stored):
        return pa.duration("us")
    if types.is_time(stored):
        return pa.time64("ns")
    if types.is_map(stored):
        return pa.map_(spark_type(stored.key_type), spark_type(stored.item_type))
    if types.is_list(stored):
        return pa.list_(spark_type(stored.value_type))
    if types.is_struct(stored):
        return pa.struct([(field.name, spark_type(field.type)) for field in stored])
    return stored
