"""Writes the files of a bucket from a replica, in a directory where nobody looks yet."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvstore.files import Files
from kvstore.meta.state import TableDefinition
from kvstore.replica.contents import snapshot_parts
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog.replicas import Stream
from logformat.catalog.store_file import StoreFile
from logformat.ids import Offset, Position
from logformat.log import segment
from logformat.log.batch import BatchHeader, decode_verified
from logformat.log.segment import HEAD_BYTES, SegmentHead
from logformat.log.snapshot_manifest import decode_manifest, encode_manifest
from logformat.replica.object_file import ObjectName

SEGMENT_BYTES = 256 << 20


def write_bucket(
    store: Path, source: Source, stream: Stream, definition: TableDefinition, end: int, files: Files
) -> None:
    """Write a bucket's files: its log up to an offset, and the snapshot before it, if there is one; no index yet.

    Raises:
        MissingVersion: The replica has a hole.
        CorruptData: An object is not what it should be.
        OSError: The disk refused.
    """
    bucket = paths.bucket_directory(store, stream.table_id, stream.bucket)
    for directory in (bucket.parents[1], bucket.parent, bucket, bucket / paths.LOG):
        files.make_directory(directory)
    way = source.way(stream, end)
    writer = _Segments(bucket / paths.LOG, source.store, stream, Offset(way.start), files)
    for header, data in source.batches(way, end):
        # Whoever reads it later takes it for something that was written here.
        decode_verified(header, data, definition.schema_of(header.schema_id), validate=True)
        writer.append(header, data)
    writer.close()
    if way.snapshot is not None:
        _write_snapshot(bucket, way.snapshot, source, files)


def _write_snapshot(bucket: Path, name: ObjectName, source: Source, files: Files) -> None:
    manifest, writers, rows = snapshot_parts(source.read(name))
    directory = paths.snapshot_directory(bucket, Offset(name.start))
    files.make_directory(directory.parent)
    files.make_directory(directory)
    place = msgspec.structs.replace(
        decode_manifest(bytes(manifest)), log_base=Offset(name.start), log_position=Position(HEAD_BYTES)
    )
    files.publish(directory / paths.SNAPSHOT_ROWS, bytes(rows))
    files.publish(directory / paths.SNAPSHOT_WRITERS, bytes(writers))
    files.publish(directory / paths.SNAPSHOT_MANIFEST, encode_manifest(place))


class _Segments:
    """Writes a log that begins at an offset."""

    def __init__(self, directory: Path, store: StoreFile, stream: Stream, start: Offset, files: Files) -> None:
        self._directory = directory
        self._store = store
        self._track = stream
        self._files = files
        self._end = self._base = start
        self._position = Position(HEAD_BYTES)
        self._descriptor = -1
        self._begin(start, segment.NO_OFFSET, segment.START)

    def append(self, header: BatchHeader, data: memoryview) -> None:
        """Write a batch behind the others."""
        if self._position >= SEGMENT_BYTES:
            base, position = self._base, self._position
            self._finish()
            self._begin(self._end, base, position)
        self._files.write(self._descriptor, [data], self._position)
        self._position = Position(self._position + len(data))
        self._end = header.next_offset

    def close(self) -> None:
        """Make everything durable."""
        self._finish()
        self._files.sync_directory(self._directory)

    def _begin(self, base: Offset, previous: Offset, previous_end: Position) -> None:
        head = SegmentHead(self._store.store_id, self._track.table_id, self._track.bucket, base, previous, previous_end)
        self._descriptor = self._files.create(paths.segment_file(self._directory, base), segment.encode_head(head))
        self._base, self._position = base, Position(HEAD_BYTES)

    def _finish(self) -> None:
        self._files.sync(self._descriptor)
        self._files.close(self._descriptor)
