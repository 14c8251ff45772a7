"""What the process under test does: steps made from a seed, each announced before and confirmed after.

``START n`` and ``ACK n`` go to a file beside the store, so that they stand in the trace in their order.
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args
from unittest import mock

import pyarrow as pa

import kvstore
from kvstore.disk.files import Files
from kvstore.errors import LogFailed, StoreError
from kvstore.indexing import building
from kvstore.memtable import memtable
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.options import Durability, JournalSync
from kvstore.request import encoded
from kvstore.testing.model import WINDOW, Operation
from logformat.catalog.edits import AllocateWriter, SetConsumer
from logformat.ids import Offset, TableId, WriterId
from tests.checkpoint import catalogs
from tests.support.clocks import SetClock

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
TABLE = "t"
STORE, MARKS = "store", "marks"
"""Names in the directory of a run."""
REFUSED = 3
"""Exit status when the store refused to go on, clearly."""

SMALL_ROWS_MAX = 2
BOTH_WAYS = mock.patch.object(encoded, "ROWS_MAX", SMALL_ROWS_MAX)
"""While it lasts, larger batches are no small writes, so that some go either way."""
SMALL_SLICES = mock.patch.multiple(memtable, SLICE_ROWS=3, SLICE_ROWS_MAX=5)
"""While it lasts, a merge of more than five rows takes several transactions, so that some are left halfway."""
SMALL_PARTS = mock.patch.multiple(building, BUILD_ROWS=4, RUN_ROWS=8, REMOVED_AT_A_TIME=4)
"""While it lasts, entries of more than four rows are made and removed in several transactions."""

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
StepKind = Literal["open", "table", "batch", "flush", "idle", "snapshot", "reopen", "create_index", "drop_index"]
INDEX_STEPS: frozenset[StepKind] = frozenset(("create_index", "drop_index"))


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. ``sequence`` is -1 for a batch without a writer; ``index`` is the name of a secondary index."""

    kind: StepKind
    operations: tuple[Operation, ...] = ()
    writer: int = -1
    sequence: int = -1
    index: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """What a run does.

    Attributes:
        durability: Of the store. Unless it is ``sync``, only flush and reopen confirm what came before.
        settings: Others of :class:`kvstore.options.StoreOptions`.
        retries: How often a step that the store refused is tried again, in a reopened store if the log failed.
        retention_ms: Of the table; its log is looked at by a thread of its own then.
        first: The step to begin with, in a process that goes on where another was killed.
        squeeze: A step, and the size that no file may go beyond while it is tried for the first time (RLIMIT_FSIZE): a
            write that would go beyond is short, and the next fails with EFBIG.
    """

    steps: tuple[Step, ...]
    durability: Durability = "sync"
    settings: dict[str, int] = field(default_factory=lambda: dict(SETTINGS))
    retries: int = 0
    retention_ms: int | None = None
    first: int = 0
    squeeze: tuple[int, int] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Of :func:`kvstore.open`."""
        return {"durability": self.durability, **self.settings}

    def is_confirmed_by(self, step: int) -> bool:
        """Whether the answer to a step promises that it and all before it are durable."""
        return self.durability == "sync" or self.steps[step].kind in ("open", "table", "flush", "snapshot", "reopen")


IDLE_SECONDS = 0.02


def script(
    seed: int,
    batches: int,
    *,
    durability: Durability = "sync",
    numbered: bool = False,
    retries: int = 0,
    retention_ms: int | None = None,
    snapshots: bool = False,
    indexes: bool = False,
    **settings: int,
) -> Script:
    """A script of about so many batches, with everything in it that a table is used for.

    Args:
        numbered: Every batch has a writer, so that it may be sent again.
        snapshots: Some are taken.
        indexes: Secondary indexes come and go.
    """
    random = Random(seed)
    steps = [Step("open"), Step("table")]
    created: set[str] = set()
    sent: dict[int, list[Step]] = {}
    last: dict[int, int] = {}
    for number in range(batches):
        special = number % 6
        if special == 2 and sent:
            steps.append(random.choice(random.choice(list(sent.values()))[-WINDOW:]))
        elif special == 4:
            steps.append(Step(random.choice(("flush", "idle", "reopen"))))
        if indexes and number % 3 != 1:
            index = random.choice(list(INDEXES))
            steps.append(Step("drop_index" if index in created else "create_index", index=index))
            created ^= {index}
        if snapshots and number % 3 == 2:
            steps.append(Step("snapshot"))
        unnumbered = not numbered and random.random() < 0.15
        writer = -1 if unnumbered else random.choice((0, 0, 1, 5))
        sequence = -1 if unnumbered else last.get(writer, -1) + 1
        operations = () if number % 5 == 3 else _operations(random, number)
        step = Step("batch", operations, writer, sequence)
        steps.append(step)
        if not unnumbered:
            last[writer] = sequence
            sent.setdefault(writer, []).append(step)
    steps += [Step("flush"), Step("batch", _operations(random, batches), 9, 0), Step("reopen")]
    return Script(tuple(steps), durability, SETTINGS | settings, retries, retention_ms)


def _operations(random: Random, number: int) -> tuple[Operation, ...]:
    made: list[Operation] = []
    for _ in range(random.choice((1, 2, 2, 4, 9))):
        key = random.randrange(14)
        if random.random() < 0.3:
            made.append(("delete", {"k": key}))
        else:
            text = "x" * (1200 if random.random() < 0.08 else random.randrange(9))
            made.append(("upsert", {"k": key, "v": number, "s": text}))
    return tuple(made)


@SMALL_SLICES
@SMALL_PARTS
def run(directory: Path, script: Script) -> int:
    """Do the steps; returns the exit status."""
    return tried(directory, script, TableWorker(directory / STORE, script), (StoreError, OSError))


def tried(directory: Path, script: Any, worker: Worker, errors: tuple[type[Exception], ...]) -> int:
    """Have a worker do the steps, and some again after these errors; returns the exit status."""
    marks = os.open(directory / MARKS, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for number, step in enumerate(script.steps):
        if number < script.first:
            continue
        os.write(marks, b"START %d\n" % number)
        for attempt in range(script.retries + 1):
            is_squeezed = script.squeeze is not None and (number, 0) == (script.squeeze[0], attempt)
            try:
                with squeezed(script.squeeze[1] if is_squeezed else None):
                    worker.do(step)
                break
            except errors as error:
                if attempt == script.retries:
                    refused = f"REFUSED {number} {type(error).__name__}: {error}"
                    os.write(marks, refused.replace("\n", " ").encode() + b"\n")
                    worker.end()
                    return REFUSED
                if not isinstance(error, StoreError) or isinstance(error, LogFailed):
                    worker.end()
        os.write(marks, b"ACK %d\n" % number)
    worker.end()
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


class Worker:
    """Does steps in a store that it opens when it needs it."""

    def __init__(self, path: Path, script: Any) -> None:
        self._path = path
        self._script = script
        self._store: kvstore.Store | None = None

    def do(self, step: Any) -> None:
        """Do one."""
        if step.kind == "reopen":
            self.end(quietly=False)
        if self._store is None:
            self._store = kvstore.open(self._path, **self._script.options)
        self.do_in(self._store, step)

    def do_in(self, store: kvstore.Store, step: Any) -> None:
        raise NotImplementedError

    def end(self, *, quietly: bool = True) -> None:
        """Close the store."""
        store, self._store = self._store, None
        try:
            if store is not None:
                store.close()
        except StoreError:
            if not quietly:
                raise


class TableWorker(Worker):
    """Does steps in one table."""

    def do_in(self, store: kvstore.Store, step: Step) -> None:
        if step.kind == "table" and TABLE not in store.list_tables():
            keep = self._script.retention_ms
            retention = None if keep is None else dt.timedelta(milliseconds=keep)
            store.create_table(TABLE, SCHEMA, primary_key="k", retention=retention)
        elif step.kind == "batch":
            changes = kvstore.Changes.of(list(step.operations), SCHEMA)
            with BOTH_WAYS:
                store.table(TABLE).bucket(0).apply(changes, step.writer, step.sequence)
        elif step.kind == "create_index" and step.index not in store.table(TABLE).indexes:
            columns, unique = INDEXES[step.index]
            store.create_index(TABLE, step.index, columns, unique=unique)
        elif step.kind == "drop_index" and step.index in store.table(TABLE).indexes:
            store.drop_index(TABLE, step.index)
        elif step.kind == "flush":
            store.flush()
        elif step.kind == "snapshot":
            table = store.table(TABLE)
            table.snapshot()
            table.bucket(0).handle.retain()  # now, whatever the thread that also looks has time for
        elif step.kind == "idle":
            time.sleep(IDLE_SECONDS)


@SMALL_SLICES
@SMALL_PARTS
def recover(directory: Path, script: Any) -> int:
    """Open what a crash left and have it ready to be written, and nothing else."""
    try:
        with kvstore.open(directory / STORE, **script.options) as store:
            for name in store.list_tables():
                table = store.table(name)
                table.count()
                for bucket in range(table.buckets):
                    table.bucket(bucket).begin(WriterId(0))
    except StoreError:
        return REFUSED  # what that means is for the verdict on this state
    return 0


EPOCH_SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
EPOCH_KEYS = range(8)


def epoch(number: int) -> kvstore.Changes:
    """Every key gets the epoch's number."""
    return kvstore.Changes.of([("upsert", {"k": k, "v": number}) for k in EPOCH_KEYS], EPOCH_SCHEMA)


