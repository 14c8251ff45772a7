"""Histories of a path while a process writes there: it is moved, removed, replaced, restored, swapped by a link (R17).

After each change the process goes on for longer than a second. It acknowledges nothing after the first, no byte of any
directory that is not the store's changes, and what it had acknowledged is in the directory that was moved, unless that
was removed. Then it closes, opens what is there now if that is a store, and writes that.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

import kvstore
from kvstore.disk.held_directory import HeldDirectory
from kvstore.errors import StoreError
from tests.crash.conftest import Tell
from tests.proof.budget import Run, budget
from tests.support.path_changes import CHANGES, SCHEMA, WHOLE, Paths, Tree, make_stores, tree
from tests.support.processes import Child, Pipe
from tests.support.proof import Proves

PROMISED_SECONDS = 1.0
GOES_ON_SECONDS = 1.3
"""The writer goes on for so long after a change;"""
PLANTED_SECONDS = 4.0
"""and for so long if it is to be found out, on a busy machine, too."""
CHANGES_MAX = 3
REMOVING = {name for name in CHANGES if name.startswith("removed")}
"""Of the rows that were acknowledged before, nothing is left then."""
MISSING = {"CorruptBatch", "CorruptData"}
"""What is said of a part that is not there, if it was not open before."""
KEYS_FROM = 1000


@dataclass
class WriterReport:
    """What a writer has to say of one store that it had open.

    Attributes:
        acknowledged: Keys, and when each was acknowledged, in seconds of the machine's monotonic clock.
        error: Name of the error that came last.
    """

    acknowledged: dict[int, float] = field(default_factory=dict)
    error: str = ""


def serve(pipe: Pipe, path: Path, seed: int) -> None:
    """Write until the path was changed, and then for as long as it is asked to; again and again."""
    random, key = Random(seed), KEYS_FROM
    while pipe.recv() == "open":
        report = WriterReport()
        try:
            store = kvstore.open(path, segment_bytes_max=2000, edits_per_journal=50)
        except StoreError as error:
            report.error = type(error).__name__
            pipe.send(report)
            continue
        idle = random.random() < 0.3
        table, until = store.table("t"), None
        if random.random() < 0.7:
            table.upsert([{"k": key, "v": 1}])
            report.acknowledged[key] = time.monotonic()
        pipe.send("open")
        while until is None or time.monotonic() < until:
            if until is None and pipe.poll(0.001 if not idle else None):
                until = time.monotonic() + pipe.recv()
            key += 1
            try:
                _act(random, store, table, key)
                report.acknowledged[key] = time.monotonic()
            except StoreError as error:
                report.error = type(error).__name__
                time.sleep(0.001)
        with suppress(StoreError):
            store.close()
        pipe.send(report)


def _act(random: Random, store: kvstore.Store, table: kvstore.Table, key: int) -> None:
    """Write a row; and something else, now and then."""
    match random.randrange(20):
        case 0:
            table.snapshot()
        case 1:
            store.create_table(f"t{key}", SCHEMA, "k")
        case 2:
            store.new_writer_id()
        case 3:
            store.flush()
        case 4:
            store.consumer("c").commit("t", {0: 1})
        case 5 if random.random() < 0.1:
            store.checkpoint()
    table.upsert([{"k": key, "v": 1}])


class History:
    """A path, a process that writes there, and what becomes of the path."""

    def __init__(self, paths: Paths, child: Child, random: Random, seconds: float = GOES_ON_SECONDS) -> None:
        self.paths, self._child, self._random, self._seconds = paths, child, random, seconds
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        for _ in range(self._random.randint(1, CHANGES_MAX)):
            if not self._is_store():
                self._put_back()
            self._child.say("open")
            answer = self._child.hear()
            assert answer == "open", answer
            self.change(self._random.choice(list(CHANGES)))

    def _is_store(self) -> bool:
        if not (self.paths.data / "STORE").exists() or any(each.is_symlink() for each in self._parts()):
            return False
        with suppress(StoreError), kvstore.open(self.paths.data, read_only=True) as store:
            return store.table("t").count() >= 0 and bool(store.check())
        return False

    def _parts(self) -> list[Path]:
        return [self.paths.data.parent, self.paths.data, *self.paths.data.rglob("*")]

    def _put_back(self) -> None:
        for path in (self.paths.data, self.paths.data.parent):
            if os.path.lexists(path):
                path.rename(self.paths.away())
        self.paths.data.parent.mkdir()
        shutil.copytree(self.paths.copy, self.paths.data)

    def change(self, name: str) -> None:
        self.done[name] += 1
        time.sleep(self._random.random() / 10)
        held = os.open(self.paths.data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            there = self._changed(name)
            changed = time.monotonic()
            before = self._trees(there)
            self._child.say(self._seconds)
            report = self._child.hear()
            assert isinstance(report, WriterReport)
            assert self._trees(there) == before, f"{name}: bytes of another directory changed"
            late = [at - changed for at in report.acknowledged.values() if at > changed + PROMISED_SECONDS]
            assert not late, f"{name}: acknowledged {max(late):.2f} s after"
            missing = MISSING if not report.acknowledged else set()
            assert report.error in {"StoreReplaced", "WriterFenced", *missing}, f"{name}: {report.error}"
            if name in WHOLE and name not in REMOVING:
                self._find(set(report.acknowledged), held, name)
        finally:
            os.close(held)

    def _changed(self, name: str) -> list[Path]:
        while True:  # a file that the writer removes meanwhile
            try:
                return CHANGES[name](self.paths)
            except (FileNotFoundError, shutil.Error):
                continue
            except OSError:
                if name not in REMOVING:
                    raise

    def _trees(self, there: list[Path]) -> dict[Path, Tree]:
        return {path: tree(path) for path in there} | self.paths.foreign()

    def _find(self, keys: set[int], held: int, name: str) -> None:
        """See that what was acknowledged is in the store's directory, wherever that is."""
        status = os.fstat(held)
        for path in (*self.paths.work.glob("away*"), *self.paths.work.glob("away*/data"), self.paths.data):
            if path.is_dir() and not path.is_symlink() and os.path.samestat(path.stat(), status):
                with kvstore.open(path) as store:
                    lost = keys - {row["k"] for row in store.table("t").scan().read_all().to_pylist()}
                    assert not lost, f"{name}: rows are lost from the directory that was moved"
                    assert store.check()
                self.done["found"] += 1
                return
        pytest.fail(f"{name}: the directory that was moved is not there")


