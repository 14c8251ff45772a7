"""Histories of a table's buckets, read backwards from their ends and only as far as a consistent cut needs.

Commits over several buckets take place one after the other, and each is in the catalog before it is in any bucket. So
only commits that had not ended when the leader noted the ends of the buckets can be in some buckets only; nothing
before the first of these is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvstore.meta.state import TableDefinition
from kvstore.replica.consistent_cut import BucketHistory, Committed
from kvstore.replica.source import SLACK_MS, Source
from logformat.catalog.edits import BeginCommit, Edit, EndCommit
from logformat.catalog.replicas import Stream
from logformat.ids import Sequence, WriterId

_UNKNOWN_MS = 3_600_000
"""How long a commit may take if the catalog does not have the times of its beginning and end."""

Commit = tuple[WriterId, Sequence]


class CommitLog:
    """The catalog of a replica, and the commits over several buckets in it.

    Attributes:
        state: The catalog.

    Raises:
        MissingVersion, CorruptData: See :meth:`Source.catalog`.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._image_ms, self.state, edits = source.recent_catalog()
        self._beginnings: dict[str, tuple[int, Commit, int]] = {
            each.commit_id: (table, (each.writer_id, each.sequence), 0)
            for table, writers in self.state.writers.items()
            for each in writers.commits
        }
        self._ended: dict[str, int] = {}
        self.take(edits)

    def take(self, edits: Iterable[Edit]) -> None:
        """Take edits that follow."""
        for edit in edits:
            payload = edit.payload
            if isinstance(payload, BeginCommit):
                commit = payload.writer_id, payload.sequence
                self._beginnings[payload.commit_id] = payload.table_id, commit, edit.time_ms
            elif isinstance(payload, EndCommit):
                self._ended[payload.commit_id] = edit.time_ms
            self.state = self.state.after(edit)

    def histories(self, definition: TableDefinition, ends: Mapping[Stream, int]) -> dict[Stream, BucketHistory]:
        """Histories of a table's buckets with the commits that may be in some of them only.

        Args:
            ends: The end of each bucket in the replica manifest.

        Raises:
            CorruptData: An object is damaged.
        """
        commits = self._recent(definition, ends) if len(ends) > 1 else {}
        return {stream: self._history(stream, end, commits) for stream, end in ends.items()}

    def unsettled(self, definition: TableDefinition) -> dict[Commit, int]:
        """Commits of the catalog that had not ended at the time of the manifest, each with its beginning (ms).

        Others are forgotten.
        """
        since = self._source.manifest.as_of_ms - SLACK_MS
        for id in [id for id, ended in self._ended.items() if ended < since]:
            del self._ended[id]
            self._beginnings.pop(id, None)
        return {commit: began for table, commit, began in self._beginnings.values() if table == definition.id}

    def _recent(self, definition: TableDefinition, ends: Mapping[Stream, int]) -> dict[Commit, int]:
        """Commits that had not ended at the time of the manifest, each with its beginning (ms)."""
        since = self._source.manifest.as_of_ms - SLACK_MS
        unsettled = self.unsettled(definition)
        if self._image_ms is None or self._image_ms < since:
            return unsettled
        # Commits that ended before the image was made are in the buckets only.
        return self._found_in_buckets(definition, ends, since - _UNKNOWN_MS) | unsettled

    def _found_in_buckets(
        self, definition: TableDefinition, ends: Mapping[Stream, int], since_ms: int
    ) -> dict[Commit, int]:
        """Commits that the buckets have after a time, which counts as their beginning."""
        named = self.state.writers_of(definition.id).named.values()
        writers = {each.writer_id for each in named if each.kind == "epochs"}
        times: dict[Commit, int] = {}
        for stream, end in ends.items() if writers else ():
            for header in self._source.batches_backwards(self._source.path(stream, end), end):
                if header.commit_timestamp < since_ms:
                    break
                if header.writer_id in writers:
                    times[header.writer_id, header.batch_sequence] = since_ms
        return times

    def _history(self, stream: Stream, end: int, commits: Mapping[Commit, int]) -> BucketHistory:
        """The history of a bucket with some commits; it has all earlier commits of their writers."""
        if not commits:
            return BucketHistory({}, [], end)
        since = min(commits.values()) - SLACK_MS
        path = self._source.path(stream, end)
        before = {writer: min(sequence for of, sequence in commits if of == writer) - 1 for writer, _ in commits}
        committed: list[Committed] = []
        for header in self._source.batches_backwards(path, end):
            if header.commit_timestamp < since:
                break
            if (header.writer_id, header.batch_sequence) in commits:
                committed.append(Committed(header.writer_id, header.batch_sequence, header.base_offset))
                if len(committed) == len(commits):
                    break
        else:
            if path.snapshot is not None and self._source.snapshot_manifest(path.snapshot).last_timestamp >= since:
                last = self._source.last_sequences(path.snapshot)
                before = {writer: max(sequence, last.get(writer, -1)) for writer, sequence in before.items()}
        return BucketHistory(before, committed[::-1], end)
