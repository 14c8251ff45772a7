"""Makes a store of a replica: as of its end, of an offset of each bucket, or of a time.

* A hole is never crossed: who asks for what lies behind one is told where it is.
* A commit over several buckets is in the restored store in all of them, or in none.
* The directory becomes a store last of all: until then it is none.
* The restored store is a leader of its own, of a later epoch, without replicas.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from kvstore.calls import uninterrupted
from kvstore.clock import Clock
from kvstore.errors import InvalidRequest, NotAStore, ReplicaBehind
from kvstore.files import Files, refusals
from kvstore.meta import image
from kvstore.meta.journal import create_journal
from kvstore.meta.state import CatalogState
from kvstore.options import StoreOptions
from kvstore.replica.client import Client
from kvstore.replica.consistent_cut import BucketHistory, consistent_cut
from kvstore.replica.follow.bucket_files import write_bucket
from kvstore.replica.follow.round import Sequences, applied_tasks, writers_of_commits
from kvstore.replica.leadership import ReplicaLeadership
from kvstore.replica.source import Source, check_table
from kvstore.runtime import opened
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.edits import (
    BeginEpoch,
    DropReplica,
    Edit,
    EndCommit,
    EndTask,
    PauseJob,
    Payload,
    SetConsumer,
)
from logformat.catalog.replicas import CATALOG, Stream
from logformat.catalog.store_file import StoreFile
from logformat.ids import BucketId, Epoch, JobId, Offset, TableId, Txid, WriterId

_BEGIN = dt.datetime.fromtimestamp(0, dt.UTC)

Target = None | dt.datetime | Mapping[str, Mapping[int, int]]
"""The end; a time; or for tables by name, the offset of each bucket before which everything is restored."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored.

    Attributes:
        txid: The last edit of the catalog that was taken from the replica.
        ends: For each table, of each bucket the offset before which everything is there.
    """

    txid: Txid
    ends: dict[str, dict[int, int]]


class Restore:
    """One restore.

    Args:
        progress: Called with the bytes of each object once it is read.
    """

    def __init__(self, client: Client, files: Files, clock: Clock, progress: Callable[[int], None]) -> None:
        self._source = Source(client, progress)
        self._files = files
        self._clock = clock
        self._base = CatalogState()
        self._edits: list[Edit] = []

    @property
    def store(self) -> StoreFile:
        """The store the replica is of."""
        return self._source.store

    @uninterrupted
    def run(self, path: Path, target: Target) -> Restored:
        """Restore into a directory that is new or empty.

        Raises:
            NotAStore: It is neither.
            MissingVersion: A hole lies before what was asked for.
            ReplicaBehind: The replica does not reach so far.
            CorruptData: An object is not what it should be.
            InvalidRequest: The replica knows no such table or bucket.
            StoreFull, LogFailed: The disk refused.
        """
        with refusals(path):
            make_room(path, self._files)
        time_ms = None
        if isinstance(target, dt.datetime):
            time_ms = (target - _BEGIN) // dt.timedelta(milliseconds=1)
            if time_ms > self._source.told.as_of_ms:
                raise ReplicaBehind("The replica does not reach this time yet.", as_of_ms=self._source.told.as_of_ms)
        state = self.catalog(time_ms)
        ends, last = self._ends(state, target if isinstance(target, Mapping) else {}, time_ms)
        state = self._with_ended_tasks(state, last)
        with refusals(path):
            for definition in state.tables.values():
                for bucket in range(definition.buckets):
                    stream = Stream(definition.id, BucketId(bucket))
                    write_bucket(path, self._source, stream, definition, ends[stream], self._files)
            self._write_catalog(path, state, ends)
            self._files.publish(path / paths.STORE_FILE, store_file.encode(self._source.store))
        self._build_indexes(path)
        told = {
            definition.name: {
                bucket: ends[Stream(definition.id, BucketId(bucket))] for bucket in range(definition.buckets)
            }
            for definition in state.tables.values()
        }
        return Restored(state.txid, told)

    def catalog(self, until_ms: int | None = None) -> CatalogState:
        """The catalog as of what the replica was told, or of a time.

        Raises:
            MissingVersion: It has a hole.
            ReplicaBehind: It does not reach back so far.
            CorruptData: A table can't be as it says.
        """
        way = self._source.way(CATALOG, self._source.shipped(CATALOG).end)
        state = CatalogState()
        if way.snapshot is not None:
            head, state = self._source.image(way.snapshot)
            if until_ms is not None and head.created_ms > until_ms:
                raise ReplicaBehind("The replica's catalog does not reach back to this time.", txid=state.txid)
        self._base, self._edits = state, []
        for edit in self._source.edits(way):
            if until_ms is not None and edit.time_ms > until_ms:
                break
            self._edits.append(edit)
            state = state.after(edit)
        for definition in state.tables.values():
            check_table(definition)
        return state

    def _with_ended_tasks(self, state: CatalogState, last: Sequences) -> CatalogState:
        """The catalog in which tasks have ended whose rows are in the table as it is restored, and no others.

        The catalog of a replica may be ahead of its buckets. A task that has not ended comes again, with its files.
        """
        applied = {
            job: applied_tasks(state, state.tables[table], job, last)
            for table, jobs in state.jobs.items()
            for job in jobs
        }
        if not list(_ahead(state, applied)):
            return state
        found = self._base
        for edit in self._edits:
            payload = edit.payload
            is_late = isinstance(payload, EndTask) and payload.task > applied.get(payload.job_id, payload.task)
            found = replace(found, txid=edit.txid) if is_late else found.after(edit)
        for table, job, task in _ahead(found, applied):
            # An image has it already: nothing says which files they were.
            reason = (
                f"the rows of tasks from {task} on were not restored; drop the job, and create it with an older offset"
            )
            found = found.after(
                self._edit(found, PauseJob(table_id=table, job_id=job, reason=reason), found.leader_epoch)
            )
        return found

    def _ends(
        self, state: CatalogState, target: Mapping[str, Mapping[int, int]], time_ms: int | None
    ) -> tuple[dict[Stream, int], Sequences]:
        """Where each bucket ends, so that no commit is torn; and of writers of commits what is before."""
        _check_names(state, target)
        ends: dict[Stream, int] = {}
        last: dict[Stream, Mapping[WriterId, int]] = {}
        for definition in state.tables.values():
            given = target.get(definition.name, {})
            writers = writers_of_commits(definition, self._base, self._edits, state)
            histories: dict[Stream, BucketHistory] = {}
            for bucket in range(definition.buckets):
                stream = Stream(definition.id, BucketId(bucket))
                told = self._source.shipped(stream).end
                end = given.get(stream.bucket, told)
                if end > told:
                    raise ReplicaBehind(
                        "The replica does not reach this offset.", bucket=stream.bucket, offset=end, end=told
                    )
                histories[stream] = self._history(stream, end, writers, time_ms)
            ends |= consistent_cut(histories, writers)
            last |= {stream: history.last(ends[stream]) for stream, history in histories.items()}
        return ends, last

    def _history(self, stream: Stream, offset: int, writers: Set[WriterId], time_ms: int | None) -> BucketHistory:
        """What a bucket has that ends at or before an offset, and was committed at or before a time."""
        way = self._source.way(stream, offset)
        if (
            way.snapshot is not None
            and time_ms is not None
            and self._source.manifest(way.snapshot).last_timestamp > time_ms
        ):
            raise ReplicaBehind("The replica does not reach back to this time.", bucket=stream.bucket)
        return self._source.history(
            *(way, offset, writers, {}),
            goes_on=lambda header: time_ms is None or header.commit_timestamp <= time_ms,
        )

    def _write_catalog(self, path: Path, state: CatalogState, ends: dict[Stream, int]) -> None:
        payloads: list[Payload] = [DropReplica(name=name) for name in state.replicas]
        for id, writers in state.writers.items():
            payloads += [EndCommit(table_id=id, commit_id=commit.commit_id) for commit in writers.commits]
        for id, consumers in state.consumers.items():
            for name, consumer in consumers.named.items():
                places = [Offset(min(at, ends[Stream(id, BucketId(n))])) for n, at in enumerate(consumer.offsets)]
                if places != list(consumer.offsets):
                    payloads.append(SetConsumer(table_id=id, name=name, offsets=places, until_ms=consumer.until_ms))
        for payload in payloads:
            state = state.after(self._edit(state, payload, state.leader_epoch))
        begin = self._edit(state, BeginEpoch(leader=uuid4().hex), Epoch(state.leader_epoch + 1))
        state = state.after(begin)
        self._files.make_directory(path / paths.JOURNAL.parts[0])
        self._files.make_directory(path / paths.IMAGES)
        made = image.image_of(state, self._source.store.store_id, epoch=Epoch(1), now_ms=self._clock.now_ms())
        image.save(paths.image_file(path / paths.IMAGES, state.txid), made, self._files)
        self._files.sync_directory(path / paths.IMAGES)
        create_journal(path / paths.JOURNAL, self._files, begin)

    def _build_indexes(self, path: Path) -> None:
        leadership = ReplicaLeadership(self._clock)
        with opened(path, StoreOptions(), self._files, self._clock, leadership) as runtime:
            for definition in runtime.catalog().tables.values():
                for handle in runtime.open_table(definition).handles:
                    handle.write()

    def _edit(self, state: CatalogState, payload: Payload, epoch: Epoch) -> Edit:
        return Edit(txid=Txid(state.txid + 1), epoch=epoch, time_ms=self._clock.now_ms(), payload=payload)


def make_room(path: Path, files: Files) -> None:
    """See that a directory is new or empty, and make it.

    Raises:
        NotAStore: It is neither, or has no directory to be in.
        OSError: The disk refused.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise NotAStore("A replica is restored into a directory that is new or empty; choose another.", path=path)
    if not path.absolute().parent.is_dir():
        raise NotAStore("A store is a directory in a directory that is there; create that first.", path=path)
    files.make_directory(path)


def _check_names(state: CatalogState, target: Mapping[str, Mapping[int, int]]) -> None:
    for name, offsets in target.items():
        definition = state.table(name)
        if definition is None or not set(offsets) <= set(range(definition.buckets)):
            raise InvalidRequest("The replica has no such table or bucket.", table=name, buckets=sorted(offsets))


def _ahead(state: CatalogState, applied: Mapping[JobId, int]) -> Iterator[tuple[TableId, JobId, int]]:
    """Jobs of which tasks have ended that are not applied, and the first of these."""
    for table, jobs in state.jobs.items():
        for id, job in jobs.items():
            if job.statistics.succeeded_tasks > applied[id]:
                yield table, id, applied[id] + 1
