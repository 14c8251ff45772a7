"""Tables of every kind of merge engine, and a state machine that compares them with an oracle."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pytest
from hypothesis import event, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import kvstore
from kvstore.testing.engine_model import EngineModel
from kvstore.testing.model import Answer, Model, Operation, Refused, Row, Rules
from logformat.ids import BucketId, Offset, Position
from logformat.log import index_state
from merge_engines.spec import engine_of
from tests.support.tables import assert_equals_model

WRITERS = (0, 1)


NIGHT = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [0, 1, 2, -1, 60, 127, -128],
    pa.timestamp("us", "UTC"): [NIGHT + dt.timedelta(seconds=seconds) for seconds in (-1, 0, 1)],
    pa.string(): ["", "a", "b", "é", "a\0b"],
    pa.bool_(): [False, True],
    pa.float64(): [0.0, -0.0, 1.5, -1.5],
    pa.decimal128(3, 1): [Decimal("0.0"), Decimal("0.5"), Decimal("-99.9"), Decimal("60.0")],
    pa.list_(pa.int32()): [[], [1], [None, 2]],
    pa.int32(): [1, 2, 7, 2**31 - 2, 2**31 - 1],
    pa.int64(): [1, 2, 7, 2**63 - 2, 2**63 - 1],
}


KEYS = {"k": [0, 1, 2], "t": ["", "a\0"]}


TYPES = {
    "k": pa.int8(),
    "n": pa.int8(),
    "v": pa.timestamp("us", "UTC"),
    "s": pa.string(),
    "b": pa.bool_(),
    "f": pa.float64(),
    "d": pa.decimal128(3, 1),
}


FUNCTIONS: dict[str, list[Any]] = {
    "n": ["sum", "product", "max", "first_value", None],
    "v": ["max", "min", "last_value", "first_value_ignore_nulls", None],
    "s": [{"listagg": ";"}, "last_value", "min", None],
    "b": ["bool_and", "bool_or", None],
    "f": ["sum", "last_value_ignore_nulls"],
    "d": ["sum", "product", None],
}


ADDED = [pa.field("x", pa.int8()), pa.field("y", pa.list_(pa.int32())), pa.field("z", pa.string())]


KINDS_OF_TABLE = ["last_row"] * 3 + ["aggregate"] * 3 + ["versioned"] * 2 + ["first_row", "log"]


SELDOM = st.sampled_from([False] * 9 + [True])


SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # disk behaviour is not under test here


@dataclass(frozen=True)
class Write:
    """A batch: what the table gets, and what the model gets."""

    operations: list[Operation]
    schema: pa.Schema | None = None
    schema_id: int | None = None
    columns: list[str] | None = None
    overwrite: bool = False


@st.composite
def rules(draw: st.DrawFn) -> tuple[Rules, tuple[str, ...]]:
    """The options of a table, and its key."""
    kind = draw(st.sampled_from(KINDS_OF_TABLE))
    names = ["k", *draw(st.permutations(["n", "v"])), *draw(st.lists(st.sampled_from("sbfd"), unique=True))]
    key: tuple[str, ...] = () if kind == "log" else draw(st.sampled_from([("k",), ("k",), ("t", "k")]))
    fields = [pa.field(name, TYPES[name], name not in key) for name in names]
    if "t" in key:
        fields.insert(2, pa.field("t", pa.string(), False))
    if draw(st.integers(0, 5)) == 5:
        fields[-1] = fields[-1].with_nullable(False)
    spec: Any = kind
    match kind:
        case "log":
            return Rules(EngineModel("last_row", pa.schema(fields), key)), key
        case "versioned":
            spec = {"versioned": draw(st.sampled_from("nv"))}
        case "aggregate":
            functions = {name: draw(st.sampled_from(FUNCTIONS[name])) for name in names if name in FUNCTIONS}
            spec = {"aggregate": {name: function for name, function in functions.items() if function is not None}}
    automatic = "id" if draw(st.booleans()) else None
    if automatic:
        field = pa.field("id", draw(st.sampled_from([pa.int32(), pa.int64()])), draw(st.booleans()))
        fields.insert(draw(st.integers(0, len(fields))), field)
    found = Rules(
        EngineModel(spec, pa.schema(fields), key),
        image=draw(st.sampled_from(["full"] if kind == "aggregate" else ["full", "wal"])),
        delete_behavior=draw(st.sampled_from(engine_of(spec).delete_behaviors)),
        auto_increment=automatic,
        skip_identical=draw(st.booleans()),
    )
    return found, key


class Machine(RuleBasedStateMachine):
    """One table and its expected content."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="kvstore-test-", dir=SCRATCH))
        self.path = self.directory / "store"
        self.model: Model
        self.schemas: list[pa.Schema] = []
        self.agrees = False
        self.store: kvstore.Store
        self.table: kvstore.Table

    @initialize(chosen=rules(), data=st.data())
    def create(self, chosen: tuple[Rules, tuple[str, ...]], data: st.DataObject) -> None:
        rules, key = chosen
        self.model = Model(key, rules=rules)
        self._open()
        options: dict[str, Any] = {}
        if key:
            options = {
                "primary_key": list(key),
                "merge_engine": engine_of(rules.engine.spec),
                "changelog_image": rules.image,
                "delete_behavior": rules.delete_behavior,
                "auto_increment": rules.auto_increment,
                "skip_identical_updates": rules.skip_identical,
            }
        self.table = self.store.create_table("t", rules.engine.schema, **options)
        self.schemas = [self.table.schema]
        self.agrees = True
        spec = rules.engine.spec
        self._write(self.batch(data))
        event(f"table: {'log' if not key else spec if isinstance(spec, str) else next(iter(spec))}")

    @rule(data=st.data(), writer=st.sampled_from([-1, *WRITERS]))
    def next_batch(self, data: st.DataObject, writer: int) -> None:
        self._write(self.batch(data), writer, self.model.next_sequence(writer) if writer >= 0 else -1)

    @rule(data=st.data(), writer=st.sampled_from(WRITERS), step=st.sampled_from([-6, -5, -4, -3, -2, -1, 1]))
    def batch_out_of_order(self, data: st.DataObject, writer: int, step: int) -> None:
        self._write(self.batch(data), writer, max(0, self.model.next_sequence(writer) + step))

    @rule(data=st.data())
    def upsert(self, data: st.DataObject) -> None:
        columns = data.draw(self.targets(self.schemas[-1], refused=data.draw(SELDOM)))
        given = [field for field in self.schemas[-1] if field.name != self.model.rules.auto_increment]
        row = {field.name: self.values(field) for field in given if columns is None or field.name in columns}
        rows = data.draw(st.lists(st.fixed_dictionaries(row), max_size=4))
        write = Write([("upsert", row) for row in rows], columns=columns)
        self._agree(lambda: self.table.upsert(rows, columns), write)

    @precondition(lambda self: self.model.key)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(self.keys(), max_size=3))
        columns = data.draw(self.targets(self.schemas[-1], refused=data.draw(SELDOM)))
        write = Write([("delete", key) for key in keys], columns=columns)
        self._agree(lambda: self.table.delete(keys, columns), write)

    @precondition(lambda self: len(self.schemas) <= len(ADDED))
    @rule()
    def add_column(self) -> None:
        self.store.add_columns("t", [ADDED[len(self.schemas) - 1]])
        self.schemas.append(self.table.schema)
        self.model.add_columns(self.table.schema)

    @rule(what=st.sampled_from(["flush", "check", "reopen", "compare", "snapshot"]))
    def meanwhile(self, what: str) -> None:
        match what:
            case "flush":
                return self.table.flush()
            case "check":
                return self._check()
            case "snapshot":
                taken = self.table.snapshot()
                assert taken.by_bucket[BucketId(0)].offset == self.model.end
                return None
            case "reopen":
                self.store.close()
                self._open()
        return assert_equals_model(self.table, self.model)

    @rule()
    def lose_the_index(self) -> None:
        self.store.close()
        index = self.path / "tables" / "1" / "0" / "index"
        live = pairs_of(index)
        shutil.rmtree(index)
        self._open()
        assert_equals_model(self.table, self.model)
        self.store.close()
        assert pairs_of(index) == live
        self._open()

    @precondition(lambda self: self.model.key)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(self.keys(), min_size=1, max_size=4))
        expected = [self.model.rows.get(tuple(key[name] for name in self.model.key)) for key in keys]
        nothing = dict.fromkeys(self.table.schema.names)
        assert self.table.get(keys[0]) == expected[0]
        assert self.table.lookup(keys).to_pylist() == [
            (row or nothing | key) | {"_found": row is not None} for key, row in zip(keys, expected, strict=True)
        ]

    @precondition(lambda self: self.model.key and self.model.rules.image == "full")
    @rule(data=st.data())
    def read_as_of(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.model.end))
        then = self.model.as_of(offset)
        assert self.table.scan(as_of=offset).read_all().to_pylist() == [then[key] for key in sorted(then)]

    def keys(self) -> st.SearchStrategy[Row]:
        return st.fixed_dictionaries({name: st.sampled_from(KEYS[name]) for name in self.model.key})

    def targets(self, schema: pa.Schema, *, refused: bool) -> st.SearchStrategy[list[str] | None]:
        """Columns of a partial write, or None; columns with which every such write would fail may be left out."""
        rules = self.model.rules
        others = [name for name in schema.names if name not in (*self.model.key, rules.auto_increment)]
        takes_all_only = not engine_of(rules.engine.spec).takes_targets
        takes_all_only |= any(not schema.field(name).nullable for name in others)
        if not self.model.key or (takes_all_only and not refused):
            return st.none()
        some = st.lists(st.sampled_from(others), unique=True) | st.just(others)
        return st.none() | some.map(lambda names: [*self.model.key, *names])

    def values(self, field: pa.Field) -> st.SearchStrategy[Any]:
        some = st.sampled_from(KEYS[field.name] if field.name in self.model.key else SAMPLES[field.type])
        return st.none() | some if field.nullable or field.name == self.model.rules.auto_increment else some

    def batch(self, data: st.DataObject) -> Write:
        """A batch of a bucket: rows of any schema, whole or partial, with or without the engine."""
        rules = self.model.rules
        refused = data.draw(SELDOM)
        schema_id = data.draw(st.integers(1, len(self.schemas)))
        schema = self.schemas[schema_id - 1]
        overwrite = bool(self.model.key) and data.draw(st.sampled_from([False, False, True]))
        columns = data.draw(self.targets(schema, refused=refused))
        given = [field for field in schema if columns is None or field.name in columns]
        if not overwrite:
            given = [field for field in given if field.name != rules.auto_increment]
        rows = st.fixed_dictionaries({field.name: self.values(field) for field in given})
        kinds = st.tuples(st.just("upsert"), rows)
        if self.model.key and (refused or overwrite or rules.delete_behavior != "disable"):
            kinds = kinds | kinds | st.tuples(st.just("delete"), self.keys() | rows)
        some = data.draw(st.sampled_from([0, 2, 4, 6, 8]))
        operations = data.draw(st.lists(kinds, min_size=some, max_size=some))
        return Write(operations, pa.schema(given), schema_id, columns, overwrite)

    def _write(self, write: Write, writer: int = -1, sequence: int = -1) -> None:
        changes = kvstore.Changes.of(write.operations, write.schema)
        bucket = self.table.bucket(0)
        self._agree(
            lambda: bucket.apply(
                changes,
                writer,
                sequence,
                columns=write.columns,
                overwrite=write.overwrite,
                schema_id=write.schema_id,
            ),
            write,
            writer,
            sequence,
        )

    def _agree(
        self,
        send: Callable[[], kvstore.AppendResult | kvstore.WriteResult],
        write: Write,
        writer: int = -1,
        sequence: int = -1,
    ) -> None:
        """The table answers or refuses as the model does."""
        self.agrees = False  # until it does
        try:
            expected = self.model.apply(
                write.operations,
                writer,
                sequence,
                columns=write.columns,
                known=None if write.schema_id is None else self.schemas[write.schema_id - 1].names,
                overwrite=write.overwrite,
            )
        except Refused as refused:
            event(f"refused: {refused.error.__name__}")
            with pytest.raises(refused.error):
                send()
        else:
            result = send()
            assert Answer(result.first_offset, result.last_offset, result.duplicated) == expected
        self.agrees = True

    def teardown(self) -> None:
        try:
            if self.agrees:
                assert_equals_model(self.table, self.model)
                self._check()
        finally:
            if hasattr(self, "store"):
                self.store.close()
            shutil.rmtree(self.directory)

    def _check(self) -> None:
        report = self.store.check()
        assert report.ok, report.findings

    def _open(self) -> None:
        self.store = kvstore.open(self.path, durability="none")
        if self.store.list_tables():
            self.table = self.store.table("t")


def pairs_of(index: Path) -> tuple[dict[bytes, bytes], index_state.IndexState]:
    """Everything in an index, except what its state knows of the disk."""
    with lmdb.open(str(index), readonly=True, lock=False) as environment, environment.begin() as transaction:
        pairs = dict(transaction.cursor())
    state = index_state.decode(pairs.pop(b"\0"))
    return pairs, state._replace(synced_base=Offset(0), synced_position=Position(0), synced_offset=Offset(0))
