"""A store after each step of a script, by the model; and which steps a crash may have left.

A step that is several commits has moments between: they count as half of it, and may be seen once it was begun.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from kvstore.testing.engine_model import EngineModel
from kvstore.testing.model import WINDOW, Model, Operation, Rules
from logformat.rows.bucketing import buckets_of
from logformat.rows.keys import ROW, KeyCodec
from tests.crash.syscalls import Call
from tests.crash.vfs import Disk
from tests.crash.workload import MARKS, SCHEMA, TABLE, Script, Step, column_name

CHANGE = pa.schema(
    [
        pa.field("_log_offset", pa.int64(), False),
        pa.field("_change_type", pa.string(), False),
        pa.field("_commit_version", pa.int64(), False),
    ]
)
"""What a changelog says of each change before the row."""
OF_EPOCHS, OF_NAMED, OF_JOB = 1001, 1002, 1003
"""Writers that have names, as the model knows them."""
FILE_ROWS = 3
"""How many rows a file of the job has."""
_KEYS = range(100)
_CODES = KeyCodec([]).encode_prefix([pa.array(_KEYS, pa.int64())])
_BUCKET_OF = {count: buckets_of(_CODES, count, len(ROW)).tolist() for count in (1, 2)}


@dataclass(frozen=True)
class Table:
    """A table: its columns, and a model of each bucket. It is not changed; with a batch it is another."""

    schema: pa.Schema
    models: tuple[Model, ...]
    indexes: frozenset[str] = frozenset()

    @classmethod
    def new(cls, buckets: int) -> Table:
        rules = Rules(EngineModel("last_row", SCHEMA, ("k",)))
        return cls(SCHEMA, tuple(Model(("k",), rules=rules) for _ in range(buckets)))

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(model.end for model in self.models)

    @cached_property
    def rows(self) -> pa.Table:
        """Rows as a scan returns them, by key."""
        rows = {key: row for model in self.models for key, row in model.rows.items()}
        return pa.Table.from_pylist([rows[key] for key in sorted(rows)], self.schema)

    @cached_property
    def changes(self) -> list[pa.Table]:
        """Changes as the changelog of each bucket returns them."""
        schema = pa.schema([*CHANGE, *(field.with_nullable(True) for field in self.schema)])
        return [
            pa.Table.from_pylist(
                [
                    {"_log_offset": offset, "_change_type": kind, "_commit_version": version, **row}
                    for offset, kind, row, version in model.log
                ],
                schema,
            )
            for model in self.models
        ]

    def with_batch(self, bucket: int, operations: list[Operation], writer: int, sequence: int) -> Table:
        model = copy_of(self.models[bucket])
        model.apply(operations, writer, sequence)
        return replace(self, models=(*self.models[:bucket], model, *self.models[bucket + 1 :]))

    def with_epoch(self, operations: list[Operation], writer: int, sequence: int) -> Table:
        """The table with a batch in every bucket."""
        table = self
        for bucket in range(len(self.models)):
            own = [each for each in operations if bucket_of(each[1]["k"], len(self.models)) == bucket]
            table = table.with_batch(bucket, own, writer, sequence)
        return table

    def with_column(self, name: str) -> Table:
        models = copy.deepcopy(self.models)
        schema = self.schema.append(pa.field(name, pa.int64()))
        for model in models:
            model.add_columns(schema)
        return replace(self, schema=schema, models=models)


@dataclass(frozen=True)
class World:
    """All of a store. ``loaded``: tasks of the job that came to their end."""

    exists: bool = False
    tables: tuple[tuple[str, Table], ...] = ()
    position: tuple[int, ...] | None = None
    has_replica: bool = False
    has_job: bool = False
    loaded: int = 0

    @property
    def by_name(self) -> dict[str, Table]:
        return dict(self.tables)

    def having(self, name: str, table: Table | None) -> World:
        """The world with a table in place of the one of that name, or without it."""
        tables = {**self.by_name, name: table}
        return replace(self, tables=tuple(sorted((n, t) for n, t in tables.items() if t is not None)))

    def key(self) -> str:
        """What can be compared without reading a row."""
        tables = {name: (table.schema.names, table.ends, sorted(table.indexes)) for name, table in self.tables}
        return repr((self.exists, tables, self.position, self.has_replica, self.has_job, self.loaded))


def bucket_of(key: int, buckets: int) -> int:
    """The bucket of a key."""
    return int(_BUCKET_OF[buckets][key])


def file_rows(number: int) -> list[Operation]:
    """Rows of the job's nth file."""
    keys = [(5 * number + 3 * row) % 14 for row in range(FILE_ROWS)]
    return [("upsert", {"k": key, "v": 100 + number, "s": f"file {number}"}) for key in keys]


