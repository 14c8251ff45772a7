"""Plans what a copy takes from a replica in one round: a moment at which all of it is consistent. Writes nothing.

* A commit over several buckets, or tables, is in all of them or in none. No task of a job has ended whose rows are
  missing.
* What is not yet consistent is left for a later round, so nothing ever has to be rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvstore.errors import ReplicaBehind
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.replica.consistent_cut import BucketHistory, StoreCut, streams_of, transactions_of, writers_of_commits
from kvstore.replica.coverage import ShippedPath
from kvstore.replica.source import Source, check_table
from logformat.catalog.edits import Edit, EndTask
from logformat.catalog.replicas import Stream
from logformat.ids import OFFSET_MAX, WriterId


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a copy is in one bucket.

    Attributes:
        end: The offset after its last batch.
        last_sequences: Returns the last sequence of each writer.
    """

    end: int
    last_sequences: Callable[[], Mapping[WriterId, int]]


@dataclass(frozen=True, slots=True)
class Round:
    """What a copy takes in one round.

    Attributes:
        edits: Edits after those that the copy has.
        state: The catalog with these edits.
        ends: The end of each bucket of its tables.
        begins: Where new buckets begin: with the newest snapshot at or before this offset; a bucket that is not here
            begins where the replica does.
        has_commits: Whether it has commits over several buckets, so that a part of it is no consistent copy.
    """

    edits: list[Edit]
    state: CatalogState
    ends: dict[Stream, int]
    begins: dict[Stream, int]
    has_commits: bool


class Planner:
    """Plans one round.

    Args:
        progress: Returns how far the copy is in a bucket; None if it has nothing of it.
    """

    def __init__(self, source: Source, progress: Callable[[Stream], CopyProgress | None]) -> None:
        self._source = source
        self._progress = progress
        self._begins: dict[Stream, int] = {}

    def plan(self, base: CatalogState, edits: Iterable[Edit]) -> Round:
        """Plan what to take after a catalog that the copy has.

        Args:
            edits: Edits after ``base``, in order, up to the end in the replica manifest.

        Raises:
            MissingVersion: The replica has a hole before the ends in its manifest.
            CorruptData: An object is damaged.
            ReplicaBehind: The catalog itself is ahead of the rows; a later round may take more.
        """
        edits = list(edits)
        try:
            return self._planned(base, edits, from_newest=True)
        except ReplicaBehind:
            if not self._begins:
                raise
            # The newest snapshots may have a commit that other buckets lack.
            return self._planned(base, edits, from_newest=False)

    def _planned(self, base: CatalogState, edits: list[Edit], *, from_newest: bool) -> Round:
        is_complete, transactions = True, list(transactions_of(base, edits))
        while True:
            state = base
            for edit in edits:
                state = state.after(edit)
            self._begins = _begins(state) if from_newest else {}
            for definition in state.tables.values():
                check_table(definition)
            cut = self._cut(base, edits, state, checks_schemas=not is_complete)
            cut.keep_whole(transactions)
            early = self._first_early(base, edits, state, cut)
            if early is None:
                return Round(edits, state, cut.ends, self._begins, cut.has_commits)
            edits, is_complete = edits[:early], False

    def path(self, stream: Stream, end: int) -> ShippedPath:
        """The path from what the copy has to an offset.

        Raises:
            MissingVersion: There is none.
        """
        progress = self._progress(stream)
        if progress is None:
            return self._source.path(stream, end, newest_before=self._begins.get(stream))
        return self._source.path_from(stream, progress.end, end)

    def _cut(self, base: CatalogState, edits: list[Edit], state: CatalogState, *, checks_schemas: bool) -> StoreCut:
        """The ends of all buckets.

        Args:
            checks_schemas: Whether batches may have a schema that ``state`` lacks, which is so if edits were left out.
        """
        cut = StoreCut()
        shipped = {each.stream: each.end for each in self._source.manifest.shipped}
        for definition in state.tables.values():
            ends = {stream: max(shipped.get(stream, 0), self._copied(stream)) for stream in streams_of(definition)}
            writers = writers_of_commits(definition, base, edits, state)
            if not writers and not checks_schemas:
                cut.ends |= ends
                continue
            cut.add({stream: self._history(stream, definition, writers, end) for stream, end in ends.items()}, writers)
        return cut

    def _copied(self, stream: Stream) -> int:
        progress = self._progress(stream)
        return 0 if progress is None else progress.end

    def _history(self, stream: Stream, definition: TableDefinition, writers: set[WriterId], end: int) -> BucketHistory:
        progress = self._progress(stream)
        return self._source.history(
            *(self.path(stream, end), end, writers, {} if progress is None else progress.last_sequences()),
            is_wanted=lambda header: header.schema_id in definition.schemas,
        )

    def _first_early(self, base: CatalogState, edits: list[Edit], state: CatalogState, cut: StoreCut) -> int | None:
        """Index of the first edit that ends a task whose rows are not in all buckets."""
        for _, job, _ in cut.jobs_ahead(base, state.tables):
            raise ReplicaBehind("The replica lacks rows that its catalog already counts; try again.", job=job)
        now = base
        for index, edit in enumerate(edits):
            now = now.after(edit)
            payload = edit.payload
            if not isinstance(payload, EndTask) or payload.table_id not in state.tables:
                continue
            if payload.task > cut.applied_tasks(now, state.tables[payload.table_id], payload.job_id):
                return index
        return None


def _begins(state: CatalogState) -> dict[Stream, int]:
    """Where new buckets of tables may begin, so that all rows are there and every consumer finds its changes.

    Without a retention a table's changes are kept for ever, and without a key they are its rows: such a table begins
    where the replica does.
    """
    return {
        stream: min((each.offsets[stream.bucket] for each in state.consumers_of(id).named.values()), default=OFFSET_MAX)
        for id, definition in state.tables.items()
        if definition.primary_key is not None and definition.options.retention_ms is not None
        for stream in streams_of(definition)
    }
