"""A process that is stopped at any step of a write, and a reader that is killed while it reads.

While one is stopped others read and write; what it writes they are refused with StoreLocked at once. Only if it is
stopped in an edit of the catalog they may have to wait: LMDB knows no lock that can be asked for, and opening a
store opens databases of the catalog under it. Once it goes on, so do the others, and nothing is lost or there twice.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket import committer
from kvstore.disk.environment import Environment
from kvstore.errors import StoreLocked
from kvstore.meta.state import CatalogState
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.catalog.edits import AllocateWriter
from tests.crash.conftest import Tell
from tests.proof.actors import quiet
from tests.proof.barrier import HANG_SECONDS, Barrier, Hang, stacks
from tests.proof.budget import Run, budget
from tests.proof.operations import ELSEWHERE
from tests.proof.world import SETTINGS, WRITTEN, Rows, World, Written, as_rows, changes_of, rows_written
from tests.support.clocks import SetClock
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import ends_or_waits

EDIT_SECONDS = 3.0
"""An edit that takes longer waits for another, or is slow: then a reader may be, too."""


class Stopping(Barrier):
    """Stops the whole process where others hold a thread."""

    def step(self, name: str) -> None:
        with self._change:
            if self._armed:
                self.seen.append(name)
                if len(self.seen) - 1 == self._at:
                    self._armed = False
                    os.kill(os.getpid(), signal.SIGSTOP)


def edit_elsewhere(path: Path, _: Barrier, __: int) -> int:
    with kvstore.open(path, **SETTINGS) as store:
        return store.new_writer_id()


JOBS: dict[str, Callable[[Path, Barrier, int], object]] = {
    "write": ELSEWHERE["write_elsewhere"],
    "epoch": ELSEWHERE["epoch_elsewhere"],
    "edit": edit_elsewhere,
}


def serve(pipe: Pipe, path: Path) -> None:
    barrier = Stopping()
    with quiet(), barrier.installed():
        while (order := pipe.recv()) is not None:
            job, at, number = order
            barrier.arm(at)
            try:
                answer = JOBS[job](path, barrier, number)
            except StoreLocked as error:
                answer = error
            barrier.disarm()
            pipe.send((answer, list(barrier.seen)))


def is_stopped(child: Child) -> bool:
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2][0] == "T"


class Beside(threading.Thread):
    """Something done in this process meanwhile."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.answer: object = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._work()
        except Exception as error:
            self.answer = error

    def finish(self) -> object:
        self.join(HANG_SECONDS)
        if self.is_alive():
            raise Hang(stacks())
        if isinstance(self.answer, Exception) and not isinstance(self.answer, StoreLocked):
            raise self.answer
        return self.answer


class Stops:
    """A store that no process has open, one that is stopped while it has, and another one that edits the catalog."""

    def __init__(self, child: Child, other: Child, world: World) -> None:
        self.child, self.other, self.world = child, other, world
        self.came_of_it: Counter[str] = Counter()

    def steps(self, job: str) -> int:
        self._send(job, None)
        return len(self._hear())

    def stop_at(self, job: str, at: int) -> None:
        self._send(job, at)
        deadline = time.monotonic() + HANG_SECONDS
        while not is_stopped(self.child) and not self.child.pipe.poll(0.001):
            assert time.monotonic() < deadline
        if not is_stopped(self.child):
            self._hear()
            return
        number = self.world.next()
        before = {k for each in self.world.writes for k in each.rows}
        writing = None
        try:
            reading = Beside(self._read)
            reads = ends_or_waits(reading) or self._catalog_is_free()
            if reads:
                reading.finish()
                writing = Beside(lambda: self._write(number))
                ends = ends_or_waits(writing)
        finally:
            os.kill(self.child.pid, signal.SIGCONT)
        rows = reading.finish()
        assert isinstance(rows, dict)
        assert rows.keys() >= before, "a reader sees less than was acknowledged and committed"
        answer = None if writing is None else writing.finish()
        self._hear()
        if not reads:
            self._hear_edit()
        if isinstance(answer, Written):
            self.world.acknowledge_write(answer)
        what = "read later" if answer is None else "refused" if isinstance(answer, StoreLocked) else "written"
        self.came_of_it[what if answer is None or ends else f"{what} later"] += 1
        self._verify()

    def _catalog_is_free(self) -> bool:
        """Whether another process can add an edit."""
        self.other.say(("edit", None, 0))
        if not self.other.pipe.poll(EDIT_SECONDS):
            return False
        self._hear_edit()
        return True

    def _hear_edit(self) -> None:
        given, _ = self.other.hear(HANG_SECONDS)
        self.world.given.append(given)

    def _send(self, job: str, at: int | None) -> None:
        self.child.say((job, at, self.world.begin_epoch() if job == "epoch" else self.world.next()))

    def _hear(self) -> list[str]:
        answer, seen = self.child.hear(HANG_SECONDS)
        if isinstance(answer, Written):
            self.world.acknowledge_write(answer)
        elif isinstance(answer, int):
            self.world.given.append(answer)
        return list(seen)

    def _read(self) -> Rows:
        with kvstore.open(self.world.path, read_only=True, **SETTINGS) as store:
            return as_rows(rows_of(store.table(WRITTEN)))

    def _write(self, number: int) -> Written:
        rows = rows_written(number)
        with kvstore.open(self.world.path, **SETTINGS) as store:
            result = store.table(WRITTEN).upsert(changes_of(rows).rows).by_bucket[0]
        return Written(result.first_offset, result.last_offset + 1, rows)

    def _verify(self) -> None:
        self.world.open()
        try:
            self.world.edit(1)
            self.world.verify([])
            assert self.world.store.check().ok
        finally:
            self.world.close()


