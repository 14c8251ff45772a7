"""Division of a read among tasks: a few large ones, because each task costs as much as reading some megabytes."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from kvstore.read.binlog import AFTER, BEFORE, binlog_of, changelog_columns
from kvstore.read.scan import KeyRange, rows_where
from kvstore.spark.options import Kind
from kvstore.spark.read.net import CHANGE_TYPE, VERSION, net_changes
from kvstore.spark.read.place import TablePlace
from kvstore.spark.types import for_spark
from kvstore.table.table import Table
from logformat.ids import Offset

ROWS_TASK_BYTES_MIN = 4 << 20
"""Bytes of an index that cost as much to read as a task; fewer are not worth a task."""
CHANGES_TASK_BYTES_MIN = 1 << 20
"""The same for a log, which is compressed."""
BATCH_ROWS_MIN = 1 << 14
"""Smaller batches, which a filter leaves, are joined: each batch costs Spark some time."""


@dataclass(frozen=True)
class ReadRange:
    """The range that is read of one bucket.

    Attributes:
        start, end: Changes from ``start`` (inclusive) to ``end`` (exclusive); for rows, those as of ``end``.
        inserted_at: If given, the rows as of ``start`` come first, as inserts of a commit at this time in milliseconds
            since the Unix epoch; None for changes only.
        keys: If given, only the rows of these keys.
    """

    bucket: int
    start: int
    end: int
    inserted_at: int | None = None
    keys: KeyRange | None = None


@dataclass(frozen=True)
class ReadPiece:
    """The part of a bucket that one task reads.

    Attributes:
        keys: If given, the rows of these keys as of ``end``; None for changes from ``start`` to ``end``.
    """

    bucket: int
    start: int
    end: int
    keys: tuple[KeyRange, ...] | None = None
    inserted_at: int | None = None


@dataclass
class ReadTask(InputPartition):
    """The pieces that one task reads."""

    table: TablePlace
    pieces: tuple[ReadPiece, ...]


T = TypeVar("T")


@dataclass(frozen=True)
class Part(Generic[T]):
    """Part of a read: the number of tasks that it is worth, and a function that cuts it into pieces."""

    tasks: float
    cut: Callable[[int], Sequence[T]]


def tasks_of(
    place: TablePlace,
    table: Table,
    ranges: Sequence[ReadRange],
    filter: pc.Expression | None = None,
    cores: int | None = None,
    *,
    by_bucket: bool = False,
) -> list[InputPartition]:
    """Tasks that read the ranges, one for each core or fewer, without parts in which no row passes the filter.

    Args:
        cores: Number of cores of the cluster; those of this machine if None.
        by_bucket: Whether each task reads one bucket only.
    """
    if by_bucket and len(ranges) > 1:
        cores = max(1, (cores or os.cpu_count() or 1) // len(ranges))
        return [task for each in ranges for task in tasks_of(place, table, [each], filter, cores)]
    parts = list(chain.from_iterable(_parts(table, place.kind, each, filter) for each in ranges))
    return [ReadTask(place, pieces) for pieces in divided(parts, cores)]


def divided(parts: Sequence[Part[T]], cores: int | None = None, tasks_max: float = 0) -> list[tuple[T, ...]]:
    """Cut parts into pieces and divide them among tasks, one for each core or fewer; no task is empty.

    Args:
        cores: See :func:`tasks_of`.
        tasks_max: If above 0, there are more tasks than cores when a task would be worth more than this.
    """
    total = sum(part.tasks for part in parts)
    most = max(cores or os.cpu_count() or 1, ceil(total / tasks_max) if tasks_max else 0)
    count = max(1, min(most, int(total)))
    tasks: list[list[T]] = [[] for _ in range(count)]
    done = 0.0
    for part in parts:
        pieces = part.cut(max(1, round(count * part.tasks / total)) if total else 1)
        for piece in pieces:
            # By the middle of the piece, so that rounding errors do not matter.
            middle = done + part.tasks / len(pieces) / 2
            tasks[min(count - 1, int(count * middle / total)) if total else 0].append(piece)
            done += part.tasks / len(pieces)
    return [tuple(pieces) for pieces in tasks if pieces]


def read(
    task: ReadTask, target: pa.Schema, filter: pc.Expression | None = None, needed: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a task's pieces as batches for Spark.

    Args:
        target: Requested columns, with the types that Spark expects.
        filter: Only rows for which it is true.
        needed: Requested columns and those that the filter may use; the requested columns if None.

    Raises:
        NoSuchTable: The table was dropped meanwhile.
        OffsetOutOfRange: Requested offsets have expired meanwhile.
        CorruptData: The index or the log is damaged.
    """
    freeze_once()
    with task.table.open() as table:
        for piece in task.pieces:
            names = list(needed or columns_needed(target, task.table.kind, table.primary_key))
            batches = _batches(table, task.table.kind, piece, target, names)
            if filter is not None:
                batches = larger(rows_where(batches, filter))
            for batch in batches:
                yield for_spark(batch, target)


