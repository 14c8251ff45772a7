"""Restores a store from a replica: its latest state, an offset of each bucket, or a point in time.

* A hole is never crossed: a request for what lies after one is refused, and the error names the hole.
* A commit over several buckets is in all of them in the restored store, or in none.
* The directory becomes a store in the last step; before that it is none.
* The restored store has a leader of its own, in a later epoch, and no replicas.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from kvstore.clock import Clock
from kvstore.disk.files import Files, refusals
from kvstore.disk.lock import directory_taken
from kvstore.errors import InvalidRequest, NotAStore, ReplicaBehind
from kvstore.meta.state import CatalogState
from kvstore.options import StoreOptions
from kvstore.process.calls import uninterrupted
from kvstore.replica.client import Client
from kvstore.replica.consistent_cut import BucketHistory, StoreCut, streams_of, transactions_of, writers_of_commits
from kvstore.replica.follow.bucket_files import write_bucket
from kvstore.replica.follow.catalog_files import write_copied_catalog
from kvstore.replica.leadership import ReplicaLeadership
from kvstore.replica.source import Source, check_table
from kvstore.store.runtime import opened
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import Edit, EndTask, PauseJob, Payload
from logformat.catalog.replicas import Stream
from logformat.catalog.store_file import StoreFile
from logformat.ids import Epoch, Txid, WriterId

_TRIES = 5
_ANOTHER = "Another restore writes into this directory; wait for its end, or choose another."
_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)

Target = None | dt.datetime | Mapping[str, Mapping[int, int]]
"""The latest state; a time; or by table name the offset of each bucket before which everything is restored."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore.

    Attributes:
        txid: The last edit of the catalog that was taken from the replica.
        ends: By table name, for each bucket the offset before which everything was restored.
    """

    txid: Txid
    ends: dict[str, dict[int, int]]


class Restore:
    """One restore.

    Args:
        progress: Called with the bytes of each object after it is read.
    """

    def __init__(self, client: Client, files: Files, clock: Clock, progress: Callable[[int], None]) -> None:
        self._client = client
        self._progress = progress
        self._source = Source(client, progress)
        self._files = files
        self._clock = clock
        self._base = CatalogState()
        self._edits: list[Edit] = []

    @property
    def store(self) -> StoreFile:
        """The store that the replica belongs to."""
        return self._source.store

    @uninterrupted
    def run(self, path: Path, target: Target) -> Restored:
        """Restore into a directory that is new or empty.

        Raises:
            NotAStore: The directory is neither.
            StoreLocked: Another restore writes into it.
            MissingVersion: A hole lies before the target.
            ReplicaBehind: The replica ends before the target, or starts after it.
            CorruptData: An object is damaged.
            InvalidRequest: The replica has no such table or bucket.
            StoreFull, LogFailed: The disk is full or failed. The directory is not a store.
        """
        with ExitStack() as held:
            with refusals(path):
                make_room(path, self._files)
                held.enter_context(directory_taken(path, _ANOTHER))
                make_room(path, self._files)  # another one may have ended between the two
            return self._run(path, target)

    def _run(self, path: Path, target: Target) -> Restored:
        for _ in range(_TRIES - 1):
            try:
                return self._restored(path, target)
            except ReplicaBehind:
                source, self._source = self._source, Source(self._client, self._progress)
                if self._source.has_all_of(source):
                    raise
                # The retention of the replica removes objects while they are read: what there is now is restored.
                with refusals(path):
                    for left in path.iterdir():
                        self._files.remove_tree(left) if left.is_dir() else self._files.remove(left)
        return self._restored(path, target)

    def _restored(self, path: Path, target: Target) -> Restored:
        time_ms = None
        if isinstance(target, dt.datetime):
            time_ms = (target - _EPOCH) // dt.timedelta(milliseconds=1)
            if time_ms > self._source.manifest.as_of_ms:
                raise ReplicaBehind("The replica ends before this time.", as_of_ms=self._source.manifest.as_of_ms)
        state = self.catalog(time_ms)
        cut = self._cut(state, target if isinstance(target, Mapping) else {}, time_ms)
        if not target:  # an earlier moment may be between the tables of a transaction
            cut.keep_whole(transactions_of(self._base, self._edits))
        state = self._with_applied_tasks(state, cut)
        with refusals(path):
            for definition in state.tables.values():
                for stream in streams_of(definition):
                    write_bucket(path, self._source, stream, definition, cut.ends[stream], self._files)
            write_copied_catalog(path, self._source.store.store_id, state, cut.ends, self._files, self._clock)
            self._files.publish(path / paths.STORE_FILE, store_file.encode(self._source.store))
        self._build_indexes(path)
        ends = {
            definition.name: {int(stream.bucket): cut.ends[stream] for stream in streams_of(definition)}
            for definition in state.tables.values()
        }
        return Restored(state.txid, ends)

    def catalog(self, until_ms: int | None = None) -> CatalogState:
        """The catalog as of its end in the replica manifest, or as of a time.

        Raises:
            MissingVersion: There is a hole.
            ReplicaBehind: The catalog starts after the time.
            CorruptData: A table is impossible.
        """
        image_ms, state, edits = self._source.catalog()
        if until_ms is not None and image_ms is not None and image_ms > until_ms:
            raise self._starts_later()
        self._base, self._edits = state, []
        for edit in edits:
            if until_ms is not None and edit.time_ms > until_ms:
                break
            self._edits.append(edit)
            state = state.after(edit)
        for definition in state.tables.values():
            check_table(definition)
        return state

    def _with_applied_tasks(self, state: CatalogState, cut: StoreCut) -> CatalogState:
        """The catalog in which exactly those tasks have ended whose rows are restored.

        The catalog of a replica may be ahead of its buckets. A task that has not ended is run again, with its files.
        """
        if not list(cut.jobs_ahead(state, state.tables)):
            return state
        applied = {
            job: cut.applied_tasks(state, state.tables[table], job)
            for table, jobs in state.jobs.items()
            for job in jobs
        }
        state_after = self._base
        for edit in self._edits:
            payload = edit.payload
            is_early = isinstance(payload, EndTask) and payload.task > applied.get(payload.job_id, payload.task)
            state_after = replace(state_after, txid=edit.txid) if is_early else state_after.after(edit)
        for table, job, task in cut.jobs_ahead(state_after, state.tables):
            # The task has ended in the image, and its edit, which has the names of its files, is gone.
            reason = (
                f"the rows of tasks from {task + 1} on were not restored; drop the job, and create it with an older"
                " offset"
            )
            state_after = state_after.after(
                self._edit(state_after, PauseJob(table_id=table, job_id=job, reason=reason), state_after.leader_epoch)
            )
        return state_after

    def _cut(self, state: CatalogState, target: Mapping[str, Mapping[int, int]], time_ms: int | None) -> StoreCut:
        _check_names(state, target)
        cut = StoreCut()
        for definition in state.tables.values():
            wanted = target.get(definition.name, {})
            writers = writers_of_commits(definition, self._base, self._edits, state)
            histories: dict[Stream, BucketHistory] = {}
            for stream in streams_of(definition):
                shipped = self._source.shipped(stream).end
                end = wanted.get(stream.bucket, shipped)
                if end > shipped:
                    raise ReplicaBehind(
                        "The replica ends before this offset.", bucket=stream.bucket, offset=end, end=shipped
                    )
                histories[stream] = self._history(stream, end, writers, time_ms)
            cut.add(histories, writers)
        return cut

    def _history(self, stream: Stream, end: int, writers: Set[WriterId], time_ms: int | None) -> BucketHistory:
        """The history of a bucket up to an offset or a time, whichever comes first."""
        path = self._source.path(stream, end)
        if (
            path.snapshot is not None
            and time_ms is not None
            and self._source.snapshot_manifest(path.snapshot).last_timestamp > time_ms
        ):
            raise self._starts_later()
        return self._source.history(
            *(path, end, writers, {}),
            is_wanted=lambda header: time_ms is None or header.commit_timestamp <= time_ms,
        )

    def _starts_later(self) -> ReplicaBehind:
        """The error for a time before the earliest one, which it names."""
        image_ms, state, edits = self._source.catalog()
        for edit in edits:
            state = state.after(edit)
        earliest_ms = image_ms or 0
        for definition in state.tables.values():
            for stream in streams_of(definition):
                first = self._source.path(stream, self._source.shipped(stream).end).snapshot
                if first is not None:
                    earliest_ms = max(earliest_ms, self._source.snapshot_manifest(first).last_timestamp)
        return ReplicaBehind(
            "The replica starts after this time; restore to a later one.",
            earliest=(_EPOCH + dt.timedelta(milliseconds=earliest_ms)).isoformat(timespec="milliseconds"),
        )

    def _build_indexes(self, path: Path) -> None:
        leadership = ReplicaLeadership(self._clock)
        with opened(path, StoreOptions(), self._files, self._clock, leadership) as runtime:
            for definition in runtime.catalog().tables.values():
                for handle in runtime.open_table(definition).handles:
                    handle.write()

    def _edit(self, state: CatalogState, payload: Payload, epoch: Epoch) -> Edit:
        return Edit(txid=Txid(state.txid + 1), epoch=epoch, time_ms=self._clock.now_ms(), payload=payload)


def make_room(path: Path, files: Files) -> None:
    """Create a directory, unless it exists and is empty.

    Raises:
        NotAStore: It exists and is not empty, is no directory, or its parent directory does not exist.
        OSError: The disk is full or failed.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise NotAStore("A replica is restored into a directory that is new or empty; choose another.", path=path)
    if not path.absolute().parent.is_dir():
        raise NotAStore("The parent directory of the store does not exist; create that first.", path=path)
    files.make_directory(path)


def _check_names(state: CatalogState, target: Mapping[str, Mapping[int, int]]) -> None:
    for name, offsets in target.items():
        definition = state.table(name)
        if definition is None or not set(offsets) <= set(range(definition.buckets)):
            raise InvalidRequest("The replica has no such table or bucket.", table=name, buckets=sorted(offsets))
