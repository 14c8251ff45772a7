"""Opening a bucket for writing: recovers every acknowledged change, however its last writer ended.

* The log is the truth: whatever the index lacks is read from it into the memtable, which is merged later as always, but
  for a first slice of it: damage that only storing meets is found while the index can be built again.
* An index that can't be read, or is ahead of the log, is rebuilt: from the newest valid snapshot and the log after it,
  or from the log alone if the log is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import lmdb

from kvstore.bucket.context import BucketPaths
from kvstore.bucket.snapshots import snapshot
from kvstore.bucket.snapshots.snapshot import Snapshot
from kvstore.bucket.write_path import REPLAY_BYTES_MAX, WritePath
from kvstore.clock import Clock
from kvstore.disk.address_space import shortages
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.disk.lmdb_files import DAMAGE
from kvstore.errors import CorruptData, StoreFull, UnsupportedVersion
from kvstore.index.compaction import OLD
from kvstore.index.index import Index
from kvstore.log import recovery as log_recovery
from kvstore.log.log import Log
from kvstore.log.segments import LogEnd, LogFiles, ends_at
from kvstore.memtable.budget import Budget
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from logformat import paths
from logformat.log.index_state import IndexState

FREE_PARTS = 8
"""This part of the store's memory a recovery takes in any case: else it would merge after each few rows."""


def open_for_writing(
    bucket: BucketPaths,
    definition: TableDefinition,
    options: StoreOptions,
    files: Files,
    clock: Clock,
    budget: Budget | None = None,
    *,
    is_merged: bool = False,
) -> WritePath:
    """Recover a bucket whose lock is held, and open it; what its index lacks is in its memtable then.

    Args:
        budget: Of the store, if other buckets have memtables, too.
        is_merged: Whether everything is merged, so that the index has every change of the log.

    Raises:
        CorruptBatch: The log lost durable changes. Nothing was changed.
        StoreFull: The index has no room. Nothing is lost: the next call recovers what the index lacks.
        StoreReplaced: The path leads to another directory. Nothing was changed.
    """
    with shortages(bucket.index):
        memory = Budget(options.memtable_bytes) if budget is None else budget
        files.verify(bucket.directory)  # what is found here is this bucket's
        index = usable_index(bucket, options, files)
        try:
            snapshot.sweep(bucket.directory, files)
            files.remove_tree(bucket.directory / OLD)
            if index is not None:
                index.environment.show_last_commit()  # its state and the replayed changes belong to one moment
            state = _state_of(index) if index is not None else None
            end = log_recovery.prepare(bucket.log, bucket.identity, _durable_end(bucket, state), files)
        except BaseException:
            if index is not None:
                index.close()
            raise
        log = Log(bucket.log, bucket.identity, end, files, segment_bytes_max=options.segment_bytes_max)
        try:
            if index is not None and state is not None and state.applied_offset > end.offset:
                # The index was committed, and then the log lost these changes, which were never durable.
                index.close()
                index = None
            while True:
                if is_new := index is None:
                    _build(bucket, definition, log, options, files, clock, memory)
                    index = _index_at(bucket.index, options, files)
                assert index is not None
                try:
                    path = WritePath(definition, index, log, clock)
                    return _recovered(path, bucket, memory, files, is_merged=is_merged)
                except DAMAGE:
                    if is_new:
                        raise
                    index.close()
                    index = None
        except BaseException:
            log.close()
            if index is not None:
                index.close()
            raise


open_merged = partial(open_for_writing, is_merged=True)
"""For copies that no user writes."""


def is_at_end(bucket: BucketPaths, state: IndexState, files: Files) -> bool:
    """Whether the log ends at the index's synced position, and the index has all of it."""
    if state.applied_offset != state.synced_offset:
        return False
    if LogFiles(bucket.log, bucket.identity, files).bases()[-1:] != [state.synced_base]:
        return False
    last = paths.segment_file(bucket.log, state.synced_base)
    status = files.status(last)
    return status is not None and ends_at(last, status.st_size, state.synced_position, files)


def usable_index(bucket: BucketPaths, options: StoreOptions, files: Files) -> Index | None:
    """The index if it can be read; it is derived data, so damage to it loses nothing."""
    try:
        index = _index_at(bucket.index, options, files)
    except (FileNotFoundError, CorruptData):
        return None
    try:
        with index.view() as view:
            state = view.state()
            view.writers()
            view.entries_records()
        if (state.table_id, state.bucket_id) == (bucket.identity.table_id, bucket.identity.bucket_id):
            return index
    except UnsupportedVersion:
        index.close()
        raise
    except CorruptData:
        pass
    index.close()
    return None


def _durable_end(bucket: BucketPaths, state: IndexState | None) -> LogEnd | None:
    """Durable end of the log, as the index or the newest snapshot has recorded it.

    Raises:
        CorruptData: Neither is left, and the log does not begin at offset 0.
    """
    of_index = synced_end(state) if state is not None else None
    taken = next(_snapshots(bucket), None)
    if taken is not None and (of_index is None or taken.offset > of_index.offset):
        return taken.log_end
    if of_index is None and LogFiles(bucket.log, bucket.identity).start():
        raise _nothing_left(bucket)
    return of_index


