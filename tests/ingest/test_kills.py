"""A process that runs a job is killed, again and again: each file is loaded once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import kvstore
from tests.ingest.worlds import BAD, create, moments, outcome, run, write
from tests.support.processes import Child, Pipe


def dies_after(pipe: Pipe, store: Path, steps: int) -> None:
    left = [steps]

    def at(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    with moments(at):
        run(store)
    pipe.send("done")


def test_killed_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n in range(6):
        write(tmp_path / "in", f"{n}.csv", n * 6, more=BAD if n % 2 else "")
    create(tmp_path / "whole", tmp_path / "in")
    run(tmp_path / "whole")
    create(tmp_path / "store", tmp_path / "in")
    deaths = 0
    for steps in (3, 5, 7, 2, 1000):
        with Child(dies_after, tmp_path / "store", steps) as child:
            status = child.join()
        deaths += status == -signal.SIGKILL
        with kvstore.open(tmp_path / "store", read_only=True) as opened:
            assert opened.job("j").show().statistics.succeeded_tasks <= 3
    assert (deaths, status) == (4, 0)
    assert outcome(tmp_path / "store") == outcome(tmp_path / "whole")
