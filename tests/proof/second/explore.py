"""Looks at states that crashes may leave at random moments of a recording."""

from __future__ import annotations

import os
import shutil
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.proof.second.oracle import Confirmed, confirmed_by, judge
from tests.proof.second.pagecache import Image, PageCache, put
from tests.proof.second.recorder import Order, record, serve
from tests.proof.second.supervisor import ROOT, Event, Mark, Sync, Unknown
from tests.proof.second.workload import STORE, scripts
from tests.support.processes import Child, Pipe

RECOVERIES = 0.03
"""Of so many states the recovery is recorded, too;"""
DRAWS_OF_RECOVERY = 6
"""and so many states of it are looked at."""


class Moment(NamedTuple):
    """What may be on a disk after an event, and what was confirmed by then."""

    at: int
    how: str
    image: Image
    marks: str


@dataclass
class Found:
    """What was looked at.

    Attributes:
        bad: What was wrong, in words.
    """

    states: int = 0
    doubles: int = 0
    retries: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)


def moments(events: Sequence[Event], random: Random, draws: int) -> Iterator[Moment]:
    """States at so many random moments, in their order."""
    assert (strange := [event for event in events if isinstance(event, Unknown)]) == [], strange
    first = events.index(Sync(ROOT))  # what was there before is durable by then
    wanted = Counter(random.randrange(first, len(events)) for _ in range(draws))
    cache, marks = PageCache(), ""
    for at, event in enumerate(events):
        if isinstance(event, Mark):
            marks += event.text
        cache.apply(event)
        for _ in range(wanted[at]):
            how = random.choices(("killed", "lost", "left"), (1, 1, 8))[0]
            image = {"killed": cache.killed, "lost": cache.lost, "left": lambda: cache.left(random)}[how]()
            yield Moment(at, how, image, marks)


def assert_complete(events: Sequence[Event], directory: Path) -> None:
    """What was recorded is all that happened: it makes the files that are there. LMDB writes its lock files by maps."""
    cache = PageCache()
    for event in events:
        cache.apply(event)
    found: Image = {
        os.fspath(path.relative_to(directory)): None if path.is_dir() else path.read_bytes()
        for path in directory.rglob("*")
    }
    expected = cache.killed()
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    different = [path for path in found if found[path] != expected[path] and not path.endswith("/lock.mdb")]
    assert not different, different


def answer(pipe: Pipe) -> None:
    """Judge states until there are none: a process of its own, for one may kill it."""
    while (question := pipe.recv()) is not None:
        directory, seed, length, confirmed = question
        try:
            pipe.send(judge(directory, scripts(seed, length), confirmed))
        except BaseException:  # whatever it is, a user would get it
            pipe.send(traceback.format_exc(limit=-4))


class Explorer:
    """Records scripts and looks at what crashes leave; a context manager."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._numbers = count()
        self._seen: set[int] = set()
        self._recorder, self._judge = Child(serve), Child(answer)
        self.found = Found()

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *_: object) -> None:
        for child in (self._recorder, self._judge):
            child.__exit__()

    def explore(self, seed: int, length: int, draws: int, bug: str | None = None, bad_max: int = 1) -> None:
        """Look at so many states of a script; stop after some that are bad.

        Raises:
            NotPossible: Nothing can be recorded on this machine.
        """
        random = Random(seed)
        directory = self._directory()
        events = record(self._recorder, Order("run", directory, (seed, length), bug))
        assert_complete(events, directory / STORE)
        shutil.rmtree(directory)
        for moment in moments(events, random, draws):
            self._look(moment, seed, length, f"seed {seed}, event {moment.at} of {len(events)}, {moment.how}")
            if random.random() < RECOVERIES and bug is None:
                self._recover(moment, seed, length, random)
            if len(self.found.bad) >= bad_max:
                return

    def _recover(self, moment: Moment, seed: int, length: int, random: Random) -> None:
        """Crash the recovery, too."""
        directory = self._directory()
        (directory / STORE).mkdir()
        put(moment.image, directory / STORE)
        events = record(self._recorder, Order("recover", directory))
        assert_complete(events, directory / STORE)
        shutil.rmtree(directory)
        for second in moments(events, random, DRAWS_OF_RECOVERY):
            what = f"seed {seed}, event {moment.at}, {moment.how}; then {second.at} of {len(events)}, {second.how}"
            self._look(second._replace(marks=moment.marks), seed, length, what)
            self.found.doubles += 1

    def _look(self, moment: Moment, seed: int, length: int, what: str) -> None:
        key = hash((frozenset(moment.image.items()), moment.marks))
        if key in self._seen:
            return
        self._seen.add(key)
        directory = self._directory()
        (directory / STORE).mkdir()
        put(moment.image, directory / STORE)
        confirmed: dict[str, Confirmed] = confirmed_by(moment.marks)
        try:
            self._judge.say((directory, seed, length, confirmed))
            said = self._judge.hear()
        except EOFError:
            said = f"the process that opened it ended with {self._judge.join()}"
            self._judge = Child(answer)
        self.found.states += 1
        self.found.kinds[moment.how] += 1
        if isinstance(said, str):
            self.found.bad.append(f"{what}: {said}")
        else:
            self.found.retries += said
        shutil.rmtree(directory)

    def _directory(self) -> Path:
        directory = self._work / f"{next(self._numbers)}"
        directory.mkdir()
        return directory
