"""From a script to verdicts: record it, follow the calls, build states after each, open every one that is new."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.crash.history import History, Marks, Window
from tests.crash.judges import Judges
from tests.crash.places import fill, materialised
from tests.crash.recorder import Order, Recorder
from tests.crash.states import ROT, State, states_of
from tests.crash.syscalls import Call
from tests.crash.trace import UNDISTURBED, Plan, Trace
from tests.crash.verdict import Finding, judge
from tests.crash.vfs import MODES, UNSEEN, Contents, Disk
from tests.crash.workload import MARKS, Script
from tests.support.proof import Proves

AGAIN_EVERY = 20
"""The recovery of one state in so many is crashed too."""
AGAIN_SHARE = 0.1
"""And of the calls of that recovery this share."""
THOROUGH_EVERY = 4
"""One state in so many is asked everything."""
AGAIN = "again "
"""Kinds of states begin so that a crash of a recovery left."""
WAITING_MAX = 300
SECONDS_MAX = 600
"""A state that takes longer is a hang."""
KILLED = ("kill", "kill -9")
"""Kinds of states in which all is there that was written."""
KEEP = "KVSTORE_CRASH_KEEP"
"""Environment variable with a directory: bad states are kept there, to be looked at."""


@dataclass(frozen=True, slots=True)
class BadState:
    """A state in which something is wrong, and how to come back to it."""

    badness: str
    problem: str
    mode: str | None
    kind: str
    call: int
    window: Window
    contents: Contents

    def __str__(self) -> str:
        return (
            f"{self.badness} in a state ({self.mode or 'any'} {self.kind}) after call {self.call}: {self.problem[:600]}"
        )


@dataclass(slots=True)
class Report:
    """What an exploration saw.

    Attributes:
        built: States by mode and kind, repeated ones included.
        distinct: Different contents that were opened, by mode and kind of the first time.
        retries: Batches that were sent again in them.
        repaired: States with a replica that had holes, and was repaired.
        bad: What was found.
        scripts: How many scripts were explored.
    """

    built: Counter[tuple[str, str]] = field(default_factory=Counter)
    distinct: Counter[tuple[str, str]] = field(default_factory=Counter)
    bad: list[BadState] = field(default_factory=list)
    calls: int = 0
    retries: int = 0
    repaired: int = 0
    scripts: int = 1

    @property
    def states(self) -> int:
        return self.distinct.total()

    @property
    def again(self) -> int:
        return sum(count for (_, kind), count in self.distinct.items() if kind.startswith(AGAIN))

    def assert_good(self, what: object = "") -> None:
        assert not self.bad, "\n".join([str(what), *map(str, self.bad[:5])])

    def add(self, other: Report) -> None:
        self.built += other.built
        self.distinct += other.distinct
        self.bad += other.bad
        self.calls += other.calls
        self.retries += other.retries
        self.repaired += other.repaired
        self.scripts += other.scripts

    def lines(self) -> list[str]:
        counts = ", ".join(f"{mode} {kind} {count}" for (mode, kind), count in sorted(self.distinct.items()))
        badness = Counter(state.badness for state in self.bad)
        return [
            f"{self.scripts} scripts, {self.calls} calls,"
            f" {self.built.total()} states built, {self.states} distinct, {len(self.bad)} bad,"
            f" {self.again} after a second crash, {self.retries} retries, {self.repaired} replicas repaired",
            f"distinct: {counts}",
            f"bad: {dict(badness)}",
        ]


@dataclass(slots=True)
class Limits:
    """When to stop, and how much to draw.

    Attributes:
        draws: Random states of each mode after each call.
        bad_max: Stop at so many bad states.
        share: Look only after this share of the calls, drawn,
        looks: or after so many of them, evenly spread,
        since: and only once so many steps were begun.
    """

    draws: int = 2
    bad_max: int = 5
    seed: int = 0
    modes: tuple[str, ...] = ("kill", *MODES)
    share: float = 1.0
    looks: int | None = None
    since: int = 0

    def chooses(self, number: int, count: int, random: Random) -> bool:
        """Whether to look after a call, of so many."""
        if self.looks is not None:
            return not number % max(1, count // self.looks)
        return random.random() < self.share


class Explorer:
    """Explores recordings of one script; a state seen before is not opened again.

    Args:
        judges: Who opens states, some at a time.
        recorder: Records recoveries, to crash them too.
        bug: Planted wherever states are opened.
    """

    def __init__(
        self, script: Script, work: Path, judges: Judges, recorder: Recorder | None = None, bug: str | None = None
    ) -> None:
        self.history = History(script)
        self.report = Report()
        self._work = work
        self._recorder = recorder
        self._court = judges.court(script, work, bug)
        self._again_at = AGAIN_EVERY
        self._findings: dict[int, Future[Finding]] = {}
        self._waiting: deque[tuple[State, Window, int, int]] = deque()

    def explore(self, directory: Path, calls: list[Call], limits: Limits) -> Report:
        """Explore what the calls of a run in ``directory`` may have left."""
        disk, marks = Disk(str(directory)), Marks(self.history.script)
        self.report.calls += len(calls)
        random = Random(limits.seed)
        for number, call in enumerate(calls):
            disk.run(call)
            marks.run(call, disk)
            if not limits.chooses(number, len(calls), random) or marks.window.started < limits.since:
                continue
            for state in states_of(disk, random, draws=limits.draws):
                if (state.mode or "kill") not in limits.modes:
                    continue
                is_new = self.see(state, marks.window, number)
                if is_new and self._recorder and self.report.states >= self._again_at:
                    self._explore_recovery(state, marks.window, random, number)
                    self._again_at = self.report.states + AGAIN_EVERY
            if len(self.report.bad) >= limits.bad_max:
                break
        self.finish()
        return self.report

    def see(self, state: State, window: Window, call: int) -> bool:
        """Have a state judged; whether it is new."""
        state = replace(state, contents=without_noise(state.contents))
        kind = state.mode or "any", state.kind
        self.report.built[kind] += 1
        key = state.key()
        new = key not in self._findings
        if new:
            thorough = not self.report.states % THOROUGH_EVERY
            self._findings[key] = self._court.submit(state.contents, thorough=thorough)
            self.report.distinct[kind] += 1
        self._waiting.append((state if new else replace(state, contents={}), window, key, call))
        while len(self._waiting) > WAITING_MAX:
            self._judge_one()
        return new

    def finish(self) -> None:
        """Judge all that waits."""
        while self._waiting:
            self._judge_one()

    def judged(self, states: Iterable[State]) -> Report:
        """Have states judged in which all steps are done."""
        done = len(self.history.script.steps)
        for number, state in enumerate(states):
            self.see(state, Window(done, done), number)
        self.finish()
        return self.report

    def _judge_one(self) -> None:
        state, window, key, call = self._waiting.popleft()
        finding = self._findings[key].result(SECONDS_MAX)
        found = judge(finding, window)
        if state.contents:
            self.report.retries += finding.retries
            self.report.repaired += finding.repaired
        if found is None and finding.repaired and state.kind in KILLED:
            found = "LOST", "the replica has holes, and only a process was killed"
        if found is not None and not (state.kind == ROT and finding.noticed):
            bad = BadState(*found, state.mode, state.kind, call, window, state.contents)
            self.report.bad.append(bad)
            if KEEP in os.environ and state.contents:
                fill(Path(tempfile.mkdtemp(prefix=f"{found[0]}-", dir=os.environ[KEEP])), state.contents)

    def _explore_recovery(self, state: State, window: Window, random: Random, number: int) -> None:
        """Crash while this state is recovered."""
        assert self._recorder is not None
        contents = without_noise(state.contents)
        with materialised(contents, self._work) as directory:
            trace = self._recorder.run(Order("recover", directory, self.history.script))
            disk = Disk.holding(str(directory), contents)
        for call in trace.calls:
            disk.run(call)
            if random.random() < AGAIN_SHARE:
                for again in states_of(disk, random, draws=1):
                    self.see(replace(again, kind=AGAIN + again.kind), window, number)


def without_noise(contents: Contents) -> Contents:
    """The store alone; LMDB's lock files are ignored: the process that opens them first writes them again."""
    return {
        name: b"" if name.endswith(UNSEEN) and data is not None else data
        for name, data in contents.items()
        if name != MARKS
    }


