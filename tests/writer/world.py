"""Lanes and real buckets, with the network of ``kvstore.testing`` between them, and a store that can crash.

One thread, no chance and no clock: the caller decides everything. Each row has its own number, so the changelog shows
how often it was written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import kvstore
from kvstore.errors import (
    NotAcknowledged,
    StoreError,
    StoreLocked,
    UnsupportedOperation,
    WriterFenced,
)
from kvstore.log.writer_state import EXPIRY_MS
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from kvstore.testing import LossyTarget, Network
from logformat.ids import NO_SEQUENCE, next_sequence
from logformat.rows.changes import Changes
from tests.support.clocks import SetClock
from writer.bucket_queue import Batch, BucketQueue, PendingCall, Sending, Timing
from writer.sequence import Event, State
from writer.target import Identity

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # disk behaviour is not under test here
BUCKETS = 2
SCHEMA = pa.schema([pa.field("k", pa.int16(), False), pa.field("v", pa.int64()), pa.field("n", pa.int8())])
KINDS: dict[str, dict[str, Any]] = {
    "last_row": {},
    "first_row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": kvstore.Versioned("n")},
    "aggregate": {"merge_engine": kvstore.Aggregate({"n": "sum"}), "delete_behavior": "allow"},
}
EVERY_ROW_SHOWS = ("last_row", "aggregate")
"""Kinds of table in which every upsert makes a change."""
# The index is committed when the test does so; a crash loses what is not committed.
OPTIONS = StoreOptions(segment_bytes_max=1500, commit_wait_ms=10**9, commit_idle_ms=10**9, map_bytes=1 << 30)
# Time advances in steps of up to a minute; a bucket queue gives up only after days.
TIMING = Timing(request_timeout=30.0, delivery_timeout=6 * 24 * 3600.0, backoff_min=1.0, backoff_max=16.0)
DAMAGES = ("none", "none", "index", "index", "writers lost", "writers stale", "writers corrupt")

Transitions = Counter[tuple[State, Event]]


class WatchedQueue(BucketQueue):
    """A bucket queue that records its transitions."""

    seen: Transitions

    def _happened(self, batch: Batch, event: Event, error: StoreError | None = None, now: float = 0.0) -> None:
        self.seen[batch.state, event] += 1
        super()._happened(batch, event, error, now)


@dataclass(eq=False)
class Actor:
    """An incarnation of a writer, with a bucket queue for each bucket."""

    identity: Identity
    bucket_queues: list[WatchedQueue]


class Door:
    """A bucket of the store that is open now."""

    def __init__(self, world: World, bucket: int) -> None:
        self._world = world
        self._bucket = bucket

    def submit(self, *batch: Any, **options: Any) -> Future[Any]:
        if self._world.locked:
            raise StoreLocked("Locked.")
        return self._world.buckets[self._bucket].submit(*batch, **options)

    def begin(self, writer_id: int) -> int | None:
        if self._world.locked:
            raise StoreLocked("Locked.")
        return self._world.buckets[self._bucket].begin(writer_id)


@dataclass
class Ledger:
    """What the bucket queues reported of each batch."""

    handed: dict[int, Changes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    in_doubt: set[int] = field(default_factory=set)
    """Rows that a restart may have written twice."""


def template(kind: str) -> Path:
    """A store with an empty table; created once, copied for each example."""
    if kind not in _templates:
        path = Path(tempfile.mkdtemp(prefix="kvstore-template-", dir=SCRATCH))
        with Store(path / "store", OPTIONS) as store:
            store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS, **KINDS[kind])
        _templates[kind] = path / "store"
    return _templates[kind]


_templates: dict[str, Path] = {}


def remove_templates() -> None:
    while _templates:
        shutil.rmtree(_templates.popitem()[1].parent)


class World:
    """The simulation; see the module."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.directory = Path(tempfile.mkdtemp(prefix="kvstore-world-", dir=SCRATCH))
        self.clock = SetClock(1_000_000_000_000)
        self.now = 0.0
        self.ledger = Ledger()
        self.actors: list[Actor] = []
        self.network = Network()
        self.targets = [LossyTarget(Door(self, bucket), self.network) for bucket in range(BUCKETS)]
        self.seen: Transitions = Counter()
        self.locked = False
        self.expired = False
        self.spoiled = False
        """Whether files of writers were damaged on purpose; a check reports those."""
        self._lives = 0
        self._eras: list[list[int]] = [[] for _ in range(BUCKETS)]
        """Offsets at which all writers were forgotten, for each bucket."""
        self.path = Path(shutil.copytree(template(kind), self.directory / "0"))
        self._open()
        buckets = self.table.buckets_of(list(range(40)))
        self.keys = [[key for key, found in enumerate(buckets) if found == bucket][:6] for bucket in range(BUCKETS)]

    def _open(self) -> None:
        self.store = Store(self.path, OPTIONS, clock=self.clock)
        self.table = self.store.table("t")
        self.buckets = [self.table.bucket(bucket) for bucket in range(BUCKETS)]

    # Writers

    def join(self, name: str | None = None) -> Actor:
        """A new writer, or a new incarnation of a named one."""
        identity = self.store.runtime.open_table(self.store.runtime.definition("t")).writers.open(name)
        bucket_queues = [WatchedQueue(bucket, identity, TIMING, lambda: 0.5) for bucket in range(BUCKETS)]
        for bucket_queue in bucket_queues:
            bucket_queue.seen = self.seen
        self.actors.append(Actor(identity, bucket_queues))
        return self.actors[-1]

    def hand_over(self, actor: Actor, bucket: int, changes: Changes) -> None:
        serial = len(self.ledger.handed)
        self.ledger.handed[serial] = changes
        actor.bucket_queues[bucket].add(changes, serial)
        self.pump()

    def pump(self) -> None:
        """Every bucket queue does what is due now."""
        for actor in self.actors:
            for bucket, bucket_queue in enumerate(actor.bucket_queues):
                self._pump(actor, bucket, bucket_queue)

    def _pump(self, actor: Actor, bucket: int, bucket_queue: WatchedQueue) -> None:
        call = bucket_queue.pending_call(self.now)
        if call is not None:
            try:
                bucket_queue.call_succeeded(self._make_call(call, actor, bucket))
            except StoreLocked as error:
                bucket_queue.call_failed(error, self.now)
        for sending in bucket_queue.due(self.now):
            receive = partial(self._receive, bucket_queue, sending)
            self.targets[bucket].send(sending.changes, sending.writer_id, sending.sequence, sending.epoch, receive)
        for settled in bucket_queue.settled:
            if settled.error is None:
                self.ledger.acknowledged.add(settled.serial)
            elif not isinstance(settled.error, NotAcknowledged):
                self.ledger.refused.add(settled.serial)
        bucket_queue.settled = []
        for restart in bucket_queue.restarts:
            assert actor.identity.name is None
            assert self.expired, "no bucket had forgotten it"
            self.ledger.in_doubt |= {number for changes in restart.in_doubt for number in numbers_of(changes)}
        bucket_queue.restarts = []
        if bucket_queue.error is not None:
            self._check_may_be_over(actor, bucket_queue.error)

    def _make_call(self, call: PendingCall, actor: Actor, bucket: int) -> int | None:
        if call is PendingCall.NEW_ID:
            if self.locked:
                raise StoreLocked("Locked.")
            return self.store.new_writer_id()
        return self.targets[bucket].begin(actor.identity.writer_id)

    def _check_may_be_over(self, actor: Actor, error: StoreError) -> None:
        if isinstance(error, WriterFenced):
            name, epoch = actor.identity.name, actor.identity.epoch
            assert any(other.identity.name == name and other.identity.epoch > epoch for other in self.actors)
        else:
            assert isinstance(error, NotAcknowledged | StoreLocked), error  # the outcome is unknown, or it never began
            assert self.expired

    def _receive(self, bucket_queue: WatchedQueue, sending: Sending, answer: Any) -> None:
        """Deliver an answer to its bucket queue."""
        assert not isinstance(answer, UnsupportedOperation)
        if isinstance(answer, StoreError):
            bucket_queue.failed(sending, answer, self.now)
        else:
            bucket_queue.acknowledged(sending, answer)
        self.pump()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.clock.now += int(seconds * 1000)
        self.pump()

    # The store

    def flush(self) -> None:
        self.store.flush()

    def snapshot(self) -> None:
        self.table.snapshot()

    def crash(self, damage: str) -> None:
        """Lose the process and its unwritten data, then maybe some files that can be rebuilt."""
        self._lives += 1
        image = Path(shutil.copytree(self.path, self.directory / str(self._lives)))
        self.store.close()
        shutil.rmtree(self.path)
        self.spoiled |= damage.startswith("writers")
        self.path = image
        for bucket in sorted((image / "tables").glob("*/*")):
            harm(bucket, damage)
        self._open()

    def seven_days_pass(self) -> None:
        """Expire all writers without a new batch. No earlier request arrives afterwards: that is not promised."""
        self.expired = True
        self.network.requests.clear()
        for bucket, (_, end) in self.table.offsets().items():
            self._eras[bucket].append(end)
        self.clock.now += EXPIRY_MS
        self.now += EXPIRY_MS / 1000
        self.pump()

    # The end

    def heal(self) -> None:
        """Deliver everything without loss from now on: every bucket queue must finish."""
        self.locked = False
        for _ in range(2000):
            if self.network.requests or self.network.replies:
                self.network.carry_everything()
                continue
            bucket_queues = [
                bucket_queue
                for actor in self.actors
                for bucket_queue in actor.bucket_queues
                if bucket_queue.error is None and len(bucket_queue)
            ]
            if not bucket_queues:
                return
            self.wait(max(0.1, min(bucket_queue.wake_at() or 0.0 for bucket_queue in bucket_queues) - self.now))
        raise AssertionError("a bucket queue waits for ever")

    def verify(self) -> None:
        """Compare the reports with the table."""
        self._verify_log()
        written = Counter(
            change["v"]
            for batch in self.table.changelog()
            for change in batch.select(["_change_type", "v"]).to_pylist()
            if change["_change_type"] in ("insert", "update_postimage")
        )
        ledger = self.ledger
        for serial, changes in ledger.handed.items():
            for number in numbers_of(changes):
                low = serial in ledger.acknowledged and self.kind in EVERY_ROW_SHOWS
                high = 0 if serial in ledger.refused else 2 if number in ledger.in_doubt else 1
                assert low <= written[number] <= high, (serial, number, written[number], low, high)
        findings = self.store.check().findings
        if self.spoiled:
            findings = [finding for finding in findings if "writer" not in finding]
        assert not findings

    def _verify_log(self) -> None:
        for bucket, (start, end) in self.table.offsets().items():
            expected, eras = start, list(self._eras[bucket])
            last: dict[int, int] = {}
            named = {actor.identity.writer_id for actor in self.actors if actor.identity.name is not None}
            for found in self.buckets[bucket].log.batches(start, end):
                header = found.header
                assert header.base_offset == expected
                expected += max(1, header.record_count)
                while eras and header.base_offset >= eras[0]:
                    del eras[0]
                    last = {id: sequence for id, sequence in last.items() if id in named}
                assert header.batch_sequence == next_sequence(last.get(header.writer_id, NO_SEQUENCE)), header
                last[header.writer_id] = header.batch_sequence
            assert expected == end

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)


def numbers_of(changes: Changes) -> list[int]:
    return [
        number
        for number, deletes in zip(changes.rows.column("v").to_pylist(), changes.is_delete.to_pylist(), strict=True)
        if not deletes
    ]


def harm(bucket: Path, damage: str) -> None:
    """Remove or damage files of a bucket that can be rebuilt."""
    if damage == "none":
        return
    shutil.rmtree(bucket / "index", ignore_errors=True)  # the bucket may not have been opened since the last loss
    files = sorted((bucket / "log").glob("*.writers"))
    if files and damage == "writers lost":
        files[-1].unlink()
    elif files and damage == "writers stale":
        files[-1].write_bytes(files[0].read_bytes())
    elif files and damage == "writers corrupt":
        files[-1].write_bytes(b"x" + files[-1].read_bytes()[1:])
