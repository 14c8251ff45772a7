"""What changes of the log leave: the last row of each key, as one run.

Theory of operation. The rows of many batches are grouped by key at once, so that each key is met once, and in order.
What these rows replace is looked up once for each key, too, wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kvstore.index.index import Index
from kvstore.kernel import library, writes
from kvstore.memtable.run import Run
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import grouped, layout_of
from kvstore.request.sizes import bytes_of
from kvstore.request.take_rows import take_rows
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.ids import SchemaId
from logformat.log.batch import BatchHeader, LogBatch
from logformat.log.change import ChangeType
from logformat.rows.rows import verified

FOUND_KEYS = 1 << 16
"""Keys whose rows are looked up at a time."""

_LEAVES_A_ROW = np.zeros(len(ChangeType), bool)
_LEAVES_A_ROW[[ChangeType.APPEND, ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE]] = True
_IS_FINAL = _LEAVES_A_ROW.copy()
_IS_FINAL[ChangeType.DELETE] = True

Verified = tuple[BatchHeader, memoryview]
"""A batch of the log: its header, and all of it, with a verified checksum."""


class FinalChanges(NamedTuple):
    """The changes of a batch without the rows before updates.

    Attributes:
        leaves_row: bool, for each change whether it leaves a row, or else removes it.
        rows: Their rows.
        is_insert: bool, for each change whether there was no row before; None if none says so.
    """

    leaves_row: np.ndarray
    rows: pa.RecordBatch
    is_insert: np.ndarray | None = None

    @classmethod
    def of(cls, batch: LogBatch, count: int | None = None) -> FinalChanges:
        """Those of a batch, or of the first of its changes."""
        return cls.among(batch.change_types[:count], batch.rows.slice(0, count))

    @classmethod
    def among(cls, kinds: np.ndarray, rows: pa.RecordBatch) -> FinalChanges:
        """Those among changes, given their types and rows; the rows are not copied if all of them are."""
        is_final = _IS_FINAL[kinds]
        if not is_final.all():
            kinds, rows = kinds[is_final], rows.filter(pa.array(is_final))
        return cls(_LEAVES_A_ROW[kinds], rows, kinds == ChangeType.INSERT)


class FinalRows(NamedTuple):
    """What changes leave.

    Attributes:
        run: The row that each key has, empty if it was deleted.
        digest: Of these rows.
        sums: Of the keys.
        were_there: bool, for each key whether it may have had a row before.
    """

    run: Run
    digest: int
    sums: np.ndarray
    were_there: np.ndarray


def final_rows(
    definition: TableDefinition,
    schema_id: SchemaId,
    given: Sequence[FinalChanges],
) -> FinalRows:
    """The row that each key has after changes.

    Args:
        schema_id: Schema of all rows.
        given: Changes in order, at least one.
    """
    rows = given[0].rows if len(given) == 1 else pa.concat_batches([each.rows for each in given])
    grouping = grouped(layout_of(definition), rows)
    keys = grouping.keys.copied()  # they lie beside much that grouping needed
    lasts = grouping.order[grouping.lasts]
    put = np.concatenate([each.leaves_row for each in given])[lasts]
    values, hashes, sums = _values_of(definition, schema_id, keys, put, rows, lasts)
    offsets = np.full(len(keys) + 1, values.offsets[0])
    lengths = np.zeros(len(keys), np.int64)
    lengths[put] = values.lengths
    offsets[1:] += lengths.cumsum()
    were_there = [np.ones(each.rows.num_rows, bool) if each.is_insert is None else ~each.is_insert for each in given]
    return FinalRows(
        Run(keys, BinaryColumn(values.flat, offsets)),
        digest_of(hashes),
        sums,
        np.concatenate(were_there)[grouping.order[grouping.starts]],
    )


class Effect(NamedTuple):
    """Change of the row count and of the digest (modulo 2^64) by a batch."""

    added_rows: int
    digest: int = 0


def digest_of(hashes: np.ndarray) -> int:
    """Sum of hashes, modulo 2^64."""
    return int(hashes.sum(dtype=np.uint64))


def effect_of(final: FinalRows, find: Callable[[BinaryColumn], tuple[np.ndarray, BinaryColumn]]) -> Effect:
    """What the row count and the digest change by if rows take the place of others.

    Args:
        find: Returns for each of some keys, whether it has a row; and these rows.

    Raises:
        CorruptData: A row is damaged.
    """
    run, asked = final.run, np.flatnonzero(final.were_there)
    added, digest = int(np.count_nonzero(run.rows.lengths)), final.digest
    for first in range(0, len(asked), FOUND_KEYS):
        some = asked[first : first + FOUND_KEYS]
        there, old = find(run.keys.take(some))
        added -= len(old)
        digest -= digest_of(verified(old.moved(), final.sums[some[there]]))
    return Effect(added, digest)


def store(index: Index, run: Run) -> None:
    """Put the rows of a run into the open transaction of an index, and remove those of its deleted keys."""
    for first in range(0, len(run), FOUND_KEYS):
        part = run.slice(first, min(first + FOUND_KEYS, len(run)))
        index.put(part.keys.moved().to_list(), part.rows.moved().to_list())


def _values_of(
    definition: TableDefinition,
    schema_id: SchemaId,
    keys: BinaryColumn,
    put: np.ndarray,
    rows: pa.RecordBatch,
    places: np.ndarray,
) -> tuple[BinaryColumn, np.ndarray, np.ndarray]:
    """Values to store, by the kernel where it can.

    Args:
        keys: Distinct keys, in order.
        put: For each key, whether it gets a row; otherwise its row is removed.
        rows, places: The row of each key is ``rows[place]``.

    Returns:
        The values and their hashes, of keys that get a row; and the sums of all keys.
    """
    layout, kernel = layout_of(definition), library.kernel()
    table = layout.flat if kernel is not None and schema_id == definition.schema_id else None
    made = None
    if kernel is not None and table is not None and rows.num_rows and rows.schema.equals(table.schema):
        made = writes.encode(kernel, table, rows, bytes_of(rows), np.where(put, places, -1), keys)
    if made is None:
        sums = key_sums(keys)
        values, hashes = layout.encode_values(take_rows(rows, places[put]), sums[put], schema_id)
    else:
        values, hashes, sums = made
    return values.without_empty(), hashes, sums