def followed(directory: Path, calls: list[Call], script: Script) -> tuple[Disk, Window]:
    """The disk after a run, and which steps may be done then."""
    disk, marks = Disk(str(directory)), Marks(script)
    for call in calls:
        disk.run(call)
        marks.run(call, disk)
    return disk, marks.window


def on_disk(directory: Path) -> Contents:
    """What a directory holds."""
    return {
        str(path.relative_to(directory)): None if path.is_dir() else path.read_bytes() for path in directory.rglob("*")
    }


def assert_same(model: Contents, real: Contents) -> None:
    """The model of the disk followed what happened; else no state it makes means anything."""
    names = {name for name in model.keys() | real.keys() if name not in model or name not in real}
    assert not names, f"only the model or only the disk has {sorted(names)}"
    differing = [name for name in model if model[name] != real[name] and not name.endswith(UNSEEN)]
    assert not differing, f"the model has other bytes of {sorted(differing)}"


@dataclass(frozen=True, slots=True)
class Lab:
    """What a test records and explores with, and what it reports to.

    Attributes:
        work: A directory, in memory if possible.
        tell: Adds lines to the end of the output.
    """

    work: Path
    recorder: Recorder
    judges: Judges
    tell: Callable[..., None]
    proves: Proves

    def directory(self) -> Path:
        """A new directory for a run."""
        return Path(tempfile.mkdtemp(dir=self.work))

    def record(self, script: Script, *, plan: Plan = UNDISTURBED, bug: str | None = None) -> tuple[Path, Trace]:
        """Run a script in a new directory; what the model says of the disk must be what is there."""
        directory = self.directory()
        trace = self.recorder.run(Order("run", directory, script, plan, bug))
        if plan.kill_at is None:
            disk, _ = followed(directory, trace.calls, script)
            assert_same(disk.seen(), on_disk(directory))
        return directory, trace

    def explorer(self, script: Script, *, again: bool = False, bug: str | None = None) -> Explorer:
        """An explorer of runs of a script, with ``again`` also of recoveries."""
        return Explorer(script, self.work, self.judges, self.recorder if again else None, bug)

    def explored(self, script: Script, limits: Limits, *, again: bool = True) -> Report:
        """Explore one run of a script, in which nothing may be bad."""
        directory, trace = self.record(script)
        assert trace.status == 0
        removed = [call.path for call in trace.calls if call.kind == "remove"]
        assert script.retention_ms is None or any(name.endswith(".log") for name in removed), "nothing expired"
        report = self.explorer(script, again=again).explore(directory, trace.calls, limits)
        report.assert_good(f"seed {limits.seed}")
        return report

    def explore(self, scripts: Iterable[tuple[Script, Limits]], is_enough: Callable[[Report], bool]) -> Report:
        """Explore script after script until that is enough, and add to the figures."""
        report = Report(scripts=0)
        for script, limits in scripts:
            report.add(self.explored(script, limits))
            if is_enough(report):
                break
        self.prove(report)
        return report

    def prove(self, report: Report) -> None:
        """Add to the figures."""
        self.tell(*report.lines())
        self.proves("crash states", report.states)
        self.proves("double-crash states", report.again)
        self.proves("retries after a crash", report.retries)

    def prove_planted(self, bug: str, bad: list[BadState]) -> None:
        """A planted bug was found."""
        assert bad, f"{bug} was not found"
        # The bug, not a plant that fits the code no more.
        assert not re.search(r": (Attribute|Type|Name|Import)Error", str(bad[0])), str(bad[0])
        self.tell(str(bad[0])[:200])
        self.proves("planted bugs", 1)
