"""Whether a store that was opened after a crash is one that the model allows, and goes on as it should.

Everything goes through the public interface: what is wrong there is wrong for a user.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

import kvstore
from kvstore.bucket.maintenance import Maintenance
from kvstore.errors import CorruptData, OutOfOrderSequence
from kvstore.testing.model import WINDOW, Answer, Model, Operation
from tests.crash.history import CHANGES, History, Moment, Window, batch_of, changes_of, copy_of
from tests.crash.workload import SCHEMA, TABLE

Badness = Literal["LOST", "PHANTOM", "MIXED", "UNREADABLE"]
NOTHING = kvstore.Changes.of([], SCHEMA)
WRITER = 0
MORE: list[Operation] = [
    ("upsert", {"k": 3, "v": -1, "s": "after"}),
    ("upsert", {"k": 99, "v": -1, "s": None}),
    ("delete", {"k": 5}),
]
ABSENT: dict[str, Any] = {"v": -7, "s": "nothing"}
"""Values that no row has, of columns with which an index begins."""
MORE_CHANGES = kvstore.Changes.of(MORE, SCHEMA)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one state.

    Attributes:
        fits: Numbers of done steps that the contents agree with.
        end: Log end, -1 without a table.
        problem: What is wrong whatever was confirmed; empty if nothing is.
        badness: The kind of that problem.
        noticed: The store, or its check, said that it is damaged.
        retries: Batches that were sent again.
        repaired: The replica had holes, and was repaired.
    """

    fits: frozenset[float] = frozenset()
    end: int = -1
    problem: str = ""
    badness: Badness = "MIXED"
    noticed: bool = False
    retries: int = 0
    repaired: bool = False


class Wrong(Exception):
    """The store does not do what the model does."""

    def __init__(self, problem: str, badness: Badness = "MIXED") -> None:
        super().__init__(problem)
        self.badness: Badness = badness


def examine(path: Path, history: History, *, thorough: bool = True) -> Finding:
    """Open the store, compare it, write to it, check it, open it again and compare it again.

    Nothing expires meanwhile. If anything could have before, the index is lost in the end and must come back.

    Args:
        thorough: Ask for every batch that writers may repeat, not only the last; after the reopen read all changes, not
            only the new ones, and write once more.
    """
    with patch.object(Maintenance, "begin"):
        return _examined(path, history, thorough=thorough)


def _examined(path: Path, history: History, *, thorough: bool) -> Finding:
    settings = {**history.script.options, "commit_idle_ms": 60_000, "commit_wait_ms": 60_000}
    had_store = (path / "STORE").exists()
    fits: frozenset[float] = frozenset()
    end, retries = -1, 0
    with problems() as problem:
        with kvstore.open(path, **settings) as store:
            if TABLE not in store.list_tables():
                fits = frozenset(
                    moment.done
                    for moment in history.moments
                    if moment.model is None and (had_store or not moment.has_store)
                )
                model = Model(("k",))
                store.create_table(TABLE, SCHEMA, primary_key="k")
            else:
                end = store.table(TABLE).offsets()[0][1]
                fitting = _compare(store.table(TABLE), history)
                fits = frozenset(moment.done for moment in fitting)
                assert fitting[-1].model is not None
                model = copy_of(fitting[-1].model)
            retries = _go_on(store.table(TABLE), model, thorough=thorough)
            findings = store.check().findings
            if findings:
                return Finding(fits, end, f"check finds {findings}", noticed=True)
        with kvstore.open(path, **settings) as store:
            table = store.table(TABLE)
            rows = batch_of(model.rows)
            equal_rows(_rows(table), rows, "rows after a reopen")
            _finds(table, rows)
            start = max(table.offsets()[0][0], 0 if thorough else end)
            new = [change for change in model.log if change[0] >= start]
            equal_rows(_changes(table, start), changes_of(new), "changes after a reopen")
            if thorough:
                _equals_answer(table, MORE_CHANGES, model, WRITER, model.next_sequence(WRITER) - 1)
        if history.script.retention_ms is not None:
            shutil.rmtree(path / "tables" / "1" / "0" / "index")
            with kvstore.open(path, **settings) as store:
                table = store.table(TABLE)
                equal_rows(_rows(table), batch_of(model.rows), "rows after the index was lost")
                _equals_answer(table, MORE_CHANGES, model, WRITER, model.next_sequence(WRITER) - 1)
                findings = store.check().findings
                if findings:
                    return Finding(fits, end, f"check finds {findings} after the index was lost", noticed=True)
    return Finding(fits, end, retries=retries, **problem)


@contextmanager
def problems() -> Iterator[dict[str, Any]]:
    """What a :class:`Finding` says of the errors inside, which are what a user would get."""
    problem: dict[str, Any] = {}
    try:
        yield problem
    except Wrong as wrong:
        problem |= {"problem": str(wrong), "badness": wrong.badness}
    except Exception as error:
        noticed = isinstance(error, CorruptData)
        problem |= {"problem": f"{type(error).__name__}: {error}", "badness": "UNREADABLE", "noticed": noticed}


