"""Real processes: three writers and two readers, killed at any moment and started again, over and over.

* One writes rows through a named `TableWriter`. What it acknowledged is there once; what it did not, once or never.
* One numbers its batches itself, and after a kill sends again what it does not know to be there: every row once.
* One applies epochs to all buckets, so that the others have to hand theirs over: every epoch once, in every bucket.
* Readers follow; what each has seen is the beginning of the log.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import StoreLocked, Unavailable
from kvstore.log.log import Log
from kvstore.log.writer_state import WriterStates
from tests.crash.conftest import Tell
from tests.crash.places import workplace
from tests.support.processes import Child, Pipe
from tests.support.waiting import SECONDS_MAX

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("by", pa.string())])
BUCKETS = 3
SEQUENCER = 7
"""Writer id of the writer that numbers its batches itself."""
QUICK_RUNS = 3
RUNS_WITH_A_BUG = 32
RUNS_OF_A_TABLE = 20
BATCH = 4
BUG_SECONDS = 20.0
"""A writer with a bug that says nothing for so long is found out."""


def plant(bug: str | None) -> None:
    """Have a bug in this process."""
    if bug == "nothing is remembered of writers":
        WriterStates.check = lambda *_, **__: None  # type: ignore[method-assign]
    elif bug == "acknowledged before it is in the log":
        # It comes to the disk with the next append.
        append, held = Log.append, []

        def late(self: Log, batches: Any, *, durable: bool = False) -> None:
            waiting = [each for log, each in held if log is self]
            held[:] = [(log, each) for log, each in held if log is not self] + [(self, batches)]
            for each in waiting:
                append(self, each, durable=durable)

        Log.append = late  # type: ignore[method-assign]
    else:
        assert bug is None


def patiently(call: Callable[[], Any]) -> Any:
    """Call until the bucket is free."""
    while True:
        try:
            return call()
        except StoreLocked:
            time.sleep(0.002)


def keys_from(table: kvstore.Table, bucket: int, start: int) -> Iterator[int]:
    """Keys of a bucket, from a number on."""
    while True:
        numbers = list(range(start, start + 64))
        yield from (k for k, at in zip(numbers, table.buckets_of(numbers), strict=True) if at == bucket)
        start += 64


def write_rows(pipe: Pipe, path: Path, bug: str | None, start: int) -> None:
    plant(bug)
    table = kvstore.open(path).table("t")
    keys = keys_from(table, 0, start)
    writer = table.writer(name="rows", linger_ms=1)
    while True:
        rows = [{"k": next(keys), "by": "rows"} for _ in range(BATCH)]
        pipe.send(("sends", [row["k"] for row in rows]))
        for row in rows:
            writer.upsert(row)
        writer.flush()
        pipe.send(("has", [row["k"] for row in rows]))


def write_numbered(pipe: Pipe, path: Path, bug: str | None, sequence: int) -> None:
    plant(bug)
    table = kvstore.open(path).table("t")
    keys = keys_from(table, 1, 1_000_000)
    batches = ([next(keys) for _ in range(BATCH)] for _ in iter(int, 1))
    for _ in range(sequence):
        next(batches)
    bucket = table.bucket(1)
    for numbers in batches:
        changes = kvstore.Changes.of([("upsert", {"k": k, "by": "numbered"}) for k in numbers], SCHEMA)
        patiently(lambda changes=changes, sequence=sequence: bucket.apply(changes, SEQUENCER, sequence))
        pipe.send(("has", sequence))
        sequence += 1


def keys_of_epoch(epoch: int) -> list[int]:
    return [2_000_000 + 20 * epoch + n for n in range(20)]


def write_epochs(pipe: Pipe, path: Path, bug: str | None, epoch: int) -> None:
    plant(bug)
    table = kvstore.open(path).table("t")
    pipe.recv()  # the others have buckets of their own by then
    while True:
        changes = kvstore.Changes.of([("upsert", {"k": k, "by": "epochs"}) for k in keys_of_epoch(epoch)], SCHEMA)
        table.apply_epoch(changes, "epochs", epoch)
        pipe.send(("has", epoch))
        epoch += 1


def follow(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path, read_only=True) as store:
        table = store.table("t")
        seen: dict[int, list[tuple[int, int]]] = {bucket: [] for bucket in range(BUCKETS)}
        positions = dict.fromkeys(range(BUCKETS), 0)
        while True:
            try:
                for batch in table.changelog({**positions}, follow=True, columns=["_bucket", "_log_offset", "k"]):
                    for change in batch.to_pylist():
                        seen[change["_bucket"]].append((change["_log_offset"], change["k"]))
                        positions[change["_bucket"]] = change["_log_offset"] + 1
                    if pipe.poll():
                        pipe.send(seen)
                        return
                    pipe.send(None)
            except Unavailable:
                time.sleep(0.01)  # the process of an epoch died halfway, and no other has completed it yet


@dataclass
class World:
    """A table, and what was acknowledged to its writers."""

    path: Path
    random: Random
    bug: str | None = None
    sent: list[int] = field(default_factory=list)
    has: set[int] = field(default_factory=set)
    next_sequence: int = 0
    next_epoch: int = 0
    killed: Counter[str] = field(default_factory=Counter)

    def run(self) -> list[str]:
        """Start all, kill the writers one by one, and look; what is wrong."""
        with ExitStack() as stack:
            readers = [stack.enter_context(Child(follow, self.path)) for _ in range(2)]
            starts = {write_rows: max(self.sent, default=0) + 1, write_numbered: self.next_sequence}
            starts[write_epochs] = self.next_epoch
            writers = {
                main: stack.enter_context(Child(main, self.path, self.bug, start)) for main, start in starts.items()
            }
            for main in (write_rows, write_numbered, write_epochs):
                if main is write_epochs:
                    writers[main].say("go")
                    if self.next_epoch:
                        break  # only the first one is waited for
                word = ""
                while word != "has":
                    try:
                        word, what = writers[main].hear(BUG_SECONDS if self.bug else SECONDS_MAX)
                    except (EOFError, TimeoutError) as error:
                        return [f"{main.__name__} comes to nothing: {error!r}"]
                    self._hear(main.__name__, word, what)
            for main in self.random.sample(list(writers), len(writers)):
                time.sleep(self.random.uniform(0, 0.25))
                writers[main].kill()
                if (status := writers[main].join()) != -signal.SIGKILL:
                    return [f"{main.__name__} ended by itself: {status}"]
                self.killed[main.__name__] += 1
                for word, what in everything_said(writers[main]):
                    self._hear(main.__name__, word, what)
            seen = []
            for reader in readers:
                if self.random.random() < 0.3:
                    reader.kill()
                    self.killed["follow"] += 1
                else:
                    with suppress(BrokenPipeError):  # then it has ended: that is found below
                        reader.say("stop")
                    seen.append(reader)
            with kvstore.open(self.path) as store:
                table = store.table("t")
                table.upsert([{"k": -1 - k, "by": "test"} for k in range(9)])  # readers come to a change, and stop
                table.delete([-1 - k for k in range(9)])
                try:
                    answers = [found(reader) for reader in seen]
                except (EOFError, ConnectionResetError):
                    return ["follow ended by itself"]
                return self._judge(store, table, answers)

    def _hear(self, writer: str, word: str, what: Any) -> None:
        if writer == "write_rows":
            self.sent.extend(what) if word == "sends" else self.has.update(what)
        elif writer == "write_numbered":
            self.next_sequence = max(self.next_sequence, what + 1)
        else:
            self.next_epoch = max(self.next_epoch, what + 1)

    def _judge(self, store: kvstore.Store, table: kvstore.Table, seen: list[dict[int, list[Any]]]) -> list[str]:
        bad = []
        log: dict[int, list[tuple[int, int]]] = {bucket: [] for bucket in range(BUCKETS)}
        times: Counter[tuple[str, int]] = Counter()
        for batch in table.changelog():
            for change in batch.to_pylist():
                log[change["_bucket"]].append((change["_log_offset"], change["k"]))
                if change["k"] >= 0:
                    times[change["by"], change["k"]] += 1
                    if change["_change_type"] != "insert":
                        bad.append(f"{change['by']} {change['k']}: {change['_change_type']}")
        bad += [f"{by} {k}: {count} times" for (by, k), count in times.items() if count > 1]
        bad += [f"rows {k}: lost" for k in self.has if not times["rows", k]]
        bad += [f"rows {k}: never sent" for by, k in times if by == "rows" and k not in set(self.sent)]
        keys = keys_from(table, 1, 1_000_000)
        batches = [[next(keys) for _ in range(BATCH)] for _ in range(self.next_sequence + 1)]
        bad += [f"numbered {k}: lost" for batch in batches[:-1] for k in batch if not times["numbered", k]]
        for epoch in range(self.next_epoch + 1):
            there = sum(times["epochs", k] for k in keys_of_epoch(epoch))
            if there != 20 and (there or epoch < self.next_epoch):
                bad.append(f"epoch {epoch}: {there} rows of 20")
        for bucket, changes in log.items():
            for each in seen:
                if each[bucket] != changes[: len(each[bucket])]:
                    bad.append(f"a reader saw something else of bucket {bucket}")
        report = store.check()
        return bad + [str(finding) for finding in report.findings]


def everything_said(child: Child) -> Iterator[tuple[str, Any]]:
    with suppress(EOFError, ConnectionResetError):
        while child.pipe.poll(0):
            yield child.pipe.recv()


def found(reader: Child) -> dict[int, list[Any]]:
    """What a reader has seen until it had to stop."""
    while (said := reader.hear()) is None:
        pass
    return said


@pytest.fixture
def path() -> Iterator[Path]:
    with workplace() as directory:
        with kvstore.open(directory / "s") as store:
            store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS)
        yield directory / "s"


def go(path: Path, runs: int, seed: int, bug: str | None = None) -> tuple[list[str], World]:
    world = World(path, Random(seed), bug)
    for run in range(runs):
        if bad := world.run():
            return [f"run {run}: {each}" for each in bad], world
    return [], world


def hunt(template: Path, runs: int, seed: int, tell: Tell) -> None:
    killed: Counter[str] = Counter()
    rows = batches = epochs = 0
    for first in range(0, runs, RUNS_OF_A_TABLE):
        path = Path(shutil.copytree(template, template.with_name(f"s{first}")))
        bad, world = go(path, min(RUNS_OF_A_TABLE, runs - first), seed + first)
        assert not bad, (f"seed {seed + first}", bad[:5])
        killed += world.killed
        rows, batches, epochs = rows + len(world.has), batches + world.next_sequence, epochs + world.next_epoch
        shutil.rmtree(path)
    tell(f"{runs} runs, killed {dict(killed)}: {rows} rows, {batches} batches and {epochs} epochs acknowledged, 0 bad")
    assert killed.total() >= 2 * runs
    assert rows > runs
    assert min(batches, epochs) >= 1


def test_writers_and_readers_that_are_killed(path: Path, tell: Tell) -> None:
    hunt(path, QUICK_RUNS, 1, tell)


@pytest.mark.long
def test_writers_and_readers_that_are_killed_200_times(path: Path, tell: Tell) -> None:
    hunt(path, 200, int.from_bytes(os.urandom(4), "big"), tell)


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param("nothing is remembered of writers", marks=pytest.mark.long),
        "acknowledged before it is in the log",
    ],
)
def test_a_planted_bug_is_found(path: Path, bug: str) -> None:
    bad, _ = go(path, RUNS_WITH_A_BUG, 2, bug)
    assert bad
