"""Whether a store that was opened after a crash is one that the model allows, and goes on as it should.

* Tables, rows, changelogs, indexes, consumers and job are those of one moment, all of them.
* Batches that were acknowledged are duplicates; the job loads what is missing; the replica is whole after one round.
* A replica in a directory may have lost its newest objects to a power cut (docs/replicas.md): it says so, is repaired.

Everything goes through the public interface: what is wrong there is wrong for a user.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

import kvstore
from kvstore.bucket.maintenance import Maintenance
from kvstore.errors import CorruptData, OutOfOrderSequence
from kvstore.replica.client import ObjectStore
from kvstore.replica.replica import Replica
from kvstore.testing.model import WINDOW, Operation
from tests.crash.history import FILE_ROWS, OF_EPOCHS, OF_JOB, OF_NAMED, History, Table, Window, World, after, bucket_of
from tests.crash.workload import CONSUMER, JOB, REPLICA, STORE, TABLE, Script, Step, StepKind, Worker, opened, write

Badness = Literal["LOST", "PHANTOM", "MIXED", "UNREADABLE"]
WRITER, STRANGER = 0, 77
MORE: tuple[Operation, ...] = (
    ("upsert", {"k": 3, "v": -1, "s": "after"}),
    ("upsert", {"k": 99, "v": -1, "s": None}),
    ("delete", {"k": 5}),
)
ABSENT: dict[str, Any] = {"v": -7, "s": "nothing"}
"""Values that no row has, of columns with which an index begins."""
LONG_MS = 60_000
KINDS: dict[int, StepKind] = {OF_EPOCHS: "epoch", OF_NAMED: "named"}
"""How a writer sends; all others send batches of their own."""


@dataclass(slots=True)
class Finding:
    """What was found in one state.

    Attributes:
        fits: Numbers of done steps that the contents agree with.
        problem: What is wrong whatever was confirmed; empty if nothing is.
        badness: The kind of that problem.
        noticed: The store, or its check, said that it is damaged.
        retries: Batches that were sent again.
        repaired: The replica had holes, and was repaired.
    """

    fits: frozenset[float] = frozenset()
    problem: str = ""
    badness: Badness = "MIXED"
    noticed: bool = False
    retries: int = 0
    repaired: bool = False


class Wrong(Exception):
    """The store does not do what the model does. ``noticed``: it says so."""

    def __init__(self, problem: str, *, noticed: bool = False) -> None:
        super().__init__(problem)
        self.noticed = noticed


@lru_cache(maxsize=1)
def prepare() -> None:
    """Start what object stores need, so that it is not taken for something that was left over."""
    with tempfile.TemporaryDirectory() as name:
        list(ObjectStore(name).list())


def examine(directory: Path, history: History, *, thorough: bool = True) -> Finding:
    """Open the store, compare all of it, go on with all of it, check it, open it again and compare it again.

    Nothing expires meanwhile. If anything could have before, the index is lost in the end and must come back.

    Args:
        directory: Directory of the run: the store is in it, and the replica.
        thorough: Send again every batch that may be, not only each writer's last, and what must be refused; restore
            from the replica.
    """
    finding = Finding()
    try:
        with patch.object(Maintenance, "begin"):
            _Examination(directory, history, finding, thorough=thorough).run()
    except Wrong as wrong:
        finding.problem, finding.noticed = str(wrong), wrong.noticed
    except Exception as error:  # whatever it is, the user would get it
        finding.problem, finding.badness = f"{type(error).__name__}: {error}", "UNREADABLE"
        finding.noticed = isinstance(error, CorruptData)
    return finding


def judge(finding: Finding, window: Window) -> tuple[Badness, str] | None:
    """What is bad about a state, given what had been confirmed and started; None if nothing is."""
    if finding.problem:
        return finding.badness, finding.problem
    if any(window.holds(done) for done in finding.fits):
        return None
    what = f"steps done {sorted(finding.fits)}, confirmed {window.confirmed}, started {window.started}"
    return ("LOST" if max(finding.fits) < window.confirmed else "PHANTOM"), what


class _Examination:
    def __init__(self, directory: Path, history: History, finding: Finding, *, thorough: bool) -> None:
        self._directory, self._history, self._script = directory, history, history.script
        self._options = {**self._script.options, "commit_idle_ms": LONG_MS, "commit_wait_ms": LONG_MS}
        self._worker = Worker(directory, self._script)
        self._finding, self._thorough = finding, thorough

    def run(self) -> None:
        path = self._directory / STORE
        exists = (path / "STORE").exists()
        with opened(path, self._options) as store:
            world = self._completed(store, self._fitting(store, exists=exists))
            self._send_again(store, world)
            world = self._write_on(store, world)
            if self._script.source:
                world = self._load(store, world)
                self._ship(store)
            _check(store)
        with opened(path, self._options) as store:
            self._is_the_same(store, world, is_written=self._thorough or bool(self._script.source))
        if self._script.retention_ms is not None:
            shutil.rmtree(path / "tables" / "1" / "0" / "index")
            with opened(path, self._options) as store:
                self._is_the_same(store, world, is_written=True)
                _check(store)

    def _fitting(self, store: kvstore.Store, *, exists: bool) -> World:
        """The last of the worlds that the store agrees with."""
        key = _key_of(store, self._script, exists=exists)
        moments = self._history.moments.get(key)
        if not moments:
            raise Wrong(f"there was never a store such as {key}")
        contents = contents_of(store)
        problems = [_problem(contents, world) for _, world in moments]
        fitting = [moment for moment, problem in zip(moments, problems, strict=True) if problem is None]
        if not fitting:
            raise Wrong(str(problems[-1]))
        self._finding.fits = frozenset(done for done, _ in fitting)
        world = fitting[-1][1]
        _search(store, world)
        return world

    def _is_the_same(self, store: kvstore.Store, world: World, *, is_written: bool) -> None:
        """The store was opened again: compare it, and perhaps write to it."""
        _equal(_key_of(store, self._script), world.key(), "the store after a reopen")
        if problem := _problem(contents_of(store), world):
            raise Wrong(f"{problem}, after a reopen")
        _search(store, world)
        if is_written:
            table = world.by_name[TABLE]
            last, _ = table.models[0].sent[WRITER][-1]
            _is_answered(store, Step("batch", writer=WRITER, number=last), table, duplicated=True)
            self._finding.retries += 1

    def _completed(self, store: kvstore.Store, world: World) -> World:
        """Make what the script makes in the beginning and is not there yet, for the rest is about it."""
        for step in self._script.steps:
            if step.kind in ("open", "create", "add replica", "create job") and step.table == TABLE:
                self._worker.do_in(store, step)
                world = after(world, step)
        return world

    def _send_again(self, store: kvstore.Store, world: World) -> None:
        for name, table in world.tables:
            for bucket, model in enumerate(table.models):
                for writer, sent in model.sent.items():
                    if writer == OF_JOB:
                        continue
                    self._duplicate(store, name, table, bucket, writer)
                    if self._thorough and writer not in KINDS:
                        _is_refused(store, Step("batch", name, bucket, (), writer, model.next_sequence(writer) + 1))
                        if len(sent) > WINDOW:
                            _is_refused(store, Step("batch", name, bucket, (), writer, sent[-WINDOW - 1][0]))
        _is_refused(store, Step("batch", writer=STRANGER, number=3))

    def _duplicate(self, store: kvstore.Store, name: str, table: Table, bucket: int, writer: int) -> None:
        """Send batches of a writer again: each is one, with the offsets it got."""
        sent = table.models[bucket].sent[writer][-WINDOW:]
        for number, _ in sent if self._thorough else sent[-1:]:
            step = Step(KINDS.get(writer, "batch"), name, bucket, (), writer, number)
            _is_answered(store, step, table, duplicated=True)
            self._finding.retries += 1

    def _write_on(self, store: kvstore.Store, world: World) -> World:
        model = world.by_name[TABLE].models[0]
        of_bucket = tuple(each for each in MORE if bucket_of(each[1]["k"], len(world.by_name[TABLE].models)) == 0)
        steps = [Step("batch", operations=of_bucket, writer=WRITER, number=model.next_sequence(WRITER))]
        if self._script.source:
            steps.append(Step("epoch", operations=MORE, writer=OF_EPOCHS, number=model.next_sequence(OF_EPOCHS)))
        for step in steps:
            world = after(world, step)
            _is_answered(store, step, world.by_name[TABLE], duplicated=False)
            _is_answered(store, step, world.by_name[TABLE], duplicated=True)
            self._finding.retries += 1
        _equal(store.table(TABLE).get(99), MORE[1][1], "a row just written")
        return world

    def _load(self, store: kvstore.Store, world: World) -> World:
        """Have the job load all that it has not."""
        store.job(JOB).run()
        while world.loaded < len(list(Path(self._script.source).iterdir())):
            world = after(world, Step("load"))
        _equal(_key_of(store, self._script), world.key(), "the store after its job was run")
        return world

    def _ship(self, store: kvstore.Store) -> None:
        place = self._directory / REPLICA
        place.mkdir(exist_ok=True)  # a power cut may have taken it
        # The catalog has the place of the run.
        replica = Replica(store.runtime, REPLICA, lambda: None, lambda _: ObjectStore(str(place)))
        store.flush()
        replica.ship()
        if findings := replica.check().findings:
            self._finding.repaired = True
            report = replica.repair()
            _is_true(bool(report), lambda: f"a replica with {findings} is repaired, and yet {report.findings}")
        if self._thorough:
            with tempfile.TemporaryDirectory(dir=self._directory) as name:
                kvstore.restore(str(place), Path(name) / STORE)
                with opened(Path(name) / STORE, self._options) as back:
                    _equal(contents_of(back), contents_of(store), "what was restored")


class _Contents(NamedTuple):
    """What is read of a table."""

    counted: int
    offsets: dict[Any, tuple[Any, Any]]
    rows: pa.Table
    changes: list[pa.Table]


def contents_of(store: kvstore.Store) -> dict[str, _Contents]:
    """All tables of a store."""
    contents = {}
    for name in store.list_tables():
        table = store.table(name)
        rows = table.scan().read_all()
        rows = rows if table.buckets == 1 else rows.sort_by("k")
        changes = [table.changelog(bucket=bucket).read_all() for bucket in range(table.buckets)]
        contents[name] = _Contents(table.count(), table.offsets(), rows, changes)
    return contents


def _problem(contents: dict[str, _Contents], world: World) -> str | None:
    """What is other in a store than in a world of the same key; None if nothing is."""
    for name, expected in world.tables:
        table = contents[name]
        if not table.rows.equals(expected.rows):
            return f"rows of {name}: {table.rows.to_pylist()}, not {expected.rows.to_pylist()}"
        if table.counted != expected.rows.num_rows:
            return f"{expected.rows.num_rows} rows of {name} are counted as {table.counted}"
        for bucket, changes in enumerate(expected.changes):
            start, _ = table.offsets[bucket]
            kept = changes.filter(pc.field("_log_offset") >= start) if start else changes
            seen = table.changes[bucket].select(changes.schema.names)
            if not seen.equals(kept):
                return f"changes of {name}, bucket {bucket}: {seen.to_pylist()}, not {kept.to_pylist()}"
    return None


def _search(store: kvstore.Store, world: World) -> None:
    """Each index finds the rows of each value, and of one that there is not."""
    for table, expected in world.tables:
        indexes = store.table(table).indexes if expected.indexes else {}
        for name in {columns[0] for columns in indexes.values()}:
            column = expected.rows.column(name)
            for value in [*pc.unique(column).to_pylist(), ABSENT[name]]:
                rows = expected.rows.filter(pc.is_null(column) if value is None else pc.equal(column, value))
                _equal(store.table(table).find(**{name: value}), rows, f"rows of {name} = {value!r:.30}")


def _is_answered(store: kvstore.Store, step: Step, table: Table, *, duplicated: bool) -> None:
    """A batch that the table has is answered as it is by the model."""
    answer = dict(table.models[step.bucket].sent[step.writer])[step.number]
    try:
        result = write(store, step)
    except OutOfOrderSequence as error:
        raise Wrong(f"writer {step.writer}: {error}") from error
    given = result.first_offset, result.last_offset, result.duplicated
    expected = answer.first_offset, answer.last_offset, duplicated
    _equal(given, expected, f"writer {step.writer} of {step.table}, bucket {step.bucket}, batch {step.number}")


def _is_refused(store: kvstore.Store, step: Step) -> None:
    try:
        result = write(store, step)
    except OutOfOrderSequence:
        return
    raise Wrong(f"writer {step.writer} sequence {step.number} is out of order and was taken: {result}")


def _check(store: kvstore.Store) -> None:
    findings = store.check().findings
    if findings:
        raise Wrong(f"check finds {findings}", noticed=True)


def _key_of(store: kvstore.Store, script: Script, *, exists: bool = True) -> str:
    """A store as :meth:`World.key` describes it; without a job there is nothing but tables."""
    tables = {}
    for name in store.list_tables():
        table = store.table(name)
        ends = tuple(end for _, (_, end) in sorted(table.offsets().items()))
        tables[name] = table.schema.names, ends, sorted(table.indexes)
    if not script.source:
        return repr((exists, tables, None, False, False, 0))
    known = store.consumers.get(CONSUMER, {}).get(TABLE)
    position = None if known is None else tuple(known[bucket] for bucket in sorted(known))
    has_job = JOB in store.list_jobs()
    tasks = _tasks(store.job(JOB)) if has_job else 0
    return repr((exists, tables, position, REPLICA in store.replicas, has_job, tasks))


def _tasks(job: kvstore.Job) -> int:
    """How many tasks a job has ended; its offset and statistics are those of as many."""
    status = job.show()
    totals = status.statistics
    tasks = totals.succeeded_tasks
    _equal(status.offset, f"{tasks - 1:03}.csv" if tasks else None, "the job's offset")
    counts = totals.file_number, totals.scanned_rows, totals.loaded_rows, totals.filtered_rows, totals.failed_tasks
    _equal(counts, (tasks, FILE_ROWS * tasks, FILE_ROWS * tasks, 0, 0), "the job's statistics")
    return tasks


def _equal(given: object, expected: object, what: str) -> None:
    _is_true(given == expected, lambda: f"{what}: {given}, not {expected}")


def _is_true(holds: bool, otherwise: Callable[[], str]) -> None:
    if not holds:
        raise Wrong(otherwise())
