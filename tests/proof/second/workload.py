"""What is recorded: two processes that work on one store, in three lanes; and what is true after each step of a lane.

* A lane does one step after the other, on tables of its own; lanes do not wait for each other.
* ``sequences``: batches with sequences of the writers' own, in each bucket, to tables of the engine ``last_row`` with
  the image ``full`` and ``wal``; snapshots, and retention by a clock that the lane moves.
* ``epochs``: epochs over all buckets of a table of rows and of one of sums.
* ``schema``: in the other process: tables that come and go and get columns, a log table, checkpoints, consumers.

A step is announced before and confirmed after, with the offsets it got, in a file that is not on the disk that fails.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal
from unittest.mock import patch

import pyarrow as pa

import kvstore
from kvstore.bucket import maintenance
from kvstore.errors import Unavailable
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.rows.bucketing import buckets_of
from logformat.rows.keys import ROW, KeyCodec
from tests.support.clocks import SetClock

STORE, MARKS = "store", "marks"
SETTINGS: dict[str, Any] = {
    "segment_bytes_max": 2500,
    "commit_idle_ms": 3,
    "commit_wait_ms": 20,
    "edits_per_journal": 10,
    "map_bytes": 1 << 26,
}
CONSUMER = "c"
KEYS = range(16)
FIRST_MS, STEP_MS = 1_700_000_000_000, 100
RETENTION = dt.timedelta(milliseconds=7 * STEP_MS)
WINDOW = 5
"""So many of the last batches of a writer may be sent again."""
HANG_SECONDS = 900

Kind = Literal[
    "create", "drop", "columns", "batch", "epoch", "snapshot", "retain", "flush", "checkpoint", "consumer", "id"
]
Row = dict[str, Any]
Operation = tuple[Literal["upsert", "delete"], Row]


SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])


@dataclass(frozen=True, slots=True)
class TableKind:
    """How a table is made."""

    buckets: int
    options: dict[str, Any]
    sums: bool = False

    @property
    def is_log(self) -> bool:
        return self.options["primary_key"] is None


_ROWS: dict[str, Any] = {"primary_key": "k"}
TABLES: dict[str, TableKind] = {
    "rows": TableKind(2, {**_ROWS, "retention": RETENTION}),
    "wal": TableKind(2, {**_ROWS, "changelog_image": "wal"}),
    "together": TableKind(3, _ROWS),
    "sums": TableKind(
        2,
        {**_ROWS, "merge_engine": kvstore.Aggregate({"v": "sum", "s": "last_value"})},
        sums=True,
    ),
    "log": TableKind(1, {"primary_key": None}),
    "passing": TableKind(1, _ROWS),
}
LANES = {
    "sequences": ("rows", "wal"),
    "epochs": ("together", "sums"),
    "schema": ("log", "passing"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        number: Of a batch its sequence, of an epoch its epoch.
        again: Whether it was done before: then it is a duplicate.
    """

    kind: Kind
    table: str
    bucket: int = 0
    number: int = 0
    operations: tuple[Operation, ...] = ()
    again: bool = False


@dataclass
class TableState:
    """A table after some step: its columns, its rows by key or in order, and what was sent to it."""

    columns: list[str]
    rows: dict[int, Row] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)
    next: dict[int, int] = field(default_factory=dict)


State = dict[str, TableState]
"""Tables of a lane, by name."""


def after(state: State, step: Step) -> State:
    """What a step makes of it."""
    if step.kind not in ("create", "drop", "columns", "batch", "epoch") or step.again:
        return state
    state = deepcopy(state)
    kind = TABLES[step.table]
    if step.kind == "create":
        state[step.table] = TableState(list(SCHEMA.names))
    elif step.kind == "drop":
        del state[step.table]
    elif step.kind == "columns":
        table = state[step.table]
        name = f"c{len(table.columns)}"
        table.columns.append(name)
        for row in [*table.rows.values(), *table.appended]:
            row[name] = None
    else:
        table = state[step.table]
        table.next[step.bucket] = step.number + 1
        for word, row in step.operations:
            _operate(table, kind, word, dict(row))
    return state


