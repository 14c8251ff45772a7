"""Checkpoints between processes: a worker that dies, hangs or comes late, and other processes that add edits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import kvstore
from kvstore.checkpoint import controller as controllers, process, worker
from kvstore.checkpoint.controller import Controller
from kvstore.checkpoint.messages import Answer, Done, Task
from kvstore.checkpoint.process import WorkerProcess
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import StoreClosed, StoreLocked, Unavailable
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.meta.state import CatalogState
from logformat import paths
from logformat.catalog import edits
from logformat.catalog.edits import AllocateWriter, Payload
from logformat.ids import Epoch, Txid
from tests.checkpoint.catalogs import STORE, Catalog, encoded
from tests.support.clocks import SetClock
from tests.support.edits import payload
from tests.support.image_workers import Here, images_by
from tests.support.processes import Child, Pipe
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def workers_of_the_store() -> Iterator[None]:
    with images_by(WorkerProcess):
        yield


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path / "s", seed=3)
    catalog.append(40)
    yield catalog
    assert catalog.reloaded().is_same(catalog.expected)
    catalog.journal.close()


def test_a_worker_is_a_process_of_its_own(catalog: Catalog) -> None:
    controller = catalog.controller(WorkerProcess)
    first = controller.checkpoint()
    catalog.append(20)
    second = controller.checkpoint()
    assert (first.txid, first.previous, first.dropped_edits) == (40, None, 0)
    assert (second.txid, second.previous, second.dropped_edits) == (60, 40, 35)
    assert catalog.image_txids == [60, 40]
    again = controller.checkpoint()
    assert (again.txid, again.previous, again.written) == (60, 40, False)


def test_a_killed_worker_is_reported(catalog: Catalog) -> None:
    def killed(task: Task) -> WorkerProcess:
        running = WorkerProcess(task)
        running.kill()
        return running

    with pytest.raises(Unavailable, match="status=-9"):
        catalog.controller(killed).checkpoint()
    assert catalog.image_txids == []


def test_a_worker_that_can_not_work_says_why(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WORKER_MODULE", "kvstore.no_such_module")
    with pytest.raises(Unavailable, match="No module named"):
        catalog.controller(WorkerProcess).checkpoint()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="can't be started"):
        catalog.controller(WorkerProcess).checkpoint()


def test_a_worker_that_hangs_is_ended(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WORKER_MODULE", "tests.checkpoint.hanging")
    started: list[WorkerProcess] = []

    def start(task: Task) -> WorkerProcess:
        started.append(WorkerProcess(task))
        return started[0]

    monkeypatch.setattr(controllers, "WORKER_SECONDS", 1)
    with pytest.raises(Unavailable, match=r"took too long|status=-14"):
        catalog.controller(start).checkpoint()
    assert started[0].process.returncode in (-signal.SIGKILL, -signal.SIGALRM)


def test_a_worker_whose_controller_is_gone_ends_itself(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WORKER_MODULE", "tests.checkpoint.hanging")
    task = Task(epoch=Epoch(1), store=str(catalog.path), store_id=STORE, txid=Txid(40), seconds=1)
    running = WorkerProcess(task)
    assert running.process.wait(600) == -signal.SIGALRM
    running.process.communicate()


def controlled(pipe: Pipe, path: Path) -> None:
    journal = Journal(path, Files(), SetClock(), STORE, leadership=CatalogLeadership())

    def start(task: Task) -> WorkerProcess:
        running = WorkerProcess(task)
        pipe.send(running.process.pid)
        return running

    Controller(path, STORE, journal, Files(), SetClock(), start=start).checkpoint()


def test_a_worker_goes_on_without_its_controller(catalog: Catalog) -> None:
    with Child(controlled, catalog.path) as child:
        child.hear()
        child.kill()
    wait_until(lambda: catalog.image_txids == [40])
    wait_until(lambda: _is_free(catalog.path / paths.IMAGES / paths.LOCK_FILE))
    catalog.append(20)
    done = catalog.controller().checkpoint()
    assert (done.txid, done.previous, done.dropped_edits) == (60, 40, 35)


def _is_free(path: Path) -> bool:
    lock = ProcessLock(path)
    try:
        return lock.try_acquire()
    finally:
        lock.release()


def test_one_at_a_time(catalog: Catalog) -> None:
    catalog.controller().checkpoint()
    lock = ProcessLock(catalog.path / paths.IMAGES / paths.LOCK_FILE)
    lock.acquire()
    catalog.append(1)
    with pytest.raises(StoreLocked, match=f"is writing an image.* holder_pid={os.getpid()} "):
        catalog.controller(WorkerProcess).checkpoint()
    lock.release()
    catalog.controller().checkpoint()


def test_a_task_that_comes_late_is_refused(catalog: Catalog) -> None:
    task = Task(epoch=Epoch(1), store=str(catalog.path), store_id=STORE, txid=Txid(40), seconds=60)
    catalog.controller().checkpoint()
    with pytest.raises(Unavailable, match="newer checkpoint"):
        worker.run(task, Files(), SetClock())


def test_an_answer_of_another_epoch_does_not_count(catalog: Catalog) -> None:
    class Confused(Here):
        def answer(self, seconds: float) -> Answer:
            answer = super().answer(seconds)
            assert isinstance(answer, Done)
            return Done(
                epoch=Epoch(answer.epoch + 1), txid=answer.txid, previous=Txid(40), bytes=1, written=answer.written
            )

    catalog.controller().checkpoint()
    catalog.append(30)
    with pytest.raises(Unavailable, match="another checkpoint"):
        catalog.controller(Confused).checkpoint()
    assert catalog.first_edit == 1


def test_edits_that_a_replica_lacks_are_kept(catalog: Catalog) -> None:
    controller = Controller(
        catalog.path,
        STORE,
        catalog.journal,
        Files(),
        catalog.clock,
        shipped=lambda: [Txid(20)],
        start=lambda task: Here(task),
    )
    controller.checkpoint()
    catalog.append(20)
    assert controller.checkpoint().previous == 40
    assert catalog.first_edit == 15


def due(catalog: Catalog, edits_per_image: int, *, writes: bool = True, **more: object) -> Controller:
    controller = Controller(
        catalog.path,
        STORE,
        catalog.journal,
        Files(),
        catalog.clock,
        edits_per_image=edits_per_image,
        writes=lambda: writes,
        **more,  # type: ignore[arg-type]
    )
    catalog.journal.listen(controller)
    return controller


def _wait_for_end(controller: Controller) -> None:
    wait_until(lambda: not controller.at_work)


def test_a_process_that_writes_has_one_made_when_it_is_due(catalog: Catalog) -> None:
    controller = due(catalog, 50)
    catalog.append(9)
    assert not controller.at_work
    catalog.append(1)
    _wait_for_end(controller)
    assert catalog.image_txids == [50]
    catalog.append(49)
    assert not controller.at_work
    assert catalog.image_txids == [50]
    catalog.append(1)
    _wait_for_end(controller)
    assert catalog.image_txids == [100, 50]
    controller.close()
    assert controller.failure is None
    assert catalog.first_edit == 50


def test_a_process_that_only_reads_has_none_made(catalog: Catalog) -> None:
    controller = due(catalog, 10, writes=False)
    catalog.append(30)
    assert not controller.at_work
    assert catalog.image_txids == []


def test_what_fails_is_remembered_and_tried_later(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WORKER_MODULE", "kvstore.no_such_module")
    controller = due(catalog, 10)
    catalog.append(1)
    wait_until(lambda: controller.failure is not None and not controller.at_work)
    catalog.append(5)
    assert not controller.at_work, "it does not rest"
    monkeypatch.undo()
    catalog.clock.now += int(controllers.REST_SECONDS * 1000)
    catalog.append(1)
    wait_until(lambda: catalog.image_txids != [])
    controller.close()
    assert controller.failure is None


def test_closing_ends_a_worker_that_takes_too_long(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WORKER_MODULE", "tests.checkpoint.hanging")
    monkeypatch.setattr(controllers, "CLOSE_SECONDS", 0.1)
    started = threading.Event()

    def start(task: Task) -> WorkerProcess:
        started.set()
        return WorkerProcess(task)

    controller = due(catalog, 10, start=start)
    catalog.append(1)
    assert started.wait(600)
    controller.close()
    assert isinstance(controller.failure, StoreClosed)
    with pytest.raises(StoreClosed):
        controller.checkpoint()
    catalog.append(10)
    assert not controller.at_work


def edit(pipe: Pipe, path: Path, seed: int) -> None:
    """Adds edits, some of them about tables, until it gets a message; sends how many, and the writer ids it got."""
    random, journal, got = (
        Random(seed),
        Journal(path, Files(), SetClock(), STORE, edits_per_segment=7, leadership=CatalogLeadership()),
        [],
    )

    def decide(state: CatalogState) -> Payload:
        return payload(random, state)

    def allocate(state: CatalogState) -> Payload:
        got.append(state.next_writer_id)
        return AllocateWriter(writer_id=state.next_writer_id)

    journal.append(allocate)
    pipe.send("ready")
    number = 1
    while not pipe.poll():
        journal.append(allocate if number % 3 else decide)
        number += 1
        if not number % 50:
            journal.state()
    assert pipe.recv() == "end"
    pipe.send((number, got))
    pipe.recv()
    pipe.send(encoded(journal.state()))
    journal.close()


def test_processes_that_edit_at_once_while_segments_go(tmp_path: Path) -> None:
    """All edits are there in one order, and all processes come to the same, though segments go under them."""
    catalog = Catalog(tmp_path / "s", seed=3)
    seen: list[edits.Edit] = []
    dropped: list[int] = []
    with Child(edit, catalog.path, 1) as one, Child(edit, catalog.path, 2) as two:
        for child in (one, two):
            assert child.hear() == "ready"
        while len(seen) < 800 or len(dropped) < 4:
            seen += _edits_after(catalog.journal, len(seen))
            if count := catalog.controller().checkpoint().dropped_edits:
                dropped.append(count)
        for child in (one, two):
            child.say("end")
        counts, ids = zip(*(child.hear() for child in (one, two)), strict=True)
        assert len({*ids[0], *ids[1]}) == len(ids[0]) + len(ids[1])
        for child in (one, two):
            child.say("go on")
        states = {child.hear() for child in (one, two)}
    seen += _edits_after(catalog.journal, len(seen))
    assert [found.txid for found in seen] == list(range(1, sum(counts) + 1))
    state = CatalogState()
    for found in seen:
        state = state.after(found)
    assert states == {encoded(state)} == {encoded(catalog.reloaded())} == {encoded(catalog.journal.state())}
    assert catalog.first_edit == sum(dropped) + 1
    catalog.journal.close()


@pytest.mark.long
def test_two_processes_add_a_thousand_tables_each(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        pass
    with Child(make_tables, tmp_path / "s", "a") as one, Child(make_tables, tmp_path / "s", "b") as two:
        done = [child.hear(seconds=1800) for child in (one, two)]
    expected = sorted(f"{name}{number}" for name in "ab" for number in range(1000))
    assert done == ["done", "done"]
    with kvstore.open(tmp_path / "s") as store:
        assert store.list_tables() == expected
        assert store.runtime.catalog().txid == 2000
        assert [edit.txid for edit in _edits_after(store.runtime.journal, 0)] == list(range(1, 2001))
        assert store.check()


def make_tables(pipe: Pipe, path: Path, name: str) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False)])
    with kvstore.open(path) as store:
        for number in range(1000):
            store.create_table(f"{name}{number}", schema, "k")
        pipe.send("done")


def _edits_after(journal: Journal, txid: int) -> list[edits.Edit]:
    """Edits after one, as they stand in the journal."""
    found = journal.edits_after(Txid(txid))
    assert found is not None
    return list(map(edits.decode, found))


def test_a_process_that_lags_far_loads_the_image(catalog: Catalog) -> None:
    with Child(look, catalog.path) as child:
        assert child.hear() == encoded(catalog.expected)
        for _ in range(3):
            catalog.append(30)
            catalog.controller().checkpoint()
        assert catalog.first_edit > 80
        child.say("look")
        assert child.hear() == (encoded(catalog.expected), 130)


def look(pipe: Pipe, path: Path) -> None:
    journal = Journal(path, Files(), SetClock(), STORE, leadership=CatalogLeadership())
    pipe.send(encoded(journal.state()))
    pipe.recv()
    pipe.send((encoded(journal.state()), journal.base))
    os._exit(0)