def histories(run: Run, seed: int, work: Path, tell: Tell) -> int:
    make_stores(work / "stores")
    done: Counter[str] = Counter()
    for number in range(budget("path histories", run)):
        paths = Paths(work / str(number))
        paths.begin(work / "stores")
        with Child(serve, paths.data, seed + number) as child:
            history = History(paths, child, Random(seed + number))
            try:
                history.run()
            except BaseException as error:
                error.add_note(f"seed {seed + number}: {dict(history.done)}")
                raise
            child.say("end")
            child.join()
        done += history.done
        shutil.rmtree(paths.work)
    tell(f"{dict(done)}")
    return budget("path histories", run)


def test_histories(work: Path, tell: Tell) -> None:
    histories("quick", 1, work, tell)


@pytest.mark.long
def test_more_histories(work: Path, tell: Tell, proves: Proves) -> None:
    proves("path histories", histories("long", 100, work, tell))


@pytest.mark.nightly
def test_many_histories(work: Path, tell: Tell, proves: Proves) -> None:
    proves("path histories", histories("nightly", int.from_bytes(os.urandom(4)), work, tell))


def serve_without(pipe: Pipe, path: Path, seed: int, *, opens_by_path: bool) -> None:
    """Planted: a writer that never looks where the path leads; and opens files by it."""
    answers: dict[str, Any] = {"check": 0, "verify": None} | ({"below": None} if opens_by_path else {})
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(HeldDirectory, name, return_value=answer))
        serve(pipe, path, seed)


@pytest.mark.long
@pytest.mark.parametrize("opens_by_path", [False, True])
def test_a_writer_that_does_not_look_or_opens_by_path_is_found(work: Path, opens_by_path: bool) -> None:
    """Planted: nothing checks where the path leads, and files are opened by it."""
    make_stores(work / "stores")
    paths = Paths(work / "w")
    paths.begin(work / "stores")
    with Child(partial(serve_without, opens_by_path=opens_by_path), paths.data, 1) as child:
        history = History(paths, child, Random(1), PLANTED_SECONDS)
        child.say("open")
        assert child.hear() == "open"
        with pytest.raises(AssertionError, match=r"acknowledged|bytes"):
            history.change("moved_and_restored")
