"""Whether a whole store that was opened after a crash is one that the model allows, and goes on as it should.

* Tables, rows, changelogs, consumers and job are those of one moment, all of them.
* Batches that were acknowledged are duplicates; the job loads what is missing; the replica is whole after one round.
* A replica in a directory may have lost its newest objects to a power cut (docs/replicas.md): it says so, is repaired.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

import kvstore
from kvstore.replica.client import ObjectStore
from kvstore.replica.replica import Replica
from kvstore.testing.model import WINDOW
from tests.crash.verdict import Finding, Wrong, equal_rows, is_true, problems, together
from tests.crash.whole_history import (
    OF_EPOCHS,
    OF_JOB,
    OF_NAMED,
    Table,
    WholeHistory,
    World,
    after,
    bucket_of,
    file_name,
)
from tests.crash.whole_store import CONSUMER, EPOCHS, JOB, NAMED, REPLICA, SETTINGS, STORE, Act, opened

QUIET = {**SETTINGS, "commit_idle_ms": 60_000, "commit_wait_ms": 60_000}
WRITER = 0
MORE = (("upsert", {"k": 3, "v": -1, "s": "after"}), ("delete", {"k": 5}), ("upsert", {"k": 8, "v": -2, "s": None}))


@lru_cache(maxsize=1)
def prepare() -> None:
    """Start what object stores need, so that it is not taken for something that was left over."""
    with tempfile.TemporaryDirectory() as name:
        list(ObjectStore(name).list())


def examine(directory: Path, history: WholeHistory, *, thorough: bool = True) -> Finding:
    """Open the store, compare all of it, go on with all of it, check it, open it again and compare it again.

    Args:
        directory: Of the run: the store is in it, and the replica.
        thorough: Send again every batch that may be, not only each writer's last, and restore from the replica.
    """
    inquiry = _Inquiry(directory, history, thorough=thorough)
    with problems() as problem:
        inquiry.run()
    return Finding(inquiry.fits, retries=inquiry.retries, repaired=inquiry.repaired, **problem)


class _Inquiry:
    def __init__(self, directory: Path, history: WholeHistory, *, thorough: bool) -> None:
        self._directory, self._history, self._thorough = directory, history, thorough
        self.fits: frozenset[float] = frozenset()
        self.retries = 0
        self.repaired = False

    def run(self) -> None:
        existed = (self._directory / STORE / "STORE").exists()
        with opened(self._directory / STORE, QUIET) as store:
            world = self._found(store, exists=existed)
            world = self._completed(store, world)
            self._send_again(store, world)
            world = self._write_on(store, world)
            world = self._load(store, world)
            self._ship(store)
            findings = store.check().findings
            _equal(findings, [], "what check finds")
        with opened(self._directory / STORE, QUIET) as store:
            _equal(key_of(store, exists=True), world.key(), "the store after a reopen")
            self._compare(store, world)
            self._duplicate(store, "t", world.by_name["t"], 0, WRITER)

    def _found(self, store: kvstore.Store, *, exists: bool) -> World:
        """The world that the store agrees with."""
        key = key_of(store, exists=exists)
        moments = self._history.moments.get(key)
        if not moments:
            raise Wrong(f"there was never a store such as {key}")
        wrong: Wrong | None = None
        fitting = []
        for done, world in moments:
            try:
                self._compare(store, world)
            except Wrong as error:
                wrong = error
            else:
                fitting.append((done, world))
        if not fitting:
            assert wrong is not None
            raise wrong
        self.fits = frozenset(done for done, _ in fitting)
        return fitting[-1][1]

    def _compare(self, store: kvstore.Store, world: World) -> None:
        for name, expected in world.tables:
            table = store.table(name)
            equal_rows(together(list(table.scan()), expected.schema).sort_by("k"), expected.rows, f"rows of {name}")
            _equal(table.count(), expected.rows.num_rows, f"count of {name}")
            for bucket, changes in enumerate(expected.changes):
                found = list(table.changelog(columns=changes.schema.names, bucket=bucket))
                equal_rows(together(found, changes.schema), changes, f"changes of {name}, bucket {bucket}")

    def _completed(self, store: kvstore.Store, world: World) -> World:
        """Make what is not there yet, for the rest is about it."""
        world = _then(world, Act("open"))
        if "t" not in world.by_name:
            store.create_table("t", world_schema(), primary_key="k", buckets=2)
            world = _then(world, Act("create"))
        if not world.has_replica:
            store.add_replica(str(self._directory / REPLICA), REPLICA)
            world = _then(world, Act("add replica"))
        if not world.has_job:
            store.create_job(JOB, source=self._history.script.source, format="csv", table="t", max_files=1)
            world = _then(world, Act("create job"))
        return world

    def _send_again(self, store: kvstore.Store, world: World) -> None:
        for name, table in world.tables:
            for bucket, model in enumerate(table.models):
                for writer in model.sent:
                    if writer != OF_JOB:
                        self._duplicate(store, name, table, bucket, writer)

    def _duplicate(self, store: kvstore.Store, name: str, table: Table, bucket: int, writer: int) -> None:
        """Send batches of a writer again: each is one, with the offsets it got."""
        found = store.table(name)
        nothing = kvstore.Changes.of([], found.schema)
        sent = table.models[bucket].sent[writer][-WINDOW:]
        for number, answer in sent if self._thorough else sent[-1:]:
            if writer == OF_EPOCHS:
                result = found.apply_epoch(nothing, EPOCHS, number).by_bucket[bucket]  # type: ignore[index]
            elif writer == OF_NAMED:
                named = found.writers[NAMED]
                result = found.bucket(bucket).apply(nothing, named.writer_id, number, named.epoch)
            else:
                result = found.bucket(bucket).apply(nothing, writer, number)
            given = result.first_offset, result.last_offset, result.duplicated
            expected = answer.first_offset, answer.last_offset, True
            _equal(given, expected, f"writer {writer} of {name}, bucket {bucket}, batch {number} sent again")
            self.retries += 1

    def _write_on(self, store: kvstore.Store, world: World) -> World:
        table = store.table("t")
        model = world.by_name["t"].models[0]
        for writer in (WRITER, OF_EPOCHS):
            number = model.next_sequence(writer)
            kind = "batch" if writer == WRITER else "epoch"
            operations = tuple(each for each in MORE if kind == "epoch" or _is_in_first(each[1]["k"]))
            act = Act(kind, operations=operations, writer=writer, number=number)  # type: ignore[arg-type]
            world = _then(world, act)
            changes = kvstore.Changes.of(list(operations), table.schema)
            if kind == "batch":
                table.bucket(0).apply(changes, writer, number)
            else:
                table.apply_epoch(changes, EPOCHS, number)
            self._duplicate(store, "t", world.by_name["t"], 0, writer)
        return world

    def _load(self, store: kvstore.Store, world: World) -> World:
        """Have the job load all that it has not."""
        store.job(JOB).run()
        while world.loaded < self._history.script.files:
            world = _then(world, Act("load", number=world.loaded))
        _equal(key_of(store, exists=True), world.key(), "the store after its job was run")
        return world

    def _ship(self, store: kvstore.Store) -> None:
        place = self._directory / REPLICA
        place.mkdir(exist_ok=True)  # a power cut may have taken it
        # The catalog has the place of the run.
        replica = Replica(store.runtime, REPLICA, lambda: None, lambda _: ObjectStore(str(place)))
        store.flush()
        replica.ship()
        if found := replica.check().findings:
            self.repaired = True
            report = replica.repair()
            is_true(bool(report), lambda: f"the replica is repaired, and yet {report.findings}; before it was {found}")
        if self._thorough:
            with tempfile.TemporaryDirectory(dir=self._directory) as name:
                kvstore.restore(str(place), Path(name) / STORE)
                with opened(Path(name) / STORE, QUIET) as back:
                    self._same(store, back)

    def _same(self, store: kvstore.Store, back: kvstore.Store) -> None:
        """What was restored is the store."""
        _equal(back.list_tables(), store.list_tables(), "restored tables")
        for name in store.list_tables():
            one, other = store.table(name), back.table(name)
            _equal(other.schema, one.schema, f"restored schema of {name}")
            _equal(other.offsets(), one.offsets(), f"restored offsets of {name}")
            rows = together(list(one.scan()), one.schema).sort_by("k")
            equal_rows(together(list(other.scan()), one.schema).sort_by("k"), rows, f"restored rows of {name}")
            for bucket in one.offsets():
                schema = one.changelog_schema()
                found = [together(list(each.changelog(bucket=bucket)), schema) for each in (other, one)]
                equal_rows(found[0], found[1], f"restored changes of {name}, bucket {bucket}")


def world_schema() -> pa.Schema:
    """Of a table before any column was added to it."""
    return Table.new("t").schema


def key_of(store: kvstore.Store, *, exists: bool) -> object:
    """A store as :meth:`World.key` describes it."""
    tables = {}
    for name in store.list_tables():
        table = store.table(name)
        tables[name] = tuple(table.schema.names), tuple(end for _, (_, end) in sorted(table.offsets().items()))
    known = store.consumers.get(CONSUMER, {}).get("t")
    position = None if known is None else tuple(known[bucket] for bucket in sorted(known))
    has_job = JOB in store.list_jobs()
    return repr(
        (exists, tables, position, REPLICA in store.replicas, has_job, _tasks(store.job(JOB)) if has_job else 0)
    )


def _tasks(job: kvstore.Job) -> int:
    """How many tasks a job has ended; its offset and statistics are those of as many."""
    status = job.show()
    tasks = status.statistics.succeeded_tasks
    _equal(status.offset, file_name(tasks - 1) if tasks else None, "the job's offset")
    totals = status.statistics
    counts = totals.file_number, totals.scanned_rows, totals.loaded_rows, totals.filtered_rows, totals.failed_tasks
    _equal(counts, (tasks, 3 * tasks, 3 * tasks, 0, 0), "the job's statistics")
    return tasks


def _then(world: World, act: Act) -> World:
    *_, last = after(world, act)
    return last


def _is_in_first(key: int) -> bool:
    return bucket_of(key, 2) == 0


def _equal(found: object, expected: object, what: str) -> None:
    is_true(found == expected, lambda: f"{what}: {found}, not {expected}")
