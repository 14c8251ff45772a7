"""Callers receive the answers of the owner themselves; what they can't receive is left to the sender's thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.process.signals import undisturbed
from kvstore.sending import sender
from tests.sending.writers import create
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

SECONDS = 600.0


def own(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        store.table("t").upsert({"k": -1, "v": "owner", "n": 0})
        pipe.send("owns")
        pipe.recv()


@pytest.fixture
def owner(store_path: Path) -> Iterator[Child]:
    create(store_path)
    with Child(own, store_path) as child:
        assert child.hear() == "owns"
        yield child


@pytest.fixture
def _never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender's thread looks only when it is woken: an answer that is left to it silently is never seen."""
    monkeypatch.setattr(sender, "TICK_SECONDS", SECONDS)


def is_receiving() -> bool:
    """Whether the main thread waits for an answer."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_filename == sender.__file__ and frame.f_code.co_name == "frames":
            return True
        frame = frame.f_back
    return False


def is_sending() -> bool:
    return any(thread.name == "kvstore-sending" for thread in threading.enumerate())


def write_numbered(table: kvstore.Table, keys: range) -> None:
    with table.writer("numbered") as writer:
        for k in keys:
            writer.upsert({"k": k, "v": "w", "n": k})


@pytest.mark.usefixtures("owner", "_never_looks")
def test_answers_of_several_threads_and_of_a_writer_are_all_received(store_path: Path) -> None:
    with kvstore.open(store_path) as store, ThreadPoolExecutor(4) as pool:
        table = store.table("t")

        def work(number: int) -> None:
            for n in range(40):
                table.upsert({"k": number, "v": str(number), "n": n})
                table.increment(100 + number, {"n": 1}, default={})

        working = [pool.submit(work, number) for number in range(3)]
        write_numbered(table, range(1000, 1100))
        for each in working:
            each.result(SECONDS)
        write_numbered(table, range(1100, 1200))
        work(3)
        counted = {row["k"]: row["n"] for row in rows_of(table)}
        assert [counted[100 + number] for number in range(4)] == [40] * 4
        assert len(counted) == 1 + 8 + 200


@pytest.mark.usefixtures("owner", "_never_looks")
def test_the_main_thread_of_a_program_with_handlers_leaves_its_answers_to_the_thread(store_path: Path) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with kvstore.open(store_path) as store:
            for n in range(5):
                assert store.table("t").increment(1, {"n": 1}, default={})["n"] == n + 1
    finally:
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_ends_the_wait_of_a_caller_and_what_it_sent_is_written_once(owner: Child, store_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with kvstore.open(store_path) as store:
            table = store.table("t")
            table.upsert({"k": 1, "v": "met", "n": 0})
            for n in range(3):
                owner.stop()

                def interrupt() -> None:
                    wait_until(is_receiving)
                    os.kill(os.getpid(), signal.SIGINT)

                thread = threading.Thread(target=interrupt)
                thread.start()
                with pytest.raises(KeyboardInterrupt):
                    table.upsert({"k": 10 + n, "v": "interrupted", "n": n})
                thread.join()
                os.kill(owner.pid, signal.SIGCONT)
                table.upsert({"k": 20 + n, "v": "after", "n": n})
            written = [change["k"] for batch in table.changelog() for change in batch.to_pylist()]
            assert written == [-1, 1, 10, 20, 11, 21, 12, 22]
            assert store.check()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_end_of_an_owner_is_seen_while_nothing_is_sent(owner: Child, store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "met", "n": 0})
        assert is_sending()
        owner.kill()
        wait_until(lambda: not is_sending())
        table.upsert({"k": 2, "v": "own", "n": 0})
        assert table.bucket(0).handle.writes


@pytest.mark.usefixtures("owner")
def test_a_handler_that_writes_while_its_program_is_about_to_receive_gets_its_answer(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receives: list[bool] = []

    def interrupted(work: Any, *args: Any) -> bool:
        if not receives:
            os.kill(os.getpid(), signal.SIGALRM)
        return undisturbed(work, *args)

    with kvstore.open(store_path) as store:
        table = store.table("t")
        table.upsert({"k": 1, "v": "met", "n": 0})

        def write(*_: object) -> None:
            receives.append(True)
            table.upsert({"k": 2, "v": "handler", "n": 0})

        before = signal.signal(signal.SIGALRM, write)
        try:
            monkeypatch.setattr(sender, "undisturbed", interrupted)
            table.upsert({"k": 3, "v": "program", "n": 0})
        finally:
            signal.signal(signal.SIGALRM, before)
        assert receives == [True]
        assert {row["k"] for row in rows_of(table)} == {-1, 1, 2, 3}


@pytest.mark.usefixtures("owner")
def test_an_answer_to_come_is_not_cancelled(store_path: Path) -> None:
    """What was sent is written; and the future of one caller must not end the thread that answers all."""
    with kvstore.open(store_path) as store:
        table = store.table("t")
        for k in range(20):
            changes = kvstore.Changes.of([("upsert", {"k": k, "v": "s", "n": 0})], table.schema)
            answer = table.bucket(0).submit(changes)
            assert not answer.cancel()
        table.upsert({"k": 20, "v": "s", "n": 0})
        assert answer.result(SECONDS)
        assert len(table) == 22
