"""State machines that compare a table with its model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvstore
from kvstore.errors import OutOfOrderSequence
from kvstore.testing.model import Answer, Model, Operation, Refused
from tests.support.tables import assert_equals_model, binlog_of, operations_of

WRITERS = (0, 1, 7)


class TableMachine(RuleBasedStateMachine):
    """A table keyed by an integer."""

    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int32()), pa.field("s", pa.string())])
    key: tuple[str, ...] = ("k",)
    keys = st.fixed_dictionaries({"k": st.integers(-3, 3)})
    segment_bytes_max = 2048

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="kvstore-test-"))
        self.path = self.directory / "store"
        self.model = Model(self.key)
        self.store: kvstore.Store
        self.table: kvstore.Table

    @initialize()
    def create(self) -> None:
        self._open()
        self.table = self.store.create_table("t", self.schema, primary_key=list(self.key))

    @rule(data=st.data())
    def unnumbered_batch(self, data: st.DataObject) -> None:
        operations = data.draw(self.operations())
        assert self._send(operations) == self.model.apply(operations)

    @rule(data=st.data(), writer=st.sampled_from(WRITERS))
    def next_batch(self, data: st.DataObject, writer: int) -> None:
        operations = data.draw(self.operations())
        sequence = self.model.next_sequence(writer)
        assert self._send(operations, writer, sequence) == self.model.apply(operations, writer, sequence)

    @rule(data=st.data(), writer=st.sampled_from(WRITERS), step=st.integers(-9, 5).filter(bool))
    def batch_out_of_order(self, data: st.DataObject, writer: int, step: int) -> None:
        operations = data.draw(self.operations())
        sequence = max(0, self.model.next_sequence(writer) + step)
        try:
            expected = self.model.apply(operations, writer, sequence)
        except Refused:
            with pytest.raises(OutOfOrderSequence):
                self._send(operations, writer, sequence)
        else:
            assert self._send(operations, writer, sequence) == expected

    @rule()
    def flush(self) -> None:
        self.table.flush()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._open()

    @rule(damage=st.sampled_from(["index", "index/data.mdb"]))
    def lose_the_index(self, damage: str) -> None:
        self.store.close()
        lost = self.path / "tables" / "1" / "0" / damage
        if lost.is_dir():
            shutil.rmtree(lost)
        elif lost.is_file():  # it may be lost already
            lost.write_bytes(b"not an index")
        self._open()

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(self.keys, max_size=5))
        found = self.table.lookup(keys).to_pylist()
        for key, row in zip(keys, found, strict=True):
            expected = self.model.rows.get(tuple(key[name] for name in self.key))
            assert row.pop("_found") == (expected is not None)
            assert row == (expected or dict.fromkeys(self.schema.names) | key)
            assert self.table.get(key) == expected

    @precondition(lambda self: self.model.end)
    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log_start, self.model.end))
        rows = self.table.scan(as_of=offset).read_all().to_pylist()
        assert {tuple(row[name] for name in self.key): row for row in rows} == self.model.as_of(offset)

    @precondition(lambda self: self.model.end)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log_start, self.model.end))
        then, changes = self.model.as_of(offset), self.table.undo(offset)
        result = self.table.apply(changes)
        expected = self.model.apply(operations_of(changes))
        assert (result.first_offset, result.last_offset) == (expected.first_offset, expected.last_offset)
        assert self.model.rows == then

    @rule(data=st.data())
    def read_the_binlog(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.log_start, self.model.end))
        end = data.draw(st.integers(start, self.model.end))
        assert binlog_of(self.table, start, end) == self.model.binlog(start, end)

    @property
    def log_start(self) -> int:
        return self.table.offsets()[0][0]

    @invariant()
    def equals_the_model(self) -> None:
        if hasattr(self, "table"):
            self.compare()

    def compare(self) -> None:
        assert_equals_model(self.table, self.model)

    def operations(self) -> st.SearchStrategy[list[Operation]]:
        values = st.fixed_dictionaries(
            {"v": st.none() | st.integers(-(2**31), 2**31 - 1), "s": st.none() | st.text(max_size=4)}
        )
        upserts = st.tuples(st.just("upsert"), st.tuples(self.keys, values).map(lambda parts: parts[0] | parts[1]))
        deletes = st.tuples(st.just("delete"), self.keys)
        return st.lists(upserts | deletes, max_size=6)

    def teardown(self) -> None:
        if hasattr(self, "table"):
            report = self.store.check()
            self.store.close()
            assert report.ok, report.findings
        shutil.rmtree(self.directory)

    def _open(self) -> None:
        self.store = kvstore.open(self.path, segment_bytes_max=self.segment_bytes_max)
        if self.store.list_tables():
            self.table = self.store.table("t")

    def _send(self, operations: list[Operation], writer: int = -1, sequence: int = -1) -> Answer:
        changes = kvstore.Changes.of(operations, self.schema)
        result = self.table.bucket(0).apply(changes, writer, sequence)
        return Answer(result.first_offset, result.last_offset, result.duplicated)


class TextKeyMachine(TableMachine):
    """A table keyed by text and a number; the text has bytes that keys escape."""

    schema = pa.schema(
        [
            pa.field("v", pa.int32()),
            pa.field("name", pa.string(), False),
            pa.field("s", pa.string()),
            pa.field("n", pa.int16(), False),
        ]
    )
    key = ("name", "n")
    keys = st.fixed_dictionaries({"name": st.sampled_from(["", "a", "a\0", "\1", "é"]), "n": st.integers(-1, 1)})