def _parts(table: Table, kind: Kind, given: ReadRange, filter: pc.Expression | None) -> Iterator[Part[ReadPiece]]:
    splits, start, end = table.parts.of_bucket(given.bucket), Offset(given.start), Offset(given.end)
    rows = ReadPiece(given.bucket, given.start, given.end, ())
    if kind is not Kind.ROWS:
        rows = ReadPiece(given.bucket, given.start, given.start, (), given.inserted_at)
        schema = table.binlog_schema() if kind is Kind.BINLOG else table.changelog_schema()
        for first, last in splits.offsets_where(schema, filter, start, end):

            def cut(parts: int, first: Offset = first, last: Offset = last) -> list[ReadPiece]:
                return [ReadPiece(given.bucket, *each) for each in splits.split_changes(first, last, parts)]

            yield Part(splits.change_bytes(first, last) / CHANGES_TASK_BYTES_MIN, cut)
        filter = None  # a filter on changes does not limit the keys
    if kind is not Kind.ROWS and given.inserted_at is None:
        return
    if ranges := [given.keys] if given.keys is not None else splits.keys_where(filter, as_of=rows.end):
        yield Part(
            splits.row_bytes(ranges) / ROWS_TASK_BYTES_MIN,
            lambda parts: [replace(rows, keys=keys) for keys in splits.split_keys(ranges, parts)],
        )


def _batches(
    table: Table, kind: Kind, piece: ReadPiece, target: pa.Schema, names: list[str]
) -> Iterator[pa.RecordBatch]:
    splits, bucket = table.parts.of_bucket(piece.bucket), piece.bucket
    if kind is Kind.ROWS:
        assert piece.keys is not None
        return splits.rows(piece.keys, names, as_of=piece.end)
    whole = table.binlog_schema(columns_of_rows(table.schema, target)) if kind is Kind.BINLOG else None
    if piece.keys is not None:
        assert piece.inserted_at is not None
        columns = names if whole is None else changelog_columns(whole)
        rows = splits.inserts(piece.keys, columns, as_of=piece.end, timestamp=piece.inserted_at)
        return rows if whole is None else binlog_of(rows, whole)
    start, end = {bucket: piece.start}, {bucket: piece.end}
    if kind is Kind.NET:
        names = list(dict.fromkeys([*names, *(table.primary_key or ()), CHANGE_TYPE, VERSION]))
        return net_changes(table.changelog(start, end, bucket, names), table.primary_key)
    if whole is None:
        return table.changelog(start, end, bucket, names)
    return table.binlog(start, end, bucket, [field.name for field in whole.field(AFTER).type])


def columns_needed(target: pa.Schema, kind: Kind, key: Sequence[str] | None) -> list[str]:
    """Requested columns; if only the number of rows is requested, one that costs little."""
    if target.names:
        return target.names
    return list(key[:1]) if kind is Kind.ROWS and key is not None else ["_log_offset"]


def columns_of_rows(stored: pa.Schema, target: pa.Schema) -> list[str]:
    """Requested columns of the rows before and after in a binlog; at least one."""
    rows = [target.field(name).type for name in (BEFORE, AFTER) if name in target.names]
    return list(dict.fromkeys(field.name for row in rows for field in row)) or stored.names[:1]


def larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least ``BATCH_ROWS_MIN`` rows, except for the last."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            count += batch.num_rows
        if count >= BATCH_ROWS_MIN:
            yield pa.concat_batches(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


_frozen = False


def freeze_once() -> None:
    """Exclude the objects that exist now from garbage collection."""
    # PySpark collects garbage after every task, and imported modules need not be scanned each time.
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
