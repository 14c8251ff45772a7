"""Calls of other threads while the store is closed: each is done, or says that the store was closed."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import kvstore
from kvstore.checkpoint.messages import Answer
from kvstore.errors import StoreClosed, StoreError, Unavailable
from kvstore.meta.journal import Journal
from logformat.catalog.edits import AllocateWriter

EDITS: dict[str, Callable[[kvstore.Store, str], object]] = {
    "writer id": lambda store, _: store.new_writer_id(),
    "create": lambda store, name: store.create_table(name, {"k": "int64"}, "k"),
    "alter": lambda store, name: store.alter_table("t", retention=dt.timedelta(hours=1 + len(name))),
    "add columns": lambda store, name: store.add_columns("t", {name: "int64"}),
    "index": lambda store, name: store.create_index("t", name, "v"),
}


def closed_meanwhile(path: Path, edit: Callable[[kvstore.Store, str], object], seconds: float) -> set[type[Exception]]:
    """Errors of threads that edit the catalog when the store is closed after a time."""
    store = kvstore.open(path)
    store.create_table("t", {"k": "int64", "v": "string"}, "k")
    errors, numbers, began = set[type[Exception]](), count(), threading.Barrier(4)

    def go_on() -> None:
        began.wait()
        try:
            while True:
                edit(store, f"x{next(numbers)}")
        except Exception as error:  # whatever it is: it is what the user sees
            errors.add(type(error))

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    began.wait()
    threading.Event().wait(seconds)
    store.close()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edits_of_the_catalog(tmp_path: Path, edit: Callable[[kvstore.Store, str], object]) -> None:
    for number in range(6):
        path = tmp_path / str(number)
        assert closed_meanwhile(path, edit, 0.01 * number) == {StoreClosed}
        with kvstore.open(path) as store:
            assert store.check()


def test_an_edit_that_may_wait_does_not_wait_in_a_closed_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kvstore.open(tmp_path / "s")
    journal, check = store.runtime.journal, Journal.check_leads

    def closed_after(of: Journal) -> None:
        check(of)
        monkeypatch.undo()
        store.close()

    monkeypatch.setattr(Journal, "check_leads", closed_after)
    with pytest.raises(StoreClosed):
        journal.append_later(lambda state: AllocateWriter(writer_id=state.next_writer_id))
    assert not [each for each in threading.enumerate() if isinstance(each, threading.Timer)]


def test_a_checkpoint_whose_worker_the_close_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.checkpoint.controller.CLOSE_SECONDS", 0.01)
    began, killed = threading.Event(), threading.Event()

    class Slow:
        def answer(self, seconds: float) -> Answer:
            began.set()
            assert killed.wait(seconds)
            raise Unavailable("The worker ended without an answer.")

        def kill(self) -> None:
            killed.set()

    store = kvstore.open(tmp_path / "s")
    store.runtime.checkpoints.start = lambda _: Slow()
    errors: list[StoreError] = []

    def checkpoint() -> None:
        try:
            store.checkpoint()
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=checkpoint)
    thread.start()
    assert began.wait(60)
    store.close()
    thread.join()
    assert [type(error) for error in errors] == [StoreClosed]
