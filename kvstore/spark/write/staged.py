"""Files in which the tasks of a write stage rows for its commit, beside the store's staged commits.

Each is an Arrow IPC file: its batches have the table's columns, the change type of each row, and the columns that order
the changes, if any (docs/format.md); each batch belongs to one bucket. Only the commit that it was written for uses a
file. A file without a commit, because its task failed or ran twice, is removed when it is old.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from kvstore.clock import SystemClock
from kvstore.disk.files import Files, refusals, refuse_links
from kvstore.errors import InvalidRequest, StoreError
from kvstore.request.preparation import ROWS_BYTES_MAX
from logformat import paths
from logformat.checksum import crc32c
from logformat.ids import BucketId
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes

OLD_SECONDS = 7 * 24 * 3600
"""Age at which a file without a commit is removed; no job takes that long."""
CHANGE_TYPE = "_change_type"
_BUCKET, _TIME, _OFFSET = ORDER = ("_bucket", "_commit_timestamp", "_log_offset")
"""Columns that order rows, if given; a table has no columns of these names."""
_UPSERT, _DELETE = (pa.scalar(int(kind), pa.uint8()) for kind in (ChangeType.INSERT, ChangeType.DELETE))


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The file of one task.

    Attributes:
        file: Path of the file; empty if the task had no rows.
        checksum: CRC-32C of the file.
        bytes: Size of the file.
        buckets: The bucket of each batch in the file.
        query: Id of the query, in a stream.
    """

    partition: int
    file: str = ""
    checksum: int = 0
    buckets: tuple[int, ...] = ()
    query: str | None = None
    bytes: int = 0


