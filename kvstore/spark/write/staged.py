"""What the tasks of a write hand to its commit: rows in files beside the store's staged commits, each by bucket.

It is an Arrow IPC file: batches of the table's columns, of what is to be done with each row, and of the columns that
say in which order, if there are any (docs/format.md). It is of use to the commit it was written for only. One that no
commit asked for, because its task failed or was one of two, goes when it is old.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
from kvstore.errors import InvalidRequest, StoreError
from kvstore.files import Files, refusals, refuse_links
from kvstore.request.preparation import ROWS_BYTES_MAX
from logformat import paths
from logformat.checksum import crc32c
from logformat.ids import BucketId
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes

OLD_SECONDS = 7 * 24 * 3600
"""How long a file is kept that no commit asked for; no job takes that long."""
CHANGE_TYPE = "_change_type"
ORDER = ("_commit_timestamp", "_log_offset")
"""Columns by which rows are ordered, if they have them; a row of a table has no column of these names."""
_UPSERT, _DELETE = (pa.scalar(int(kind), pa.uint8()) for kind in (ChangeType.INSERT, ChangeType.DELETE))


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task has written.

    Attributes:
        file: Empty if it had no rows.
        checksum: CRC-32C of the file.
        bytes: Its size.
        buckets: The bucket of each batch in it.
        query: Which query it belongs to, in a stream.
    """

    partition: int
    file: str = ""
    checksum: int = 0
    buckets: tuple[int, ...] = ()
    query: str | None = None
    bytes: int = 0


class TaskFile:
    """A file that a task writes; a context manager that leaves none behind on an error.

    Args:
        job: Random, of one write.
        attempt: Different for each attempt of each task of an application.
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
            order: Those of ``ORDER`` that there are.

        Raises:
            StoreFull, LogFailed: The disk refused.
        """
        kinds = pc.if_else(changes.is_delete, _DELETE, _UPSERT)
        batch = changes.rows.append_column(CHANGE_TYPE, kinds)
        for name, column in order.items():
            batch = batch.append_column(name, column)
        with refusals(self._path):
            if self._writer is None:
                files = Files()
                files.make_directory(self._path.parent)
                file = self._open.enter_context(os.fdopen(files.open(self._path, create=True), "wb"))
                self._writer = self._open.enter_context(pa.ipc.new_file(file, batch.schema))
            self._writer.write_batch(batch)
        self._buckets.append(bucket)

    def staged(self, query: str | None) -> Staged:
        """Finish it; what the commit is told.

        Raises:
            StoreFull, LogFailed: The disk refused.
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
            with suppress(OSError, pa.ArrowException):  # a full disk takes the rest no better
                self._open.close()
            remove([str(self._path)])


def parts_of(messages: Iterable[Staged]) -> dict[BucketId, Changes]:
    """What tasks have staged for each bucket, in the order it is to be applied: as rows say, or as tasks count.

    Raises:
        StoreError: A file is gone, or damaged.
        InvalidRequest: It is more than one commit can hold.
    """
    found: Mapping[int, list[pa.RecordBatch]] = defaultdict(list)
    for message in sorted(messages, key=lambda message: message.partition):
        if message.file:
            reader = _opened(message)
            for place, bucket in enumerate(message.buckets):
                found[bucket].append(reader.get_batch(place))
    return {BucketId(bucket): _together(batches) for bucket, batches in sorted(found.items())}


def _opened(message: Staged) -> pa.ipc.RecordBatchFileReader:
    path = Path(message.file)
    try:
        refuse_links(path)
        data = _mapped(path)
    except OSError as error:
        raise StoreError(
            "What a task has staged can't be read; run the job again.", path=path, reason=error.strerror
        ) from error
    if data.size != message.bytes:
        raise StoreError(
            "What a task has staged has another size than it had; run the job again.",
            path=path,
            bytes=data.size,
            expected=message.bytes,
        )
    if crc32c(memoryview(data)) != message.checksum:
        raise StoreError("What a task has staged is damaged; run the job again.", path=path)
    return pa.ipc.open_file(data)


def _mapped(path: Path) -> pa.Buffer:
    return pa.memory_map(str(path)).read_buffer()


def _together(batches: Sequence[pa.RecordBatch]) -> Changes:
    if (size := sum(batch.nbytes for batch in batches)) > ROWS_BYTES_MAX:
        raise InvalidRequest(
            f"One commit holds at most {ROWS_BYTES_MAX} bytes for a bucket; write the rows in several parts, or to a "
            "table of more buckets.",
            bytes=size,
        )
    whole = pa.concat_batches(batches)
    order = [whole.column(name).cast(pa.int64()).to_numpy() for name in ORDER if name in whole.schema.names]
    places = np.lexsort(order[::-1]) if order else np.zeros(0, np.int64)
    if (np.diff(places) < 0).any():
        whole = whole.take(pa.array(places))
    rows = whole.drop_columns([name for name in (CHANGE_TYPE, *ORDER) if name in whole.schema.names])
    return Changes(rows, pc.equal(whole.column(CHANGE_TYPE), _DELETE))


def remove(files: Iterable[str]) -> None:
    """Remove files of tasks, if they are there."""
    for file in files:
        with suppress(FileNotFoundError):
            Files().remove(Path(file))


def sweep(store: Path) -> None:
    """Remove files that no commit will ask for any more."""
    now = SystemClock().now_ms() / 1000
    for path in (store / paths.STAGING).glob("*"):
        with suppress(FileNotFoundError):
            if paths.is_task_file(path.name) and now - path.stat().st_mtime > OLD_SECONDS:
                Files().remove(path)
