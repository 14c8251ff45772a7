"""A process that is stopped while it edits the catalog: readers go on, and what waits for it gets an error."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.clock import SystemClock
from kvstore.disk import lock
from kvstore.disk.files import Files
from kvstore.errors import StoreLocked
from tests.store.helpers import Program, run
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
ROWS = [{"k": key, "v": key} for key in range(100)]

EDITOR = """
from logformat.catalog.edits import AllocateWriter
def decide(state):
    print("editing")
    sys.stdin.readline()
    return AllocateWriter(writer_id=state.next_writer_id)
with kvstore.open(path) as store:
    store.table("t").upsert([{"k": 1, "v": 1}])
    store.table("t").flush()
    store.new_writer_id()
    store.runtime.journal.append(decide)
    print("edited")
"""
"""Writes, and waits within an edit of the catalog."""


@pytest.fixture
def editor(store_path: Path) -> Iterator[Program]:
    """A process that is stopped within an edit."""
    with kvstore.open(store_path, edits_per_journal=3) as store:
        store.create_table("t", SCHEMA, "k", buckets=2).upsert(ROWS)
        store.create_table("u", SCHEMA, "k")
        store.new_writer_id()
        store.new_writer_id()
    with Program(store_path, EDITOR) as editor:
        assert editor.line() == "editing"
        os.kill(editor.pid, signal.SIGSTOP)
        yield editor


READER = """
with kvstore.open(path, read_only=True) as store:
    assert store.list_tables() == ["t", "u"]
    table = store.table("t")
    assert table.count() == len(table.scan().read_all()) == 100
    assert table.get(7) == {"k": 7, "v": 7}
    assert sum(1 for _ in table.changelog()) > 0
    assert table.writers == {} and store.consumers == {}
    assert store.health().txid > 0
    assert store.check()
print("read")
"""


def test_a_reader_does_not_wait_for_a_stopped_writer(store_path: Path, editor: Program) -> None:
    assert run(store_path, READER) == "read"


def test_an_edit_that_waits_for_a_stopped_process_names_it(
    store_path: Path, editor: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock.EDIT_WAIT_SECONDS < 30
    monkeypatch.setattr(lock, "EDIT_WAIT_SECONDS", 0.2)
    with kvstore.open(store_path) as store:
        edits = {
            "writer": store.new_writer_id,
            "table": lambda: store.create_table("w", SCHEMA, "k"),
            "columns": lambda: store.add_columns("t", pa.field("w", pa.int64())),
            "drop": lambda: store.drop_table("u"),
            "consumer": lambda: store.table("t").parts.hold("c", {0: 0, 1: 0}),
        }
        for name, edit in edits.items():
            with pytest.raises(StoreLocked, match=f"holder_pid={editor.pid}") as refused:
                edit()
            assert "edits the catalog" in str(refused.value), name
        assert store.list_tables() == ["t", "u"]
        assert store.table("t").count() == 100
        editor.kill()
        store.new_writer_id()
        for edit in edits.values():
            edit()
        assert store.list_tables() == ["t", "w"]
        assert store.check()


def test_threads_that_read_do_not_wait_for_one_that_edits(
    store_path: Path, editor: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do edits wait one after the other: each gets its error in time."""
    tries: list[float] = []
    monkeypatch.setattr(lock, "check_caller", lambda: tries.append(threading.get_ident()))
    with kvstore.open(store_path) as store:
        editing = [threading.Thread(target=store.new_writer_id, daemon=True) for _ in range(2)]
        for thread in editing:
            thread.start()
        wait_until(lambda: len(set(tries)) == 2)  # both are looking for the lock
        assert store.list_tables() == ["t", "u"]
        assert store.table("t").count() == 100
        assert all(thread.is_alive() for thread in editing)
        editor.kill()
        for thread in editing:
            thread.join(600)


def test_an_edit_waits_for_one_that_goes_on(store_path: Path, editor: Program) -> None:
    with kvstore.open(store_path) as store:
        before = store.runtime.catalog().txid
        ids: list[int] = []
        waiting = threading.Thread(target=lambda: ids.append(store.new_writer_id()), daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        os.kill(editor.pid, signal.SIGCONT)
        editor.go_on()
        assert editor.line() == "edited"
        waiting.join(600)
        assert len(ids) == 1
        assert store.runtime.catalog().txid == before + 2


def test_a_child_of_a_process_does_not_keep_its_lock(tmp_path: Path) -> None:
    """A forked process has the descriptors of its parent; the parent dies within an edit."""
    path, clock = tmp_path / "LOCK", SystemClock()
    ours, theirs = os.pipe()
    if not (parent := os.fork()):
        with lock.EditLock(path, Files(), clock).held():
            if not os.fork():
                os.write(theirs, str(os.getpid()).encode())
                threading.Event().wait(600)
            os.read(ours, 0)
            threading.Event().wait(600)
    child = int(os.read(ours, 20))
    try:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        with lock.EditLock(path, Files(), clock).held():
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(ours)
        os.close(theirs)
