"""Reads of Spark as plain data: what one process pins and divides, others perform.

* A pinned read has offsets, keys and names of objects only: the same in every process, and JSON for the connector.
* A read is divided into a few large tasks, because each task costs as much as reading some megabytes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from typing import Generic, Literal, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from kvstore.errors import OffsetOutOfRange
from kvstore.read.binlog import AFTER, BEFORE
from kvstore.read.scan import KeyRange
from kvstore.replica.read.parts import Changes, Rows
from kvstore.spark.options import Kind
from kvstore.spark.read.address import TableAddress

Aggregate = tuple[Literal["count", "min", "max"], str | None]
"""A function, and the column it is of."""
Value = int | str | None
"""The value of an aggregate as JSON has it: a date as days since 1970."""
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
        rows, changes: Of a replica or a shared table, the objects that have the rows, and the changes.
        wanted: If given, the encoded keys of the rows, sorted; each is looked up.
    """

    bucket: int
    start: int
    end: int
    inserted_at: int | None = None
    keys: KeyRange | None = None
    rows: Rows | None = None
    changes: Changes | None = None
    wanted: tuple[bytes, ...] | None = None


@dataclass(frozen=True)
class ReadPiece:
    """The part of a bucket that one task reads.

    Attributes:
        keys: If given, the rows of these keys as of ``end``; None for changes from ``start`` to ``end``.
        rows, changes: Of a replica or a shared table, the objects that are read: those of one of the two.
        wanted: If given, the rows of these encoded keys, sorted, as of ``end``.
    """

    bucket: int
    start: int
    end: int
    keys: tuple[KeyRange, ...] | None = None
    inserted_at: int | None = None
    rows: Rows | None = None
    changes: Changes | None = None
    wanted: tuple[bytes, ...] | None = None


@dataclass(frozen=True)
class Pinned:
    """A batch read, pinned.

    Attributes:
        ranges: What is read of each bucket.
        lease: Name of the lease that keeps the log of a store for this read.
    """

    address: TableAddress
    ranges: tuple[ReadRange, ...]
    lease: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True)
class Loaded:
    """What is found when a source is loaded.

    Attributes:
        columns: Stored columns that the options select.
        pinned: The pinned read; None if only a stream can begin where the options say, for ``late``.
        rows_max: Number of rows that are read, or a little more; None if it is not known.
        stored_bytes: About how much of the index or the log is read; None if it is not known.
        key: Columns by which rows can be looked up; empty if they can't be.
        bucketed: Number of buckets and their key, if it is one column and there is a task or more for each bucket.
    """

    columns: pa.Schema
    pinned: Pinned | None
    rows_max: int | None = None
    stored_bytes: int | None = None
    key: tuple[str, ...] = ()
    bucketed: tuple[int, str] | None = None
    late: OffsetOutOfRange | None = None


@dataclass
class ReadTask(InputPartition):
    """The pieces that one task reads."""

    address: TableAddress
    pieces: tuple[ReadPiece, ...]


class Reads(Protocol):
    """Reads of a table at a place, in this process: of a store that is open, or of the objects of a replica.

    Attributes:
        tasks_max: If above 0, there are more tasks than cores when a task would be worth more than this.
    """

    tasks_max: float

    def hold(self, pinned: Pinned) -> None:
        """Keep for a while what a pinned read needs, as far as the place can."""

    def looks_up(self, keys: int) -> bool:
        """Whether looking up so many keys costs less than reading all rows."""

    def aggregates(self, ranges: Sequence[ReadRange], wanted: Sequence[Aggregate]) -> list[Value] | None:
        """Values of aggregates of a read without filters; None if rows must be read for one of them."""

    def parts(self, given: ReadRange, filter: pc.Expression | None) -> Iterator[Part[ReadPiece]]:
        """Parts of a range that may have rows that pass a filter."""

    def batches(
        self, piece: ReadPiece, target: pa.Schema, filter: pc.Expression | None, needed: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """What a piece has, with all rows that pass the filter, and perhaps others; see :func:`sources.read`."""


T = TypeVar("T")


@dataclass(frozen=True)
class Part(Generic[T]):
    """Part of a read: the number of tasks that it is worth, and a function that cuts it into pieces."""

    tasks: float
    cut: Callable[[int], Sequence[T]]


def tasks_of(
    address: TableAddress,
    reads: Reads,
    ranges: Sequence[ReadRange],
    filter: pc.Expression | None = None,
    cores: int | None = None,
    *,
    by_bucket: bool = False,
) -> list[ReadTask]:
    """Tasks that read the ranges, one for each core or fewer, without parts in which no row passes the filter.

    Args:
        cores: Number of cores of the cluster; those of this machine if None.
        by_bucket: Whether each task reads one bucket only.
    """
    if by_bucket and len(ranges) > 1:
        cores = max(1, (cores or os.cpu_count() or 1) // len(ranges))
        return [task for each in ranges for task in tasks_of(address, reads, [each], filter, cores)]
    parts = list(chain.from_iterable(reads.parts(each, filter) for each in ranges))
    return [ReadTask(address, pieces) for pieces in divided(parts, cores, reads.tasks_max)]


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
