"""Consistent cuts: ends of buckets at which no commit over several buckets, or tables, is in some of them only. Pure.

Restores, followers and reads of a replica in place all compute their ends here. They differ only in where the histories
of the buckets come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvstore.errors import ReplicaBehind
from kvstore.meta.jobs import writer_of
from kvstore.meta.state import CatalogState, TableDefinition
from logformat.catalog.edits import BeginCommit, Edit, OpenWriter
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

    def without(self, part: Part) -> BucketHistory:
        """The history before a commit.

        Raises:
            ReplicaBehind: It is before ``batches``.
        """
        if self.before.get(part.writer, -1) >= part.sequence:
            raise ReplicaBehind(
                "At no moment do all tables of the replica have the same transactions; try again, or a later moment.",
                table_id=part.table_id,
            )
        of_it = [each for each in self.batches if each.writer == part.writer]
        later = (each.offset for each in of_it if each.sequence >= part.sequence)
        end = min(later, default=self.end)
        return BucketHistory(self.before, [each for each in self.batches if each.offset < end], end)


class Part(NamedTuple):
    """The commit that a transaction over several tables is in one of them."""

    table_id: TableId
    writer: WriterId
    sequence: int


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
    """A consistent cut through all tables of a catalog: of each by :meth:`add`, and between them by :meth:`keep_whole`.

    Attributes:
        ends: The end of each bucket.
    """

    def __init__(self) -> None:
        self.ends: dict[Stream, int] = {}
        self._added: dict[TableId, tuple[Mapping[Stream, BucketHistory], set[WriterId]]] = {}
        self._last: dict[Stream, Mapping[WriterId, int]] = {}

    def add(self, histories: Mapping[Stream, BucketHistory], writers: Iterable[WriterId]) -> None:
        """Add a table.

        Args:
            histories: The histories of all its buckets.
            writers: The writers of its commits over several buckets.

        Raises:
            ReplicaBehind: See :func:`consistent_cut`.
        """
        writers = set(writers)
        ends = consistent_cut(histories, writers)
        self.ends |= ends
        for stream in histories:
            self._added[stream.table_id] = histories, writers
        self._last |= {stream: history.last(ends[stream]) for stream, history in histories.items()}

    def keep_whole(self, transactions: Iterable[Sequence[Part]]) -> None:
        """End tables before transactions that other tables lack.

        Raises:
            ReplicaBehind: There is no such cut.
        """
        transactions = list(transactions)
        while halves := [part for parts in transactions for part in self._half(parts)]:
            for part in halves:
                histories, writers = self._added[part.table_id]
                self.add({stream: history.without(part) for stream, history in histories.items()}, writers)

    @property
    def has_commits(self) -> bool:
        """Whether a history has a commit over several buckets before its end, after where it began."""
        return any(
            each.offset < self.ends[stream]
            for histories, _ in self._added.values()
            for stream, history in histories.items()
            for each in history.batches
        )

    def _half(self, parts: Sequence[Part]) -> list[Part]:
        """The parts of a transaction that are in the cut, if others are not."""
        there = [part for part in parts if part.table_id in self._added]
        within = [part for part in there if self._has(part)]
        return within if len(within) < len(there) else []

    def _has(self, part: Part) -> bool:
        histories, _ = self._added[part.table_id]
        return all(self._last[stream].get(part.writer, -1) >= part.sequence for stream in histories)

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


def transactions_of(base: CatalogState, edits: Iterable[Edit]) -> Iterator[list[Part]]:
    """Transactions over several tables that are open in a state of the catalog, or begin in the edits after it."""
    parts: dict[str, list[Part]] = {}
    for id, writers in base.writers.items():
        for commit in writers.commits:
            parts.setdefault(_transaction(commit.commit_id), []).append(Part(id, commit.writer_id, commit.sequence))
    for edit in edits:
        begun = edit.payload
        if isinstance(begun, BeginCommit):
            part = Part(begun.table_id, begun.writer_id, begun.sequence)
            parts.setdefault(_transaction(begun.commit_id), []).append(part)
    return (each for each in parts.values() if len(each) > 1)


def _transaction(commit_id: str) -> str:
    return commit_id.partition("-")[2]
