"""Opens what a crash left, and compares it with what was confirmed to each lane."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import kvstore
from kvstore.store.store import Store
from tests.proof.second.workload import (
    CONSUMER,
    FIRST_MS,
    LANES,
    STEP_MS,
    STORE,
    TABLES,
    WINDOW,
    Answer,
    Row,
    Script,
    State,
    Step,
    offsets_of,
    open_store,
    perform,
    writer_of,
)
from tests.support.clocks import SetClock
from tests.support.image_workers import Here

MORE_STEPS = 3
"""So many a lane goes on after a crash."""
Offsets = list[tuple[int, int]]


class Wrong(Exception):
    """What is there is not what was acknowledged."""


@dataclass
class Confirmed:
    """What was said of a lane by some time: how many steps began, and the offsets of those that were confirmed."""

    begun: int = 0
    done: list[Offsets] = field(default_factory=list)


def confirmed_by(marks: str) -> dict[str, Confirmed]:
    """By lane, what the diary says."""
    confirmed = {lane: Confirmed() for lane in LANES}
    for line in marks.splitlines():
        word, lane, number, offsets = line.split(" ", 3)
        if word == "begin":
            confirmed[lane].begun = int(number) + 1
        else:
            assert int(number) == len(confirmed[lane].done)
            confirmed[lane].done.append(ast.literal_eval(offsets))
    return confirmed


@contextmanager
def _opened(directory: Path) -> Iterator[Store]:
    """The store, at a later time; checkpoints are made in this process, which is faster."""
    with open_store(directory / STORE, SetClock(FIRST_MS + 1000 * STEP_MS)) as store:
        store.runtime.checkpoints.start = Here
        yield store


def recover(directory: Path) -> None:
    """What a process does after a crash: open the store, and have all buckets ready to be written."""
    with _opened(directory) as store:
        for name in store.list_tables():
            store.table(name).flush()
            for bucket in store.table(name).offsets():
                store.table(name).bucket(bucket).begin(0)


def judge(directory: Path, scripts: dict[str, Script], confirmed: dict[str, Confirmed]) -> int:
    """How many batches were sent again.

    Raises:
        Wrong: The store is not what it has to be.
        Exception: It can't be used.
    """
    retries = 0
    with _opened(directory) as store:
        reached = {}
        for lane, script in scripts.items():
            known = confirmed[lane]
            at = _found(store, script, known)
            _verify_catalog(store, script, known)
            retries += _send_again(store, script, known, at)
            reached[lane] = min(at + MORE_STEPS, len(script.steps))
            for number in range(at, reached[lane]):
                answer = perform(store, script.steps[number])
                if _is_write(answer) and answer.duplicated != script.steps[number].again:
                    raise Wrong(f"{script.steps[number]} after the crash: {answer}")
            _compare(store, script, script.states[reached[lane]])
    with _opened(directory) as store:
        for lane, script in scripts.items():
            _compare(store, script, script.states[reached[lane]])
        if findings := store.check().findings:
            raise Wrong(f"check: {findings}")
    return retries


def _is_write(answer: Answer) -> TypeGuard[kvstore.WriteResult | kvstore.AppendResult]:
    return isinstance(answer, kvstore.WriteResult | kvstore.AppendResult)


def _verify_catalog(store: Store, script: Script, confirmed: Confirmed) -> None:
    """No id is given twice, and no consumer goes back."""
    numbers: dict[str, int] = {}
    for step, offsets in zip(script.steps, confirmed.done, strict=False):
        if step.kind in ("id", "consumer"):
            ((numbers[step.kind], _),) = offsets
    if "id" in numbers and (given := store.new_writer_id()) <= numbers["id"]:
        raise Wrong(f"the id {given} was given before, {numbers['id']} was the last one")
    if "consumer" in numbers:
        position = store.consumers.get(CONSUMER, {}).get("log", {0: -1})[0]
        if position < numbers["consumer"]:
            raise Wrong(f"the consumer is at {position}, and was at {numbers['consumer']}")


def _found(store: Store, script: Script, confirmed: Confirmed) -> int:
    """How many steps the store has done: as many as were confirmed, or the one that was begun, too."""
    problems = []
    for done in range(confirmed.begun, len(confirmed.done) - 1, -1):
        try:
            _compare(store, script, script.states[done])
        except Wrong as problem:
            problems.append(f"not {done} steps: {problem}")
        else:
            if not _is_sent(store, script, confirmed, done):
                continue
            return done
    raise Wrong(
        f"{script.lane}, {len(confirmed.done)} of {confirmed.begun} steps were confirmed: {'; '.join(problems)}"
    )


def _is_sent(store: Store, script: Script, confirmed: Confirmed, done: int) -> bool:
    """Whether the step that is in doubt was done, if rows don't show it: the sequence of its writer does."""
    if done == len(confirmed.done):
        return True
    step = script.steps[done - 1]
    if step.kind in ("create", "drop", "columns"):
        return True
    if step.again or step.kind not in ("batch", "epoch"):
        return False  # it is done again, which changes nothing
    table = store.table(step.table)
    if step.kind == "epoch":
        return table.is_applied(f"w {step.table}", step.number)
    return table.bucket(step.bucket).last_sequence(writer_of(step.table)) == step.number


