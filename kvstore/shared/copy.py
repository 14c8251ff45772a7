"""A copy of a bucket of a shared table, with its index, in a directory of this machine (docs/format.md, Shared tables).

* A copy is a beginning of the history that its record names: the record is written before changes are applied. A copy
  without a record, of offsets after it, or of a history that the table does not have (lost, or put back from a backup),
  is made again.
* Only the process that holds the lock of the copy opens it.
"""

from __future__ import annotations

from kvstore.bucket.context import BucketPlace
from kvstore.bucket.recovery import open_for_writing
from kvstore.bucket.write_path import WritePath
from kvstore.clock import Clock
from kvstore.errors import CorruptData
from kvstore.files import Files
from kvstore.log.segment_writer import EncodedBatch, SegmentWriter, head_at
from kvstore.log.segments import LogFiles
from kvstore.options import StoreOptions
from kvstore.replica.read.reader import ReplicaReader
from kvstore.shared.table import SharedTable
from logformat.ids import Offset
from logformat.replica import shared_table
from logformat.replica.shared_table import CopyRecord, SharedEpoch, SharedRange


def open_copy(
    table: SharedTable, base: SharedEpoch, place: BucketPlace, files: Files, clock: Clock
) -> WritePath | None:
    """Open the copy of a bucket as of an epoch, for writing; None if it is of a later epoch, which the table has.

    Raises:
        CorruptData, MissingVersion: The copy is damaged, or a range of the epoch is damaged or gone.
        StoreFull, LogFailed: The disk of the copy is full or failed.
        Unavailable: The object store can't be reached.
    """
    bucket = place.identity.bucket_id
    last = _last(place, files)
    if last not in base.ranges[bucket]:
        if last is not None and last in table.newest().ranges[bucket]:
            return None
        files.remove_tree(place.directory)
        last = None
    path = _opened(table, place, files, clock)
    if path.state.applied_offset > (0 if last is None else last.end):
        path.close()
        files.remove_tree(place.directory)
        path = _opened(table, place, files, clock)
    try:
        _catch_up(path, table, base, place, files)
    except BaseException:
        path.close()
        raise
    return path


def _opened(table: SharedTable, place: BucketPlace, files: Files, clock: Clock) -> WritePath:
    if not place.log.exists():
        place.log.mkdir(0o700, parents=True)
        SegmentWriter.begin(place.log, head_at(Offset(0), place.identity), files).finish()
    return open_for_writing(place, table.definition, StoreOptions(), files, clock)


def _catch_up(path: WritePath, table: SharedTable, base: SharedEpoch, place: BucketPlace, files: Files) -> None:
    bucket = place.identity.bucket_id
    start, end = path.state.applied_offset, base.end(bucket)
    if start == end:
        return
    record = CopyRecord(range=base.ranges[bucket][-1])
    files.publish(place.directory / shared_table.COPY_RECORD, shared_table.encode(record))
    wanted = table.at(base).changes(bucket, start, end)
    for found in ReplicaReader(table.client, base.store_id, table.definition).found(wanted):
        if path.log.is_full:
            path.log.sync()
            path.roll()
        path.log.append([EncodedBatch.read(found.header, found.data)])
    path.log.sync()
    path.catch_up(LogFiles(place.log, place.identity, files))
    path.commit()


def _last(place: BucketPlace, files: Files) -> SharedRange | None:
    """The last range of the history of a copy; None if it has no right record."""
    try:
        data = files.read(place.directory / shared_table.COPY_RECORD, bytes_max=shared_table.COPY_RECORD_BYTES_MAX)
        return shared_table.decode_copy_record(data).range
    except (FileNotFoundError, CorruptData):
        return None
