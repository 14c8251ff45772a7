"""Writes the files of a bucket from a replica, into a directory that no process has open yet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvstore.bucket.context import BucketPaths
from kvstore.disk.files import Files
from kvstore.log.segment_writer import EncodedBatch, SegmentWriter, head_at
from kvstore.log.segments import LogIdentity
from kvstore.meta.state import TableDefinition
from kvstore.replica.contents import snapshot_parts
from kvstore.replica.coverage import ShippedPath
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog.replicas import Stream
from logformat.ids import Offset, Position
from logformat.log.batch import BatchHeader, decode_verified
from logformat.log.segment import HEAD_BYTES
from logformat.log.snapshot_manifest import decode_manifest, encode_manifest
from logformat.replica.object_file import FoundObject

SEGMENT_BYTES = 256 << 20


def write_bucket(
    store: Path, source: Source, stream: Stream, definition: TableDefinition, end: int, files: Files
) -> None:
    """Write a bucket's log up to an offset, and its snapshot if the replica has one; writes no index.

    Raises:
        MissingVersion: The replica has a hole.
        CorruptData: An object is damaged.
        OSError: The disk is full or failed.
    """
    bucket = paths.bucket_directory(store, stream.table_id, stream.bucket)
    for directory in (bucket.parents[1], bucket.parent, bucket, bucket / paths.LOG):
        files.make_directory(directory)
    path = source.path(stream, end)
    identity = LogIdentity(source.store.store_id, stream.table_id, stream.bucket)
    _write_log(bucket / paths.LOG, identity, Offset(path.start), source.batches(path, end), definition, files)
    if path.snapshot is not None:
        write_snapshot(bucket, source.read(path.snapshot), files)


def begin_bucket(bucket: BucketPaths, source: Source, path: ShippedPath, files: Files) -> None:
    """Create a bucket that has the snapshot of a path, and an empty log that continues it; writes no index.

    The directory gets its name when it is complete.

    Raises:
        CorruptData: The snapshot is damaged.
        OSError: The disk is full or failed.
    """
    unfinished = bucket.directory.with_name(bucket.directory.name + paths.TEMPORARY)
    files.remove_tree(unfinished)
    for directory in (unfinished.parents[1], unfinished.parent, unfinished, unfinished / paths.LOG):
        files.make_directory(directory)
    SegmentWriter.begin(unfinished / paths.LOG, head_at(Offset(path.start), bucket.identity), files).finish()
    if path.snapshot is not None:
        write_snapshot(unfinished, source.read(path.snapshot), files)
    files.rename(unfinished, bucket.directory)
    files.sync_directory(bucket.directory.parent)


def write_snapshot(bucket: Path, found: FoundObject, files: Files) -> None:
    """Write the snapshot of an object into the directory of a bucket, whose log begins at its offset.

    Raises:
        CorruptData: The snapshot is damaged.
        OSError: The disk is full or failed.
    """
    manifest, writers, rows = snapshot_parts(found)
    directory = paths.snapshot_directory(bucket, Offset(found.name.start))
    files.make_directory(directory.parent)
    files.make_directory(directory)
    local = msgspec.structs.replace(
        decode_manifest(bytes(manifest)), log_base=Offset(found.name.start), log_position=Position(HEAD_BYTES)
    )
    files.publish(directory / paths.SNAPSHOT_ROWS, bytes(rows))
    files.publish(directory / paths.SNAPSHOT_WRITERS, bytes(writers))
    files.publish(directory / paths.SNAPSHOT_MANIFEST, encode_manifest(local))


def _write_log(
    log: Path,
    identity: LogIdentity,
    start: Offset,
    batches: Iterable[tuple[BatchHeader, memoryview]],
    definition: TableDefinition,
    files: Files,
) -> None:
    """Write a log that begins at an offset, and make it durable."""
    segment = SegmentWriter.begin(log, head_at(start, identity), files)
    for header, data in batches:
        # A later reader takes this batch for one that was written here.
        decode_verified(header, data, definition.schema_of(header.schema_id), validate=True)
        if segment.end.position >= SEGMENT_BYTES:
            segment.finish()
            segment = SegmentWriter.begin(log, head_at(segment.end.offset, identity, segment.end), files)
        segment.append([EncodedBatch.of(header, [data])])
    segment.finish()
    files.sync_directory(log)
