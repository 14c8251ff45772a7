"""What a process does that uses all of a store: tables, epochs, consumers, a job, a replica, snapshots, checkpoints.

* Steps are made from a seed, announced before and confirmed after, as those of ``workload``.
* Each may be tried again after an error: what it did before is not done twice.
* Files of the job are outside of the directory of the run, and there before it begins: a task takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal
from unittest.mock import patch

import pyarrow as pa

import kvstore
from kvstore.checkpoint.controller import Controller
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import StoreError
from kvstore.testing.model import Operation
from logformat.catalog.jobs import EndedTask
from tests.crash import workload
from tests.crash.workload import BOTH_WAYS, SMALL_SLICES, STORE, Worker, tried
from tests.support.image_workers import Here

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
BUCKETS = {"t": 2, "d": 1}
"""Tables there may be, by name; ``d`` comes and goes."""
REPLICA, JOB, CONSUMER, EPOCHS, NAMED = "replica", "j", "c", "w", "n"
"""Names: of the replica, also of its directory in that of a run; of job, consumer, and writers of ``t``."""
SETTINGS = {
    "segment_bytes_max": 1800,
    "commit_idle_ms": 4,
    "commit_wait_ms": 40,
    "edits_per_journal": 8,
    "map_bytes": 1 << 28,
}

ActKind = Literal[
    "open",
    "create",
    "column",
    "drop",
    "add replica",
    "create job",
    "batch",
    "named",
    "epoch",
    "consumer",
    "load",
    "snapshot",
    "ship",
    "checkpoint",
    "flush",
    "reopen",
]


@dataclass(frozen=True, slots=True)
class Act:
    """One thing to do.

    Attributes:
        bucket: Of a batch.
        writer: Id of the sender of a batch.
        number: Sequence of a batch, epoch, task of the job, or number of a column.
        offsets: What a consumer commits, by bucket.
    """

    kind: ActKind
    table: str = "t"
    bucket: int = 0
    operations: tuple[Operation, ...] = ()
    writer: int = -1
    number: int = -1
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WholeScript:
    """What a run does.

    Attributes:
        source: Directory of the job's files.
        files: How many there are.
        retries: How often an act that the store refused is tried again, in a reopened store if the log failed.
    """

    steps: tuple[Act, ...]
    source: str
    files: int
    retries: int = 0
    settings: dict[str, int] = field(default_factory=lambda: dict(SETTINGS))

    first: ClassVar[int] = 0
    squeeze: ClassVar[None] = None

    @property
    def options(self) -> dict[str, Any]:
        """Of :func:`kvstore.open`."""
        return dict(self.settings)

    def is_confirmed_by(self, _: int) -> bool:
        """Whatever is answered is durable."""
        return True


class _OneTask(Exception):
    """The job has ended a task, and that is enough."""


@contextmanager
def opened(path: Path, settings: dict[str, int]) -> Iterator[kvstore.Store]:
    """The store, whose checkpoints are made in this process."""
    with checkpoints_here(), kvstore.open(path, **settings) as store:
        yield store


@contextmanager
def checkpoints_here() -> Iterator[None]:
    """Have images made in this process, where every call on the directory is seen."""
    start = partial(Controller, start=lambda task: Here(task, Files(), SystemClock()))
    with patch("kvstore.store.runtime.Controller", start):
        yield


@SMALL_SLICES
def run(directory: Path, script: WholeScript) -> int:
    """Do the steps; returns the exit status."""
    with checkpoints_here():
        # Whatever else an error is, its message does not say what to do.
        return tried(directory, script, Actor(directory, script), (StoreError,))


class Actor(Worker):
    """Does the steps."""

    def __init__(self, directory: Path, script: WholeScript) -> None:
        super().__init__(directory / STORE, script)
        self._directory = directory

    def do_in(self, store: kvstore.Store, act: Act) -> None:
        if (how := _HOW.get(act.kind)) is not None:
            how(self, store, act)

    def create(self, store: kvstore.Store, act: Act) -> None:
        if act.table not in store.list_tables():
            store.create_table(act.table, SCHEMA, primary_key="k", buckets=BUCKETS[act.table])

    def column(self, store: kvstore.Store, act: Act) -> None:
        if column_name(act.number) not in store.table(act.table).schema.names:
            store.add_columns(act.table, [pa.field(column_name(act.number), pa.int64())])

    def drop(self, store: kvstore.Store, act: Act) -> None:
        if act.table in store.list_tables():
            store.drop_table(act.table)

    def add_replica(self, store: kvstore.Store, _: Act) -> None:
        if REPLICA not in store.replicas:
            store.add_replica(str(self._directory / REPLICA), REPLICA)

    def create_job(self, store: kvstore.Store, _: Act) -> None:
        if JOB not in store.list_jobs():
            store.create_job(JOB, source=self._script.source, format="csv", table="t", max_files=1)

    def batch(self, store: kvstore.Store, act: Act) -> None:
        table = store.table(act.table)
        with BOTH_WAYS:
            table.bucket(act.bucket).apply(changes_of(act, table.schema), act.writer, act.number)

    def named(self, store: kvstore.Store, act: Act) -> None:
        table = store.table(act.table)
        if NAMED not in table.writers:
            table.writer(NAMED).close()
        writer = table.writers[NAMED]
        table.bucket(act.bucket).apply(changes_of(act, table.schema), writer.writer_id, act.number, writer.epoch)

    def epoch(self, store: kvstore.Store, act: Act) -> None:
        table = store.table(act.table)
        table.apply_epoch(changes_of(act, table.schema), EPOCHS, act.number)

    def consumer(self, store: kvstore.Store, act: Act) -> None:
        store.consumer(CONSUMER).commit(act.table, dict(enumerate(act.offsets)))

    def load(self, store: kvstore.Store, act: Act) -> None:
        job = store.job(JOB)
        with suppress(_OneTask):
            if job.show().state == "paused":
                job.resume()
            if job.show().statistics.succeeded_tasks <= act.number:
                job.run(ended=_enough)

    def snapshot(self, store: kvstore.Store, act: Act) -> None:
        store.table(act.table).snapshot()

    def ship(self, store: kvstore.Store, _: Act) -> None:
        store.replica(REPLICA).ship()

    def checkpoint(self, store: kvstore.Store, _: Act) -> None:
        store.checkpoint()

    def flush(self, store: kvstore.Store, _: Act) -> None:
        store.flush()


def _enough(_: EndedTask) -> None:
    raise _OneTask


_HOW: dict[str, Callable[[Actor, kvstore.Store, Act], Any]] = {
    "create": Actor.create,
    "column": Actor.column,
    "drop": Actor.drop,
    "add replica": Actor.add_replica,
    "create job": Actor.create_job,
    "batch": Actor.batch,
    "named": Actor.named,
    "epoch": Actor.epoch,
    "consumer": Actor.consumer,
    "load": Actor.load,
    "snapshot": Actor.snapshot,
    "ship": Actor.ship,
    "checkpoint": Actor.checkpoint,
    "flush": Actor.flush,
}


def column_name(number: int) -> str:
    """Name of a column that was added."""
    return f"c{number}"


def changes_of(act: Act, schema: pa.Schema) -> kvstore.Changes:
    """What an act writes."""
    return kvstore.Changes.of(list(act.operations), schema)


def recover(directory: Path, script: WholeScript) -> int:
    """Open what a crash left and have it ready to be written, and nothing else."""
    with checkpoints_here():
        return workload.recover(directory, script)
