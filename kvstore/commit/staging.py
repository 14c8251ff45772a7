"""Staged batches of a commit over several buckets, in one file until every bucket has appended its batch.

* A file is one record batch for each bucket, in order: checksums cover everything, and each batch names its bucket.
* The file is durable before the commit is journaled. It is removed once every bucket has its batch, or if the commit
  fails.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvstore.disk.files import Files, open_regular, refusals, size_of
from kvstore.errors import CorruptBatch, CorruptData
from kvstore.meta.state import TableDefinition
from kvstore.meta.writers import OpenCommit
from kvstore.request.encoded import SmallRequest
from kvstore.request.preparation import request_of
from kvstore.request.request import Request
from kvstore.request.targets import filled
from logformat import paths
from logformat.ids import BucketId, TableId
from logformat.log.batch import (
    BATCH_BYTES_MAX,
    LAYOUTS,
    MAGIC,
    BatchHeader,
    LogBatch,
    decode_batch,
    decode_header,
    encode_parts,
    verify,
)
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes


class Staging:
    """Staged commits of one table.

    Args:
        store: Directory of the store.
    """

    def __init__(self, store: Path, table: TableId, files: Files) -> None:
        self._store = store
        self._table = table
        self._files = files
        self._is_made = False

    def batches(
        self, commit: OpenCommit, definition: TableDefinition, requests: Mapping[BucketId, Request | SmallRequest]
    ) -> list[memoryview]:
        """What a commit has for each bucket, as it is staged.

        Raises:
            InvalidRequest: A batch is too large.
        """
        pieces: list[memoryview] = []
        for bucket, request in sorted(requests.items()):
            if isinstance(request, SmallRequest):
                pieces.append(_few(commit, definition, bucket, request))
            else:
                pieces += encode_parts(_batch(commit, definition, bucket, request.changes))
        return pieces

    def write(self, commit: OpenCommit, batches: list[memoryview]) -> None:
        """Stage the batches of a commit in its file; returns once they are durable.

        Raises:
            StoreFull, LogFailed: The disk refused. What was written goes with :meth:`remove`.
        """
        path = paths.staged_file(self._store, commit.commit_id)
        with refusals(path):
            if not self._is_made:
                self._files.make_directory(path.parent)
                self._is_made = True
            descriptor = self._files.open(path, create=True)
            try:
                self._files.write(descriptor, batches, 0)
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
            self._files.sync_directory(path.parent)

    def request(self, commit: OpenCommit, definition: TableDefinition, bucket: BucketId) -> Request:
        """What a commit has for a bucket, to be applied.

        Raises:
            CorruptData: It is damaged or missing, so the bucket can't go on.
        """
        path = paths.staged_file(self._store, commit.commit_id)
        try:
            if commit.staged is None:
                header, data = _batch_of(bucket, path, self._files, definition.buckets * BATCH_BYTES_MAX)
            else:
                header, data = _batch_in(bucket, memoryview(commit.staged))
            batch = decode_batch(data, definition.schema_of(header.schema_id))
        except FileNotFoundError as error:
            raise CorruptData(
                "The staged rows of a commit are missing; restore them from a copy.", path=path
            ) from error
        except CorruptBatch as error:
            raise CorruptData(
                "The staged rows of a commit are damaged; restore them from a copy.", path=path
            ) from error
        ours = self._table, commit.writer_id, commit.sequence
        if (header.table_id, header.writer_id, header.batch_sequence) != ours:
            raise CorruptData("A staged batch belongs to something else; restore the right one.", path=path)
        changes = Changes(batch.rows, pa.array(batch.change_types == ChangeType.DELETE))
        return request_of(changes, definition, commit.writer_id, commit.sequence, commit.writer_epoch)

    def remove(self, commit: OpenCommit) -> None:
        """Remove the file of a commit, if there is one."""
        if commit.staged is None:
            self._remove(commit.commit_id)

    def _remove(self, commit_id: str) -> None:
        path = paths.staged_file(self._store, commit_id)
        with refusals(path):
            if self._files.exists(path):
                self._files.remove(path)

    def sweep(self, open_commits: tuple[OpenCommit, ...]) -> None:
        """Remove the files of commits that are not open; no process may be committing to the table."""
        kept = {commit.commit_id for commit in open_commits}
        for path in (self._store / paths.STAGING).glob("*"):
            commit_id = paths.staged_commit(path.name, self._table)
            if commit_id is not None and commit_id not in kept:
                self._remove(commit_id)


def _few(commit: OpenCommit, definition: TableDefinition, bucket: BucketId, request: SmallRequest) -> memoryview:
    """The batch of a small write, with the same bytes."""
    writes, operations = request.writes, request.operations
    header = BatchHeader(
        last_offset_delta=max(len(operations) - 1, 0),
        record_count=len(operations),
        schema_id=writes.schema_id,
        writer_id=commit.writer_id,
        batch_sequence=commit.sequence,
        writer_epoch=commit.writer_epoch,
        table_id=definition.id,
        bucket_id=bucket,
    )
    types = bytes([ChangeType.INSERT if each.value is not None else ChangeType.DELETE for each in operations])
    columns = writes.rows.columns([(each.key, each.value) for each in operations])
    return writes.records.batch(header, types, columns)


def _batch(commit: OpenCommit, definition: TableDefinition, bucket: BucketId, changes: Changes) -> LogBatch:
    is_delete = changes.is_delete.to_numpy(zero_copy_only=False)
    return LogBatch(
        schema_id=definition.schema_id,
        writer_id=commit.writer_id,
        batch_sequence=commit.sequence,
        writer_epoch=commit.writer_epoch,
        table_id=definition.id,
        bucket_id=bucket,
        change_types=np.where(is_delete, ChangeType.DELETE, ChangeType.INSERT).astype(np.uint8),
        rows=filled(changes.rows, definition.stored),
    )


def _batch_in(bucket: BucketId, staged: memoryview) -> tuple[BatchHeader, memoryview]:
    """The batch of one bucket, verified, among the batches of a commit."""
    position = 0
    while position < len(staged):
        header = decode_header(staged[position:])
        data = staged[position : position + header.size]
        if header.bucket_id == bucket:
            verify(header, data)
            return header, data
        position += header.size
    raise CorruptBatch("No batch of this bucket is staged.", bucket=bucket)


def _batch_of(bucket: BucketId, path: Path, files: Files, bytes_max: int) -> tuple[BatchHeader, memoryview]:
    """The batch of one bucket, verified; of others only the headers are read."""
    descriptor = open_regular(path, files=files)
    try:
        size, position = size_of(descriptor, path, bytes_max=bytes_max), 0
        while position < size:
            header = decode_header(os.pread(descriptor, LAYOUTS[MAGIC].size, position))
            if header.bucket_id == bucket:
                data = memoryview(os.pread(descriptor, header.size, position))
                verify(header, data)
                return header, data
            position += header.size
    finally:
        files.close(descriptor)
    raise CorruptBatch("No batch of this bucket is staged.", bucket=bucket)
