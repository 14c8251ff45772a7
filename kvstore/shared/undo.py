"""Undoes the last batch of a copy, whose range no epoch has, by the rows that its changes have replaced.

* The index goes back in one commit, and then the log. A copy that is left between these replays the batch when it is
  opened, and is undone again.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kvstore.bucket.context import BucketPaths
from kvstore.bucket.merge.replay import Effect, FinalChanges, effect_of, final_rows, store
from kvstore.bucket.recovery import usable_index
from kvstore.disk.files import Files, refusals
from kvstore.errors import CorruptData
from kvstore.index.index import Index
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from logformat import paths
from logformat.log.batch import LogBatch, decode_verified
from logformat.log.change import ChangeType
from logformat.log.index_state import IndexState

_HAD_A_ROW = np.zeros(len(ChangeType), bool)
_HAD_A_ROW[[ChangeType.UPDATE_PREIMAGE, ChangeType.DELETE]] = True
_IS_BEFORE = _HAD_A_ROW.copy()
_IS_BEFORE[ChangeType.INSERT] = True


def can_undo(definition: TableDefinition) -> bool:
    """Whether batches of a table have all rows that they replace."""
    return definition.options.changelog_image == "full"


def undo(bucket: BucketPaths, definition: TableDefinition, before: IndexState, files: Files) -> None:
    """Undo the last batch of a copy that is not open.

    Args:
        before: Committed state of its index before the batch.

    Raises:
        CorruptData, OffsetOutOfRange: The copy is damaged, or the batch does not lead back to that state.
        StoreFull, LogFailed: The disk is full or failed.
    """
    index = usable_index(bucket, StoreOptions(), files)
    if index is None:
        raise CorruptData("The index of a copy is gone.", path=bucket.index)
    try:
        with index.view() as view:
            state = view.state()
        batches = list(
            LogFiles(bucket.log, bucket.identity, files).batches(before.applied_offset, state.applied_offset)
        )
        if len(batches) != 1:
            raise CorruptData("A copy has more than one batch that no epoch has.", path=bucket.directory)
        header = batches[0].header
        batch = decode_verified(header, batches[0].data, definition.schema_of(header.schema_id))
        effect = _undone(index, definition, batch)
        rows, digest = state.row_count + effect.added_rows, (state.digest + effect.digest) % 2**64
        if (rows, digest) != (before.row_count, before.digest):
            raise CorruptData("The batch of a copy does not lead back to the rows before it.", path=bucket.directory)
        index.commit(before)
    finally:
        index.close()
    with refusals(bucket.directory):
        _cut_log(bucket, before, files)


def _undone(index: Index, definition: TableDefinition, batch: LogBatch) -> Effect:
    if definition.primary_key is None:
        return Effect(-batch.record_count)
    is_before = np.flatnonzero(_IS_BEFORE[batch.change_types])[::-1]  # what a key has last in this order, it had first
    changes = FinalChanges(_HAD_A_ROW[batch.change_types[is_before]], batch.rows.take(pa.array(is_before)))
    final = final_rows(definition, batch.schema_id, [changes])
    with index.view() as view:
        effect = effect_of(final, view.find)
    store(index, final.run)
    return effect


def _cut_log(bucket: BucketPaths, before: IndexState, files: Files) -> None:
    """Cut the log at the end that it had before; opening it removes what else belonged to the batch."""
    for base in LogFiles(bucket.log, bucket.identity, files).bases():
        if base > before.synced_base:
            files.remove(paths.segment_file(bucket.log, base))
    descriptor = files.open(paths.segment_file(bucket.log, before.synced_base))
    try:
        files.truncate(descriptor, before.synced_position)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.sync_directory(bucket.log)