def _operate(table: TableState, kind: TableKind, word: str, row: Row) -> None:
    if kind.is_log:
        table.appended.append(row)
    elif word == "delete":
        table.rows.pop(row["k"], None)
    elif kind.sums and (old := table.rows.get(row["k"])):
        table.rows[row["k"]] = {**row, "v": old["v"] + row["v"]}
    else:
        table.rows[row["k"]] = row


_CODES = KeyCodec([]).encode_prefix([pa.array(KEYS, pa.int64())])
_BUCKETS = {count: buckets_of(_CODES, count, len(ROW)).tolist() for count in (1, 2, 3)}


class Script:
    """Steps of a lane, made from a seed, and the state after each: one more than there are steps."""

    def __init__(self, lane: str, seed: int, length: int) -> None:
        self.lane = lane
        self.steps: list[Step] = []
        self.states: list[State] = [{}]
        self._random = Random(f"{seed} {lane}")
        for name in LANES[lane]:
            self._add(Step("create", name))
        while len(self.steps) < length:
            getattr(self, f"_{lane}")(self._random.choice(LANES[lane]))

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.states.append(after(self.states[-1], step))

    def _sequences(self, table: str) -> None:
        match self._random.randrange(12):
            case 0:
                self._add(Step("snapshot", table))
            case 1 | 2:
                self._add(Step("retain", "rows"))
            case 3:
                self._add(Step("flush", table))
            case 4 | 5:
                self._repeat(table)
            case _:
                self._batch(table)

    def _epochs(self, table: str) -> None:
        match self._random.randrange(10):
            case 0:
                self._add(Step("snapshot", table))
            case 1 | 2:
                self._repeat(table)
            case _:
                number = self.states[-1][table].next.get(0, 0)
                self._add(Step("epoch", table, 0, number, self._operations(table, None)))

    def _schema(self, table: str) -> None:
        exists = "passing" in self.states[-1]
        match self._random.randrange(14):
            case 0:
                self._add(Step("checkpoint", table))
            case 1 | 2:
                self._add(Step("drop" if exists else "create", "passing"))
            case 3 | 4 if exists and len(self.states[-1]["passing"].columns) < 7:
                self._add(Step("columns", "passing"))
            case 5:
                self._add(Step("consumer", "log"))
            case 6:
                self._add(Step("id", table))
            case 7:
                self._repeat("log")
            case _ if exists or table == "log":
                self._batch(table)
            case _:
                pass

    def _batch(self, table: str) -> None:
        bucket = self._random.randrange(TABLES[table].buckets)
        number = self.states[-1][table].next.get(bucket, 0)
        self._add(Step("batch", table, bucket, number, self._operations(table, bucket)))

    def _repeat(self, table: str) -> None:
        """Something is sent again, perhaps after others."""
        sent = [
            step for step in self.steps if step.table == table and step.kind in ("batch", "epoch") and not step.again
        ]
        if sent:
            bucket = self._random.choice(sent).bucket
            again = self._random.choice([step for step in sent if step.bucket == bucket][-WINDOW:])
            self._add(Step(again.kind, table, bucket, again.number, again.operations, again=True))

    def _operations(self, table: str, bucket: int | None) -> tuple[Operation, ...]:
        random, kind, state = self._random, TABLES[table], self.states[-1][table]
        keys = [key for key in KEYS if bucket is None or _BUCKETS[kind.buckets][key] == bucket]
        made: list[Operation] = []
        for key in random.choices(keys, k=random.choice((0, 1, 2, 3, 8))):
            if random.random() < 0.25 and not kind.sums and not kind.is_log:
                made.append(("delete", {"k": key}))
                continue
            text = "x" * (1500 if random.random() < 0.05 else random.randrange(12))
            more = {name: len(self.steps) for name in state.columns[3:]}
            made.append(("upsert", {"k": key, "v": len(self.steps), "s": text, **more}))
        return tuple(made)


def scripts(seed: int, length: int) -> dict[str, Script]:
    """One of each lane."""
    return {lane: Script(lane, seed, length) for lane in LANES}


def open_store(path: Path, clock: SetClock) -> Store:
    """The store, with a clock that is set."""
    return Store(path, StoreOptions(**SETTINGS), clock=clock)


def writer_of(table: str) -> int:
    """The id under which batches of a table are sent."""
    return 100 + list(TABLES).index(table)


