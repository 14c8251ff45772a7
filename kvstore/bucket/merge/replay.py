"""Replays changes of the log: only the last change of each key is stored.

Theory of operation. The rows of many batches are grouped by key at once, so that each key is met once, and in
order. Then the keys are taken some at a time: their values are encoded, the memtable exchanges them for the old ones,
and these are verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kvstore.bucket.merge.effect import Effect, digest_of
from kvstore.bucket.merge.exchange import exchange_values, values_of
from kvstore.index.index import Index
from kvstore.memtable.memtable import Memtable
from kvstore.meta.state import TableDefinition
from kvstore.request.grouping import grouped
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.ids import SchemaId
from logformat.log.batch import LogBatch
from logformat.log.change import ChangeType
from logformat.rows.rows import verified

ENCODED_KEYS = 65536
"""Keys whose values are encoded at a time: calls for fewer would take longer."""
EXCHANGED_KEYS = 4096
"""Keys whose values are exchanged at a time: objects for so many stay in the processor's caches."""

_LEAVES_A_ROW = np.zeros(len(ChangeType), bool)
_LEAVES_A_ROW[[ChangeType.APPEND, ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE]] = True
_IS_FINAL = _LEAVES_A_ROW.copy()
_IS_FINAL[ChangeType.DELETE] = True


class FinalChanges(NamedTuple):
    """The changes of a batch without the rows before updates.

    Attributes:
        leaves_row: bool, for each change whether it leaves a row, or else removes it.
        rows: Their rows.
    """

    leaves_row: np.ndarray
    rows: pa.RecordBatch

    @classmethod
    def of(cls, batch: LogBatch, count: int | None = None) -> FinalChanges:
        """Those of a batch, or of the first of its changes; its rows are not copied if all of them are."""
        kinds = batch.change_types[:count]
        is_final, leaves_row = _IS_FINAL[kinds], _LEAVES_A_ROW[kinds]
        rows = batch.rows.slice(0, count)
        if is_final.all():
            return cls(leaves_row, rows)
        return cls(leaves_row[is_final], rows.filter(pa.array(is_final)))


def replay(
    index: Index | Memtable, definition: TableDefinition, schema_id: SchemaId, given: Sequence[FinalChanges]
) -> Effect:
    """Store and remove rows where what came before is.

    Args:
        schema_id: Schema of all rows.
        given: Changes in order, at least one.

    Raises:
        CorruptData: A stored row is damaged. What was stored is to be dropped, as after errors of LMDB.
    """
    rows = pa.concat_batches([each.rows for each in given])
    grouping = grouped(layout_of(definition), rows)
    lasts, keys = grouping.order[grouping.lasts], grouping.keys
    put = np.concatenate([each.leaves_row for each in given])[lasts]
    added = digest = 0
    for first in range(0, len(keys), ENCODED_KEYS):
        some = slice(first, first + ENCODED_KEYS)
        its_keys = keys.slice(first, min(first + ENCODED_KEYS, len(keys))).moved()
        values, hashes, sums = values_of(definition, schema_id, its_keys, put[some], rows, lasts[some])
        old_digest, old_count = _exchanged(index, its_keys, sums, put[some], values)
        added += len(values) - old_count
        digest += digest_of(hashes) - old_digest
    return Effect(added, digest)


def _exchanged(
    index: Index | Memtable, keys: BinaryColumn, sums: np.ndarray, put: np.ndarray, values: BinaryColumn
) -> tuple[int, int]:
    """Exchange the values of keys; returns the digest of the old ones, and how many there were."""
    digest = count = stored = 0
    for first in range(0, len(keys), EXCHANGED_KEYS):
        last = min(first + EXCHANGED_KEYS, len(keys))
        end = stored + int(np.count_nonzero(put[first:last]))
        listed, its_values = (each.moved().to_list() for each in (keys.slice(first, last), values.slice(stored, end)))
        old = exchange_values(index, listed, put[first:last], its_values)
        if any(old):
            there = np.fromiter(map(bool, old), bool, len(old))
            found = BinaryColumn.from_list(list(filter(None, old)))
            count += len(found)
            digest += digest_of(verified(found, sums[first:last][there]))
        stored = end
    return digest, count
