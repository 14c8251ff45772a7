"""Several processes as people start them: web workers, pools, task queues. None is refused, and each write counts once.

docs/how-to/workers.md shows most of them, and ``tests/test_pages.py`` runs it.
"""

from __future__ import annotations

import http.client
import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn

import kvstore
from tests.sending.writers import create
from tests.support import pages
from tests.support.processes import CONTEXT, Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

PAGE = pages.DOCS / "how-to" / "workers.md"
WORKERS = 3
CLIENTS = 6
VISITS = 8
"""Of each client, to a link that all visit."""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files of the page."""
    monkeypatch.chdir(tmp_path)
    for name, content in pages.files_of(PAGE).items():
        Path(name).write_text(content)
    return tmp_path


def forked(work: Callable[[], object]) -> int:
    """A child that does some work, and ends as a killed one does: nothing is closed."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def serve_forked(pipe: Pipe) -> None:
    """Be a server with workers that it forks: its own socket is theirs, too."""
    sys.path.insert(0, os.getcwd())
    module = importlib.import_module("shortener")  # before the fork, as gunicorn does with --preload
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(module.app, log_level="error")
    workers = [forked(lambda: uvicorn.Server(config).run(sockets=[listening])) for _ in range(WORKERS)]
    pipe.send((listening.getsockname()[1], workers))
    assert [os.waitpid(worker, 0)[1] for worker in workers] == [signal.SIGTERM] * WORKERS  # uvicorn raises it again