def _send_again(store: Store, script: Script, confirmed: Confirmed, at: int) -> int:
    """The last batches of each writer are duplicates, with the offsets they got."""
    sent: dict[tuple[str, int], list[tuple[Step, Offsets | None]]] = {}
    for number, step in enumerate(script.steps[:at]):
        if step.kind == "create":
            sent = {place: some for place, some in sent.items() if place[0] != step.table}
        if step.kind in ("batch", "epoch") and not step.again:
            offsets = confirmed.done[number] if number < len(confirmed.done) else None
            sent.setdefault((step.table, step.bucket), []).append((step, offsets))
    count = 0
    for (table, _), steps in sent.items():
        if table not in store.list_tables():
            continue
        for step, offsets in steps[-WINDOW:]:
            if len(script.states[at][table].columns) > 3:
                continue  # its columns are more by now
            answer = perform(store, step)
            if not _is_write(answer) or not answer.duplicated or offsets not in (None, offsets_of(answer)):
                raise Wrong(f"{step} sent again: {answer}, not a duplicate at {offsets}")
            count += 1
    return count


def _compare(store: Store, script: Script, state: State) -> None:
    """The tables of a lane are as after some step."""
    existing = [name for name in LANES[script.lane] if name in store.list_tables()]
    if existing != [name for name in LANES[script.lane] if name in state]:
        raise Wrong(f"tables are {existing}, not {list(state)}")
    for name, expected in state.items():
        table = store.table(name)
        if table.schema.names != expected.columns:
            raise Wrong(f"columns of {name} are {table.schema.names}, not {expected.columns}")
        if TABLES[name].is_log:
            rows = [_row(row) for row in _changes(store, name)]
            _same(name, rows, expected.appended)
            continue
        found = {row["k"]: row for row in table.scan().read_all().to_pylist()}
        _same(name, found, expected.rows)
        folded, is_whole = _folded(store, name)
        if is_whole:
            _same(f"changes of {name}, folded,", folded, found)
        else:
            _same(f"last changes of {name}", {k: found.get(k) for k in folded}, folded)


def _changes(store: Store, name: str) -> Iterator[Row]:
    """In the order of offsets, bucket by bucket; none is there twice."""
    table = store.table(name)
    for bucket, (start, end) in table.offsets().items():
        last = start - 1
        for batch in table.changelog(bucket=bucket):
            for row in batch.to_pylist():
                if not last < row["_log_offset"] < end:
                    raise Wrong(f"{name}, bucket {bucket}: offset {row['_log_offset']} after {last}, end {end}")
                last = row["_log_offset"]
                yield row


def _row(change: Row) -> Row:
    return {name: value for name, value in change.items() if not name.startswith("_")}


def _folded(store: Store, name: str) -> tuple[dict[int, Row | None], bool]:
    """Rows by the changes; and whether these begin with the table. If not, None for a row that was deleted."""
    rows: dict[int, Row | None] = {}
    for change in _changes(store, name):
        match change["_change_type"]:
            case "insert" | "update_postimage":
                rows[change["k"]] = _row(change)
            case "delete":
                rows[change["k"]] = None
    # Asked last: maintenance may expire changes at any time.
    is_whole = all(start == 0 for start, _ in store.table(name).offsets().values())
    return {key: row for key, row in rows.items() if row is not None or not is_whole}, is_whole


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Wrong(f"{what}: {found}, not {expected}")
