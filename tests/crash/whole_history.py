"""A store after each step of a script, by the model; and the scripts, which are made along with it.

A step that is several commits has moments between: they count as half of it, and may be seen once it was begun.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random

import pyarrow as pa

from kvstore.testing.engine_model import EngineModel
from kvstore.testing.model import WINDOW, Model, Operation, Rules
from logformat.rows.bucketing import buckets_of
from logformat.rows.keys import ROW, KeyCodec
from tests.crash.history import CHANGES, copy_of
from tests.crash.whole_store import BUCKETS, SCHEMA, Act, ActKind, WholeScript, column_name

KEYS = range(14)
OF_EPOCHS, OF_NAMED, OF_JOB = 1001, 1002, 1003
"""Writers that have names, as the model knows them."""
FILES = 4
FIRST: tuple[ActKind, ...] = ("open", "create", "add replica", "create job")
"""Steps that every script begins with."""
_FILE_ROWS = 3
_CODES = KeyCodec([]).encode_prefix([pa.array(KEYS, pa.int64())])
_BUCKET_OF = {count: buckets_of(_CODES, count, len(ROW)).tolist() for count in set(BUCKETS.values())}


@dataclass(frozen=True)
class Table:
    """A table: its columns, and a model of each bucket. It is not changed; with a batch it is another."""

    schema: pa.Schema
    models: tuple[Model, ...]

    @classmethod
    def new(cls, name: str) -> Table:
        rules = Rules(EngineModel("last_row", SCHEMA, ("k",)))
        return cls(SCHEMA, tuple(Model(("k",), rules=rules) for _ in range(BUCKETS[name])))

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(model.end for model in self.models)

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """As a scan returns them, by key."""
        rows = {key: row for model in self.models for key, row in model.rows.items()}
        return pa.RecordBatch.from_pylist([rows[key] for key in sorted(rows)], self.schema)

    @cached_property
    def changes(self) -> list[pa.RecordBatch]:
        """As the changelog of each bucket returns them."""
        head = [CHANGES.field(place) for place in range(3)]
        schema = pa.schema([*head, *(field.with_nullable(True) for field in self.schema)])
        return [
            pa.RecordBatch.from_pylist(
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
        return Table(self.schema, (*self.models[:bucket], model, *self.models[bucket + 1 :]))

    def with_epoch(self, operations: list[Operation], writer: int, sequence: int) -> Table:
        """With a batch in every bucket."""
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
        return Table(schema, models)


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
        """With a table in place of the one of that name, or without it."""
        tables = {**self.by_name, name: table}
        return replace(self, tables=tuple(sorted((n, t) for n, t in tables.items() if t is not None)))

    def key(self) -> object:
        """What can be compared without reading a row."""
        tables = {name: (tuple(table.schema.names), table.ends) for name, table in self.tables}
        return repr((self.exists, tables, self.position, self.has_replica, self.has_job, self.loaded))


def bucket_of(key: int, buckets: int) -> int:
    """The bucket of a key."""
    return int(_BUCKET_OF[buckets][key])


def file_name(number: int) -> str:
    """The job's nth file."""
    return f"{number:03}.csv"


def file_rows(number: int) -> list[Operation]:
    """What it holds."""
    keys = [(5 * number + 3 * place) % len(KEYS) for place in range(_FILE_ROWS)]
    return [("upsert", {"k": key, "v": 100 + number, "s": f"file {number}"}) for key in keys]


def fill_source(directory: Path, files: int = FILES) -> None:
    """Write the job's files."""
    directory.mkdir()
    for number in range(files):
        lines = [f"{row['k']},{row['v']},{row['s']}\n" for _, row in file_rows(number)]
        (directory / file_name(number)).write_text("k,v,s\n" + "".join(lines))


def loaded(world: World) -> World:
    """With the rows of the job's next file, though the job does not say so yet."""
    table = world.by_name["t"].with_epoch(file_rows(world.loaded), OF_JOB, world.loaded)
    return world.having("t", table)


def after(world: World, act: Act) -> Iterator[World]:
    """What comes of an act: moments on the way, then the world it leaves."""
    table = world.by_name.get(act.table)
    operations = list(act.operations)
    match act.kind:
        case "open":
            yield replace(world, exists=True)
        case "create":
            yield world.having(act.table, Table.new(act.table))
        case "drop":
            yield world.having(act.table, None)
        case "column":
            assert table is not None
            yield world.having(act.table, table.with_column(column_name(act.number)))
        case "add replica":
            yield replace(world, has_replica=True)
        case "create job":
            yield replace(world, has_job=True)
        case "batch" | "named":
            assert table is not None
            writer = act.writer if act.kind == "batch" else OF_NAMED
            yield world.having(act.table, table.with_batch(act.bucket, operations, writer, act.number))
        case "epoch":
            assert table is not None
            yield world.having(act.table, table.with_epoch(operations, OF_EPOCHS, act.number))
        case "consumer":
            yield replace(world, position=act.offsets)
        case "load":
            between = loaded(world)
            yield between
            yield replace(between, loaded=world.loaded + 1)
        case _:
            yield world