def asked(port: int, method: str, path: str) -> tuple[int, str]:
    """Status of an answer, and its content or where it leads."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, answer.headers.get("Location", content)


def visit(port: int) -> None:
    """Shorten and follow links from several clients at once; each is counted."""
    status, shared = asked(port, "POST", "/?url=http://shared")
    assert status == 201
    answers: list[tuple[int, str]] = []

    def client(number: int) -> None:
        _, own = asked(port, "POST", f"/?url=http://{number}")
        for _ in range(VISITS):
            answers.append(asked(port, "GET", f"/{shared}"))
            answers.append(asked(port, "GET", f"/{own}"))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert sorted(answers) == sorted(
        [(307, "http://shared")] * CLIENTS * VISITS + [(307, f"http://{n}") for n in range(CLIENTS)] * VISITS
    )
    assert asked(port, "GET", "/nothing") == (404, "There is no such link.")
    with kvstore.open("store") as store:
        hits = sorted(row["hits"] for row in rows_of(store.table("links")))
        assert hits == [VISITS] * CLIENTS + [CLIENTS * VISITS]


def test_web_workers_that_are_forked(directory: Path) -> None:
    with Child(serve_forked) as server:
        port, workers = server.hear()
        visit(port)
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        assert server.join() == 0
    with kvstore.open("store") as store:
        assert store.check()


@pytest.mark.long
def test_web_workers_that_are_started(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "shortener:app", "--workers", str(WORKERS), "--port", str(port)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}) as server:
        try:
            wait_until(lambda: answers(port))
            visit(port)
        finally:
            server.terminate()
    with kvstore.open("store") as store:
        assert store.check()


def answers(port: int) -> bool:
    try:
        return asked(port, "GET", "/nothing")[0] == 404
    except OSError:
        return False


def visit_forked(pipe: Pipe) -> None:
    """Import an application, and visit it in children."""
    sys.path.insert(0, os.getcwd())
    module = importlib.import_module("counter")

    def client() -> None:
        for _ in range(VISITS):
            assert module.app.test_client().get("/start").status_code == 200

    workers = [forked(client) for _ in range(WORKERS)]
    assert [os.waitpid(worker, 0)[1] for worker in workers] == [0] * WORKERS
    pipe.send(int(module.app.test_client().get("/start").text))


def test_an_application_that_opens_the_store_when_it_first_needs_it(directory: Path) -> None:
    pytest.importorskip("flask")
    with Child(visit_forked) as server:
        assert server.hear() == WORKERS * VISITS + 1
        assert server.join() == 0


def begin_pool(path: Path) -> None:
    global _table
    _table = kvstore.open(path).table("t")


def task_of_pool(number: int) -> int:
    _table.upsert({"k": number, "v": "task", "n": number})
    return _table.increment(-1, {"n": 1}, default={})["n"]


_table: kvstore.Table


def run_pools(pipe: Pipe, path: Path) -> None:
    """Run tasks in pools of processes, beside a store that is open here, and owns the bucket or does not."""
    multiprocessing.current_process().daemon = False  # it has children
    with kvstore.open(path) as store:
        table = store.table("t")
        done: list[int] = []
        for writes_first in (False, True):
            if writes_first:
                table.upsert({"k": -2, "v": "parent", "n": 0})
            for context in (multiprocessing.get_context("fork"), CONTEXT):
                with context.Pool(2, begin_pool, (path,), maxtasksperchild=4) as pool:
                    done += pool.map(task_of_pool, range(10), chunksize=1)
        pipe.send(done)


def test_pools_of_multiprocessing_with_workers_that_end_after_some_tasks(store_path: Path) -> None:
    create(store_path)
    with Child(run_pools, store_path) as parent:
        assert sorted(parent.hear()) == [*range(1, 41)]
        assert parent.join() == 0
    with kvstore.open(store_path) as store:
        assert {row["k"] for row in rows_of(store.table("t"))} == {-2, -1, *range(10)}
        assert store.check()


def run_tasks(pipe: Pipe, path: Path) -> None:
    """Hand out tasks to children as a queue does; one that was killed in its task gets it again, in another child."""
    create(path)
    with kvstore.open(path) as store:
        table = store.table("t")
        table.upsert({"k": 0, "v": "parent", "n": 0})  # the parent owns the bucket, for a while
        acknowledged = 0
        for task in range(12):
            read, write = os.pipe()

            def work(task: int = task, write: int = write) -> None:
                with kvstore.open(path) as own:
                    counted = own.table("t").increment(0, {"n": 1})["n"]
                    os.write(write, bytes((counted,)))
                    if task % 3 == 0:
                        os.kill(os.getpid(), signal.SIGKILL)  # at its time limit

            child = forked(work)
            os.close(write)
            (counted,) = os.read(read, 1)
            acknowledged += 1
            assert counted == acknowledged
            if task == 6:
                store.close()  # children that own the bucket come and go
            assert os.waitpid(child, 0)[1] == (signal.SIGKILL if task % 3 == 0 else 0)
            os.close(read)
    pipe.send(acknowledged)


def test_a_task_queue_whose_workers_are_killed(store_path: Path) -> None:
    with Child(run_tasks, store_path) as queue:
        assert queue.hear() == 12
        assert queue.join() == 0
    with kvstore.open(store_path) as store:
        assert store.table("t")[0]["n"] == 12
        assert store.check()


def come_and_go(pipe: Pipe, path: Path, rounds: int) -> None:
    """Open the store, write and close, together with others."""
    for number in range(rounds):
        pipe.recv()
        with kvstore.open(path) as store:
            for n in range(3):
                store.table("t").increment(0, {"n": 1})
                store.table("t").upsert({"k": number + 1, "v": "x", "n": n})
        pipe.send("closed")


def test_processes_that_all_come_and_go_at_once(store_path: Path) -> None:
    """Each becomes the owner, or meets one that may be about to close, and is not refused."""
    create(store_path)
    rounds = 6
    with kvstore.open(store_path) as store:
        store.table("t").upsert({"k": 0, "v": "x", "n": 0})
    with ExitStack() as stack:
        children = [stack.enter_context(Child(come_and_go, store_path, rounds)) for _ in range(8)]
        for _ in range(rounds):
            for child in children:
                child.say("go")
            assert [child.hear() for child in children] == ["closed"] * 8
    with kvstore.open(store_path) as store:
        assert store.table("t")[0]["n"] == 8 * rounds * 3
        assert store.table("t").count() == 1 + rounds
        assert store.check()


def fork_twice(pipe: Pipe, path: Path, owns: bool) -> None:
    """Fork a child before the store is open and one after; all three write at once."""
    go, gone = os.pipe()

    def child(name: str) -> None:
        os.close(gone)
        os.read(go, 1)  # until all are there
        with kvstore.open(path) as store:
            for n in range(20):
                store.table("t").increment(0, {"n": 1})
                store.table("t").upsert({"k": 100 + n if name == "before" else 200 + n, "v": name, "n": n})

    before = forked(lambda: child("before"))
    store = kvstore.open(path)
    table = store.table("t")
    if owns:
        table.increment(0, {"n": 1})
    else:
        table.get(0)
    after = forked(lambda: child("after"))
    os.close(gone)
    for n in range(20 - owns):
        table.increment(0, {"n": 1})
        table.upsert({"k": 300 + n, "v": "parent", "n": n})
    store.close()
    pipe.send([os.waitpid(each, 0)[1] for each in (before, after)])


@pytest.mark.parametrize("owns", [True, False])
def test_children_that_were_forked_before_and_after_the_store_was_opened(store_path: Path, owns: bool) -> None:
    create(store_path)
    with kvstore.open(store_path) as store:
        store.table("t").upsert({"k": 0, "v": "counter", "n": 0})
    with Child(fork_twice, store_path, owns) as parent:
        assert parent.hear() == [0, 0]
        assert parent.join() == 0
    with kvstore.open(store_path) as store:
        rows = {row["k"]: row["n"] for row in rows_of(store.table("t"))}
        assert rows.pop(0) == 60
        assert len(rows) == 60 - owns
        assert store.check()
