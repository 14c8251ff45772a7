"""Cuts the power while a process writes, another reads and checkpoints of the catalog are made; then all is looked at.

Marks of what was begun and what was acknowledged stand elsewhere: the power of that disk stays on.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import kvstore
from kvstore.errors import StoreError
from tests.crash.bugs import planted
from tests.crash.history import History, Marks, Window
from tests.crash.scripts import script
from tests.crash.verdict import examine, judge
from tests.crash.workload import MARKS, STORE, TABLE, Script, run
from tests.proof.power import Disk
from tests.support.image_workers import Here
from tests.support.processes import Child, Pipe

IDS = "ids"
SECONDS_MAX = 600
BATCHES = 8


def serve(pipe: Pipe) -> None:
    """Fork a writer and a reader each time it is asked, and kill them on request: it has imported everything."""
    while (order := pipe.recv()) is not None:
        directory, plan, bug = order
        children = [_forked(write, directory, plan, bug), _forked(read, directory / STORE)]
        pipe.send("on")
        pipe.recv()
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        pipe.send("dead")


def _forked(job: Callable[..., None], *arguments: object) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # messages about the missing disk are not needed
        job(*arguments)
        signal.pause()  # it is killed in the end
    finally:
        os._exit(1)


def write(directory: Path, plan: Script, bug: str | None) -> None:
    """Do what a script says, and make checkpoints meanwhile."""
    with planted(bug), kvstore.open(directory / STORE, durability=plan.durability, **plan.settings) as store:
        threading.Thread(target=_make_checkpoints, args=(store, directory / IDS), daemon=True).start()
        run(directory, plan)
        signal.pause()


def _make_checkpoints(store: kvstore.Store, ids: Path) -> None:
    store.runtime.checkpoints.start = Here
    with suppress(StoreError, OSError), open(ids, "a", buffering=1) as given:
        while True:
            for _ in range(3):
                given.write(f"{store.new_writer_id()}\n")
            store.checkpoint()
            time.sleep(0.01)


def read(path: Path) -> None:
    """Read all the time."""
    while True:
        with suppress(StoreError, OSError), kvstore.open(path, read_only=True) as store:
            while True:
                for name in store.list_tables():
                    store.table(name).scan().read_all()
                time.sleep(0.02)


def window_of(marks: bytes, plan: Script) -> Window:
    """What was begun and confirmed, by the marks."""
    read = Marks(plan)
    for line in marks.splitlines():
        read.add(line)
    return read.window


def cut_once(disk: Disk, mother: Child, work: Path, random: Random, bug: str | None = None) -> str | None:
    """Write until the power is cut at a random moment; what is wrong with the store then, None if nothing is."""
    plan = script(random.randrange(2**32), BATCHES, numbered=True, snapshots=random.random() < 0.5)
    directory = work / f"run-{random.randrange(2**62):x}"
    directory.mkdir()
    (disk.path / "store").mkdir()
    (directory / STORE).symlink_to(disk.path / "store")
    marks = directory / MARKS
    wanted, after = random.randrange(2, 2 * len(plan.steps)), random.random() * 0.003
    mother.say((directory, plan, bug))
    assert mother.hear() == "on"
    deadline = time.monotonic() + SECONDS_MAX
    while not marks.exists() or marks.read_bytes().count(b"\n") < wanted:
        assert time.monotonic() < deadline, "the writer does not go on"
        time.sleep(0.0005)
    time.sleep(after)
    # Of an fsync under way when it is shut down ext4 may say that it succeeded: what counts was confirmed before.
    confirmed, given = marks.read_bytes(), _lines(directory / IDS)
    disk.cut()
    mother.say("kill")
    assert mother.hear() == "dead"
    disk.unmount()
    disk.mount()
    window = Window(window_of(confirmed, plan).confirmed, window_of(marks.read_bytes(), plan).started)
    what = _judged(directory, plan, window, [int(line) for line in given])
    shutil.rmtree(disk.path / "store")
    shutil.rmtree(directory)
    return what


def _judged(directory: Path, plan: Script, window: Window, given: list[int]) -> str | None:
    found = judge(examine(directory, History(plan)), window)
    if found is not None:
        return f"{found[0]}: {found[1]}; {window}"
    settings: dict[str, Any] = {**plan.settings}
    with kvstore.open(directory / STORE, **settings) as store:
        next_id = store.new_writer_id()
        if given and next_id <= max(given):
            return f"id {next_id} is given again, after {max(given)}"
        damaged = store.runtime.damaged_images()
        return f"images: {damaged}" if damaged or TABLE not in store.list_tables() else None


def _lines(path: Path) -> list[str]:
    """Whole lines of a file that may not be there."""
    return path.read_text().splitlines() if path.exists() else []
