"""Writes tables that a copy does not have yet; a later process continues where one that was killed stopped.

* A bucket begins with a snapshot of the replica, or empty. Then it takes one object after the other.
* No reader sees the tables before all of them have the ends of one round.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kvstore.bucket.context import BucketPaths
from kvstore.bucket.recovery import open_merged
from kvstore.bucket.write_path import WritePath
from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.replica.consistent_cut import streams_of
from kvstore.replica.coverage import Piece, ShippedPath
from kvstore.replica.follow.bucket_files import begin_bucket
from kvstore.replica.follow.copied_bucket import COMMIT_BYTES, append_to
from kvstore.replica.follow.round import CopyProgress, Round
from kvstore.replica.source import Source
from logformat.catalog.replicas import Stream
from logformat.ids import WriterId
from logformat.replica.object_file import ObjectName


class NewTables:
    """Tables that are being written below a directory; no other process writes there.

    Args:
        taken: Called with each object after everything in it is durable in the copy.
    """

    def __init__(
        self,
        path: Path,
        source: Source,
        options: StoreOptions,
        files: Files,
        clock: Clock,
        taken: Callable[[ObjectName], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._source = source
        self._options = options
        self._files = files
        self._clock = clock
        self._taken = taken

    def progress(self, stream: Stream, definition: TableDefinition) -> CopyProgress | None:
        """How far a bucket is; None if it has nothing yet. One before the start of the replica is removed.

        Raises:
            StoreFull, LogFailed: The disk is full or failed.
            CorruptData: The bucket is damaged.
        """
        bucket_paths = self._place(stream)
        if not bucket_paths.directory.exists():
            return None
        bucket = self._opened(bucket_paths, definition)
        end = bucket.state.applied_offset
        last = bucket.last_sequences()
        bucket.close()
        if end < self._source.shipped(stream).start:
            self._files.remove_tree(bucket_paths.directory)
            return None

        def last_sequences() -> dict[WriterId, int]:
            return last

        return CopyProgress(end, last_sequences)

    def write(self, definition: TableDefinition, planned: Round) -> None:
        """Write the buckets of a table up to the ends of a round.

        Raises:
            MissingVersion: The replica has a hole.
            CorruptData: An object is damaged.
            OSError, StoreFull, LogFailed: The disk is full or failed.
        """
        for stream in streams_of(definition):
            bucket_paths, end = self._place(stream), planned.ends[stream]
            if not bucket_paths.directory.exists():
                path = self._source.path(stream, end, newest_before=planned.begins.get(stream))
                begin_bucket(bucket_paths, self._source, path, self._files)
                if path.snapshot is not None:
                    self._taken(path.snapshot)
            with closing(self._opened(bucket_paths, definition)) as bucket:
                path = self._source.path_from(stream, bucket.state.applied_offset, end)
                self._take(bucket, LogFiles(bucket_paths.log, bucket_paths.identity, self._files), path, end)

    def _take(self, bucket: WritePath, log: LogFiles, path: ShippedPath, end: int) -> None:
        start, waiting, size = path.start, list[Piece](), 0
        for number, piece in enumerate(path.pieces, 1):
            waiting.append(piece)
            size += self._source.size(piece.name)
            if size >= COMMIT_BYTES or number == len(path.pieces):
                append_to(bucket, log, self._source.batches(ShippedPath(start, None, waiting), end))
                for each in waiting:
                    self._taken(each.name)
                start, waiting, size = piece.until, [], 0

    def _place(self, stream: Stream) -> BucketPaths:
        return BucketPaths.of(self._path, self._source.store.store_id, stream.table_id, stream.bucket)

    def _opened(self, bucket_paths: BucketPaths, definition: TableDefinition) -> WritePath:
        return open_merged(bucket_paths, definition, self._options, self._files, self._clock)
