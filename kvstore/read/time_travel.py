"""Time travel: restores earlier rows by undoing, for each key, the first change since then.

* The first change of a key determines its earlier row: before an insert there was none; an update or delete holds it.
* Changes are folded while they are read: memory holds at most about twice the keys that changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import changelog_schema
from kvstore.request.request import group
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes

FOLD_ROWS = 1 << 17
"""Number of changes that wait to be folded, or as many as there are keys already."""

_KIND = "_change_type"


@dataclass(frozen=True, slots=True)
class FirstChanges:
    """The first change of each key.

    Attributes:
        keys: Sorted.
        rows: For each key its row before that change; if there was none, the row that was inserted.
        existed: For each key, whether it had a row before.
    """

    keys: BinaryColumn
    rows: pa.RecordBatch
    existed: np.ndarray

    def between(self, start: bytes, stop: bytes | None) -> FirstChanges:
        """Those of keys from ``start`` to ``stop`` (exclusive; None for no end)."""
        low = bisect_left(self.keys, start)
        high = len(self.keys) if stop is None else bisect_left(self.keys, stop, low)
        return FirstChanges(self.keys.slice(low, high), self.rows.slice(low, high - low), self.existed[low:high])

    def undo(self) -> Changes:
        """The changes that undo these and all later ones."""
        return Changes(self.rows, pa.array(~self.existed))


def check_undoable(definition: TableDefinition) -> None:
    """Refuse a table whose changelog does not hold the earlier rows.

    Raises:
        UnsupportedOperation: The table has a WAL image.
    """
    if definition.options.changelog_image == "wal":
        raise UnsupportedOperation(
            "A WAL image has no preimages: the table has no binlog, no undo and no reads of earlier states.",
            table=definition.name,
        )


def first_changes(
    changes: Iterable[pa.RecordBatch], definition: TableDefinition, columns: Iterable[str] | None = None
) -> FirstChanges:
    """The first change of each key.

    Args:
        changes: A changelog, in order, with ``_change_type``, the key and ``columns``. Postimages are skipped: the
            preimage before each holds the earlier row.
        columns: Columns of the rows; None for all.
    """
    layout = layout_of(definition)
    wanted = definition.schema if columns is None else pa.schema([definition.schema.field(name) for name in columns])
    names = [_KIND, *dict.fromkeys([*layout.key_names, *wanted.names])]
    schema = changelog_schema(definition, names)
    folded = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in changes:
        waiting.append(batch.select(names).filter(pc.not_equal(batch.column(_KIND), ChangeType.UPDATE_POSTIMAGE.word)))
        count += waiting[-1].num_rows
        if count >= max(FOLD_ROWS, folded.num_rows):
            folded = fold([folded, *waiting], definition)[1]
            waiting, count = [], 0
    keys, folded = fold([folded, *waiting], definition)
    existed = pc.not_equal(folded.column(_KIND), ChangeType.INSERT.word).to_numpy(zero_copy_only=False)
    rows = pa.RecordBatch.from_arrays([folded.column(name) for name in wanted.names], schema=wanted)
    return FirstChanges(keys, rows, existed)


def fold(batches: list[pa.RecordBatch], definition: TableDefinition) -> tuple[BinaryColumn, pa.RecordBatch]:
    """Keys in order, and the first change of each."""
    changes = pa.concat_batches(batches)
    grouping = group(layout_of(definition).encode_keys(changes))
    return grouping.keys, changes.take(pa.array(grouping.order[grouping.starts]))