def after(world: World, step: Step) -> World:
    """The world that a step leaves."""
    *_, last = moments_of(world, step)
    return last


def moments_of(world: World, step: Step) -> Iterator[World]:
    """What comes of a step: moments on the way, then the world it leaves."""
    match step.kind:
        case "open":
            yield replace(world, exists=True)
        case "create":
            yield world.having(step.table, world.by_name.get(step.table) or Table.new(step.number))
        case "drop":
            yield world.having(step.table, None)
        case "add replica":
            yield replace(world, has_replica=True)
        case "create job":
            yield replace(world, has_job=True)
        case "consumer":
            yield replace(world, position=step.offsets)
        case "load":
            rows = file_rows(world.loaded)
            between = world.having(TABLE, world.by_name[TABLE].with_epoch(rows, OF_JOB, world.loaded))
            yield between  # the job does not say so yet
            yield replace(between, loaded=world.loaded + 1)
        case "column" | "create index" | "drop index" | "batch" | "named" | "epoch":
            yield world.having(step.table, _changed(world.by_name[step.table], step))
        case _:
            yield world


def _changed(table: Table, step: Step) -> Table:
    operations = list(step.operations)
    match step.kind:
        case "column":
            return table.with_column(column_name(step.number))
        case "create index":
            return replace(table, indexes=table.indexes | {step.index})
        case "drop index":
            return replace(table, indexes=table.indexes - {step.index})
        case "epoch":
            return table.with_epoch(operations, OF_EPOCHS, step.number)
        case _:
            writer = step.writer if step.kind == "batch" else OF_NAMED
            return table.with_batch(step.bucket, operations, writer, step.number)


class History:
    """All moments of a script, by what can be compared without reading rows."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.moments: dict[str, list[tuple[float, World]]] = {}
        world = World()
        self._add(0, world)
        for number, step in enumerate(script.steps):
            *between, world = moments_of(world, step)
            for each in between:
                self._add(number + 0.5, each)
            self._add(number + 1, world)

    def _add(self, done: float, world: World) -> None:
        self.moments.setdefault(world.key(), []).append((done, world))


@dataclass(frozen=True, slots=True)
class Window:
    """Steps that may be done: at least ``confirmed``, at most ``started``."""

    confirmed: int = 0
    started: int = 0

    def holds(self, done: float) -> bool:
        return self.confirmed <= done <= self.started


class Marks:
    """What was announced and confirmed so far: lines of the file of marks, or the calls that wrote them."""

    def __init__(self, script: Any) -> None:
        self._script = script
        self.window = Window()

    def run(self, call: Call, disk: Disk) -> None:
        if call.kind == "write" and disk.file(call.fd) == MARKS:
            self.add(call.data)

    def add(self, line: bytes) -> None:
        word, number, *_ = line.split()
        step = int(number)
        if word == b"START":
            self.window = Window(self.window.confirmed, step + 1)
        elif word == b"ACK" and self._script.is_confirmed_by(step):
            self.window = Window(step + 1, self.window.started)


def copy_of(model: Model) -> Model:
    """A model that may be changed without changing the other."""
    sent = {writer: batches[-WINDOW - 1 :] for writer, batches in model.sent.items()}
    return Model(model.key, dict(model.rows), list(model.log), model.end, sent, model.rules)
