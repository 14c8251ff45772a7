"""The connector reads values of Arrow by address: each type as Spark itself reads it, nothing outside a batch."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kvstore

pytestmark = pytest.mark.spark

ROWS = 51
"""Not a multiple of eight: the last byte of a bitmap has bits of no row."""
DAY, MOMENT = dt.date(1969, 12, 30), dt.datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=dt.UTC)
Values = Callable[[random.Random], Any]


def _decimals(digits: int, scale: int) -> Values:
    return lambda source: Decimal(source.randrange(-(10**digits) + 1, 10**digits)).scaleb(-scale)


def _integers(bits: int) -> Values:
    return lambda source: source.randrange(-(1 << bits - 1), 1 << bits - 1)


def _texts(source: random.Random) -> str:
    return "".join(source.choice("aé\U0001f600") for _ in range(source.choice([0, 1, 3, 40])))


def _lists(values: Values) -> Values:
    return lambda source: [None if source.random() < 0.2 else values(source) for _ in range(source.choice([0, 1, 4]))]


TYPES: dict[str, tuple[pa.DataType, Values]] = {
    "bool": (pa.bool_(), lambda source: source.random() < 0.5),
    "int8": (pa.int8(), _integers(8)),
    "int16": (pa.int16(), _integers(16)),
    "int32": (pa.int32(), _integers(32)),
    "int64": (pa.int64(), _integers(64)),
    "uint64": (pa.uint64(), lambda source: source.randrange(1 << 64)),
    "float32": (pa.float32(), lambda source: source.choice([0.5, -3.0, 0.0])),
    "float64": (pa.float64(), lambda source: source.choice([-0.0, 1.5, float("inf"), float("nan"), 1e300])),
    "short_decimal": (pa.decimal128(7, 2), _decimals(7, 2)),
    "long_decimal": (pa.decimal128(18, 3), _decimals(18, 3)),
    "huge_decimal": (pa.decimal128(38, 10), _decimals(38, 10)),
    "text": (pa.string(), _texts),
    "bytes": (pa.binary(), lambda source: source.randbytes(source.choice([0, 1, 30]))),
    "fixed": (pa.binary(3), lambda source: source.randbytes(3)),
    "day": (pa.date32(), lambda source: DAY + dt.timedelta(days=source.randrange(40_000))),
    "time": (pa.time64("us"), lambda source: dt.time(source.randrange(24), 1, 2, source.randrange(1_000_000))),
    "moment": (pa.timestamp("us", "UTC"), lambda source: MOMENT + dt.timedelta(microseconds=source.randrange(1 << 50))),
    "local": (pa.timestamp("us"), lambda source: dt.datetime(1969, 1, 1, 0, 0, source.randrange(60))),
    "duration": (pa.duration("us"), lambda source: dt.timedelta(microseconds=source.randrange(-(1 << 40), 1 << 40))),
    "numbers": (pa.list_(pa.int32()), _lists(_integers(32))),
    "lists": (pa.list_(pa.list_(pa.string())), _lists(_lists(_texts))),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        lambda source: [(str(n), None if n else 7) for n in range(source.randrange(3))],
    ),
    "struct": (
        pa.struct({"n": pa.int64(), "s": pa.string(), "in": pa.struct({"d": pa.decimal128(5, 1)})}),
        lambda source: {
            "n": source.choice([None, 1 << 40]),
            "s": source.choice([None, "", "é"]),
            "in": source.choice([None, {"d": source.choice([None, Decimal("-1.5")])}]),
        },
    ),
    "structs": (
        pa.list_(pa.struct({"f": pa.bool_()})),
        _lists(lambda source: {"f": source.choice([None, True, False])}),
    ),
}
NULLS = (0.0, 0.3, 1.0)
"""Shares of nulls of the batches of each type."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = random.Random(7)
    schema = pa.schema([pa.field("k", pa.int64(), False), *((name, kind) for name, (kind, _) in TYPES.items())])
    path = tmp_path_factory.mktemp("columns") / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", schema, primary_key="k")
        for batch, nulls in enumerate(NULLS):
            rows = [
                {"k": batch * ROWS + n}
                | {name: None if source.random() < nulls else values(source) for name, (_, values) in TYPES.items()}
                for n in range(ROWS)
            ]
            table.upsert(pa.Table.from_pylist(rows, schema))
    return path


def _load(spark: SparkSession, path: Path, name: str, source: str = "kvstore") -> DataFrame:
    return spark.read.format(source).options(path=str(path), table=name).load()


def _shown(frame: DataFrame) -> list[str]:
    """The rows as text, in which NaN equals NaN."""
    return sorted(map(repr, frame.collect()))


@contextmanager
def _compiled(spark: SparkSession) -> Iterator[None]:
    """Queries are compiled, as those of users are; other tests let Spark interpret them."""
    names = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))


