"""The trials that stores are compared by find what they are for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from benchmarks.reliability.power import failed_syncs, power_cuts
from benchmarks.reliability.stores import Acknowledge, Pairs
from benchmarks.reliability.trials import Found
from tests.support.processes import Child, Pipe


class Appended:
    """A file with a line for each pair, and one with how many are whole."""

    name, settings, can_stay = "appended", "", False

    def __init__(self, *, syncs: bool = True, gives_up: bool = True) -> None:
        self._syncs, self._gives_up = syncs, gives_up

    def write(self, path: Path, commits: Iterable[Pairs], acknowledge: Acknowledge, *, clean: bool) -> None:  # noqa: ARG002
        if (path / "failed").exists():
            raise OSError("it gave up")
        log = os.open(path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._sync(os.open(path, os.O_RDONLY), path)
        for number, pairs in enumerate(commits):
            os.write(log, b"".join(b"%b=%b\n" % pair for pair in pairs.items()) + b"\n")
            self._sync(log, path)
            acknowledge(number)

    def _sync(self, descriptor: int, path: Path) -> None:
        try:
            if self._syncs:
                os.fsync(descriptor)
        except OSError:
            if self._gives_up:
                (path / "failed").touch()
                raise

    def read(self, path: Path) -> tuple[Pairs, Pairs]:
        whole = (path / "log").read_bytes().split(b"\n\n")[:-1]
        pairs = [line.partition(b"=") for commit in whole for line in commit.split(b"\n")]
        return {key: value for key, _, value in pairs}, {}


def lost(trial: Callable[..., Found], *arguments: object) -> int:
    """Outcomes of a trial in which something is lost.

    A trial forks for each state: a small process, for to fork that of all tests takes a hundred times as long.
    """
    with Child(_tried, trial, arguments) as child:
        return int(child.hear(600).outcomes.get("lost", 0))


def _tried(pipe: Pipe, trial: Callable[..., Found], arguments: tuple[object, ...]) -> None:
    pipe.send(trial(*arguments))


@pytest.mark.long
def test_power_cuts(work: Path) -> None:
    assert lost(power_cuts, Appended(), 60, work, 1) == 0
    assert lost(power_cuts, Appended(syncs=False), 60, work, 1) >= 4


@pytest.mark.long
def test_failed_syncs(work: Path) -> None:
    assert lost(failed_syncs, Appended(), 5, 60, work, 1) == 0
    assert lost(failed_syncs, Appended(gives_up=False), 5, 60, work, 1) >= 4
