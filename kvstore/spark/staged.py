"""What the tasks of a write hand to its commit: rows in files beside the store's staged commits, each by bucket.

It is an Arrow IPC file: batches of the table's columns, of ``_delete``, and of ``_order`` where rows say in which order
they are to be applied (docs/format.md). It is of use to the commit it was written for only. One that no commit asked
for, because its task failed or was one of two, goes when it is old.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from kvstore.clock import SystemClock
from kvstore.errors import InvalidRequest, StoreError
from kvstore.files import Files, refusals, refuse_links
from kvstore.table.fitting import ROWS_BYTES_MAX
from logformat import paths
from logformat.changes import Changes
from logformat.ids import BucketId

OLD_SECONDS = 7 * 24 * 3600
"""How long a file is kept that no commit asked for; no job takes that long."""
_DELETE, _ORDER = "_delete", "_order"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task has written.

    Attributes:
        file: Empty if it had no rows.
        buckets: The bucket of each batch in it.
        query: Which query it belongs to, in a stream.
    """

    partition: int
    file: str = ""
    buckets: tuple[int, ...] = ()
    query: str | None = None


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
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def add(self, bucket: int, changes: Changes, order: pa.Int64Array | None) -> None:
        """Write changes of one bucket.

        Raises:
            StoreFull, LogFailed: The disk refused.
        """
        batch = changes.rows.append_column(_DELETE, changes.is_delete)
        if order is not None:
            batch = batch.append_column(_ORDER, order)
        with refusals(self._path):
            if self._writer is None:
                self._open(batch.schema)
            assert self._writer is not None
            self._writer.write_batch(batch)
        self._buckets.append(bucket)

    def staged(self, query: str | None) -> Staged:
        """Finish it; what the commit is told."""
        if self._writer is None:
            return Staged(self._partition, query=query)
        with refusals(self._path):
            self._close()
        return Staged(self._partition, str(self._path), tuple(self._buckets), query)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._writer is not None:
            with suppress(OSError):
                self._close()
            remove([str(self._path)])

    def _open(self, schema: pa.Schema) -> None:
        files = Files()
        files.make_directory(self._path.parent)
        self._file = os.fdopen(files.open(self._path, create=True), "wb")
        self._writer = pa.ipc.new_file(self._file, schema)

    def _close(self) -> None:
        assert self._writer is not None
        try:
            self._writer.close()
        finally:
            self._file.close()


def parts_of(messages: Iterable[Staged]) -> dict[BucketId, Changes]:
    """What tasks have staged for each bucket, in the order it is to be applied: as rows say, or as tasks count.

    Raises:
        StoreError: A file is gone.
        InvalidRequest: It is more than one commit can hold.
    """
    found: Mapping[int, list[pa.RecordBatch]] = defaultdict(list)
    for message in sorted(messages, key=lambda message: message.partition):
        if message.file:
            reader = _opened(Path(message.file))
            for place, bucket in enumerate(message.buckets):
                found[bucket].append(reader.get_batch(place))
    return {BucketId(bucket): _together(batches) for bucket, batches in sorted(found.items())}


def _opened(path: Path) -> pa.ipc.RecordBatchFileReader:
    refuse_links(path)
    try:
        return pa.ipc.open_file(pa.memory_map(str(path)))
    except FileNotFoundError as error:
        raise StoreError("What a task has staged is gone; run the job again.", path=path) from error


def _together(batches: Sequence[pa.RecordBatch]) -> Changes:
    if (size := sum(batch.nbytes for batch in batches)) > ROWS_BYTES_MAX:
        raise InvalidRequest(
            f"One commit holds at most {ROWS_BYTES_MAX} bytes for a bucket; write the rows in several parts, or to a "
            "table of more buckets.",
            bytes=size,
        )
    whole = pa.concat_batches(batches)
    if _ORDER in whole.schema.names:
        order = whole.column(_ORDER).to_numpy()
        if (np.diff(order) < 0).any():
            whole = whole.take(pa.array(np.argsort(order, kind="stable")))
        whole = whole.drop_columns([_ORDER])
    return Changes(whole.drop_columns([_DELETE]), whole.column(_DELETE))


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