def stop(run: Run, seed: int, work: Path, tell: Tell) -> None:
    world = World(work / "store")
    world.open()
    world.begin_pair()
    world.close()
    with quiet(), Child(serve, world.path) as child, Child(serve, world.path) as other:
        stops = Stops(child, other, world)
        places = [(job, at) for job in JOBS for at in range([stops.steps(job) for _ in range(2)][1])]
        count = budget("stops", run)
        for job, at in Random(seed).sample(places, min(count, len(places))):
            try:
                stops.stop_at(job, at)
            except BaseException as error:
                error.add_note(f"{job} stopped at step {at}")
                raise
        child.say(None)
        child.join()
    tell(f"{stops.came_of_it.total()} stops of {len(places)} places: {dict(stops.came_of_it)}")
    assert stops.came_of_it.total() >= 0.7 * min(count, len(places))


def test_stopped(work: Path, tell: Tell) -> None:
    stop("quick", 1, work, tell)


@pytest.mark.nightly
@pytest.mark.long
def test_stopped_at_more_steps(work: Path, tell: Tell) -> None:
    stop("long", int.from_bytes(os.urandom(4)), work, tell)


# A reader that is killed

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
ROWS, ROUNDS = 20_000, 12


class LeapingClock(SetClock):
    """Its monotonic time may leap ahead, as after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def hold(pipe: Pipe, path: Path) -> None:
    store = kvstore.open(path, read_only=True)
    batches = store.table("t").scan()
    next(iter(batches))
    pipe.send("reading")
    pipe.recv()


def grown(path: Path) -> float:
    """How much larger an index becomes by the same rows again and again, once its reader was killed."""
    clock = LeapingClock()
    with Store(path, StoreOptions(map_bytes=1 << 28), clock=clock) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")

        def rewrite(value: int) -> int:
            table.upsert(pa.table({"k": range(ROWS), "v": [value] * ROWS}).cast(SCHEMA))
            store.flush()
            return (path / "tables/1/0/index/data.mdb").stat().st_size

        sizes = [rewrite(value) for value in range(4)]
        with Child(hold, path) as reader:
            assert reader.hear() == "reading"
            reader.kill()
        clock.ahead = committer.READER_CHECK_SECONDS
        sizes += [rewrite(value) for value in range(4, 4 + ROUNDS)]
        assert table.count() == ROWS
    return sizes[-1] / sizes[3]


def test_the_index_does_not_grow_for_ever_when_a_reader_was_killed(work: Path) -> None:
    assert grown(work / "store") < 2.5


@pytest.mark.long
def test_the_index_grows_without_release_of_dead_readers(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the killed reader's slot is never freed."""
    monkeypatch.setattr(Environment, "release_dead_readers", lambda _: 0)
    assert grown(work / "store") > 4


# A reader while another process is stopped in an edit of the catalog


def edit_and_stop(pipe: Pipe, path: Path) -> None:
    def stop_and_decide(state: CatalogState) -> AllocateWriter:
        os.kill(os.getpid(), signal.SIGSTOP)  # with LMDB's lock, under which an edit is decided
        return AllocateWriter(writer_id=state.next_writer_id)

    with kvstore.open(path) as store:
        pipe.send(store.runtime.journal.append(stop_and_decide).next_writer_id)


def read_in_a_thread(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path, read_only=True) as store:
        reading = Beside(lambda: store.table("t").count())
        ends_or_waits(reading)
        pipe.send("goes on")
        pipe.send(reading.finish())


def test_a_thread_that_waits_for_the_catalog_stops_no_other_thread(store_path: Path) -> None:
    """Opening a database of LMDB waits for the process that writes, and did so with Python's own lock held."""
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, primary_key="k")
    with Child(edit_and_stop, store_path) as editor:
        while not is_stopped(editor):
            time.sleep(0.001)
        with Child(read_in_a_thread, store_path) as reader:
            try:
                assert reader.hear() == "goes on"
            finally:
                os.kill(editor.pid, signal.SIGCONT)
            assert reader.hear() == 0
            assert editor.hear() >= 0