def test_every_type_is_read_as_spark_reads_it(spark: SparkSession, path: Path) -> None:
    known = _shown(_load(spark, path, "t", "kvstore_python"))
    assert len(known) == len(NULLS) * ROWS
    assert _shown(_load(spark, path, "t")) == known
    by_key = _load(spark, path, "t").where(
        f"k IN ({', '.join(map(str, range(len(known))))})"
    )  # they come with the plan
    assert _shown(by_key) == known
    with _compiled(spark):
        assert _shown(_load(spark, path, "t")) == known
        assert _shown(by_key.select("*")) == known


def test_values_that_spark_keeps_outlive_their_batch(spark: SparkSession, path: Path) -> None:
    """Text is not copied when it is read; what a sort, an aggregate or a join keeps must be a copy."""
    columns = ["k", "text", "struct", "map", "lists", "bytes"]
    ours, python = (
        _load(spark, path, "t", source).select(*columns).orderBy("k") for source in ("kvstore", "kvstore_python")
    )
    wanted = ["collect_list(text)", "max(text)", "max_by(struct, k)", "collect_list(map)", "max(lists)", "max(bytes)"]
    with _compiled(spark):
        assert ours.selectExpr(*wanted).collect() == python.selectExpr(*wanted).collect()
        by_text = [frame.select("text").groupBy("text").count().orderBy("text").collect() for frame in (ours, python)]
        assert by_text[0] == by_text[1]


OFFSETS = list(range(10))
TEXT = b"abcdefghi"


def _column(spark: SparkSession, of: pa.Array, offsets: list[int]) -> Any:
    """The connector's column of an array that has come as a stream, with other offsets."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"c": of.type})) as stream:
        stream.write_batch(pa.record_batch({"c": of}))
    packed, given = (struct.pack(f"<{len(each)}i", *each) for each in (OFFSETS, offsets))
    content = sink.getvalue().to_pybytes()
    assert content.count(packed) == 1
    jvm: Any = spark._jvm
    memory = jvm.org.apache.arrow.memory.RootAllocator(1 << 20)
    source = jvm.java.io.ByteArrayInputStream(content.replace(packed, given))
    reader = jvm.org.apache.arrow.vector.ipc.ArrowStreamReader(source, memory)
    assert reader.loadNextBatch()
    return _columns(spark).of(reader.getVectorSchemaRoot().getFieldVectors().get(0))


def _columns(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return getattr(getattr(jvm.kvstore.spark, "StreamColumn$"), "MODULE$")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.lists(st.integers(-2, 11), min_size=len(OFFSETS), max_size=len(OFFSETS)), st.booleans(), st.booleans())
def test_offsets_lead_only_into_their_buffer(
    spark: SparkSession, offsets: list[int], is_sorted: bool, of_list: bool
) -> None:
    offsets = [max(0, each) for each in sorted(offsets)] if is_sorted else offsets
    if of_list:  # Arrow's reader makes a list as long as its last offset says
        offsets = [min(len(TEXT), each) for each in offsets]
    texts = pa.array([chr(each) for each in TEXT])
    numbers = pa.array([[each] for each in TEXT], pa.list_(pa.int8()))
    column = _column(spark, numbers if of_list else texts, offsets)
    if offsets[0] < 0 or offsets != sorted(offsets) or offsets[-1] > len(TEXT):
        with pytest.raises(PySparkException, match=r"CorruptData.*its offsets lead out of its .* values.*column=c"):
            column.load(len(TEXT))
        return
    column.load(len(TEXT))
    read = [bytes(column.getArray(row).toByteArray()) if of_list else bytes(column.getBinary(row)) for row in range(9)]
    assert read == [TEXT[first:end] for first, end in pairwise(offsets)]


@pytest.mark.parametrize(
    ("vector", "width"), [("BigInt", 8), ("Int", 4), ("SmallInt", 2), ("TinyInt", 1), ("Float8", 8), ("DateDay", 4)]
)
def test_a_buffer_that_is_too_short_is_refused(spark: SparkSession, vector: str, width: int) -> None:
    jvm: Any = spark._jvm
    memory = jvm.org.apache.arrow.memory.RootAllocator(1 << 20)

    def load(byte_count: int, rows: int) -> None:
        arrow = getattr(jvm.org.apache.arrow.vector, f"{vector}Vector")("c", memory)
        buffers = jvm.java.util.ArrayList()
        for length in (2, byte_count):
            buffers.add(memory.buffer(128).slice(0, length))
        arrow.loadFieldBuffers(jvm.org.apache.arrow.vector.ipc.message.ArrowFieldNode(9, 0), buffers)
        _columns(spark).of(arrow).load(rows)

    load(9 * width, 9)
    with pytest.raises(PySparkException, match=rf"CorruptData.*{9 * width - 1} bytes, and its values need {9 * width}"):
        load(9 * width - 1, 9)
    with pytest.raises(PySparkException, match=r"CorruptData.*it has 9 values, and its batch 10 rows"):
        load(10 * width, 10)
