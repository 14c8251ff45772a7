"""The tail of a log: what it has and the index lacks, read into a memtable in one pass.

* Nothing is merged again: change records say what each change left. Only the last row of each key is kept.
* Row count and digest are those of the rows that the tail replaces, which are looked up once for each key.
* Headers alone say the rest of the state: writers, timestamps, offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kvstore.bucket.merge.replay import FinalChanges, Verified, final_rows, together
from kvstore.memtable.run import Run, merged
from kvstore.meta.state import TableDefinition
from kvstore.request.auto_increment import Ids, next_count_after
from logformat.ids import SchemaId
from logformat.log.batch import BatchHeader, LogBatch, decode_verified
from logformat.log.index_state import IndexState

RUN_BYTES = 128 << 20
"""Rows are published once they take this much: to bring them together takes as much again."""


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
    found: Iterable[Verified], definition: TableDefinition, saw: Callable[[LogBatch], None] | None = None
) -> Iterator[tuple[list[BatchHeader], Run]]:
    """Read batches of a table with a key, many in one pass: their headers, and the rows that they left.

    Args:
        saw: Called with each batch.

    Raises:
        CorruptBatch: A batch is damaged, or not of this table.
    """
    for batches in together(found):
        schema_id = SchemaId(batches[0][0].schema_id)
        schema = definition.schema_of(schema_id)
        changes: list[FinalChanges] = []
        for header, data in batches:
            batch = decode_verified(header, data, schema)
            changes.append(FinalChanges.of(batch))
            if saw is not None:
                saw(batch)
        yield [header for header, _ in batches], final_rows(definition, schema_id, changes)


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

    def saw(batch: LogBatch) -> None:
        nonlocal next_count
        if column is not None and batch.record_count:
            next_count = next_count_after(batch.rows, column, ids, next_count)

    headers: list[BatchHeader] = []
    runs: list[Run] = []
    for some, run in runs_of(found, definition, saw):
        headers += some
        runs.append(run)
        if sum(each.size for each in runs) > RUN_BYTES:
            runs = [merged(runs)]
            if runs[0].size > RUN_BYTES // 2:
                yield Part(headers, runs[0], next_count)
                headers, runs = [], []
    if headers:
        yield Part(headers, merged(runs), next_count)


def state_after(state: IndexState, headers: Iterable[BatchHeader]) -> IndexState:
    """A state, moved on by batches, but for what rows say: row count, digest, next count."""
    before, back, end, uncounted = state.last_timestamp, state.back_offset, state.applied_offset, state.uncounted_ms
    for header in headers:
        if header.commit_timestamp < before:
            back = header.base_offset
        before, end, uncounted = header.commit_timestamp, header.next_offset, header.uncounted_ms
    return state._replace(applied_offset=end, last_timestamp=before, uncounted_ms=uncounted, back_offset=back)
