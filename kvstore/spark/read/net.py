"""Net changes of a range, for Spark's `netChanges`: at most one change of each key.

A net change leads from the row before the range to the row after it: an insert, a delete, or both images of an update.
A key whose row ends as it began has none. Spark takes a commit for one change of a key, and keeps the first and the
last of them; so what it is given has one change of each key, and it keeps that.

Changes are folded while they are read: memory holds at most about twice the keys that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.meta.state import TableDefinition
from kvstore.read.time_travel import FOLD_ROWS
from kvstore.request.row_layout import layout_of
from logformat.checksum import key_sums
from logformat.log.change import ChangeType

CHANGE_TYPE = "_change_type"
_BEGINS = [kind.word for kind in (ChangeType.INSERT, ChangeType.APPEND)]
"""Changes before which there was no row."""


def net_changes(batches: Iterable[pa.RecordBatch], definition: TableDefinition) -> Iterator[pa.RecordBatch]:
    """Net changes of the changes of one bucket; what is appended to a log table is an insert.

    Args:
        batches: All changes of the range, in order, with all columns of the table and ``_change_type``.
    """
    if definition.primary_key is None:
        for batch in batches:
            yield _with_kinds(batch, pa.array([ChangeType.INSERT.word] * batch.num_rows, pa.string()))
        return
    folded: pa.RecordBatch | None = None
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= max(FOLD_ROWS, 0 if folded is None else folded.num_rows):
            folded = _ends(pa.concat_batches(([] if folded is None else [folded]) + waiting), definition)
            waiting, count = [], 0
    rest = ([] if folded is None else [folded]) + waiting
    if rest:
        yield _net(_ends(pa.concat_batches(rest), definition), definition)


def _ends(changes: pa.RecordBatch, definition: TableDefinition) -> pa.RecordBatch:
    """The first and the last change of each key, in order."""
    first, last = _places(changes, definition)
    return changes.take(pa.array(np.unique(np.concatenate([first, last]))))


def _places(changes: pa.RecordBatch, definition: TableDefinition) -> tuple[np.ndarray, np.ndarray]:
    """For each key, where its first change is, and its last."""
    keys = layout_of(definition).encode_keys(changes).to_arrow().dictionary_encode().indices.to_numpy()
    _, first = np.unique(keys, return_index=True)
    _, back = np.unique(keys[::-1], return_index=True)
    return first, len(keys) - 1 - back


def _net(changes: pa.RecordBatch, definition: TableDefinition) -> pa.RecordBatch:
    first, last = _places(changes, definition)
    kinds = changes.column(CHANGE_TYPE)
    had = ~pc.is_in(kinds, pa.array(_BEGINS)).to_numpy(zero_copy_only=False)[first]
    has = pc.not_equal(kinds, ChangeType.DELETE.word).to_numpy(zero_copy_only=False)[last]
    rows = _encoded(changes, definition)
    differs = pc.not_equal(rows.take(pa.array(first)), rows.take(pa.array(last))).to_numpy(zero_copy_only=False)
    is_update = had & has
    is_before, is_after = had & ~(is_update & ~differs), has & ~(is_update & ~differs)
    before = np.where(is_update, ChangeType.UPDATE_PREIMAGE.word, ChangeType.DELETE.word)[is_before]
    after = np.where(is_update, ChangeType.UPDATE_POSTIMAGE.word, ChangeType.INSERT.word)[is_after]
    places = np.concatenate([first[is_before], last[is_after]])
    order = np.argsort(places, kind="stable")
    net = changes.take(pa.array(places[order]))
    return _with_kinds(net, pa.array(np.concatenate([before, after])[order], pa.string()))


def _encoded(changes: pa.RecordBatch, definition: TableDefinition) -> pa.BinaryArray:
    """The rows of changes in bytes, by which they can be compared whatever their types."""
    layout = layout_of(definition)
    sums = key_sums(layout.encode_keys(changes))
    return layout.encode_values(changes.select(layout.schema.names), sums, definition.schema_id)[0].to_arrow()


def _with_kinds(batch: pa.RecordBatch, kinds: pa.StringArray) -> pa.RecordBatch:
    column = batch.schema.get_field_index(CHANGE_TYPE)
    return batch.set_column(column, batch.schema.field(column), kinds)