Answer = kvstore.WriteResult | kvstore.AppendResult | int | None


def perform(store: Store, step: Step) -> Answer:
    """Do a step; what the store answers, of a consumer its position."""
    match step.kind:
        case "create":
            kind = TABLES[step.table]
            store.create_table(step.table, SCHEMA, buckets=kind.buckets, **kind.options)
        case "drop":
            store.drop_table(step.table)
        case "columns":
            store.add_columns(step.table, [pa.field(f"c{len(store.table(step.table).schema)}", pa.int64())])
        case "batch":
            table = store.table(step.table)
            changes = kvstore.Changes.of(step.operations, table.schema)
            return table.bucket(step.bucket).apply(changes, writer_of(step.table), step.number)
        case "epoch":
            table = store.table(step.table)
            return table.apply_epoch(kvstore.Changes.of(step.operations, table.schema), f"w {step.table}", step.number)
        case "snapshot":
            store.table(step.table).snapshot()
        case "retain":
            table = store.table(step.table)
            for bucket in table.offsets():
                table.bucket(bucket).handle.retain()
        case "flush":
            store.table(step.table).flush()
        case "checkpoint":
            store.checkpoint()
        case "consumer":
            end = store.table(step.table).offsets()[0][1]
            store.consumer(CONSUMER).commit(step.table, {0: end})
            return end
        case "id":
            return store.new_writer_id()
    return None


def offsets_of(answer: Answer) -> list[tuple[int, int]]:
    """Of each bucket, in order; of a number twice the same."""
    match answer:
        case None:
            return []
        case int():
            return [(answer, answer)]
        case kvstore.AppendResult():
            return [(answer.first_offset, answer.last_offset)]
        case kvstore.WriteResult():
            return [(each.first_offset, each.last_offset) for _, each in sorted(answer.by_bucket.items())]


class _Diary:
    """Says what was begun and what is confirmed."""

    def __init__(self, directory: Path, lane: str) -> None:
        self._descriptor = os.open(directory / MARKS, os.O_WRONLY | os.O_APPEND)
        self._lane = lane

    def write(self, word: str, number: int, offsets: list[tuple[int, int]]) -> None:
        os.write(self._descriptor, f"{word} {self._lane} {number} {offsets}\n".encode())


def run(directory: Path, seed: int, length: int) -> None:
    """Both processes."""
    other = os.fork()
    if not other:
        with _ending():
            _run_lanes(directory, [Script("schema", seed, length)])
    _run_lanes(directory, [Script(lane, seed, length) for lane in ("sequences", "epochs")])
    _, status = os.waitpid(other, 0)
    if status:
        raise AssertionError("the other process failed")


@contextmanager
def _ending() -> Iterator[None]:
    """This process ends here, and says why if it fails."""
    status = 1
    try:
        signal.alarm(HANG_SECONDS)
        yield
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


def _run_lanes(directory: Path, lanes: list[Script]) -> None:
    failures: list[BaseException] = []
    with ExitStack() as stack:
        stack.enter_context(patch.object(maintenance, "REST_FACTOR", 0))
        clock = SetClock(FIRST_MS)
        store = stack.enter_context(open_store(directory / STORE, clock))

        def work(script: Script) -> None:
            try:
                _run(store, clock, directory, script)
            except BaseException as error:  # raised again below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(script,)) for script in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


def _run(store: Store, clock: SetClock, directory: Path, script: Script) -> None:
    diary, given = _Diary(directory, script.lane), dict[tuple[str, int, int], list[tuple[int, int]]]()
    for number, step in enumerate(script.steps):
        clock.now += STEP_MS  # not more: time in which others wait for locks passes, too
        diary.write("begin", number, [])
        while True:
            try:
                answer = perform(store, step)
                break
            except Unavailable:
                assert step.kind == "checkpoint"  # the other process makes one of its own accord
        offsets = offsets_of(answer)
        if isinstance(answer, kvstore.WriteResult | kvstore.AppendResult):
            assert answer.duplicated == step.again, f"{step}: {answer}"
            place = step.table, step.bucket, step.number
            assert not step.again or given[place] == offsets, f"{step}: {answer}"
            given[place] = offsets
        diary.write("done", number, offsets)
