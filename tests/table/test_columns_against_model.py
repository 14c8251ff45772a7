"""Columns that are added, renamed and dropped: any history agrees with a model that knows columns by what they are.

Rows, changes, earlier rows, readers that began under other names, lost indexes, replicas and stores that are opened
again all show the values that the model has, under the names that it has for them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.errors import InvalidRequest, SchemaMismatch
from tests.support.tables import rows_of

NAMES = ("a", "b", "c", "d")
TYPES = (pa.int64(), pa.string(), pa.list_(pa.int32()))
Values = dict[int, Any]
"""Values by column."""


class World:
    """A table and its model: each column has a number, which nothing changes."""

    def __init__(self, directory: Path, buckets: int) -> None:
        self.path, self.replica = directory / "s", directory / "r"
        self._numbers = count(1)
        self.types: dict[int, pa.DataType] = {0: pa.int64()}
        self.names: dict[int, str] = {0: "k"}
        self.rows: dict[int, Values] = {}
        self.readers: list[tuple[pa.RecordBatchReader, list[dict[str, Any]]]] = []
        self.followers: list[tuple[Iterator[pa.RecordBatch], dict[int, str], dict[int, int]]] = []
        self.store = kvstore.open(self.path)
        self.store.create_table("t", {"k": "int64", "a": "int64", "b": "string"}, "k", buckets=buckets)
        for name, kind in (("a", pa.int64()), ("b", pa.string())):
            number = next(self._numbers)
            self.names[number], self.types[number] = name, kind
        self.store.add_replica(str(self.replica), "r").ship()

    @property
    def table(self) -> kvstore.Table:
        return self.store["t"]

    def shown(self, names: dict[int, str] | None = None) -> list[dict[str, Any]]:
        wanted = self.names if names is None else names
        return sorted(
            ({name: row.get(number) for number, name in wanted.items()} for row in self.rows.values()),
            key=lambda row: row[wanted[0]],
        )

    def step(self, random: Random) -> None:
        getattr(self, random.choice(STEPS))(random)

    def add(self, random: Random) -> None:
        name, kind = random.choice(NAMES), random.choice(TYPES)
        if name in self.names.values():
            with pytest.raises(SchemaMismatch):
                self.store.add_columns("t", [pa.field(name, kind)])
            return
        self.store.add_columns("t", [pa.field(name, kind)])
        number = next(self._numbers)
        self.names[number], self.types[number] = name, kind

    def rename(self, random: Random) -> None:
        chosen = random.sample(sorted(self.names), random.randrange(1, len(self.names) + 1))
        new = random.sample(("k", *NAMES, *NAMES, "e"), len(chosen))
        after = self.names | dict(zip(chosen, new, strict=True))
        given = {self.names[number]: name for number, name in zip(chosen, new, strict=True)}
        if len({*after.values()}) < len(after):
            with pytest.raises(InvalidRequest):
                self.store.rename_columns("t", given)
            return
        self.store.rename_columns("t", given)
        self.names = after

    def drop(self, random: Random) -> None:
        number = random.choice(sorted(self.names))
        if number == 0:
            with pytest.raises(InvalidRequest):
                self.store.drop_columns("t", [self.names[number]])
            return
        self.store.drop_columns("t", [self.names.pop(number)])

    def upsert(self, random: Random) -> None:
        whole = random.random() < 0.6
        others = sorted({*self.names} - {0})
        chosen = others if whole else random.sample(others, random.randrange(len(others) + 1))
        for _ in range(random.choice((1, 1, 5, 80))):
            key = random.randrange(12)
            values = {0: key} | {number: _value(random, self.types[number]) for number in chosen}
            given = {self.names[number]: value for number, value in values.items()}
            if whole:
                self.table.upsert(given)
                self.rows[key] = values
            else:
                self.table.upsert(given, columns=list(given))
                kept = {number: value for number, value in self.rows.get(key, {}).items() if number in self.names}
                self.rows[key] = kept | values

    def delete(self, random: Random) -> None:
        key = random.randrange(12)
        self.table.delete([key])
        self.rows.pop(key, None)

    def reopen(self, random: Random) -> None:
        self.readers.clear()
        self.followers.clear()
        self.store.close()
        if random.random() < 0.5:
            for index in self.path.glob("tables/*/*/index"):
                shutil.rmtree(index)
        self.store = kvstore.open(self.path)

    def save(self, random: Random) -> None:
        if random.random() < 0.5:
            self.store.checkpoint()
        self.table.snapshot()

    def read(self, random: Random) -> None:
        self.readers.append((self.table.scan(), self.shown()))
        if random.random() < 0.5:
            start = {bucket: end for bucket, (_, end) in self.table.offsets().items()}
            self.followers.append((iter(self.table.changelog(start, follow=True)), dict(self.names), start))

    def restore(self, random: Random) -> None:
        self.store.flush()
        self.store.replica("r").ship()
        target = self.path.with_name("restored")
        kvstore.restore(str(self.replica), target)
        with kvstore.open(target, read_only=random.random() < 0.5) as restored:
            assert sorted(rows_of(restored["t"]), key=lambda row: row[self.names[0]]) == self.shown()
            assert restored["t"].schema.names == self.table.schema.names
        shutil.rmtree(target)

    def check(self) -> None:
        table, key = self.table, self.names[0]
        assert table.schema.names == list(self.names.values())
        assert sorted(rows_of(table), key=lambda row: row[key]) == self.shown()
        for row in self.shown()[:2]:
            assert table.get(row[key]) == row
        folded = {}
        for change in table.changelog().read_all().to_pylist():
            row = {name: change[name] for name in self.names.values()}
            if change["_change_type"] in ("insert", "update_postimage"):
                folded[row[key]] = row
            elif change["_change_type"] == "delete":
                assert folded.pop(row[key]) == row
            else:
                assert folded[row[key]] == row
        assert [folded[each] for each in sorted(folded)] == self.shown()
        for reader, expected in self.readers:
            assert sorted(reader.read_all().to_pylist(), key=lambda row: next(iter(row.values()))) == expected
        self.readers.clear()
        self._check_followers()
        assert not self.store.check().findings

    def _check_followers(self) -> None:
        """Who began to read changes under earlier names gets the same changes, under those names."""
        self.store.flush()
        for follower, names, start in self.followers:
            expected = self.table.changelog(start).read_all().to_pylist()
            found: list[dict[str, Any]] = []
            while len(found) < len(expected):
                found += next(follower).to_pylist()
            both = [number for number in names if number in self.names]
            for columns, changes in ((self.names, expected), (names, found)):
                changes[:] = [
                    {**{name: change[name] for name in PLACE}, **{n: change[columns[n]] for n in both}}
                    for change in sorted(changes, key=lambda change: [change[name] for name in PLACE])
                ]
            assert found == expected
        self.followers.clear()


def _value(random: Random, kind: pa.DataType) -> Any:
    if random.random() < 0.2:
        return None
    if kind == pa.int64():
        return random.randrange(5)
    return random.choice(("", "x", "long " * 9)) if kind == pa.string() else [random.randrange(9)] * random.randrange(3)


PLACE = ("_bucket", "_log_offset", "_change_type", "_commit_version")
STEPS = ("add", "rename", "drop", "upsert", "upsert", "upsert", "delete", "reopen", "save", "read", "restore")


def run(seed: int, steps: int) -> None:
    random, directory = Random(seed), Path(tempfile.mkdtemp(prefix="kvstore-test-"))
    try:
        world = World(directory, random.choice((1, 1, 2)))
        for _ in range(steps):
            world.step(random)
        world.check()
        world.store.close()
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", range(5))
def test_columns_are_what_they_were(seed: int) -> None:
    run(seed, 20)


@pytest.mark.long
@given(st.integers(0, 2**32))
@settings(max_examples=150)
def test_columns_are_what_they_were_in_long_histories(seed: int) -> None:
    run(seed, 60)
