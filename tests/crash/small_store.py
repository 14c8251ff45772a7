"""A store of every kind of file and page, as small as it can be, and all that a user can ask of it.

Its clock stands still and its id is given, so that it has the same bytes every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pyarrow as pa

import kvstore
from kvstore.errors import CorruptData, StoreError
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from kvstore.testing.model import Operation
from tests.support.clocks import SetClock

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
TABLE = "t"
OPTIONS = StoreOptions(segment_bytes_max=4000, commit_idle_ms=60_000, commit_wait_ms=60_000, map_bytes=1 << 28)
STORE_ID = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")


def _put(key: int, value: int, text: str | None) -> Operation:
    return "upsert", {"k": key, "v": value, "s": text}


def _delete(key: int) -> Operation:
    return "delete", {"k": key}


BATCHES: list[list[Operation]] = [
    [_put(1, 1, "one"), _put(2, 2, None)],
    # One value too large for a leaf, and enough others that one leaf does not hold them.
    [_put(4, 4, "o" * 2020), _put(50, 5, "a" * 1200), _put(60, 6, "b" * 1200), _put(70, 7, "c" * 1200)],
    [_put(1, 10, "uno"), _put(3, 3, "drei"), _delete(2)],
    [],
    [_put(2, 20, "zwei"), _put(300, 8, "vier")],
    [_delete(300), _put(3, 30, "tre")],
    [_put(1, 100, "x")],
]
FLUSHED_AFTER = (1, 3, 5)
SNAPSHOT_AFTER = 4
KEYS = [*range(5), 50, 60, 70, 300]
NOTHING = kvstore.Changes.of([], SCHEMA)
MORE = kvstore.Changes.of([_put(3, -1, "after"), _put(99, -1, None), _delete(1)], SCHEMA)
NEXT = len(BATCHES)


def build(path: Path, after: Callable[[], None] = lambda: None) -> None:
    """Write the store and close it; calls ``after`` each time that what was written is committed."""
    with patch("kvstore.store.runtime.uuid4", return_value=STORE_ID), Store(path, OPTIONS, clock=SetClock()) as store:
        table = store.create_table(TABLE, SCHEMA, primary_key="k")
        writer = store.new_writer_id()
        for sequence, operations in enumerate(BATCHES):
            table.bucket(0).apply(kvstore.Changes.of(operations, SCHEMA), writer, sequence)
            if sequence in FLUSHED_AFTER:
                store.flush()
                after()
            if sequence == SNAPSHOT_AFTER:
                table.snapshot()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A StoreError instead of an answer."""

    kind: str
    is_damage: bool


class Answers(dict[str, Any]):
    """What was answered to what; a StoreError is an answer, every other error is raised."""

    def ask(self, what: str, question: Callable[[], Any]) -> Any:
        """The answer; None if the question was refused."""
        try:
            self[what] = answer = question()
        except StoreError as error:
            self[what] = Refusal(type(error).__name__, isinstance(error, CorruptData))
            return None
        return answer

    def reach(self, what: str, question: Callable[[], Any]) -> Any:
        """Like :meth:`ask`, for what is only there to be asked further."""
        reached = self.ask(what, question)
        if reached is not None:
            self[what] = True
        return reached

    @property
    def damage_is_read(self) -> bool:
        """Whether a user who only reads and writes got an error about the damage."""
        return any(isinstance(answer, Refusal) and answer.is_damage for what, answer in self.items() if what != CHECK)

    @property
    def damage_is_checked(self) -> bool:
        """Whether the check found something."""
        return bool(self.get(CHECK))


CHECK = "check"


def read(path: Path, *, thorough: bool = True) -> Answers:
    """Open the store read-only and read everything; unless ``thorough``, only until damage is reported."""
    answers = Answers()
    store = answers.reach("open", lambda: Store(path, OPTIONS, read_only=True, clock=SetClock()))
    if store is not None:
        _read_all(store, answers, thorough=thorough)
    return answers


def write(path: Path, *, thorough: bool = True) -> Answers:
    """Open the store for writing, send again what was sent before, write more, and read everything."""
    answers = Answers()
    store = answers.reach("open", lambda: Store(path, OPTIONS, clock=SetClock()))
    if store is None:
        return answers
    table = answers.reach("table", lambda: store.table(TABLE))
    if table is not None:
        for sequence in (*range(NEXT - 6, NEXT), NEXT + 1):
            answers.ask(f"send {sequence}", lambda: table.bucket(0).apply(NOTHING, 0, sequence))  # noqa: B023 - at once
        answers.ask(f"send {NEXT}", lambda: table.bucket(0).apply(MORE, 0, NEXT))
    answers.ask("writer id", store.new_writer_id)
    _read_all(store, answers, thorough=thorough)
    return answers


def go_on(path: Path, *, thorough: bool = True) -> Answers:
    """Open the store once more, create another table and read everything."""
    answers = Answers()
    store = answers.reach("open", lambda: Store(path, OPTIONS, clock=SetClock()))
    if store is not None:
        answers.ask(
            "create", lambda: store.create_table("u", SCHEMA, primary_key="k").upsert({"k": 1, "v": 1, "s": None})
        )
        _read_all(store, answers, thorough=thorough)
    return answers


def _read_all(store: Store, answers: Answers, *, thorough: bool) -> None:
    answers.ask("tables", store.list_tables)
    table = answers.reach("table", lambda: store.table(TABLE))
    questions = dict(_questions(table)) if table is not None else {}
    for what, question in {**questions, CHECK: lambda: store.check().findings}.items():
        if thorough or not answers.damage_is_read:
            answers.ask(what, question)
    answers.ask("close", store.close)


def _questions(table: kvstore.Table) -> Iterator[tuple[str, Callable[[], Any]]]:
    """First those that see most damage."""
    yield "rows", lambda: table.scan().read_all()
    yield "changes", lambda: pa.Table.from_batches(table.changelog())
    yield "lookup", lambda: table.lookup(KEYS)
    yield "count", table.count
    yield "offsets", table.offsets
    yield "schema", lambda: (table.schema, table.primary_key)
