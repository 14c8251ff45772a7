"""Random histories of a table, and what its rows, versions and undone changes are, one row at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import kvstore

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        pa.field("v", pa.int32()),
        pa.field("k", pa.string(), False),
        pa.field("x", pa.float64()),
        pa.field("n", pa.int16(), False),
        pa.field("l", pa.list_(pa.int8())),
    ]
)
KEY = ("k", "n")
KEYS = [(name, number) for name in ("", "a", "a\0") for number in (-1, 1)]
EPOCH_WRITERS = ("etl", "fix")
NUMBERED = 7


@dataclass(frozen=True)
class Version:
    """One change of a row.

    Attributes:
        commit: Number of the commit that it belongs to.
    """

    commit: int
    writer: str | None
    epoch: int | None
    before: Row | None
    after: Row | None


@dataclass
class History:
    """A table that gets random commits, and the same rows in a dict.

    Attributes:
        versions: All changes by key, in order.
        places: For each commit, the offsets before it; then those at the end.
    """

    table: kvstore.Table
    choose: random.Random
    rows: dict[tuple[str, int], Row] = field(default_factory=dict)
    versions: dict[tuple[str, int], list[Version]] = field(default_factory=dict)
    places: list[dict[int, int]] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    sequence: int = 0

    def grow(self, commits: int) -> None:
        self.places = [self.ends()]
        for _ in range(commits):
            self.commit()
            self.places.append(self.ends())

    def ends(self) -> dict[int, int]:
        return {bucket: end for bucket, (_, end) in self.table.offsets().items()}

    def commit(self) -> None:
        kind = self.choose.choice([None, None, *EPOCH_WRITERS, *EPOCH_WRITERS, str(NUMBERED), "partial"])
        operations = [self._operation() for _ in range(self.choose.choice([0, 1, 1, 2, 4]))]
        if kind == "partial":
            rows = [{"k": row["k"], "n": row["n"], "v": row.get("v")} for _, row in operations]
            self.table.upsert(
                pa.Table.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in "knv"])), list("knv")
            )
            operations = [("upsert", row) for row in rows]
        elif kind in EPOCH_WRITERS:
            epoch = self.epochs[kind] = self.epochs.get(kind, self.choose.randrange(5)) + 1
            self.table.apply_epoch(kvstore.Changes.of(operations, SCHEMA), writer=kind, epoch=epoch)
            self._note(operations, kind, epoch)
            return
        elif kind == str(NUMBERED):
            changes = self.table.by_bucket(kvstore.Changes.of(operations, SCHEMA))
            nothing = kvstore.Changes.of([], SCHEMA)
            for bucket in range(self.table.buckets):
                self.table.bucket(bucket).apply(changes.get(bucket, nothing), NUMBERED, self.sequence, writer_epoch=3)
            self.sequence += 1
            self._note(operations, kind, 3)
            return
        else:
            self.table.apply(kvstore.Changes.of(operations, SCHEMA))
        self._note(operations, None, None)

    def _operation(self) -> tuple[str, Row]:
        name, number = self.choose.choice(KEYS)
        row = {"k": name, "n": number}
        if self.choose.random() < 0.25:
            return "delete", row
        before = self.rows.get((name, number)) or {}
        values = {
            "v": self.choose.choice([None, 1, 2, 3]),
            "x": self.choose.choice([None, 0.0, -0.0, float("nan"), 1.5]),
            "l": self.choose.choice([None, [], [1], [None, 2]]),
        }
        # Mostly only one column is another one than before.
        kept = [column for column in values if column in before and self.choose.random() < 0.6]
        return "upsert", row | values | {column: before[column] for column in kept}

    def _note(self, operations: list[tuple[str, Row]], writer: str | None, epoch: int | None) -> None:
        for word, row in operations:
            key = (row["k"], row["n"])
            before = self.rows.pop(key, None)
            after = None
            if word == "upsert":
                after = self.rows[key] = dict.fromkeys(SCHEMA.names) | (before or {}) | row
            if before is not None or after is not None:
                commit = len(self.places) - 1
                self.versions.setdefault(key, []).append(Version(commit, writer, epoch, before, after))

    def assert_rows(self, expected: dict[tuple[str, int], Row]) -> None:
        found = self.current()
        assert {key: form(row) for key, row in found.items()} == {key: form(row) for key, row in expected.items()}

    def current(self) -> dict[tuple[str, int], Row]:
        return {(row["k"], row["n"]): row for row in self.table.to_arrow().to_pylist()}


def same(one: object, other: object) -> bool:
    """Equal as stored: NaN is equal to itself, and -0.0 is not 0.0; the order of columns does not matter."""
    return form(one) == form(other)


def form(value: object) -> str:
    return repr(sorted(value.items()) if isinstance(value, dict) else value)


def without(versions: list[Version], is_selected: Callable[[Version], bool]) -> tuple[bool, Row | None]:
    """Whether undoing some changes of a row meets a conflict, and the row without them; the row now if it does."""
    now = versions[-1].after
    marked: dict[str, Row | None] = {}
    for each in versions:
        if each.before is None or each.after is None:
            changed = set(SCHEMA.names)
        else:
            changed = {name for name in SCHEMA.names if not same(each.before[name], each.after[name])}
        if is_selected(each):
            for name in changed - marked.keys():
                marked[name] = each.before
        elif changed & marked.keys():
            return True, now
    if not marked:
        return False, now
    if any(row is None for row in marked.values()):
        return False, None
    row = dict(now or {})
    for name, before in marked.items():
        assert before is not None
        row[name] = before[name]
    return False, row


def keys_of(rows: pa.RecordBatch) -> set[tuple[str, int]]:
    return {(row["k"], row["n"]) for row in rows.to_pylist()}


@dataclass(frozen=True)
class Asked:
    """An undo of random changes, and what it has to give.

    Attributes:
        arguments: Of ``Table.undo``.
        rows: The table afterwards.
        differing: Keys of rows that it changes.
        conflicts: Keys that it leaves alone.
    """

    arguments: tuple[Any, ...]
    rows: dict[tuple[str, int], Row]
    differing: set[tuple[str, int]]
    conflicts: set[tuple[str, int]]


def any_undo(history: History) -> Asked:
    """An undo of a random range, of all changes in it or of those of one origin."""
    choose = history.choose
    first = choose.randrange(len(history.places))
    last = choose.randrange(first, len(history.places))
    within = [each for some in history.versions.values() for each in some if first <= each.commit < last]
    origins = sorted({(each.writer, each.epoch) for each in within if each.writer}, key=repr)
    writer = epoch = None
    if origins and choose.random() < 0.8:
        writer, epoch = choose.choice(origins)
        epoch = choose.choice([epoch, None])

    def is_selected(each: Version) -> bool:
        return first <= each.commit < last and writer in (None, each.writer) and epoch in (None, each.epoch)

    rows, conflicts = dict(history.rows), set()
    for key, versions in history.versions.items():
        since = [each for each in versions if each.commit >= first]
        if not since:
            continue
        is_conflict, row = without(since, is_selected)
        if is_conflict:
            conflicts.add(key)
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
    keys = rows.keys() | history.rows
    differing = {key for key in keys if not same(rows.get(key), history.rows.get(key))}
    return Asked((history.places[first], history.places[last], writer, epoch), rows, differing, conflicts)


@contextmanager
def table_of(store: kvstore.Store, seed: int, buckets: int) -> Iterator[History]:
    """A table with the history of a seed; it is dropped at the end, so that thousands take no more than one."""
    choose = random.Random(f"{seed} {buckets}")
    table = store.create_table("t", SCHEMA, KEY, buckets=buckets)
    history = History(table, choose)
    history.grow(choose.randrange(1, 16))
    yield history
    store.drop_table("t")
