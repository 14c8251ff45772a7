"""Processes that create, alter, drop, write, read and check the same tables at once.

Whatever comes together, each call is done, or says what another process did: the table is gone, or there is one
already; and ``check`` finds nothing, since nothing is wrong.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.errors import (
    InvalidRequest,
    NoSuchTable,
    SchemaMismatch,
    StoreError,
    StoreLocked,
    TableExists,
    TransactionConflict,
)
from kvstore.store import check
from tests.support.processes import Child, Pipe

COLUMNS = {"k": "int64 not null", "v": "string", "n": "int64"}
PROCESSES, CALLS = 4, 60
OF_OTHERS = (NoSuchTable, TableExists, SchemaMismatch, TransactionConflict)
"""Errors that say what another process has done."""
OF_CALLS = {"compact": (StoreLocked,), "index": (InvalidRequest,)}
"""Further ones: another process owns the bucket, or has created the index."""


def calls_of(store: kvstore.Store, chance: Random) -> dict[str, Callable[[], object]]:
    """What a process may do next, and how."""
    name, other, key = chance.choice("ab"), chance.choice("ab"), chance.randrange(9)
    row = {"k": key, "v": "x", "n": 1}
    table = named(store, name)
    return {
        "create": lambda: store.create_table(name, COLUMNS, "k", buckets=chance.choice([1, 2])),
        "drop": lambda: store.drop_table(name),
        "rename": lambda: store.rename_table(name, other),
        "add a column": lambda: store.add_columns(name, {f"c{chance.randrange(99)}": "int64"}),
        "retain": lambda: store.alter_table(name, retention=chance.choice([None, dt.timedelta(days=1)])),
        "index": lambda: "i" in table().indexes or store.create_index(name, "i", "v"),
        "upsert": lambda: table().upsert(row),
        "upsert many": lambda: table().upsert([row | {"k": k} for k in range(200)]),
        "delete": lambda: table().delete([key]),
        "delete where": lambda: table().delete(where=pc.field("n") == 1),
        "increment": lambda: table().increment(key, {"n": 1}, default={"v": "y"}),
        "put if": lambda: table().put_if(row, None),
        "write on": lambda: write_on(table()),
        "together": lambda: together(store, key),
        "get": lambda: table().get(key),
        "scan": lambda: table().scan().read_all(),
        "find": lambda: table().find(v="x"),
        "changelog": lambda: table().changelog().read_all(),
        "snapshot": lambda: in_snapshot(store),
        "compact": lambda: table().compact(),
        "check": lambda: verify(store),
    }


def named(store: kvstore.Store, name: str) -> Callable[[], kvstore.Table]:
    return lambda: store.table(name)


def write_on(table: kvstore.Table) -> None:
    with table.writer() as writer:
        for k in range(5):
            writer.upsert({"k": k, "v": "w", "n": 2})


def together(store: kvstore.Store, key: int) -> None:
    with store.transaction() as tx:
        for name in "ab":
            row = tx.get(name, key) or {"k": key, "v": "t", "n": 0}
            tx.upsert(name, {"k": key, "v": "t", "n": row["n"] + 1})


def in_snapshot(store: kvstore.Store) -> None:
    with store.snapshot() as moment:
        for name in moment.list_tables():
            moment.table(name).count()


def verify(store: kvstore.Store) -> None:
    report = store.check()
    assert report, report


def do_anything(pipe: Pipe, path: Path, seed: int) -> None:
    """Open the store now and then, and call anything."""
    chance = Random(seed)
    left = CALLS
    while left:
        with kvstore.open(path) as store:
            for _ in range(min(left, chance.randint(1, 30))):
                left -= 1
                calls = calls_of(store, chance)
                weights = [4 if name in ("create", "upsert", "upsert many") else 1 for name in calls]
                (name,) = chance.choices(list(calls), weights)
                try:
                    calls[name]()
                except (StoreError, AssertionError) as error:
                    if not isinstance(error, (*OF_OTHERS, *OF_CALLS.get(name, ()))):
                        pipe.send(f"{name}: {error!r}")
    pipe.send(None)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 40))])
def test_anything_at_once(store_path: Path, seed: int) -> None:
    kvstore.open(store_path).close()
    with ExitStack() as stack:
        children = [stack.enter_context(Child(do_anything, store_path, seed * PROCESSES + n)) for n in range(PROCESSES)]
        assert [child.hear() for child in children] == [None] * PROCESSES
    with kvstore.open(store_path) as store:
        verify(store)


def change(pipe: Pipe, path: Path, does: str) -> None:
    with kvstore.open(path) as store:
        pipe.recv()
        if does == "drop":
            store.drop_table("a")
        else:
            store.add_columns("a", {"m": "int64"})
            store.table("a").upsert([{"k": 1, "m": 2}, {"k": 2, "m": 3}])
    pipe.send("done")


@pytest.mark.parametrize("does", ["drop", "alter"])
def test_a_check_finds_nothing_in_a_table_that_changes_meanwhile(
    store_path: Path, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(store_path) as store:
        for name in "ab":
            store.create_table(name, COLUMNS, "k").upsert([{"k": k, "v": "x", "n": 1} for k in range(9)])
    check_bucket = check.check_bucket
    with Child(change, store_path, does) as other, kvstore.open(store_path) as store:
        said: list[str] = []

        def checked(*arguments: object) -> check.BucketReport:
            if not said:
                other.say("go")
                said.append(other.hear())
            return check_bucket(*arguments)

        monkeypatch.setattr(check, "check_bucket", checked)
        report = store.check()
        assert said == ["done"]
        assert report, report
        assert [each.table for each in report.buckets] == (["b"] if does == "drop" else ["a", "b"])