class WholeHistory:
    """All moments of a script, by what can be compared without reading rows."""

    def __init__(self, script: WholeScript) -> None:
        self.script = script
        self.moments: dict[object, list[tuple[float, World]]] = {}
        world = World()
        self._add(0, world)
        for number, act in enumerate(script.steps):
            *between, world = after(world, act)
            for each in between:
                self._add(number + 0.5, each)
            self._add(number + 1, world)

    def _add(self, done: float, world: World) -> None:
        self.moments.setdefault(world.key(), []).append((done, world))


def whole_script(seed: int, length: int, source: Path, *, retries: int = 0) -> WholeScript:
    """A script of about so many steps, with everything in it that a store is used for.

    The first steps are always there; then each kind comes about as often as it stands in the list.
    """
    return _Author(seed, source, retries).write(length)


def brief_script(source: Path, kinds: tuple[ActKind, ...], *, retries: int = 0) -> WholeScript:
    """A script of these steps, after the first ones."""
    return _Author(0, source, retries).write_of(kinds)


_OFTEN: tuple[ActKind, ...] = (
    *("batch", "batch", "batch", "epoch", "epoch", "named", "load", "consumer", "ship", "ship"),
    *("snapshot", "checkpoint", "reopen", "flush", "column", "create", "drop"),
)


class _Author:
    def __init__(self, seed: int, source: Path, retries: int) -> None:
        self._random = Random(seed)
        self._source, self._retries = str(source), retries
        self._steps: list[Act] = []
        self._world = World()
        self._columns = 0

    def write(self, length: int) -> WholeScript:
        self._begin()
        kinds: list[ActKind] = []
        while len(self._steps) < length:
            if not kinds:
                kinds = list(_OFTEN)
                self._random.shuffle(kinds)
            self._choose(kinds.pop())
        self._add(Act("ship"))
        return WholeScript(tuple(self._steps), self._source, FILES, self._retries)

    def write_of(self, kinds: tuple[ActKind, ...]) -> WholeScript:
        self._begin()
        for kind in kinds:
            self._choose(kind)
        return WholeScript(tuple(self._steps), self._source, FILES, self._retries)

    def _begin(self) -> None:
        for kind in FIRST:
            self._add(Act(kind))

    def _add(self, act: Act) -> None:
        self._steps.append(act)
        *_, self._world = after(self._world, act)

    def _choose(self, kind: ActKind) -> None:
        random, tables = self._random, self._world.by_name
        if kind in ("create", "drop", "column"):
            if (kind == "create") == ("d" not in tables):
                self._columns += kind == "column"
                self._add(Act(kind, "d", number=self._columns))
        elif kind in ("batch", "named", "epoch"):
            name = random.choice(list(tables)) if kind == "batch" else "t"
            table, number = tables[name], len(self._steps)
            bucket = random.randrange(len(table.models))
            writer = {"batch": random.choice((0, 0, 1)), "named": OF_NAMED, "epoch": OF_EPOCHS}[kind]
            sequence = table.models[bucket].next_sequence(writer)
            own = None if kind == "epoch" else bucket
            act = Act(kind, name, bucket, self._operations(table, number, own), writer, sequence)
            self._add(act)
            if random.random() < 0.3:  # sent again, perhaps after others
                back = random.randrange(min(WINDOW, len(sent))) if (sent := self._sent(act)) else 0
                self._add(sent[-1 - back] if sent else act)
        elif kind == "load":
            if self._world.loaded < FILES:
                self._add(Act(kind, number=self._world.loaded))
        elif kind == "consumer":
            self._add(Act(kind, offsets=tables["t"].ends))
        else:
            self._add(Act(kind, random.choice(list(tables)) if kind == "snapshot" else "t"))

    def _sent(self, act: Act) -> list[Act]:
        """Batches that may be sent again in an act's stead."""
        if act.table == "d":
            return [act]
        place = (act.kind, act.table, act.bucket if act.kind != "epoch" else 0, act.writer)
        found = {
            each.number: each
            for each in self._steps
            if (each.kind, each.table, each.bucket if each.kind != "epoch" else 0, each.writer) == place
        }
        return [found[number] for number in sorted(found)]

    def _operations(self, table: Table, number: int, bucket: int | None) -> tuple[Operation, ...]:
        random = self._random
        keys = [key for key in KEYS if bucket is None or bucket_of(key, len(table.models)) == bucket]
        made: list[Operation] = []
        for key in random.choices(keys, k=random.choice((0, 1, 2, 3, 6))):
            if random.random() < 0.3:
                made.append(("delete", {"k": key}))
            else:
                more = dict.fromkeys(table.schema.names[len(SCHEMA) :], number)
                text = "x" * (900 if random.random() < 0.08 else random.randrange(9))
                made.append(("upsert", {"k": key, "v": number, "s": text, **more}))
        return tuple(made)
