"""A copy of a bucket of a shared table, with its index, in a directory of this machine (docs/format.md, Shared tables).

* The state of its index shows what a copy has: the record beside it says of which range that is the state. A copy in
  another state, or of a history that the table does not have (lost, or put back from a backup), is made again.
* It keeps what this machine has applied and uploaded, so the next write does not fetch and replay that. If it was not
  committed, the copy goes back by the rows that the changes have replaced.
* Only the process that holds the lock of the copy opens it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.bucket.context import BucketPaths
from kvstore.bucket.recovery import open_merged, synced_end
from kvstore.bucket.write_path import WritePath
from kvstore.clock import Clock
from kvstore.disk.files import Files, refusals
from kvstore.errors import CorruptData
from kvstore.log.segment_writer import EncodedBatch, SegmentWriter, head_at
from kvstore.log.segments import LogFiles
from kvstore.options import StoreOptions
from kvstore.replica.check import read_object
from kvstore.replica.follow.bucket_files import write_snapshot
from kvstore.replica.read.reader import ReplicaReader
from kvstore.shared.table import SharedTable
from kvstore.shared.undo import can_undo, undo
from logformat.catalog.replicas import Stream
from logformat.ids import Offset
from logformat.log import index_state
from logformat.log.index_state import IndexState
from logformat.replica import shared_table
from logformat.replica.object_file import FoundObject
from logformat.replica.shared_table import CopyEnd, CopyRecord, SharedEpoch, SharedRange


@dataclass(frozen=True)
class Copy:
    """A copy of a bucket as of an epoch, open for writing; :meth:`close` forgets what is applied and not kept."""

    path: WritePath
    _paths: BucketPaths
    _files: Files
    _as_of: Sequence[CopyEnd]

    def keep(self, encoded: EncodedBatch, made: SharedRange) -> None:
        """Keep the request that was applied, and uploaded as a range, if it can be undone.

        Raises:
            StoreFull, LogFailed: The disk of the copy is full or failed.
        """
        if not can_undo(self.path.definition):
            return
        # The record first: it knows every state that the copy may be left in.
        _publish([*self._as_of, _end(made, self.path.state)], self._paths, self._files)
        self.path.log.append([encoded])
        self.path.publish()
        self.path.commit()

    def close(self) -> None:
        """Close the copy."""
        self.path.close()


def open_copy(
    table: SharedTable, base: SharedEpoch, bucket_paths: BucketPaths, files: Files, clock: Clock
) -> Copy | None:
    """Open the copy of a bucket as of an epoch; None if it is of a later epoch, which the table has.

    Raises:
        CorruptData, MissingVersion: The copy is damaged, or a range of the epoch is damaged or gone.
        StoreFull, LogFailed: The disk of the copy is full or failed.
        Unavailable: The object store can't be reached.
    """
    bucket, ends = bucket_paths.identity.bucket_id, _ends(bucket_paths, files)
    copy_there = _opened(table, bucket_paths, ends, files, clock)
    if copy_there is not None and copy_there[1].range not in base.ranges[bucket]:
        path, at = copy_there
        path.close()
        if at.range in table.newest().ranges[bucket]:
            return None
        copy_there = None
        if ends[0].range in base.ranges[bucket]:
            undo(bucket_paths, table.definition, index_state.decode(ends[0].state), files)
            copy_there = _opened(table, bucket_paths, ends, files, clock)
    path, was = copy_there or (_new(table, base, bucket_paths, files, clock), None)
    try:
        return Copy(path, bucket_paths, files, _caught_up(path, was, table, base, bucket_paths, files))
    except BaseException:
        path.close()
        raise


def _opened(
    table: SharedTable, bucket_paths: BucketPaths, ends: Sequence[CopyEnd], files: Files, clock: Clock
) -> tuple[WritePath, CopyEnd] | None:
    """The copy that is there, and what it is as of; None if its record does not say that."""
    if not ends:
        return None
    path = open_merged(bucket_paths, table.definition, StoreOptions(), files, clock)
    for end in ends:
        if _is_same(path.state, index_state.decode(end.state)):
            return path, end
    path.close()
    return None


def _new(table: SharedTable, base: SharedEpoch, bucket_paths: BucketPaths, files: Files, clock: Clock) -> WritePath:
    """A copy with the newest snapshot that is right, or with nothing; the one that was there is removed."""
    damaged: CorruptData | None = None
    for taken in reversed(base.snapshots[bucket_paths.identity.bucket_id]):
        name = taken.name(Stream(bucket_paths.identity.table_id, bucket_paths.identity.bucket_id))
        try:
            content = read_object(table.client, base.store_id, name, taken.bytes)
            with refusals(bucket_paths.directory):
                _begin(bucket_paths, content, files)
            return open_merged(bucket_paths, table.definition, StoreOptions(), files, clock)
        except CorruptData as error:
            damaged = error
    if damaged is not None and base.start(bucket_paths.identity.bucket_id):
        raise damaged  # the first changes have expired, so there is nothing else to begin with
    with refusals(bucket_paths.directory):
        _begin(bucket_paths, None, files)
    return open_merged(bucket_paths, table.definition, StoreOptions(), files, clock)


def _begin(bucket_paths: BucketPaths, snapshot: FoundObject | None, files: Files) -> None:
    files.remove_tree(bucket_paths.directory)
    bucket_paths.log.mkdir(0o700, parents=True)
    start = Offset(0 if snapshot is None else snapshot.name.start)
    SegmentWriter.begin(bucket_paths.log, head_at(start, bucket_paths.identity), files).finish()
    if snapshot is not None:
        write_snapshot(bucket_paths.directory, snapshot, files)


def _caught_up(
    path: WritePath, was: CopyEnd | None, table: SharedTable, base: SharedEpoch, bucket_paths: BucketPaths, files: Files
) -> list[CopyEnd]:
    """Bring a copy to the end that the epoch has; returns that, unless the bucket is empty.

    Args:
        was: What the copy is as of; None if it is new.
    """
    bucket = bucket_paths.identity.bucket_id
    if not base.ranges[bucket]:
        return []
    last = base.ranges[bucket][-1]
    before = [] if was is None else [_end(was.range, path.state)]
    is_behind = path.state.applied_offset != last.end
    if is_behind:
        wanted = table.at(base).changes(bucket, path.state.applied_offset, last.end)
        for batch in ReplicaReader(table.client, base.store_id, table.definition).found(wanted):
            _roll_if_full(path)
            path.log.append([EncodedBatch.of(batch.header, [batch.data])])
        path.log.sync()
        path.catch_up(LogFiles(bucket_paths.log, bucket_paths.identity, files))
    if was is None or was.range != last:
        _publish([*before, _end(last, path.state)], bucket_paths, files)
    if is_behind or path.log.is_full:
        _roll_if_full(path)
        path.commit()
    return [_end(last, path.state)]


def _roll_if_full(path: WritePath) -> None:
    if path.log.is_full:
        path.log.sync()
        path.roll()


def _end(range: SharedRange, state: IndexState) -> CopyEnd:
    return CopyEnd(range, index_state.encode(state))


def _is_same(state: IndexState, other: IndexState) -> bool:
    """Whether two states are of the same rows, wherever their logs end."""
    base, position, offset = synced_end(other)
    return state._replace(synced_base=base, synced_position=position, synced_offset=offset) == other


def _publish(ends: Sequence[CopyEnd], bucket_paths: BucketPaths, files: Files) -> None:
    with refusals(bucket_paths.directory):
        files.publish(
            bucket_paths.directory / shared_table.COPY_RECORD, shared_table.encode(CopyRecord(ends=list(ends)))
        )


def _ends(bucket_paths: BucketPaths, files: Files) -> list[CopyEnd]:
    """What the copy may be as of, in order; nothing if it has no right record."""
    try:
        data = files.read(
            bucket_paths.directory / shared_table.COPY_RECORD, bytes_max=shared_table.COPY_RECORD_BYTES_MAX
        )
        return shared_table.decode_copy_record(data).ends
    except (FileNotFoundError, CorruptData):
        return []
