"""Eleven processes work on one store and are killed and stopped all the time; nothing acknowledged is lost or wrong."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Self

import pytest

import kvstore
from tests.crash.conftest import Tell
from tests.proof.budget import budget
from tests.proof.soak import ACTORS, REPLICA, SETTINGS, STORE, WRITERS, act, create, failures, is_endless
from tests.proof.soak_end import verify
from tests.support import s3
from tests.support.processes import Child
from tests.support.proof import Proves

FIGURE = "kills and stops in a soak"
SECONDS_EACH = 6.0
"""From one kill or stop to the next, on average."""
HANG_SECONDS = 600.0
END_SECONDS = 300.0


class Soak:
    """The processes; a context manager that ends them."""

    def __init__(self, work: Path, environment: dict[str, str], random: Random, bug: str | None) -> None:
        self._work, self._environment, self._random, self._bug = work, environment, random, bug
        self._children: dict[str, Child] = {}
        self._stopped: dict[str, float] = {}
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for name in ACTORS:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.__exit__()

    def _start(self, name: str) -> None:
        (self._work / f"{name}.beat").touch()
        self._children[name] = Child(act, self._work, name, self._environment, self._bug)

    def disturb(self) -> None:
        """Kill a process, which is started again, or stop it for some time."""
        name = self._random.choice(list(ACTORS))
        if self._random.random() < 0.6:
            self._children[name].kill()
            self._children[name].__exit__()
            self._stopped.pop(name, None)
            self._start(name)
            self.done["kills"] += 1
        elif name not in self._stopped:
            os.kill(self._children[name].pid, signal.SIGSTOP)
            self._stopped[name] = time.monotonic() + self._random.choice((0.1, 1.0, 4.0, 9.0))
            self.done["stops"] += 1

    def watch(self, *, all_go_on: bool = False) -> None:
        """Let processes go on whose time is up; see that none fails or hangs."""
        for name, until in list(self._stopped.items()):
            if all_go_on or time.monotonic() > until:
                os.kill(self._children[name].pid, signal.SIGCONT)
                del self._stopped[name]
        assert not (said := failures(self._work)), said
        for name in ACTORS:
            lag = time.time() - (self._work / f"{name}.beat").stat().st_mtime
            assert lag < HANG_SECONDS, f"{name} hangs:\n{self._stacks()}"

    def _stacks(self) -> str:
        for child in self._children.values():
            os.kill(child.pid, signal.SIGUSR1)
        time.sleep(1)  # whatever they say by then is good enough for people
        return "\n".join(f"--- {name}\n{(self._work / f'{name}.stacks').read_text()}" for name in ACTORS)

    def end(self) -> None:
        """Writers end after a step; then the others, once they have followed."""
        self.watch(all_go_on=True)
        writers = [f"writer {number}" for number in range(WRITERS)]
        self._end(writers)
        self._end([name for name in ACTORS if name not in writers])

    def _end(self, names: list[str]) -> None:
        for name in names:
            if is_endless(name):
                self._children[name].kill()
            else:
                self._children[name].say("end")
        for name in names:
            assert is_endless(name) or self._children[name].join(END_SECONDS) == 0, f"{name}: {failures(self._work)}"


def soak(
    work: Path, seconds: int, tell: Tell, proves: Proves, *, each: float = SECONDS_EACH, bug: str | None = None
) -> None:
    seed = int.from_bytes(os.urandom(4))
    random = Random(seed)
    with s3.serving() as endpoint:
        environment = s3.environment(endpoint)
        s3.create_bucket(endpoint, "soak")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            create(work / STORE)
            with kvstore.open(work / STORE, **SETTINGS) as store:
                store.add_replica(f"file://{work / REPLICA}", "directory").ship()
                store.add_replica(f"s3://soak/{work.name}", "s3").ship()
            with Soak(work, environment, random, bug) as soak:
                end = time.monotonic() + seconds
                while time.monotonic() < end or soak.done.total() < seconds / each:
                    next_time = time.monotonic() + random.uniform(0, 2 * each)
                    while time.monotonic() < next_time:
                        time.sleep(0.05)
                        soak.watch()
                    soak.disturb()
                soak.end()
            counted = verify(work, ["directory", "s3"])
    tell(f"seed {seed}: {dict(soak.done)} in {seconds} s, {dict(counted)}")
    proves(FIGURE, soak.done.total())


@pytest.mark.long
def test_short_soak(tmp_path: Path, tell: Tell, proves: Proves) -> None:
    soak(tmp_path, budget("soak seconds", "long"), tell, proves)


@pytest.mark.long
@pytest.mark.nightly
def test_a_planted_bug_is_found(tmp_path: Path, tell: Tell, proves: Proves) -> None:
    """A batch that is sent again, to another process, is not known."""
    with pytest.raises(AssertionError, match=r"is not known|OutOfOrderSequence|rows of"):
        soak(tmp_path, budget("soak seconds", "long"), tell, proves, each=1.0, bug="a_writer_is_forgotten")
    proves("planted bugs", 1)


@pytest.mark.nightly
def test_soak(tmp_path: Path, tell: Tell, proves: Proves) -> None:
    """``SOAK_SECONDS=180`` tries less."""
    soak(tmp_path, int(os.environ.get("SOAK_SECONDS", budget("soak seconds", "nightly"))), tell, proves)
