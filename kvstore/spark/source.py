"""``format("kvstore")``: a table, or its changelog as ``table$changelog``, as Arrow batches.

* What is read is pinned when it is loaded: every task, and every query on the same DataFrame, sees the same offset.
  Where a schema is given to Spark, that is the moment of the first query: only then Spark asks for anything.
* A table that was dropped since is named, never read as another of its name.
* Objects that go to other processes hold text and numbers only; whoever reads opens the store itself, read-only.
"""

from __future__ import annotations

import gc
import json
import operator
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvstore.errors import InvalidRequest, NoSuchTable, NotAStore, SchemaMismatch, UnsupportedOperation
from kvstore.spark.types import arrow_schema, for_spark, spark_schema
from kvstore.store import Store, open_store
from kvstore.table.scan import KeyRange
from kvstore.table.table import Table
from logformat.ids import Offset

CHANGELOG = "changelog"
"""What may follow a table's name and a ``$``."""
OPTIONS = ("path", "table", "columns", "startingOffsets", "endingOffsets")
OPTIONS_TO_COME = ("startingTimestamp", "endingTimestamp", "asOf", "failOnDataLoss", "maxOffsetsPerTrigger")
"""Documented, and refused by name until they do something."""
ROWS_PARTITION_BYTES_MIN = 4 << 20
"""A task costs as much as reading this much of an index; less is not worth one of its own."""
CHANGES_PARTITION_BYTES_MIN = 1 << 20
"""The same of a log, which is compressed."""


@dataclass(frozen=True)
class Plan:
    """What is read: text and numbers, for any process.

    Attributes:
        store_id, table_id: What there was at the path, and of the name, when it was loaded.
        ranges: Bucket, and offsets from (inclusive) and to (exclusive). Rows are read as they were before the latter.
    """

    path: str
    store_id: str
    table: str
    table_id: int
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

    Options: ``path`` (a directory or a ``file:`` URI) and ``table`` (``name`` or ``name$changelog``), ``columns``
    (names, separated by commas); for a changelog ``startingOffsets`` (``earliest``, ``latest`` or JSON ``{"0": 17}``)
    and ``endingOffsets``.

    Spark is another process than the one that writes, and sees what is committed: an acknowledged write 250 ms later at
    most, or on large tables, where a commit of the index takes longer than 50 ms, after five such commits; all writes
    at once after ``table.flush()``.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        if to_come := [name for name in OPTIONS_TO_COME if name.lower() in self._options]:
            raise UnsupportedOperation("There is no such option yet; leave it out.", given=to_come, options=OPTIONS)
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
        if len(set(schema.names)) < len(schema.names):
            raise SchemaMismatch("The schema given to load() names a column twice; name each once.", names=schema.names)
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
        with _table_of(plan) as table:
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
        with _table_of(plan) as table:
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
    name, changelog = _name_and_kind(options["table"])
    start, end = options.get("startingoffsets"), options.get("endingoffsets")
    if not changelog and (start is not None or end is not None):
        raise InvalidRequest("startingOffsets and endingOffsets are for a changelog: `<table>$changelog`.")
    columns = [column.strip() for column in options["columns"].split(",")] if "columns" in options else None
    if columns is not None and len(set(columns)) < len(columns):
        raise SchemaMismatch("Option `columns` names a column twice; name each once.", columns=columns)
    with _opened(_directory(options["path"])) as store:
        table = store.table(name)
        found = table.offset_ranges(
            _place("startingOffsets", start or "earliest", ("earliest", "latest")),
            _place("endingOffsets", end or "latest", ("latest",)),
        )
        ranges = tuple((bucket, first, last) for bucket, (first, last) in sorted(found.items()))
        store_id, table_id = table.identity
        plan = Plan(str(store.path), str(store_id), name, table_id, changelog, ranges)
        return plan, (table.changelog_schema if changelog else table.scan_schema)(columns)


def _name_and_kind(text: str) -> tuple[str, bool]:
    """A table's name, and whether its changelog is meant."""
    name, dollar, kind = text.partition("$")
    if dollar and kind != CHANGELOG:
        raise InvalidRequest(
            f"Option `table` is `name` for a table's rows, or `name${CHANGELOG}` for its changes.", given=text
        )
    return name, bool(dollar)


def _directory(path: str) -> str:
    """A path, which may be given as a URI of this machine; nothing in it is decoded, as in Spark's own sources."""
    uri = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)(?://([^/]*))?(.*)", path, re.DOTALL)
    if uri is None:
        return path
    scheme, host, directory = uri.groups()
    if scheme.lower() != "file" or host not in (None, "", "localhost"):
        raise InvalidRequest("A store is on a local disk; give `path` a directory, or file:///directory.", path=path)
    return "/" + directory.lstrip("/")


def _place(option: str, text: str, words: tuple[str, ...]) -> Any:
    """A word, or offsets by bucket from JSON."""
    if text == "full":
        raise UnsupportedOperation(
            f"Option `{option}` can't be full yet; load the table itself for its current rows.", options=words
        )
    if text in words:
        return text
    try:
        return {int(bucket): operator.index(offset) for bucket, offset in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidRequest(
            f'Option `{option}` is {", ".join(words)}, or JSON from bucket to offset: {{"0": 17}}.', given=text
        ) from error


def _opened(path: str) -> Store:
    try:
        return open_store(path, read_only=True)
    except NotAStore as error:
        raise NotAStore(
            "There is no store here; give `path` the directory that kvstore.open() was given, on this machine.",
            path=os.path.abspath(path),
        ) from error


@contextmanager
def _table_of(plan: Plan) -> Iterator[Table]:
    """The table that was planned, no other of its name."""
    with _opened(plan.path) as store:
        table = store.table(plan.table) if plan.table in store.list_tables() else None
        if table is None or table.identity != (UUID(plan.store_id), plan.table_id):
            raise NoSuchTable("The table was dropped since it was loaded; load it again.", table=plan.table)
        yield table


_frozen = False


def _freeze_once() -> None:
    # PySpark collects garbage after every task; what was imported by now need not be looked at each time.
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
