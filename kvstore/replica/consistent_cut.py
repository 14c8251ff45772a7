"""Consistent cuts: ends of buckets at which no commit over several buckets is in some of them only. Pure.

Restores, followers and reads of a replica in place all compute their ends here. They differ only in where the histories
of the buckets come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvstore.errors import ReplicaBehind
from kvstore.meta.jobs import writer_of
from kvstore.meta.state import CatalogState, TableDefinition
from logformat.catalog.edits import Edit, OpenWriter
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId, JobId, TableId, WriterId


class Committed(NamedTuple):
    """The batch of a commit over several buckets in one bucket, and its base offset."""

    writer: WriterId
    sequence: int
    offset: int


class BucketHistory(NamedTuple):
    """The commits over several buckets that one bucket has.

    Attributes:
        before: The last sequence of each writer before ``batches``.
        batches: Batches of the commits in order of their offsets.
        end: The offset after the last batch of the bucket.
    """

    before: Mapping[WriterId, int]
    batches: Sequence[Committed]
    end: int

    def last(self, end: int) -> dict[WriterId, int]:
        """The last sequence of each writer before an offset."""
        return {**self.before, **{each.writer: each.sequence for each in self.batches if each.offset < end}}


def consistent_cut(histories: Mapping[Stream, BucketHistory], writers: Iterable[WriterId]) -> dict[Stream, int]:
    """The last ends of a table's buckets at which all buckets have the same commits of each writer.

    A bucket ends before the first of its ``batches`` that another bucket lacks.

    Raises:
        ReplicaBehind: There are no such ends: one bucket has a commit before its ``batches`` that another lacks.
    """
    writers = set(writers)
    ends = {stream: history.end for stream, history in histories.items()}
    while True:
        last = {stream: history.last(ends[stream]) for stream, history in histories.items()}
        common = {writer: min(found.get(writer, -1) for found in last.values()) for writer in writers}
        for stream, history in histories.items():  # in each pass, because the common sequences decrease
            if any(history.before.get(writer, -1) > sequence for writer, sequence in common.items()):
                raise ReplicaBehind(
                    "At no moment do all buckets of the replica have the same commits; try again, or a later moment.",
                    table_id=stream.table_id,
                    bucket=stream.bucket,
                )
        cut = {
            stream: min(
                (
                    each.offset
                    for each in history.batches
                    if each.offset < ends[stream] and each.writer in writers and each.sequence > common[each.writer]
                ),
                default=ends[stream],
            )
            for stream, history in histories.items()
        }
        if cut == ends:
            return ends
        ends = cut


class StoreCut:
    """A consistent cut through all tables of a catalog, table by table.

    Attributes:
        ends: The end of each bucket.
    """

    def __init__(self) -> None:
        self.ends: dict[Stream, int] = {}
        self._last: dict[Stream, Mapping[WriterId, int]] = {}

    def add(self, histories: Mapping[Stream, BucketHistory], writers: Iterable[WriterId]) -> None:
        """Add a table.

        Args:
            histories: The histories of all its buckets.
            writers: The writers of its commits over several buckets.

        Raises:
            ReplicaBehind: See :func:`consistent_cut`.
        """
        ends = consistent_cut(histories, writers)
        self.ends |= ends
        self._last |= {stream: history.last(ends[stream]) for stream, history in histories.items()}

    def applied_tasks(self, state: CatalogState, definition: TableDefinition, job: JobId) -> int:
        """The number of the last task of a job whose rows are in all buckets of its table."""
        writer = state.writers_of(definition.id).named.get(writer_of(job))
        if writer is None:
            return 0
        streams = streams_of(definition)
        return writer.first_epoch + min(self._last.get(stream, {}).get(writer.writer_id, -1) for stream in streams)

    def jobs_ahead(
        self, state: CatalogState, tables: Mapping[TableId, TableDefinition]
    ) -> Iterator[tuple[TableId, JobId, int]]:
        """Jobs that have ended tasks whose rows are not in all buckets, each with the number of its last applied task.

        Args:
            state: Catalog with the jobs.
            tables: Tables that are cut; jobs of other tables are left out.
        """
        for table, jobs in state.jobs.items():
            for id, job in jobs.items() if table in tables else ():
                applied = self.applied_tasks(state, tables[table], id)
                if job.statistics.succeeded_tasks > applied:
                    yield table, id, applied


def streams_of(definition: TableDefinition) -> list[Stream]:
    """Streams of a table's buckets, in order."""
    return [Stream(definition.id, BucketId(bucket)) for bucket in range(definition.buckets)]


def writers_of_commits(
    definition: TableDefinition, base: CatalogState, edits: Iterable[Edit], state: CatalogState
) -> set[WriterId]:
    """Writers of a table's commits over several buckets.

    Writers that lost their name between two states of the catalog, ``base`` and ``state``, are found in the edits
    between them.
    """
    named = [*base.writers_of(definition.id).named.values(), *state.writers_of(definition.id).named.values()]
    writers = {writer.writer_id for writer in named if writer.kind == "epochs"}
    for edit in edits:
        payload = edit.payload
        if isinstance(payload, OpenWriter) and (payload.table_id, payload.kind) == (definition.id, "epochs"):
            writers.add(payload.writer_id)
    return writers
