"""Writers, owners and consumers are killed at any moment: the copy of every consumer is the filtered table."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest

import kvstore
from tests.support.processes import Child, Pipe

COLUMNS = {"k": "int64", "v": "int64", "s": "string"}
FILTERS: dict[str, pc.Expression | None] = {"all": None, "few": pc.field("v") == 3, "half": pc.field("s") == "x"}
KEYS, WRITERS, QUICK_KILLS, LONG_KILLS = range(40), 2, 6, 20


def opened(path: Path) -> kvstore.Store:
    # Merges, segments and owners come and go often.
    return kvstore.open(path, commit_wait_ms=30, commit_idle_ms=5, segment_bytes_max=1 << 14)


def write(pipe: Pipe, path: Path, seed: int) -> None:
    """Write until it is killed, or enough; the first of the processes becomes the owner of a bucket."""
    random = Random(seed)
    with opened(path) as store:
        table = store.table("t")
        for number in count():
            keys = random.sample(KEYS, random.randint(1, 6))
            if random.random() < 0.2:
                table.delete(keys)
            elif random.random() < 0.1:
                table.update_where(pc.field("v") == 3, {"v": 4})
            else:
                table.upsert([{"k": k, "v": random.randint(0, 4), "s": random.choice("xy")} for k in keys])
            pipe.send(number)
            if pipe.poll():
                return


def copy(path: Path, name: str, *, follow: bool, pipe: Pipe | None = None) -> None:
    """Keep a copy of what a filter sees: a batch is applied whole, and then acknowledged."""
    with opened(path) as store, closing(sqlite3.connect(path.with_name(name), isolation_level=None)) as rows:
        rows.execute("pragma synchronous = off")  # no power is cut
        table = store.table("t")
        if name not in table.consumers:  # the current rows come, perhaps once more
            rows.executescript("drop table if exists t; create table t (k integer primary key, v, s)")
        with table.subscribe(name, filter=FILTERS[name], follow=follow, ack_ms=5) as changes:
            for number, batch in enumerate(changes):
                rows.execute("begin")
                for change in batch.to_pylist():
                    if change["_change_type"] in ("insert", "update_postimage"):
                        rows.execute("replace into t values (?, ?, ?)", [change[column] for column in COLUMNS])
                    elif change["_change_type"] == "delete":
                        rows.execute("delete from t where k = ?", [change["k"]])
                rows.execute("commit")
                if pipe is not None:
                    pipe.send(number)
                changes.ack(batch)


def consume(pipe: Pipe, path: Path, name: str) -> None:
    copy(path, name, follow=True, pipe=pipe)


def kills(path: Path, count: int, seed: int) -> None:
    random = Random(seed)
    with opened(path) as store:
        store.create_table("t", COLUMNS, "k", buckets=1 + seed % 2)

    def started(what: Any) -> Child:
        return Child(consume, path, what) if isinstance(what, str) else Child(write, path, random.randrange(1 << 30))

    children = {what: started(what) for what in [*range(WRITERS), *FILTERS]}
    try:
        for _ in range(count):
            for _ in range(random.randrange(1, 9)):
                children[random.randrange(WRITERS)].hear()
            victim = random.choice(list(children))
            with children.pop(victim):
                pass  # it is killed
            children[victim] = started(victim)
        for writer in range(WRITERS):
            children[writer].say("enough")
            with suppress(EOFError, ConnectionResetError):
                while True:  # what it says fills its pipe, and then it hears nothing
                    children[writer].hear()
            assert children[writer].join() == 0
    finally:
        for child in children.values():
            child.__exit__()
    for name, filter in FILTERS.items():
        copy(path, name, follow=False)
        with kvstore.open(path, read_only=True) as store, closing(sqlite3.connect(path.with_name(name))) as rows:
            expected = {tuple(row.values()) for row in store.table("t").to_arrow(filter=filter).to_pylist()}
            assert set(rows.execute("select k, v, s from t")) == expected, name


def test_six_kills(store_path: Path) -> None:
    kills(store_path, QUICK_KILLS, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_two_hundred_kills(store_path: Path, seed: int) -> None:
    kills(store_path, LONG_KILLS, seed)
