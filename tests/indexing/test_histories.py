"""Many short histories of one table whose rows in memory are merged meanwhile: ``find`` is what a scan returns.

A thread, and another process, search all the while: what they get is what the table had at one moment between the
beginning and the end of their search.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.bucket.reading import overlay
from kvstore.memtable import memtable
from tests.support.processes import Child, Pipe

COLUMNS = {"id": "int64", "mail": "string", "age": "int32"}
INDEXES = {"by_mail": "mail", "by_age": ["age", "mail"]}
QUICK, LONG = 40, 20_000
IDS, MAILS, AGES = range(12), [None, "", "a", "b", "c" * 300], [None, 1, 2, 3]
SMALL_SLICES = mock.patch.multiple(memtable, SLICE_ROWS=1, SLICE_ROWS_MAX=2)
"""While it lasts, most merges take several transactions, and reads and writes come between them."""
SMALL_RUNS = mock.patch.object(overlay, "TOGETHER_KEYS", 2)
"""While it lasts, many changes are kept as runs by a process that does not write them."""
Model = dict[int, dict[str, Any]]
Query = tuple[str, Any, Any]


def changed(random: Random, table: kvstore.Table, model: Model) -> tuple[Callable[[], object], Model]:
    """A change of the table, and what it has then."""
    match random.randrange(8):
        case 0:
            gone = random.sample(IDS, 2)
            return lambda: table.delete(gone), {id: row for id, row in model.items() if id not in gone}
        case 1:
            return table.flush, model
        case 2:
            age = random.choice(AGES[1:])
            rows: Model = {id: {**row, "mail": "b"} for id, row in model.items() if row["age"] == age}
            return lambda: table.update_where(pc.field("age") == age, {"mail": "b"}), {**model, **rows}
        case _:
            ids = random.sample(IDS, random.randint(1, 3))
            made: list[dict[str, Any]] = [
                {"id": id, "mail": random.choice(MAILS), "age": random.choice(AGES)} for id in ids
            ]
            return lambda: table.upsert(made), model | {row["id"]: row for row in made}


def query(random: Random) -> Query:
    return random.choice(("mail", "one", "ages", "both", "filter")), random.choice(MAILS), random.choice(AGES[1:])


def asked(table: kvstore.ReadTable, query: Query) -> Any:
    kind, mail, age = query
    match kind:
        case "mail":
            return table.find(mail=mail).to_pylist()
        case "one":
            return table.find_one(mail=mail)
        case "ages":
            return table.find(age=(age, None)).to_pylist()
        case "both":
            return table.find(age=age, mail=[mail, "b"]).to_pylist()
    return table.to_arrow(filter=pc.field("mail").isin(pa.array([mail, "a"])) & (pc.field("age") >= age)).to_pylist()


def expected(model: Model, query: Query) -> Any:
    kind, mail, age = query
    rows = [model[id] for id in sorted(model)]
    match kind:
        case "mail":
            return [row for row in rows if row["mail"] == mail]
        case "one":
            return next((row for row in rows if row["mail"] == mail), None)
        case "ages":
            return [row for row in rows if (row["age"] or 0) >= age]
        case "both":
            return [row for row in rows if row["age"] == age and row["mail"] in (mail, "b")]
    return [row for row in rows if row["mail"] in (mail, "a") and (row["age"] or 0) >= age]


class Moments:
    """What the table had after each change.

    Attributes:
        models: Of each moment; the last one may not be acknowledged.
        acknowledged: How many of them are.
    """

    def __init__(self) -> None:
        self.models: list[Model] = [{}]
        self.acknowledged = 1

    def search(self, random: Random, ask: Callable[[Query], Any]) -> None:
        """Search once, beside the changes."""
        sought, first = query(random), self.acknowledged - 1
        found = ask(sought)
        possible = [expected(model, sought) for model in self.models[first:]]
        assert found in possible, (sought, found, possible)


@contextmanager
def searching(*searches: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Each search in a thread of its own, once for each call of what this returns; it waits for none."""
    calls = [threading.Semaphore(0) for _ in searches]
    with ThreadPoolExecutor(len(searches)) as threads:
        is_over = False

        def again(search: Callable[[], None], call: threading.Semaphore) -> None:
            while call.acquire() and not is_over:
                search()

        def go_on() -> None:
            for each in calls:
                each.release()

        futures = [threads.submit(again, *each) for each in zip(searches, calls, strict=True)]
        try:
            yield go_on
        finally:
            is_over = True
            go_on()
    for each in futures:
        each.result()


def answer(pipe: Pipe, path: Path) -> None:
    """Answer queries, in another process."""
    with SMALL_RUNS, kvstore.open(path, read_only=True) as store:
        while (query := pipe.recv()) is not None:
            pipe.send(asked(store.table("t"), query))


@pytest.mark.parametrize("count", [QUICK, pytest.param(LONG, marks=pytest.mark.long)])
def test_find_is_what_a_scan_returns(tmp_path: Path, count: int) -> None:
    random, path, moments = Random(count), tmp_path / "store", Moments()
    with SMALL_SLICES, kvstore.open(path, commit_wait_ms=5, commit_idle_ms=1) as store:
        table = store.create_table("t", COLUMNS, "id", indexes=INDEXES)
        with Child(answer, path) as child:

            def ask(query: Query) -> Any:
                child.pipe.send(query)
                return child.pipe.recv()

            here, there = Random(count + 1), Random(count + 2)
            with searching(
                lambda: moments.search(here, lambda query: asked(table, query)), lambda: moments.search(there, ask)
            ) as go_on:
                for _ in range(3 * count):  # a history goes on from the rows that the one before left
                    change, after = changed(random, table, moments.models[-1])
                    moments.models.append(after)
                    go_on()
                    change()
                    moments.acknowledged += 1
                    moments.search(random, lambda query: asked(table, query))
            ask_last = query(random)
            assert ask(ask_last) == expected(moments.models[-1], ask_last)
            child.pipe.send(None)
        assert store.check().findings == []
