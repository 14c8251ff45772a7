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
from kvstore.files import Files, refusals
from kvstore.log.segment_writer import EncodedBatch, SegmentWriter, head_at
from kvstore.log.segments import LogFiles
from kvstore.options import StoreOptions
from kvstore.replica.check import read_object
from kvstore.replica.follow.bucket_files import write_snapshot
from kvstore.replica.read.reader import ReplicaReader
from kvstore.shared.table import SharedTable
from logformat.catalog.replicas import Stream
from logformat.ids import Offset
from logformat.replica import shared_table
from logformat.replica.object_file import FoundObject
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
    if last in base.ranges[bucket]:
        path = open_for_writing(place, table.definition, StoreOptions(), files, clock)
        if not base.start(bucket) <= path.state.applied_offset <= last.end:  # changes that it lacks may have expired
            path.close()
            path = _new(table, base, place, files, clock)
    elif last is not None and last in table.newest().ranges[bucket]:
        return None
    else:
        path = _new(table, base, place, files, clock)
    try:
        _catch_up(path, table, base, place, files)
    except BaseException:
        path.close()
        raise
    return path


def _new(table: SharedTable, base: SharedEpoch, place: BucketPlace, files: Files, clock: Clock) -> WritePath:
    """A copy with the newest snapshot that is right, or with nothing; the one that was there is removed."""
    damaged: CorruptData | None = None
    for taken in reversed(base.snapshots[place.identity.bucket_id]):
        name = taken.name(Stream(place.identity.table_id, place.identity.bucket_id))
        try:
            found = read_object(table.client, base.store_id, name, taken.bytes)
            with refusals(place.directory):
                _begin(place, found, files)
            return open_for_writing(place, table.definition, StoreOptions(), files, clock)
        except CorruptData as error:
            damaged = error
    if damaged is not None and base.start(place.identity.bucket_id):
        raise damaged  # the first changes have expired, so there is nothing else to begin with
    with refusals(place.directory):
        _begin(place, None, files)
    return open_for_writing(place, table.definition, StoreOptions(), files, clock)


def _begin(place: BucketPlace, snapshot: FoundObject | None, files: Files) -> None:
    files.remove_tree(place.directory)
    place.log.mkdir(0o700, parents=True)
    start = Offset(0 if snapshot is None else snapshot.name.start)
    SegmentWriter.begin(place.log, head_at(start, place.identity), files).finish()
    if snapshot is not None:
        write_snapshot(place.directory, snapshot, files)


def _catch_up(path: WritePath, table: SharedTable, base: SharedEpoch, place: BucketPlace, files: Files) -> None:
    bucket = place.identity.bucket_id
    if not base.ranges[bucket]:
        return
    start, last = path.state.applied_offset, base.ranges[bucket][-1]
    if _last(place, files) != last:
        record = shared_table.encode(CopyRecord(range=last))
        with refusals(place.directory):
            files.publish(place.directory / shared_table.COPY_RECORD, record)
    if start == last.end:
        return
    wanted = table.at(base).changes(bucket, start, last.end)
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
