"""A process that dies in the middle of a commit over several tables leaves all of it or nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import kvstore
from kvstore.commit import parts
from kvstore.commit.staging import Staging
from kvstore.disk.files import Files
from kvstore.log.log import Log
from kvstore.meta.journal import Journal
from tests.crash.deaths import dies
from tests.crash.places import workplace
from tests.support.processes import Child, Pipe
from tests.support.proof import Proves

# Each says where a process dies that commits to table `a` of one bucket and `b` of two, and whether it takes place.
STEPS: dict[str, tuple[Callable[[], None], bool]] = {
    "nothing is staged": (lambda: dies(Staging, "write"), False),
    "half of a table is staged": (lambda: dies(Files, "sync_directory"), False),
    "one table is staged": (lambda: dies(Staging, "write", after=True), False),
    "all is staged": (lambda: dies(Staging, "write", call=1, after=True), False),
    "before the intent": (lambda: dies(Journal, "append"), False),
    "after the intent": (lambda: dies(Journal, "append", after=True), True),
    **{
        f"{when} append {number}": (partial(dies, Log, "append", call=number, after=after), True)
        for number in range(3)
        for when, after in (("before", False), ("after", True))
    },
    "before the ends": (lambda: dies(Journal, "append_later"), True),
    "after the ends": (lambda: dies(Journal, "append_later", after=True), True),
    "after what was staged for one is removed": (lambda: dies(Staging, "remove", after=True), True),
    "after all": (lambda: dies(Staging, "remove", call=1, after=True), True),
}
OF_FILES = (
    *("nothing is staged", "half of a table is staged", "one table is staged", "all is staged"),
    *("after what was staged for one is removed", "after all"),
)
"""Steps that there are only if the batches are staged in files, not in the edit."""


@pytest.fixture
def path() -> Iterator[Path]:
    with workplace() as directory:
        with kvstore.open(directory / "s") as store:
            store.create_table("b", {"k": "int64", "v": "int64"}, primary_key="k", buckets=2)
            store.create_table("a", {"k": "int64", "v": "int64"}, primary_key="k")
        yield directory / "s"


def move(store: kvstore.Store, epoch: int) -> kvstore.TransactionResult:
    """Move 1 of each of three values from table `a` to `b`."""
    with store.transaction(writer="mover", epoch=epoch) as tx:
        for name, change in (("a", -1), ("b", 1)):
            rows = [tx.get(name, k) or {"k": k, "v": 0} for k in range(3)]
            tx.upsert(name, [{**row, "v": row["v"] + change} for row in rows])
    assert tx.result is not None
    return tx.result


def move_and_die(pipe: Pipe, path: Path, step: str, in_edit: bool) -> None:
    if not in_edit:
        parts.IN_EDIT_BYTES_MAX = 0
    with kvstore.open(path) as store:
        move(store, 0)
        STEPS[step][0]()
        pipe.send("ready")
        move(store, 1)


@pytest.mark.parametrize(
    ("step", "in_edit"),
    [(step, in_edit) for step in STEPS for in_edit in (False, True) if not (in_edit and step in OF_FILES)],
)
def test_killed_in_a_transaction(path: Path, proves: Proves, step: str, in_edit: bool) -> None:
    with Child(move_and_die, path, step, in_edit) as child:
        assert child.hear() == "ready"
        assert child.join() == -signal.SIGKILL
    moved = 1 + STEPS[step][1]
    with kvstore.open(path) as store:
        assert {name: values(store, name) for name in "ab"} == {"a": [-moved] * 3, "b": [moved] * 3}
        assert move(store, 1).duplicated == STEPS[step][1]
        assert not move(store, 2).duplicated
        assert {name: values(store, name) for name in "ab"} == {"a": [-3] * 3, "b": [3] * 3}
        report = store.check()
        assert report.ok, report.findings
    assert not list((path / "staging").glob("*"))
    proves("kill -9 points", 1)


def values(store: kvstore.Store, name: str) -> list[int]:
    return [row["v"] for row in store.table(name).lookup(list(range(3))).to_pylist()]