def _snapshots(bucket: BucketPaths) -> Iterator[Snapshot]:
    """Snapshots with a valid manifest whose following changes the log holds, the newest first."""
    log_start = LogFiles(bucket.log, bucket.identity).start()
    snapshots = snapshot.readable(bucket.directory, bucket.identity)
    return (each for each in snapshots if each.log_end.base >= log_start)


def _build(
    bucket: BucketPaths,
    definition: TableDefinition,
    log: Log,
    options: StoreOptions,
    files: Files,
    clock: Clock,
    memory: Budget,
) -> None:
    """Rebuild the index under another name, and rename it once it is complete.

    Raises:
        CorruptData: No snapshot that the log continues is valid, and the log alone is not complete.
    """
    index = None
    for source in _snapshots(bucket):
        index = _unfinished_index(bucket, options, files)
        try:
            _load(index, source, definition)
            break
        except CorruptData:
            index.close()  # the snapshot before it may be valid
            index = None
        except BaseException:
            index.close()
            raise
    if index is None:
        if LogFiles(bucket.log, bucket.identity).start():
            raise _nothing_left(bucket)
        index = _unfinished_index(bucket, options, files)
    with closing(index):
        _recovered(WritePath(definition, index, log, clock), bucket, memory, files, is_merged=True)
    put_in_place(bucket, files)


def load_snapshot(
    bucket: BucketPaths, taken: Snapshot, definition: TableDefinition, options: StoreOptions, files: Files
) -> None:
    """Build an index from a snapshot alone, under another name; opening the bucket replays the log after it.

    Raises:
        CorruptData: The snapshot is damaged.
        StoreFull: The index can't grow.
    """
    with closing(_unfinished_index(bucket, options, files)) as index:
        _load(index, taken, definition)


def put_in_place(bucket: BucketPaths, files: Files) -> None:
    """Rename an index that was built under another name; the old index is removed."""
    files.remove_tree(bucket.index)
    files.rename(bucket.directory / paths.REBUILT_INDEX, bucket.index)
    files.sync_directory(bucket.directory)


def _unfinished_index(bucket: BucketPaths, options: StoreOptions, files: Files) -> Index:
    unfinished = bucket.directory / paths.REBUILT_INDEX
    files.remove_tree(unfinished)
    index = _index_at(unfinished, options, files, create=True)
    try:
        index.commit(IndexState(bucket.identity.table_id, bucket.identity.bucket_id))
    except BaseException:
        index.close()
        raise
    return index


def _load(index: Index, source: Snapshot, definition: TableDefinition) -> None:
    """Load a snapshot into a new index.

    Raises:
        CorruptData: It is damaged.
        StoreFull: The index can't grow.
    """
    while True:
        try:
            for rows in source.rows(definition):
                index.put(rows.keys.to_list(), rows.values.to_list())
                if index.dirty_bytes() >= REPLAY_BYTES_MAX:
                    index.commit(IndexState(source.manifest.table_id, source.manifest.bucket_id))
            for writer_id, entry in source.writers().items():
                index.put_writer(writer_id, entry)
            index.commit(source.state())
            return
        except lmdb.MapFullError:
            index.abort()
            index.environment.grow()


def _nothing_left(bucket: BucketPaths) -> CorruptData:
    return CorruptData(
        "The index of a bucket is lost, and so is every snapshot from which its log goes on: put index/ or snapshots/"
        " back from a copy.",
        path=bucket.directory,
        log_start=LogFiles(bucket.log, bucket.identity).start(),
    )


def _recovered(path: WritePath, bucket: BucketPaths, memory: Budget, files: Files, *, is_merged: bool) -> WritePath:
    """A path with every change of its log.

    Raises:
        lmdb.CorruptedError, lmdb.PageNotFoundError: A page of the index is damaged.
    """
    path.catch_up(LogFiles(bucket.log, bucket.identity, files), max(memory.free(), memory.limit // FREE_PARTS))
    if not is_merged and not path.memtable.is_merged:
        path.begin_merge()  # now, since nothing has to be sorted for it yet
        _store_first(path)
    elif synced_end(path.state) != path.log.end or not path.memtable.is_merged:
        path.commit()
    return path


def _store_first(path: WritePath) -> None:
    """Store the first slice of a merge: some damage is met only by storing, and now the index can be built again."""
    try:
        path.merge_slice(0.0)
    except DAMAGE:
        raise
    except (lmdb.Error, StoreFull, CorruptData):
        pass  # nothing was stored; the merge goes on later, and says why it can't


def synced_end(state: IndexState) -> LogEnd:
    """Durable end of the log according to an index."""
    return LogEnd(state.synced_base, state.synced_position, state.synced_offset)


def replay_start(state: IndexState, log: LogFiles) -> LogEnd:
    """Where the changes begin that an index lacks.

    Raises:
        CorruptBatch, OffsetOutOfRange: The log does not have this place.
    """
    end = synced_end(state)
    return end if end.offset == state.applied_offset else log.position_of(state.applied_offset)


def _state_of(index: Index) -> IndexState:
    with index.view() as view:
        return view.state()


def _index_at(directory: Path, options: StoreOptions, files: Files, *, create: bool = False) -> Index:
    return Index(open_environment(directory, files, map_bytes=options.map_bytes, create=create, has_databases=False))
