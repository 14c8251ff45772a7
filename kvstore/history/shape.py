"""Changes as a filter sees them: what they do to the rows for which it is true.

A row that comes into the filter is an insert, one that leaves it a delete, and an update within it stays an update. So
the filtered changes, put together, are the filtered table, at every offset. Both images of an update are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import CHANGE_FIELDS
from kvstore.read.scan import check_filter, matching
from kvstore.read.time_travel import check_undoable
from logformat.log.change import ChangeType

_PLACE = "_place"
_KIND = CHANGE_FIELDS.get_field_index("_change_type")
_OFFSET = CHANGE_FIELDS.get_field_index("_log_offset")


def check_shapes(definition: TableDefinition, filter: pc.Expression) -> None:
    """Refuse a filter, or a table whose changes it can't shape.

    Raises:
        InvalidRequest: The filter is no condition on the table's columns.
        UnsupportedOperation: The changelog is a WAL image.
    """
    check_filter(filter, definition.schema)
    check_undoable(definition)


def shaped(
    batches: Iterable[pa.RecordBatch | None], filter: pc.Expression, columns: Sequence[str]
) -> Iterator[pa.RecordBatch | None]:
    """The changes that a filter sees; a batch without any is left out, and None stays.

    Args:
        batches: Changes with all columns. Both halves of an update are in one batch; a first half alone is left out.
        columns: Columns to return, in this order.
    """
    for batch in batches:
        if batch is None:
            yield None
        elif (found := _shaped(batch, filter)).num_rows:
            yield found.select(columns)


def _shaped(changes: pa.RecordBatch, filter: pc.Expression) -> pa.RecordBatch:
    count = changes.num_rows
    rows = changes.select(changes.schema.names[len(CHANGE_FIELDS) :]).append_column(_PLACE, pa.array(np.arange(count)))
    seen = np.zeros(count, bool)
    seen[matching(rows, filter).column(_PLACE).to_numpy()] = True
    kinds = changes.column(_KIND)
    first = pc.equal(kinds, ChangeType.UPDATE_PREIMAGE.word).to_numpy(zero_copy_only=False)
    second = np.append(False, first[:-1])
    was_seen = np.append(False, seen[:-1])
    is_seen = np.append(seen[1:], False)
    leaves, enters = first & seen & ~is_seen, second & seen & ~was_seen
    if first[-1:].any():  # its second half is in the next range
        seen[-1] = leaves[-1] = False
    offsets = changes.column(_OFFSET)
    if leaves.any():
        # It is the second half that takes it away.
        offsets = pa.array(offsets.to_numpy() + leaves)
    if leaves.any() or enters.any():
        kinds = pc.if_else(pa.array(enters), ChangeType.INSERT.word, kinds)
        kinds = pc.if_else(pa.array(leaves), ChangeType.DELETE.word, kinds)
    found = changes.set_column(_KIND, changes.schema.field(_KIND), kinds)
    found = found.set_column(_OFFSET, changes.schema.field(_OFFSET), offsets)
    return found.filter(pa.array(seen))
