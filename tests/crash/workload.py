"""What the process under test does to a store: steps, each announced before and confirmed after.

* ``START n`` and ``ACK n`` go to a file beside the store, so that they stand in the trace in their order.
* A step may be tried again after an error: what it did before is not done twice.
* Files of the job are outside of the directory of the run, and there before it begins: a task takes one.
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pyarrow as pa

import kvstore
from kvstore.errors import LogFailed, StoreError
from kvstore.indexing import building
from kvstore.memtable import memtable
from kvstore.options import Durability
from kvstore.request import encoded
from kvstore.testing.model import Operation
from logformat.catalog.jobs import EndedTask
from logformat.ids import BucketId, WriterId
from tests.support.image_workers import images_of_this_process

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
STORE, MARKS = "store", "marks"
"""Names in the directory of a run."""
TABLE = "t"
"""A table that stays; others come and go."""
REPLICA, JOB, CONSUMER, EPOCHS, NAMED = "replica", "j", "c", "w", "n"
"""Names: of the replica, also of its directory in that of a run; of job, consumer, and writers of ``t``."""
REFUSED = 3
"""Exit status when the store refused to go on, clearly."""

SMALL_ROWS_MAX = 2
BOTH_WAYS = mock.patch.object(encoded, "ROWS_MAX", SMALL_ROWS_MAX)
"""While it lasts, larger batches are no small writes, so that some go either way."""
SMALL_SLICES = mock.patch.multiple(memtable, SLICE_ROWS=3, SLICE_ROWS_MAX=5)
"""While it lasts, a merge of more than five rows takes several transactions, so that some are left halfway."""
SMALL_PARTS = mock.patch.multiple(building, BUILD_ROWS=4, RUN_ROWS=8, REMOVED_AT_A_TIME=4)
"""While it lasts, entries of more than four rows are made and removed in several transactions."""
IDLE_SECONDS = 0.02

SETTINGS = {
    "segment_bytes_max": 3500,
    "commit_idle_ms": 4,
    "commit_wait_ms": 40,
    "sync_interval_ms": 8,
    "map_bytes": 1 << 28,
}
INDEXES: dict[str, tuple[list[str], bool]] = {
    "by_v": (["v"], False),
    "by_s": (["s", "v"], False),
    "by_v_and_k": (["v", "k"], True),
}
"""Columns of secondary indexes, and whether they are unique. All rows fit them."""

StepKind = Literal[
    "open",
    "create",
    "column",
    "drop",
    "create index",
    "drop index",
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
    "idle",
    "reopen",
]
INDEX_STEPS: frozenset[StepKind] = frozenset(("create index", "drop index"))


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        writer: Id of the writer of a batch; -1 for none.
        number: Sequence of a batch, epoch, task of the job, number of a column, or of the buckets of a table.
        offsets: What a consumer commits, by bucket.
        index: Name of a secondary index.
    """

    kind: StepKind
    table: str = TABLE
    bucket: int = 0
    operations: tuple[Operation, ...] = ()
    writer: int = -1
    number: int = -1
    offsets: tuple[int, ...] = ()
    index: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """What a run does.

    Attributes:
        durability: Durability of the store. Unless it is ``sync``, only some steps confirm what came before.
        settings: Other options of :class:`kvstore.options.StoreOptions`.
        retries: How often a step that the store refused is tried again, in a reopened store if the log failed.
        retention_ms: Retention of the tables; a thread of its own looks at their logs then.
        source: Directory of the job's files; empty if there is neither a job nor a replica.
        start: The step to begin with, in a process that goes on where another was killed.
        squeeze: A step, and the size that no file may go beyond while it is tried for the first time (RLIMIT_FSIZE): a
            write that would go beyond is short, and the next fails with EFBIG.
    """

    steps: tuple[Step, ...]
    durability: Durability = "sync"
    settings: dict[str, int] = field(default_factory=lambda: dict(SETTINGS))
    retries: int = 0
    retention_ms: int | None = None
    source: str = ""
    start: int = 0
    squeeze: tuple[int, int] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of :func:`kvstore.open`."""
        return {"durability": self.durability, **self.settings}

    def is_confirmed_by(self, step: int) -> bool:
        """Whether the answer to a step promises that it and all before it are durable."""
        return self.durability == "sync" or self.steps[step].kind in ("open", "create", "flush", "snapshot", "reopen")


def column_name(number: int) -> str:
    """Name of a column that was added."""
    return f"c{number}"


@contextmanager
def opened(path: Path, options: dict[str, Any]) -> Iterator[kvstore.Store]:
    """The store, whose checkpoints are made in this process, where every call on the directory is seen."""
    with images_of_this_process(), kvstore.open(path, **options) as store:
        yield store


@BOTH_WAYS
@SMALL_SLICES
@SMALL_PARTS
@images_of_this_process()
def run(directory: Path, script: Script) -> int:
    """Do the steps, and some again after errors; returns the exit status."""
    worker = Worker(directory, script)
    marks = os.open(directory / MARKS, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for number, step in enumerate(script.steps[script.start :], script.start):
        os.write(marks, b"START %d\n" % number)
        for attempt in range(script.retries + 1):
            step_squeezed, size = script.squeeze or (None, None)
            try:
                with squeezed(size if (number, 0) == (step_squeezed, attempt) else None):
                    worker.do(step)
                break
            except StoreError as error:  # whatever else an error is, its message does not say what to do
                if attempt == script.retries:
                    refused = f"REFUSED {number} {type(error).__name__}: {error}"
                    os.write(marks, refused.replace("\n", " ").encode() + b"\n")
                    worker.end()
                    return REFUSED
                if isinstance(error, LogFailed):
                    worker.end()
        os.write(marks, b"ACK %d\n" % number)
    worker.end()
    return 0


@SMALL_SLICES
@SMALL_PARTS
def recover(directory: Path, script: Script) -> int:
    """Open what a crash left and have it ready to be written, and nothing else."""
    try:
        with opened(directory / STORE, script.options) as store:
            for name in store.list_tables():
                table = store.table(name)
                table.count()
                for bucket in range(table.buckets):
                    table.bucket(bucket).begin(WriterId(0))
    except StoreError:
        return REFUSED  # what that means is for the verdict on this state
    return 0


@contextmanager
def squeezed(bytes_max: int | None) -> Iterator[None]:
    """No file goes beyond a size: a write that would is short, and the next fails with EFBIG."""
    if bytes_max is None:
        yield
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class _OneTask(Exception):
    """The job has ended a task, and that is enough."""


class Worker:
    """Does steps in a store that it opens when it needs it."""

    def __init__(self, directory: Path, script: Script) -> None:
        self._directory = directory
        self._script = script
        self._store: kvstore.Store | None = None

    def do(self, step: Step) -> None:
        """Do a step."""
        if step.kind == "reopen":
            self.end(quietly=False)
        if self._store is None:
            self._store = kvstore.open(self._directory / STORE, **self._script.options)
        self.do_in(self._store, step)

    def end(self, *, quietly: bool = True) -> None:
        """Close the store."""
        store, self._store = self._store, None
        try:
            if store is not None:
                store.close()
        except StoreError:
            if not quietly:
                raise

    def do_in(self, store: kvstore.Store, step: Step) -> None:
        """Do a step in an open store, unless it has been done."""
        name = step.table
        match step.kind:
            case "create" if name not in store.list_tables():
                keep = self._script.retention_ms
                retention = None if keep is None else dt.timedelta(milliseconds=keep)
                store.create_table(name, SCHEMA, primary_key="k", buckets=step.number, retention=retention)
            case "column" if column_name(step.number) not in store.table(name).schema.names:
                store.add_columns(name, [pa.field(column_name(step.number), pa.int64())])
            case "drop" if name in store.list_tables():
                store.drop_table(name)
            case "create index" if step.index not in store.table(name).indexes:
                columns, unique = INDEXES[step.index]
                store.create_index(name, step.index, columns, unique=unique)
            case "drop index" if step.index in store.table(name).indexes:
                store.drop_index(name, step.index)
            case "add replica" if REPLICA not in store.replicas:
                store.add_replica(str(self._directory / REPLICA), REPLICA)
            case "create job" if JOB not in store.list_jobs():
                store.create_job(JOB, source=self._script.source, format="csv", table=TABLE, max_files=1)
            case "batch" | "named" | "epoch":
                write(store, step)
            case "consumer":
                store.consumer(CONSUMER).commit(name, dict(enumerate(step.offsets)))
            case "load":
                _load_one(store.job(JOB), step.number)
            case "snapshot":
                table = store.table(name)
                table.snapshot()
                for bucket in range(table.buckets):
                    table.bucket(bucket).handle.retain()  # now, whatever the thread that also looks has time for
            case "ship":
                store.replica(REPLICA).ship()
            case "checkpoint":
                store.checkpoint()
            case "flush":
                store.flush()
            case "idle":
                time.sleep(IDLE_SECONDS)


def write(store: kvstore.Store, step: Step) -> kvstore.AppendResult:
    """Send the batch of a step, perhaps again; the answer of the step's bucket."""
    table = store.table(step.table)
    changes = kvstore.Changes.of(list(step.operations), table.schema)
    if step.kind == "epoch":
        return table.apply_epoch(changes, EPOCHS, step.number).by_bucket[BucketId(step.bucket)]
    if step.kind == "batch":
        return table.bucket(step.bucket).apply(changes, step.writer, step.number)
    if NAMED not in table.writers:
        table.writer(NAMED).close()
    writer = table.writers[NAMED]
    return table.bucket(step.bucket).apply(changes, writer.writer_id, step.number, writer.epoch)


def _load_one(job: kvstore.Job, number: int) -> None:
    """Have a job load its next file, if it has loaded no more than so many."""
    with suppress(_OneTask):
        if job.show().state == "paused":
            job.resume()
        if job.show().statistics.succeeded_tasks <= number:
            job.run(ended=_enough)


def _enough(_: EndedTask) -> None:
    raise _OneTask
