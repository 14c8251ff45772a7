"""What is read, cut up among tasks: a few large ones, for each costs as much as reading some megabytes."""

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
from kvstore.spark.read.place import TablePlace
from kvstore.spark.types import for_spark
from kvstore.table.table import Table
from logformat.ids import Offset

ROWS_TASK_BYTES_MIN = 4 << 20
"""A task costs as much as reading this much of an index; less is not worth one of its own."""
CHANGES_TASK_BYTES_MIN = 1 << 20
"""The same of a log, which is compressed."""
BATCH_ROWS_MIN = 1 << 14
"""Batches that a filter left smaller than this are handed on together: each costs Spark something."""


@dataclass(frozen=True)
class ReadRange:
    """What is read of one bucket.

    Attributes:
        start, end: Changes from here (inclusive) to there (exclusive); of a table's rows, those as of ``end``.
        inserted_at: The rows as of ``start`` come first, as inserts of a commit at this time (ms); None for changes
            only.
    """

    bucket: int
    start: int
    end: int
    inserted_at: int | None = None


@dataclass(frozen=True)
class ReadPiece:
    """What a task reads of one bucket.

    Attributes:
        keys: The rows of these keys as of ``end``; None for changes from ``start`` to ``end``.
    """

    bucket: int
    start: int
    end: int
    keys: tuple[KeyRange, ...] | None = None
    inserted_at: int | None = None


@dataclass
class ReadTask(InputPartition):
    """What one task reads."""

    table: TablePlace
    pieces: tuple[ReadPiece, ...]


T = TypeVar("T")


@dataclass(frozen=True)
class Part(Generic[T]):
    """Something that can be cut: how many tasks it is worth, and how it is cut into a number of pieces."""

    tasks: float
    cut: Callable[[int], Sequence[T]]


def tasks_of(
    place: TablePlace, table: Table, wanted: Sequence[ReadRange], filter: pc.Expression | None = None
) -> list[InputPartition]:
    """All that is wanted, but for what no row of can pass the filter: one share for each core, or fewer."""
    parts = list(chain.from_iterable(_parts(table, place.kind, each, filter) for each in wanted))
    return [ReadTask(place, pieces) for pieces in dealt(parts)]


def dealt(parts: Sequence[Part[T]], tasks_max: float = 0) -> list[tuple[T, ...]]:
    """Parts cut up and dealt out: one share for each core, or fewer if there is little; none is empty.

    Args:
        tasks_max: If it is above 0, there are more shares than cores if one would be worth more than this.
    """
    total = sum(part.tasks for part in parts)
    most = max(os.cpu_count() or 1, ceil(total / tasks_max) if tasks_max else 0)
    count = max(1, min(most, int(total)))
    shares: list[list[T]] = [[] for _ in range(count)]
    done = 0.0
    for part in parts:
        pieces = part.cut(max(1, round(count * part.tasks / total)) if total else 1)
        for piece in pieces:
            # In the middle of it, so that what is left over by rounding changes nothing.
            middle = done + part.tasks / len(pieces) / 2
            shares[min(count - 1, int(count * middle / total)) if total else 0].append(piece)
            done += part.tasks / len(pieces)
    return [tuple(pieces) for pieces in shares if pieces]


def read(
    share: ReadTask, target: pa.Schema, filter: pc.Expression | None = None, needed: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """What a share holds, in batches of Spark's form.

    Args:
        target: Columns wanted, as Spark wants them.
        filter: Rows for which it is true.
        needed: Columns that the filter may use, and those wanted; the latter if None.

    Raises:
        NoSuchTable: The table was dropped since.
        OffsetOutOfRange: What is wanted has expired since.
        CorruptData: It is damaged.
    """
    freeze_once()
    with share.table.open() as table:
        for piece in share.pieces:
            batches = _batches(table, share.table.kind, piece, target, list(needed or target.names))
            if filter is not None:
                batches = larger(rows_where(batches, filter))
            for batch in batches:
                yield for_spark(batch, target)


def _parts(table: Table, kind: Kind, wanted: ReadRange, filter: pc.Expression | None) -> Iterator[Part[ReadPiece]]:
    shares, start, end = table.shares(wanted.bucket), Offset(wanted.start), Offset(wanted.end)
    rows = ReadPiece(wanted.bucket, wanted.start, wanted.end, ())
    if kind is not Kind.ROWS:
        rows = ReadPiece(wanted.bucket, wanted.start, wanted.start, (), wanted.inserted_at)
        schema = table.binlog_schema() if kind is Kind.BINLOG else table.changelog_schema()
        for first, last in shares.offsets_where(schema, filter, start, end):

            def cut(parts: int, first: Offset = first, last: Offset = last) -> list[ReadPiece]:
                return [ReadPiece(wanted.bucket, *each) for each in shares.split_changes(first, last, parts)]

            yield Part(shares.change_bytes(first, last) / CHANGES_TASK_BYTES_MIN, cut)
        filter = None  # what it says of a change does not say where among the keys
    if (kind is Kind.ROWS or wanted.inserted_at is not None) and (ranges := shares.keys_where(filter, as_of=rows.end)):
        yield Part(
            shares.row_bytes(ranges) / ROWS_TASK_BYTES_MIN,
            lambda parts: [replace(rows, keys=keys) for keys in shares.split_keys(ranges, parts)],
        )


def _batches(
    table: Table, kind: Kind, piece: ReadPiece, target: pa.Schema, names: list[str]
) -> Iterator[pa.RecordBatch]:
    shares, bucket = table.shares(piece.bucket), piece.bucket
    if kind is Kind.ROWS:
        assert piece.keys is not None
        return shares.rows(piece.keys, names, as_of=piece.end)
    whole = table.binlog_schema(columns_of_rows(table.schema, target)) if kind is Kind.BINLOG else None
    if piece.keys is not None:
        assert piece.inserted_at is not None
        columns = names if whole is None else changelog_columns(whole)
        rows = shares.inserts(piece.keys, columns, as_of=piece.end, timestamp=piece.inserted_at)
        return rows if whole is None else binlog_of(rows, whole)
    start, end = {bucket: piece.start}, {bucket: piece.end}
    if whole is None:
        return table.changelog(start, end, bucket, names)
    return table.binlog(start, end, bucket, [field.name for field in whole.field(AFTER).type])


def columns_of_rows(stored: pa.Schema, target: pa.Schema) -> list[str]:
    """Columns of a binlog that are wanted of the rows before and after; one at least."""
    for name in (BEFORE, AFTER):
        if name in target.names:
            return [field.name for field in target.field(name).type]
    return stored.names[:1]


def larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not small, but for the last."""
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
    """Have objects that are there by now left out of garbage collection."""
    # PySpark collects garbage after every task; what was imported by now need not be looked at each time.
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
