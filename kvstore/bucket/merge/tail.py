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

from kvstore.bucket.merge.replay import FinalChanges, Verified, final_rows, together
from kvstore.memtable.run import RUN_KEYS, Run
from kvstore.meta.state import TableDefinition
from kvstore.request.auto_increment import Ids, next_count_after
from logformat.ids import SchemaId
from logformat.log.batch import BatchHeader, records_of, verify
from logformat.log.index_state import IndexState

TOGETHER_BYTES = 4 << 20
"""Batches with up to this many bytes in the log are handled together."""
DECODED_BYTES = 64 << 20
"""Nor more than take this much once they are decoded: repetitive rows take far more than their batch in the log."""
LARGE_ROWS = 1024
"""Batches of fewer rows are handled together."""


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
    found: Iterable[Verified],
    definition: TableDefinition,
    bytes_max: int,
    saw: Callable[[pa.RecordBatch], None] | None = None,
    *,
    is_read_again: bool = False,
) -> Iterator[tuple[list[BatchHeader], Run]]:
    """Read batches of a table with a key, many in one pass: their headers, and the rows that they left.

    Args:
        bytes_max: Up to so many bytes of batches are handled together.
        saw: Called with the rows of each batch, or of several, without the rows before updates.
        is_read_again: Whether many rows are read once more when they are asked for: until then a run has keys only.

    Raises:
        CorruptBatch: A batch is damaged, or not of this table.
    """

    def run_of(changes: list[FinalChanges], some: list[Verified]) -> Run:
        schema_id = SchemaId(some[0][0].schema_id)
        if not is_read_again or sum(header.record_count for header, _ in some) < RUN_KEYS:
            return final_rows(definition, schema_id, changes)

        def again() -> Run:
            for each in some:
                verify(*each)  # a disk may give other bytes this time
            return next(runs_of(some, definition, bytes_max))[1]

        return final_rows(definition, schema_id, changes, again)

    for batches in together(found, bytes_max):
        schema = definition.schema_of(SchemaId(batches[0][0].schema_id))
        headers: list[BatchHeader] = []
        changes: list[FinalChanges] = []
        size = 0
        for few in _few_together(_Decoded(header, *records_of(header, data, schema)) for header, data in batches):
            final = _final_of(few)
            more = final.rows.nbytes
            if changes and size + more > DECODED_BYTES:
                yield headers, run_of(changes, batches[: len(headers)])
                batches = batches[len(headers) :]
                headers, changes, size = [], [], 0
            headers += [each.header for each in few]
            changes.append(final)
            size += more
            if saw is not None:
                saw(final.rows)
        yield headers, run_of(changes, batches)


class _Decoded(NamedTuple):
    header: BatchHeader
    kinds: np.ndarray
    rows: pa.RecordBatch


def _few_together(decoded: Iterable[_Decoded]) -> Iterator[list[_Decoded]]:
    """Consecutive batches of few rows; and each larger one by itself, whose rows before updates are not copied."""
    few: list[_Decoded] = []
    size = 0
    for each in decoded:
        is_large, more = each.rows.num_rows >= LARGE_ROWS, each.rows.nbytes
        if few and (is_large or size + more > DECODED_BYTES):
            yield few
            few, size = [], 0
        few.append(each)
        size += more
        if is_large:
            yield few
            few, size = [], 0
    if few:
        yield few


def _final_of(few: list[_Decoded]) -> FinalChanges:
    if len(few) == 1:
        return FinalChanges.among(few[0].kinds, few[0].rows)
    kinds = np.concatenate([each.kinds for each in few])
    return FinalChanges.among(kinds, pa.concat_batches([each.rows for each in few]))


def parts_of(found: Iterable[Verified], definition: TableDefinition, state: IndexState) -> Iterator[Part]:
    """Read batches, some hundreds of MiB in one pass.

    Args:
        state: Before them.

    Raises:
        CorruptBatch: See :func:`runs_of`.
    """
    if definition.primary_key is None:
        if all_headers := [header for header, _ in found]:
            yield Part(all_headers, Run.of([], []), state.next_count)
        return
    ids, column = Ids(state.bucket_id, definition.buckets), definition.options.auto_increment
    next_count = state.next_count

    def saw(rows: pa.RecordBatch) -> None:
        nonlocal next_count
        if column is not None and rows.num_rows:
            next_count = next_count_after(rows, column, ids, next_count)

    for headers, run in runs_of(found, definition, TOGETHER_BYTES, saw):
        yield Part(headers, run, next_count)


def state_after(state: IndexState, headers: Iterable[BatchHeader]) -> IndexState:
    """A state, moved on by batches, but for what rows say: row count, digest, next count."""
    before, back, end, uncounted = state.last_timestamp, state.back_offset, state.applied_offset, state.uncounted_ms
    for header in headers:
        if header.commit_timestamp < before:
            back = header.base_offset
        before, end, uncounted = header.commit_timestamp, header.next_offset, header.uncounted_ms
    return state._replace(applied_offset=end, last_timestamp=before, uncounted_ms=uncounted, back_offset=back)
