"""The tail of a log: what it has and the index lacks, read into a memtable in one pass.

* Nothing is merged again: change records say what each change left. Only the last row of each key is kept.
* Row count and digest are those of the rows that the tail replaces, which are looked up once for each key.
* Headers alone say the rest of the state: writers, timestamps, offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kvstore.bucket.merge.replay import FinalChanges, Verified, final_rows
from kvstore.memtable.run import Run
from kvstore.meta.state import TableDefinition
from kvstore.request.auto_increment import Ids, next_count_after
from logformat.ids import Offset
from logformat.log.batch import BatchHeader, records_of, verify
from logformat.log.index_state import IndexState

TOGETHER_BYTES = 4 << 20
"""Batches with up to this many bytes in the log are handled together."""
DECODED_BYTES = 64 << 20
"""Nor more than take this much once they are decoded: repetitive rows take far more than their batch in the log."""
TOGETHER_KEYS = 1 << 13
"""So many keys that are read together stay a run. A reader never joins runs, and each costs a bisection for each key."""


class Part(NamedTuple):
    """A part of a tail.

    Attributes:
        headers: Of its batches.
        run: The rows that they left.
        next_count: See :class:`IndexState`.
    """

    headers: list[BatchHeader]
    run: Run
    next_count: int


def runs_of(
    verified: Iterable[Verified],
    definition: TableDefinition,
    bytes_max: int,
    saw: Callable[[pa.RecordBatch], None] | None = None,
    *,
    is_read_again: bool = False,
) -> Iterator[tuple[list[BatchHeader], Run]]:
    """Read batches of a table with a key, many in one pass: their headers, and the rows that they left.

    Args:
        bytes_max: Up to so many bytes of batches are handled together.
        saw: Called with the rows of these batches, without the rows before updates.
        is_read_again: Whether many rows are read once more when they are asked for: until then a run has keys only.

    Raises:
        CorruptBatch: A batch is damaged, or not of this table.
    """
    batches: list[Verified] = []
    kinds: list[np.ndarray] = []
    parts: list[pa.RecordBatch] = []
    size = decoded = 0

    def run() -> Run:
        changes = FinalChanges.among(np.concatenate(kinds), pa.concat_batches(parts))
        if saw is not None:
            saw(changes.rows)
        again, schema_id = None, batches[0][0].schema_id
        if is_read_again and sum(header.record_count for header, _ in batches) >= TOGETHER_KEYS:
            # Bytes of their own: a view of a segment's map would hold a descriptor.
            some = [(header, memoryview(bytes(data))) for header, data in batches]

            def again() -> Run:
                for each in some:
                    verify(*each)
                return next(runs_of(some, definition, bytes_max))[1]

        return final_rows(definition, schema_id, [changes], again)

    def headers() -> list[BatchHeader]:
        return [header for header, _ in batches]

    for header, data in verified:
        its_kinds, rows = records_of(header, data, definition.schema_of(header.schema_id))
        more = rows.nbytes
        is_full = size + header.size > bytes_max or decoded + more > DECODED_BYTES
        if batches and (is_full or header.schema_id != batches[0][0].schema_id):
            yield headers(), run()
            batches, kinds, parts = [], [], []
            size = decoded = 0
        batches.append((header, data))
        kinds.append(its_kinds)
        parts.append(rows)
        size += header.size
        decoded += more
    if batches:
        yield headers(), run()


def parts_of(verified: Iterable[Verified], definition: TableDefinition, state: IndexState) -> Iterator[Part]:
    """Read batches, some hundreds of MiB in one pass.

    Args:
        state: Before them.

    Raises:
        CorruptBatch: See :func:`runs_of`.
    """
    if definition.primary_key is None:
        if all_headers := [header for header, _ in verified]:
            yield Part(all_headers, Run.of([], []), state.next_count)
        return
    ids, column = Ids(state.bucket_id, definition.buckets), definition.options.auto_increment
    next_count = state.next_count

    def saw(rows: pa.RecordBatch) -> None:
        nonlocal next_count
        if column is not None and rows.num_rows:
            next_count = next_count_after(rows, column, ids, next_count)

    for headers, run in runs_of(verified, definition, TOGETHER_BYTES, saw):
        yield Part(headers, run, next_count)


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
