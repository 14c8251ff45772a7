"""What a copy takes of a replica in one round: a moment at which all of it belongs together. Nothing is written here.

* No commit over several buckets is torn; no task of a job has ended whose rows are not there.
* What does not belong together yet is left for a later round, so nothing ever has to be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvstore.errors import ReplicaBehind
from kvstore.meta.jobs import writer_of
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.replica.consistent_cut import BucketHistory, consistent_cut
from kvstore.replica.coverage import ShippedPath
from kvstore.replica.source import Source, check_table
from logformat.catalog.edits import Edit, EndTask, OpenWriter
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId, JobId, WriterId

Sequences = Mapping[Stream, Mapping[WriterId, int]]
"""The last of each writer, in each bucket."""


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """What a copy has of a bucket: up to where, and the last sequence of each writer."""

    end: int
    last: Callable[[], Mapping[WriterId, int]]


@dataclass(frozen=True, slots=True)
class Round:
    """What is to be taken.

    Attributes:
        edits: Edits behind those the copy has.
        state: The catalog with them.
        ends: Of each bucket of its tables.
    """

    edits: list[Edit]
    state: CatalogState
    ends: dict[Stream, int]


class Planner:
    """Plans one round.

    Args:
        has: What the copy has of a bucket; None if nothing.
    """

    def __init__(self, source: Source, has: Callable[[Stream], CopyProgress | None]) -> None:
        self._source = source
        self._has = has

    def plan(self, base: CatalogState, edits: Iterable[Edit]) -> Round:
        """What to take behind a catalog that the copy has.

        Args:
            edits: Those behind it that the replica was told of, in order.

        Raises:
            MissingVersion: A hole lies before what the replica was told.
            CorruptData: An object is not what it should be.
            ReplicaBehind: The catalog itself is ahead of the rows; the next round may come to more.
        """
        edits, is_whole = list(edits), True
        while True:
            state = base
            for edit in edits:
                state = state.after(edit)
            for definition in state.tables.values():
                check_table(definition)
            ends, last = self._ends(base, edits, state, looks=not is_whole)
            late = self._first_late(base, edits, state, last)
            if late is None:
                return Round(edits, state, ends)
            edits, is_whole = edits[:late], False

    def way(self, stream: Stream, end: int) -> ShippedPath:
        """The way from what the copy has to an offset."""
        has = self._has(stream)
        return self._source.way(stream, end) if has is None else self._source.way_from(stream, has.end, end)

    def _ends(
        self, base: CatalogState, edits: list[Edit], state: CatalogState, *, looks: bool
    ) -> tuple[dict[Stream, int], Sequences]:
        """Where buckets end, and of writers of commits what is before.

        Args:
            looks: For batches with a schema the catalog lacks: it does if edits were left out.
        """
        ends: dict[Stream, int] = {}
        last: dict[Stream, Mapping[WriterId, int]] = {}
        told = {each.stream: each.end for each in self._source.told.shipped}
        for definition in state.tables.values():
            streams = [Stream(definition.id, BucketId(bucket)) for bucket in range(definition.buckets)]
            told_ends = {stream: max(told.get(stream, 0), self._begun(stream)) for stream in streams}
            writers = writers_of_commits(definition, base, edits, state)
            if not writers and not looks:
                ends |= told_ends
                continue
            histories = {stream: self._history(stream, definition, writers, told_ends[stream]) for stream in streams}
            ends_here = consistent_cut(histories, writers)
            ends |= ends_here
            last |= {stream: histories[stream].last(ends_here[stream]) for stream in streams}
        return ends, last

    def _begun(self, stream: Stream) -> int:
        has = self._has(stream)
        return 0 if has is None else has.end

    def _history(self, stream: Stream, definition: TableDefinition, writers: set[WriterId], end: int) -> BucketHistory:
        has = self._has(stream)
        return self._source.history(
            *(self.way(stream, end), end, writers, {} if has is None else has.last()),
            goes_on=lambda header: header.schema_id in definition.schemas,
        )

    def _first_late(self, base: CatalogState, edits: list[Edit], state: CatalogState, last: Sequences) -> int | None:
        """Place of the first edit that ends a task whose rows are not in all buckets."""
        for table, jobs in base.jobs.items():
            for id, job in jobs.items():
                if table not in state.tables:
                    continue
                if job.statistics.succeeded_tasks > applied_tasks(base, state.tables[table], id, last):
                    raise ReplicaBehind("The replica has not all rows of what its catalog says; try again.", job=id)
        now = base
        for place, edit in enumerate(edits):
            now = now.after(edit)
            payload = edit.payload
            if not isinstance(payload, EndTask) or payload.table_id not in state.tables:
                continue
            if payload.task > applied_tasks(now, state.tables[payload.table_id], payload.job_id, last):
                return place
        return None


def applied_tasks(state: CatalogState, definition: TableDefinition, job: JobId, last: Sequences) -> int:
    """The last task of a job that is in all buckets of its table."""
    writer = state.writers_of(definition.id).named.get(writer_of(job))
    if writer is None:
        return 0
    streams = [Stream(definition.id, BucketId(bucket)) for bucket in range(definition.buckets)]
    return writer.first_epoch + min(last.get(stream, {}).get(writer.writer_id, -1) for stream in streams)


def writers_of_commits(
    definition: TableDefinition, base: CatalogState, edits: Iterable[Edit], state: CatalogState
) -> set[WriterId]:
    """Of a table; also those that lost their name between two states of the catalog, with the edits between."""
    named = [*base.writers_of(definition.id).named.values(), *state.writers_of(definition.id).named.values()]
    found = {writer.writer_id for writer in named if writer.kind == "epochs"}
    for edit in edits:
        payload = edit.payload
        if isinstance(payload, OpenWriter) and (payload.table_id, payload.kind) == (definition.id, "epochs"):
            found.add(payload.writer_id)
    return found