def epochs(directory: Path, _: Script) -> int:
    """Commit some epochs to a table that is there, and each to its indexes before the next begins."""
    with kvstore.open(directory / STORE) as store:
        for number in range(3):
            store.table(TABLE).apply_epoch(epoch(number), "w", number)
            store.flush()
    return 0


def checkpoint(directory: Path, _: Script) -> int:
    """Make a checkpoint of a catalog that is there; controller and worker in one process."""
    catalogs.checkpoint(directory / STORE)
    return 0


def catalog_edits(sync: JournalSync, directory: Path, _: Script) -> int:
    """Add edits to a catalog, some of which need not be durable at once; a mark says up to which all must be."""
    files, clock = Files(), SetClock()
    journal = Journal(
        directory / STORE, files, clock, catalogs.STORE, sync=sync, wait_ms=2**31 - 1, leadership=CatalogLeadership()
    )
    controller = catalogs.controller(directory / STORE, journal, files, clock)
    marks = os.open(directory / MARKS, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    place = 0

    def go_on() -> None:
        nonlocal place
        place += 1
        edit = SetConsumer(table_id=TableId(1), name="c", offsets=[Offset(place)])
        journal.append(lambda _: edit, may_wait=place > 1)

    for _ in range(2):
        go_on()
        go_on()
        state = journal.append(lambda state: AllocateWriter(writer_id=state.next_writer_id))
        os.write(marks, b"%d\n" % state.txid)
        go_on()
        with journal.still() as state:
            os.write(marks, b"%d\n" % state.txid)
        go_on()
        os.write(marks, b"%d\n" % controller.checkpoint().txid)
    journal.close()
    return 0


JOBS: dict[str, Callable[[Path, Script], int]] = {
    "run": run,
    "recover": recover,
    "epochs": epochs,
    "checkpoint": checkpoint,
    **{sync: partial(catalog_edits, sync) for sync in get_args(JournalSync)},
}
