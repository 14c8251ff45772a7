"""What a commit over several buckets is about to append, in files of its own until all of them have it.

* A file is one record batch: its checksum covers everything, and it says whose it is.
* A bucket for which a commit has no changes has no file.
* Before the commit is journaled all files are durable. They go once every bucket has its batch, or if it never will.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvstore.errors import CorruptData
from kvstore.files import Files, read_file, refusals
from kvstore.meta.state import TableDefinition
from kvstore.meta.writers import OpenCommit
from kvstore.table.bucket import request_of
from kvstore.table.request import Request
from logformat import paths
from logformat.batch import LogBatch, decode_batch, decode_header, encode_parts
from logformat.change import ChangeType
from logformat.changes import Changes
from logformat.ids import BucketId, TableId
from logformat.intake import empty


class Staging:
    """Staged commits of one table.

    Args:
        store: Directory of the store.
    """

    def __init__(self, store: Path, table: TableId, files: Files) -> None:
        self._store = store
        self._table = table
        self._files = files

    def write(self, commit: OpenCommit, definition: TableDefinition, changes: Mapping[BucketId, Changes]) -> None:
        """Stage what a commit has for each bucket; returns once it is durable.

        Raises:
            StoreFull, LogFailed: The disk refused. What was written goes with :meth:`remove`.
            InvalidRequest: A batch is too large.
        """
        directory = paths.staged_directory(self._store, commit.commit_id)
        with refusals(directory):
            self._files.make_directory(directory.parent)
            self._files.make_directory(directory)
            for bucket, part in changes.items():
                if len(part):
                    self._write_one(paths.staged_file(directory, bucket), commit, definition, bucket, part)
            self._files.sync_directory(directory)

    def request(self, commit: OpenCommit, definition: TableDefinition, bucket: BucketId) -> Request:
        """What a commit has for a bucket, to be applied.

        Raises:
            CorruptData: It is damaged or missing, so the bucket can't go on.
        """
        directory = paths.staged_directory(self._store, commit.commit_id)
        if not directory.is_dir():
            raise CorruptData("The staged rows of a commit are missing; restore them from a copy.", path=directory)
        path = paths.staged_file(directory, bucket)
        schema_id = definition.schema_id
        try:
            data = read_file(path)
        except FileNotFoundError:
            changes = Changes.upserts(empty(definition.schema))
        else:
            header = decode_header(data)
            schema_id = header.schema_id
            batch = decode_batch(data, definition.schema_of(schema_id))
            if (batch.table_id, batch.bucket_id, batch.writer_id, batch.batch_sequence) != (
                *(self._table, bucket, commit.writer_id),
                commit.sequence,
            ):
                raise CorruptData("A staged batch belongs to something else; restore the right one.", path=path)
            changes = Changes(batch.rows, pa.array(batch.change_types == ChangeType.DELETE))
        return request_of(changes, definition, commit.writer_id, commit.sequence, commit.writer_epoch)

    def remove(self, commit_id: str) -> None:
        """Remove what a commit staged, if it is there."""
        self._files.remove_tree(paths.staged_directory(self._store, commit_id))

    def sweep(self, open_commits: tuple[OpenCommit, ...]) -> None:
        """Remove what was staged for commits that are not open; nobody may be about to commit to the table."""
        kept = {commit.commit_id for commit in open_commits}
        for directory in (self._store / paths.STAGING).glob("*"):
            if paths.staged_table(directory.name) == self._table and directory.name not in kept:
                self.remove(directory.name)

    def _write_one(
        self, path: Path, commit: OpenCommit, definition: TableDefinition, bucket: BucketId, changes: Changes
    ) -> None:
        is_delete = changes.is_delete.to_numpy(zero_copy_only=False)
        batch = LogBatch(
            schema_id=definition.schema_id,
            writer_id=commit.writer_id,
            batch_sequence=commit.sequence,
            writer_epoch=commit.writer_epoch,
            table_id=definition.id,
            bucket_id=bucket,
            change_types=np.where(is_delete, ChangeType.DELETE, ChangeType.INSERT).astype(np.uint8),
            rows=changes.rows,
        )
        descriptor = self._files.open(path, create=True)
        try:
            self._files.write(descriptor, encode_parts(batch), 0)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