def judge(finding: Finding, window: Window, history: History) -> tuple[Badness, str] | None:
    """What is bad about a state, given what had been confirmed and started; None if nothing is."""
    if finding.problem:
        if finding.badness == "MIXED" and not finding.fits and finding.end >= 0:
            ends = [moment.model.end for moment in history.moments if moment.model and window.holds(moment.done)]
            if ends and finding.end < ends[0]:
                return "LOST", finding.problem
            if ends and finding.end > ends[-1]:
                return "PHANTOM", finding.problem
        return finding.badness, finding.problem
    if any(window.holds(done) for done in finding.fits):
        return None
    what = f"steps done {sorted(finding.fits)}, confirmed {window.confirmed}, started {window.started}"
    return ("LOST" if max(finding.fits) < window.confirmed else "PHANTOM"), what


def _compare(table: kvstore.Table, history: History) -> list[Moment]:
    """Moments that the table agrees with."""
    end = table.offsets()[0][1]
    fitting = history.ending_at(end)
    if not fitting:
        raise Wrong(f"the log ends at {end}, which is between two batches")
    moment = fitting[-1]
    start, _ = table.offsets()[0]
    changes = history.changes.slice(0, moment.changes)
    expected = changes if not start else changes.filter(pc.field("_log_offset") >= start)
    equal_rows(_changes(table, start), expected, "changes")
    equal_rows(_rows(table), moment.rows, "rows")
    count = table.count()
    is_true(count == moment.rows.num_rows, lambda: f"{moment.rows.num_rows} rows are counted as {count}")
    names = frozenset(table.indexes)
    fitting = [moment for moment in fitting if moment.indexes == names]
    if not fitting:
        raise Wrong(f"the log ends at {end}, where the table never had the indexes {sorted(names)}")
    _finds(table, moment.rows)
    return fitting


def _finds(table: kvstore.Table, rows: pa.RecordBatch) -> None:
    """Each index finds the rows of each value, and of one that there is not."""
    for name in {columns[0] for columns in table.indexes.values()}:
        column = rows.column(name)
        for value in [*pc.unique(column).to_pylist(), ABSENT[name]]:
            there = pc.is_null(column) if value is None else pc.equal(column, value)
            found = table.find(**{name: value}).combine_chunks().to_batches()
            equal_rows(together(found, SCHEMA), rows.filter(there), f"rows of {name} = {value!r:.30}")


def _go_on(table: kvstore.Table, model: Model, *, thorough: bool) -> int:
    """Write to the table; returns how many batches were sent again."""
    retries = 1
    for writer, sent in model.sent.items():
        remembered = [sequence for sequence, _ in sent[-WINDOW:]]
        for sequence in remembered if thorough else remembered[-1:]:
            _equals_answer(table, NOTHING, model, writer, sequence)
            retries += 1
        if thorough:
            _is_refused(table, writer, model.next_sequence(writer) + 1)
        if thorough and len(sent) > WINDOW:
            _is_refused(table, writer, sent[-WINDOW - 1][0])
    _is_refused(table, 77, 3)
    sequence = model.next_sequence(WRITER)
    _equals_answer(table, MORE_CHANGES, model, WRITER, sequence)
    _equals_answer(table, MORE_CHANGES, model, WRITER, sequence)
    row = table.get(99)
    is_true(row == MORE[1][1], lambda: f"a row just written is {row}")
    return retries


def _equals_answer(table: kvstore.Table, changes: kvstore.Changes, model: Model, writer: int, sequence: int) -> None:
    try:
        result = table.bucket(0).apply(changes, writer, sequence)
    except OutOfOrderSequence as error:
        raise Wrong(f"writer {writer}: {error}") from error
    answer = Answer(result.first_offset, result.last_offset, result.duplicated)
    expected = model.apply(MORE if changes is MORE_CHANGES else [], writer, sequence)
    is_true(answer == expected, lambda: f"writer {writer} sequence {sequence}: {answer}, not {expected}")


def _is_refused(table: kvstore.Table, writer: int, sequence: int) -> None:
    try:
        result = table.bucket(0).apply(NOTHING, writer, sequence)
    except OutOfOrderSequence:
        return
    raise Wrong(f"writer {writer} sequence {sequence} is out of order and was taken: {result}")


def _rows(table: kvstore.Table) -> pa.RecordBatch:
    return together(list(table.scan()), SCHEMA)


def _changes(table: kvstore.Table, start: int) -> pa.RecordBatch:
    return together(list(table.changelog(start, columns=CHANGES.names)), CHANGES)


def together(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        return pa.RecordBatch.from_pylist([], schema)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def equal_rows(found: pa.RecordBatch, expected: pa.RecordBatch, what: str) -> None:
    is_true(found.equals(expected), lambda: f"{what}: {found.to_pylist()}, not {expected.to_pylist()}")


def is_true(holds: bool, otherwise: Callable[[], str]) -> None:
    if not holds:
        raise Wrong(otherwise())
