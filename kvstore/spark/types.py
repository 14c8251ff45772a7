"""Spark's type for each stored type (docs/types.md), and conversion of batches for Spark's Arrow reader."""

from __future__ import annotations

import json
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    StringType,
    StructType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from kvstore.errors import InvalidRequest, UnsupportedOperation

_WIDENED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
_NOT_KEPT: dict[type[DataType], str] = {
    CharType: "use STRING, whose length is not checked",
    VarcharType: "use STRING, whose length is not checked",
    VariantType: "use STRING, and write to_json(…)",
    YearMonthIntervalType: "use INT, and write the number of months",
    GeometryType: "use BINARY",
    GeographyType: "use BINARY",
}


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's schema for stored columns; every column is nullable, as Spark's reader requires.

    Raises:
        UnsupportedOperation: Spark has no type for a column.
    """
    return cast(StructType, from_arrow_schema(pa.schema([(field.name, _type_of(field)) for field in schema])))


def _type_of(field: pa.Field) -> pa.DataType:
    try:
        return spark_type(field.type)
    except UnsupportedOperation as error:
        error.where["column"] = field.name
        raise


def arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark expects of batches for a Spark schema.

    Raises:
        UnsupportedOperation: PySpark has no Arrow type for a column.
    """
    fields = []
    for field in schema:
        try:
            fields += to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkException as error:
            raise UnsupportedOperation(
                "A store has no such type; docs/types.md lists the types.",
                column=field.name,
                type=field.dataType.simpleString(),
            ) from error
    return pa.schema(fields)


def schema_to_store(schema: StructType) -> pa.Schema:
    """The Arrow schema of columns that a table shall have.

    Raises:
        InvalidRequest: A table would not keep a column's type, such as the length of a VARCHAR.
        UnsupportedOperation: PySpark has no Arrow type for a column.
    """
    for field in schema:
        _check_kept(field.dataType, field.name)
    return arrow_schema(schema)


def _check_kept(given: DataType, column: str) -> None:
    for kind, advice in _NOT_KEPT.items():
        if isinstance(given, kind):
            shown = given.simpleString()
            raise InvalidRequest(f"A store does not have this type; {advice}.", column=column, type=shown)
    if isinstance(given, StringType) and not given.isUTF8BinaryCollation():
        raise InvalidRequest(
            "A store keeps no collation: it compares text by its bytes. Leave COLLATE out of the type, and write it in "
            "queries, or store lower(…) of the text.",
            column=column,
            type=given.simpleString(),
        )
    if isinstance(given, ArrayType):
        _check_kept(given.elementType, f"{column}.element")
    elif isinstance(given, MapType):
        _check_kept(given.keyType, f"{column}.key")
        _check_kept(given.valueType, f"{column}.value")
    elif isinstance(given, StructType):
        for field in given:
            _check_kept(field.dataType, f"{column}.{field.name}")


def decode_columns(text: str) -> StructType:
    """A schema from Spark's JSON.

    Raises:
        UnsupportedOperation: PySpark does not know a type.
    """
    try:
        return StructType.fromJson(json.loads(text, object_hook=_without_classes))
    except PySparkException as error:
        raise UnsupportedOperation(
            "PySpark does not know a type of these columns; cast it, or leave its column out.", reason=str(error)
        ) from error


def _without_classes(described: dict[str, Any]) -> Any:
    """A user-defined type as Spark stores it: its class is not looked for."""
    return described["sqlType"] if described.get("type") == "udt" else described


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
                "A value does not fit Spark's type for its column; leave the column out: with option `columns`, or in a"
                " catalog by a SELECT of the others.",
                column=field.name,
                type=column.type,
                reason=str(error),
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=target)


def spark_type(stored: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark reads for a stored type.

    Raises:
        UnsupportedOperation: Spark has none.
    """
    types = pa.types
    if types.is_decimal256(stored) or (types.is_decimal(stored) and not 0 <= stored.scale <= stored.precision):
        raise UnsupportedOperation(
            "Spark has decimals of at most 38 digits, of which none to all are after the point; read the table by"
            ' format("kvstore"), and leave the column out with option `columns`.',
            type=stored,
        )
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
