"""``format("kvstore")``: a table, or its changelog as ``table$changelog``, as Arrow batches.

* What is read is pinned when it is loaded: every task, and every query on the same DataFrame, sees the same offset.
* Objects that go to other processes hold text and numbers only; whoever reads opens the store itself, read-only.
"""

from __future__ import annotations

import gc
import json
import operator
import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvstore.errors import InvalidRequest, SchemaMismatch
from kvstore.spark.types import arrow_schema, for_spark, spark_schema
from kvstore.store import Store, open_store
from kvstore.table.scan import KeyRange
from logformat.ids import Offset

CHANGELOG = "$changelog"
OPTIONS = ("path", "table", "columns", "startingOffsets", "endingOffsets")
ROWS_PARTITION_BYTES_MIN = 4 << 20
"""A task costs as much as reading this much of an index; less is not worth one of its own."""
CHANGES_PARTITION_BYTES_MIN = 1 << 20
"""The same of a log, which is compressed."""


@dataclass(frozen=True)
class Plan:
    """What is read: text and numbers, for any process.

    Attributes:
        ranges: Bucket, and offsets from (inclusive) and to (exclusive). Rows are read as they were before the latter.
    """

    path: str
    table: str
    changelog: bool
    ranges: tuple[tuple[int, int, int], ...]


@dataclass
class Partition(InputPartition):
    """What one task reads of one bucket: keys of a range, or changes from ``start`` to ``end``."""

    bucket: int
    start: int
    end: int
    first_key: bytes = b""
    last_key: bytes | None = None


class KvStoreSource(DataSource):
    """Register it with ``spark.dataSource.register(KvStoreSource)``.

    Options: ``path`` and ``table`` (``name`` or ``name$changelog``), ``columns`` (names, separated by commas); for a
    changelog ``startingOffsets`` (``earliest``, ``latest`` or JSON ``{"0": 17}``) and ``endingOffsets``.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        if unknown := sorted(set(self._options) - {name.lower() for name in OPTIONS}):
            raise InvalidRequest("There is no such option.", unknown=unknown, options=OPTIONS)
        for name in ("path", "table"):
            if not self._options.get(name):
                raise InvalidRequest(f"Option `{name}` is missing.", given=sorted(self._options))
        self._pinned: tuple[Plan, pa.Schema] | None = None

    @classmethod
    def name(cls) -> str:
        """Short name of the format."""
        return "kvstore"

    def schema(self) -> StructType:
        """Columns, and the moment: what is loaded now is what every query on it reads."""
        self._pinned = _planned(self._options)
        return spark_schema(self._pinned[1])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``."""
        plan, columns = self._pinned or _planned(self._options)
        expected = spark_schema(columns)
        for field in schema:
            if field.name not in columns.names or field.dataType != expected[field.name].dataType:
                raise SchemaMismatch(
                    "The schema given to load() is not that of the table; it may leave columns out, no more.",
                    column=field.simpleString(),
                    expected=expected.simpleString(),
                )
        return KvStoreReader(plan, schema)


class KvStoreReader(DataSourceReader):
    """Reads what a plan says, in a few large partitions."""

    def __init__(self, plan: Plan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One for each core, or fewer if there is little to read."""
        plan, cores = self._plan, os.cpu_count() or 1
        with _opened(plan.path) as store:
            table = store.table(plan.table)
            if plan.changelog:
                return [
                    Partition(bucket, first, last)
                    for bucket, start, end in plan.ranges
                    for first, last in table.split_changes(
                        bucket, Offset(start), Offset(end), cores, CHANGES_PARTITION_BYTES_MIN
                    )
                ]
            return [
                Partition(bucket, start, end, keys.start, keys.stop)
                for bucket, start, end in plan.ranges
                for keys in table.split_keys(bucket, cores, ROWS_PARTITION_BYTES_MIN)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        assert isinstance(partition, Partition)
        _freeze_once()
        plan, target, names = self._plan, arrow_schema(self._schema), self._schema.names
        with _opened(plan.path) as store:
            table = store.table(plan.table)
            if plan.changelog:
                batches = table.changelog(
                    {partition.bucket: partition.start}, {partition.bucket: partition.end}, partition.bucket, names
                )
            else:
                keys = KeyRange(partition.first_key, partition.last_key)
                batches = table.rows_within(partition.bucket, keys, names, as_of=partition.end)
            for batch in batches:
                yield for_spark(batch, target)


def _planned(options: Mapping[str, str]) -> tuple[Plan, pa.Schema]:
    """What the options ask for, as of now, and its columns."""
    changelog = options["table"].endswith(CHANGELOG)
    start, end = options.get("startingoffsets"), options.get("endingoffsets")
    if not changelog and (start is not None or end is not None):
        raise InvalidRequest("startingOffsets and endingOffsets are for a changelog: `<table>$changelog`.")
    columns = [name.strip() for name in options["columns"].split(",")] if "columns" in options else None
    with _opened(options["path"]) as store:
        table = store.table(options["table"].removesuffix(CHANGELOG))
        found = table.offset_ranges(
            _place("startingOffsets", start or "earliest", ("earliest", "latest")),
            _place("endingOffsets", end or "latest", ("latest",)),
        )
        ranges = tuple((bucket, first, last) for bucket, (first, last) in sorted(found.items()))
        plan = Plan(os.path.abspath(options["path"]), table.name, changelog, ranges)
        return plan, (table.changelog_schema if changelog else table.scan_schema)(columns)


def _place(option: str, text: str, words: tuple[str, ...]) -> Any:
    """A word, or offsets by bucket from JSON."""
    if text in words:
        return text
    try:
        return {int(bucket): operator.index(offset) for bucket, offset in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidRequest(
            f'Option `{option}` is {", ".join(words)}, or JSON from bucket to offset: {{"0": 17}}.', given=text
        ) from error


def _opened(path: str) -> Store:
    return open_store(path, read_only=True)


_frozen = False


def _freeze_once() -> None:
    # PySpark collects garbage after every task; what was imported by now need not be looked at each time.
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
