"""The tail of a log: what it has and the index lacks, read into a memtable in one pass.

* Nothing is merged again: change records say what each change left. Only the last row of each key is kept.
* Row count and digest are moved on by the rows that the tail replaces. They are looked up once for each key, but for
  keys of which the tail says that they had no row.
* Headers alone say the rest of the state: writers, timestamps, offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kvstore.bucket.merge.replay import FinalChanges, FinalRows, Verified, final_rows
from kvstore.log.held_segments import HeldBatch, HeldSegments
from kvstore.log.segments import FoundBatch
from kvstore.memtable.run import Run, merged
from kvstore.meta.state import TableDefinition
from kvstore.request.auto_increment import Ids, next_count_after
from kvstore.request.row_layout import grouped, layout_of
from logformat.binary_column import BinaryColumn
from logformat.ids import Offset
from logformat.log.batch import BatchHeader, records_of
from logformat.log.index_state import IndexState

TOGETHER_BYTES = 4 << 20
"""Batches with up to this many bytes in the log are handled together."""
DECODED_BYTES = 64 << 20
"""Nor more than take this much once they are decoded: repetitive rows take far more than their batch in the log."""
TOGETHER_KEYS = 1 << 13
"""So many keys that are read together stay a run. A reader never joins runs, and each costs a bisection for a key."""


class Part(NamedTuple):
    """A part of a tail.

    Attributes:
        headers: Of its batches.
        final: The rows that they left; None for a table without a key.
        next_count: See :class:`IndexState`.
    """

    headers: list[BatchHeader]
    final: FinalRows | None
    next_count: int


def runs_of(
    verified: Iterable[Verified],
    definition: TableDefinition,
    bytes_max: int,
    saw: Callable[[pa.RecordBatch], None] | None = None,
) -> Iterator[tuple[list[BatchHeader], FinalRows]]:
    """Read batches of a table with a key, many in one pass: their headers, and the rows that they left.

    Args:
        bytes_max: Up to so many bytes of batches are handled together.
        saw: Called with the rows of these batches, without the rows before updates.

    Raises:
        CorruptBatch: A batch is damaged, or not of this table.
    """
    for batches, changes in _decoded(verified, definition, bytes_max):
        if saw is not None:
            saw(changes.rows)
        yield [header for header, _ in batches], final_rows(definition, batches[0][0].schema_id, [changes])


def late_runs(
    batches: Iterable[FoundBatch], definition: TableDefinition, bytes_max: int, held: HeldSegments
) -> Iterator[Run]:
    """Like :func:`runs_of`; but runs of many rows have only keys, until their batches are read again for the rows.

    Args:
        held: Of the log that the batches are in.

    Raises:
        CorruptBatch: See :func:`runs_of`.
    """
    for together in _together(batches, bytes_max):
        again: list[HeldBatch] = []
        if sum(each.header.record_count for each in together) >= TOGETHER_KEYS:
            again = [batch for each in together if (batch := held.batch(each)) is not None]
        verified = [(each.header, each.data) for each in together]
        if len(again) == len(together):
            yield from _keys_of(verified, again, definition, bytes_max)
        else:
            for _, final in runs_of(verified, definition, bytes_max):
                yield final.run


def _together(batches: Iterable[FoundBatch], bytes_max: int) -> Iterator[list[FoundBatch]]:
    together: list[FoundBatch] = []
    size = 0
    for each in batches:
        if together and size + each.header.size > bytes_max:
            yield together
            together, size = [], 0
        together.append(each)
        size += each.header.size
    if together:
        yield together


def _keys_of(
    verified: list[Verified], again: list[HeldBatch], definition: TableDefinition, bytes_max: int
) -> Iterator[Run]:
    layout, first = layout_of(definition), 0
    for batches, changes in _decoded(verified, definition, bytes_max, layout.key_names):
        some = again[first : first + len(batches)]
        first += len(batches)
        keys = grouped(layout, changes.rows).keys.copied()  # they lie beside much that grouping needed

        def rows(some: list[HeldBatch] = some) -> BinaryColumn:
            read = runs_of((each.read() for each in some), definition, bytes_max)
            return merged([final.run for _, final in read]).rows

        yield Run(keys, rows)


def _decoded(
    verified: Iterable[Verified], definition: TableDefinition, bytes_max: int, columns: Sequence[str] | None = None
) -> Iterator[tuple[list[Verified], FinalChanges]]:
    """Batches of one schema that are handled together, and their changes.

    Args:
        columns: Those of the rows; all if there is none.
    """
    batches: list[Verified] = []
    kinds: list[np.ndarray] = []
    parts: list[pa.RecordBatch] = []
    size = decoded = 0

    def changes() -> FinalChanges:
        return FinalChanges.among(np.concatenate(kinds), pa.concat_batches(parts))

    for header, data in verified:
        its_kinds, rows = records_of(header, data, definition.schema_of(header.schema_id), columns)
        more = rows.nbytes
        is_full = size + header.size > bytes_max or decoded + more > DECODED_BYTES
        if batches and (is_full or header.schema_id != batches[0][0].schema_id):
            yield batches, changes()
            batches, kinds, parts = [], [], []
            size = decoded = 0
        batches.append((header, data))
        kinds.append(its_kinds)
        parts.append(rows)
        size += header.size
        decoded += more
    if batches:
        yield batches, changes()


def parts_of(verified: Iterable[Verified], definition: TableDefinition, state: IndexState) -> Iterator[Part]:
    """Read batches, some hundreds of MiB in one pass.

    Args:
        state: Before them.

    Raises:
        CorruptBatch: See :func:`runs_of`.
    """
    if definition.primary_key is None:
        if all_headers := [header for header, _ in verified]:
            yield Part(all_headers, None, state.next_count)
        return
    ids, column = Ids(state.bucket_id, definition.buckets), definition.options.auto_increment
    next_count = state.next_count

    def saw(rows: pa.RecordBatch) -> None:
        nonlocal next_count
        if column is not None and rows.num_rows:
            next_count = next_count_after(rows, column, ids, next_count)

    for headers, final in runs_of(verified, definition, TOGETHER_BYTES, saw):
        yield Part(headers, final, next_count)


def state_after(
    state: IndexState, headers: Iterable[BatchHeader], row_count: int, digest: int, next_count: int
) -> IndexState:
    """A state, moved on by batches.

    Args:
        row_count, digest, next_count: What rows say.
    """
    before, back, end, uncounted = state.last_timestamp, state.back_offset, state.applied_offset, state.uncounted_ms
    for header in headers:
        if header.commit_timestamp < before:
            back = header.base_offset
        end = Offset(header.base_offset + header.last_offset_delta + 1)
        before, uncounted = header.commit_timestamp, header.uncounted_ms
    synced = state.synced_base, state.synced_position, state.synced_offset
    return IndexState(  # _replace takes three times as long
        *(state.table_id, state.bucket_id, end, *synced, row_count, digest),
        *(before, next_count, uncounted, back, state.merging),
    )