class TaskFile:
    """The file that a task writes; a context manager that removes the file after an error.

    Args:
        job: Random id of the write.
        attempt: Id of the attempt, unique in the Spark application.
    """

    def __init__(self, store: Path, job: str, partition: int, attempt: int) -> None:
        self._path = paths.task_file(store, job, partition, attempt)
        self._partition = partition
        self._buckets: list[int] = []
        self._open = ExitStack()
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def add(self, bucket: int, changes: Changes, order: Mapping[str, pa.Array]) -> None:
        """Write changes of one bucket.

        Args:
            order: The given columns of ``ORDER``.

        Raises:
            StoreFull, LogFailed: The disk is full or failed.
        """
        batch = staged_batch(changes, order)
        with refusals(self._path):
            if self._writer is None:
                files = Files()
                files.make_directory(self._path.parent)
                file = self._open.enter_context(os.fdopen(files.open(self._path, create=True), "wb"))
                self._writer = self._open.enter_context(pa.ipc.new_file(file, batch.schema))
            self._writer.write_batch(batch)
        self._buckets.append(bucket)

    def staged(self, query: str | None) -> Staged:
        """Finish the file, and return its description for the commit.

        Raises:
            StoreFull, LogFailed: The disk is full or failed.
        """
        if self._writer is None:
            return Staged(self._partition, query=query)
        with refusals(self._path):
            self._open.close()
            data = _mapped(self._path)
            checksum = crc32c(memoryview(data))
        return Staged(self._partition, str(self._path), checksum, tuple(self._buckets), query, data.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with suppress(OSError, pa.ArrowException):  # a full disk also refuses the rest
                self._open.close()
            with suppress(OSError):
                remove([str(self._path)])


def staged_batch(changes: Changes, order: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Changes of one bucket as they are staged, with the given columns of ``ORDER``."""
    batch = changes.rows.append_column(CHANGE_TYPE, pc.if_else(changes.is_delete, _DELETE, _UPSERT))
    for name, column in order.items():
        batch = batch.append_column(name, column)
    return batch


def parts_of(messages: Iterable[Staged]) -> dict[BucketId, Changes]:
    """Staged changes of each bucket, ordered by their columns ``ORDER``, or else by task.

    Raises:
        StoreError: A file is missing or damaged.
        InvalidRequest: The changes are too large for one commit.
    """
    batches_by_bucket: Mapping[BucketId, list[pa.RecordBatch]] = defaultdict(list)
    for bucket, batch in batches_of(messages):
        batches_by_bucket[bucket].append(batch)
    return {bucket: together(batches) for bucket, batches in sorted(batches_by_bucket.items())}


def batches_of(messages: Iterable[Staged]) -> Iterator[tuple[BucketId, pa.RecordBatch]]:
    """Staged batches, task by task, each with its bucket.

    Raises:
        StoreError: A file is missing or damaged.
    """
    for message in sorted(messages, key=lambda message: message.partition):
        if message.file:
            reader = _opened(message)
            for number, bucket in enumerate(message.buckets):
                yield BucketId(bucket), reader.get_batch(number)


def _opened(message: Staged) -> pa.ipc.RecordBatchFileReader:
    path = Path(message.file)
    try:
        refuse_links(path)
        data = _mapped(path)
    except OSError as error:
        raise StoreError(
            "The staged rows of a task can't be read; run the job again.", path=path, reason=error.strerror
        ) from error
    if data.size != message.bytes:
        raise StoreError(
            "The size of a task's staged rows has changed; run the job again.",
            path=path,
            bytes=data.size,
            expected=message.bytes,
        )
    if crc32c(memoryview(data)) != message.checksum:
        raise StoreError("The staged rows of a task are damaged; run the job again.", path=path)
    return pa.ipc.open_file(data)


def _mapped(path: Path) -> pa.Buffer:
    return pa.memory_map(str(path)).read_buffer()


def together(batches: Sequence[pa.RecordBatch]) -> Changes:
    """The changes in staged batches, ordered by their columns ``ORDER``, or else as they come.

    Raises:
        InvalidRequest: They are too large for one commit.
    """
    if (size := sum(batch.nbytes for batch in batches)) > ROWS_BYTES_MAX:
        raise InvalidRequest(
            f"One commit has at most {ROWS_BYTES_MAX} bytes for a bucket; write the rows in several parts, or to a "
            "table with more buckets.",
            bytes=size,
        )
    whole = pa.concat_batches(batches)
    given = [name for name in ORDER if name in whole.schema.names]
    places = _in_order({name: whole.column(name).cast(pa.int64()).to_numpy() for name in given})
    if (np.diff(places) < 0).any():
        whole = whole.take(pa.array(places))
    rows = whole.drop_columns([name for name in (CHANGE_TYPE, *ORDER) if name in whole.schema.names])
    return Changes(rows, pc.equal(whole.column(CHANGE_TYPE), _DELETE))


def _in_order(given: Mapping[str, np.ndarray]) -> np.ndarray:
    """Places of rows in the order of the given columns of ``ORDER``; empty if they give none.

    Changes of a bucket come by their offsets, also where its times go back because a clock was wrong. Those of several
    buckets come by time.
    """
    if _BUCKET not in given or _OFFSET not in given:
        order = [given[name] for name in (_TIME, _OFFSET) if name in given]
        return np.lexsort(order[::-1]) if order else np.zeros(0, np.int64)
    places = np.lexsort((given[_OFFSET], given[_BUCKET]))
    if _TIME not in given:
        return places
    buckets, times = given[_BUCKET][places], given[_TIME][places]
    for one in np.split(times, np.flatnonzero(np.diff(buckets)) + 1):
        np.maximum.accumulate(one, out=one)  # a part of `times`: none is earlier than that of the change before
    return places[np.argsort(times, kind="stable")]


def remove(files: Iterable[str]) -> None:
    """Remove files of tasks, if they exist."""
    for file in files:
        with suppress(FileNotFoundError):
            Files().remove(Path(file))


def sweep(store: Path) -> None:
    """Remove old files, which no commit will use."""
    now = SystemClock().now_ms() / 1000
    for path in (store / paths.STAGING).glob("*"):
        with suppress(FileNotFoundError):
            if paths.is_task_file(path.name) and now - path.stat().st_mtime > OLD_SECONDS:
                Files().remove(path)
