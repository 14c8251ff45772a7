"""Tables for Spark, and how it and Python read them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import kvstore

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string()), pa.field("v", pa.float64())])


def load(spark: SparkSession, store: kvstore.Store, table: str, **options: str) -> DataFrame:
    return spark.read.format("kvstore").options(path=str(store.path), table=table, **options).load()


def listed(frame: DataFrame, *order: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.orderBy(*order).toArrow().to_pylist()
    return rows


def python_changes(table: kvstore.Table, *arguments: Any) -> list[dict[str, Any]]:
    return [change for batch in table.changelog(*arguments) for change in batch.to_pylist()]


EVERY_TYPE = {
    "i8": (pa.int8(), -1),
    "i16": (pa.int16(), -1),
    "i32": (pa.int32(), -1),
    "i64": (pa.int64(), -(2**63)),
    "u8": (pa.uint8(), 255),
    "u16": (pa.uint16(), 65_535),
    "u32": (pa.uint32(), 2**32 - 1),
    "u64": (pa.uint64(), 2**64 - 1),
    "f16": (pa.float16(), 0.5),
    "f32": (pa.float32(), 0.5),
    "f64": (pa.float64(), 0.1),
    "flag": (pa.bool_(), True),
    "text": (pa.string(), "é"),
    "bytes": (pa.binary(), b"\0\xff"),
    "four": (pa.binary(4), b"abcd"),
    "money": (pa.decimal128(10, 2), Decimal("-12.34")),
    "day": (pa.date32(), dt.date(1969, 12, 31)),
    "moment": (pa.timestamp("us", "UTC"), dt.datetime(2026, 11, 20, 1, 2, 3, 4, dt.UTC)),
    "seconds": (pa.timestamp("s", "UTC"), dt.datetime(2026, 11, 20, 1, 2, 3, 0, dt.UTC)),
    "wall": (pa.timestamp("us"), dt.datetime(2026, 11, 20, 1, 2, 3, 4)),
    "span": (pa.duration("us"), dt.timedelta(days=1, microseconds=1)),
    "time": (pa.time32("s"), dt.time(1, 2, 3)),
    "list": (pa.list_(pa.int32()), [1, None, 3]),
    "map": (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]), {"x": 1, "y": ["z"]}),
}
