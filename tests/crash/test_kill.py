"""A process that is killed when it is about to call the system, wherever that is, loses nothing it acknowledged."""

from __future__ import annotations

import shutil
import signal
from collections import Counter

import pytest

from tests.crash.explore import Lab, followed, on_disk
from tests.crash.recorder import Order
from tests.crash.scripts import script
from tests.crash.states import State
from tests.crash.trace import Plan
from tests.crash.workload import Script

QUICK_POINTS = 8
NIGHTLY_POINTS_MIN = 10_000


def kill_at_points(lab: Lab, plan: Script, points_max: int | None) -> int:
    """Kill at so many calls, or all of them; returns how many that were."""
    _, whole = lab.record(plan)
    count = len(whole.calls)
    step = 1 if points_max is None else max(1, count // points_max)
    explorer = lab.explorer(plan)
    killed: Counter[str] = Counter()
    for point in range(0, count, step):
        directory = lab.directory()
        trace = lab.recorder.run(Order("run", directory, plan, Plan(kill_at=point)))
        if trace.status == 0 and point > count * 0.8:
            continue  # a run makes some calls more or less, as its commits fall
        assert trace.status == -signal.SIGKILL
        assert len(trace.calls) <= point
        killed[whole.calls[point].name] += 1
        _, window = followed(directory, trace.calls, plan)
        explorer.see(State(None, "kill -9", on_disk(directory)), window, point)
        shutil.rmtree(directory)
    explorer.finish()
    lab.tell(f"{killed.total()} points: {dict(killed)}", *explorer.report.lines())
    explorer.report.assert_good()
    assert killed.total() >= (0.9 * count if points_max is None else QUICK_POINTS - 1)
    lab.proves("kill -9 points", killed.total())
    return killed.total()


def test_kill(lab: Lab) -> None:
    kill_at_points(lab, script(11, 8), QUICK_POINTS)


@pytest.mark.long
def test_kill_at_every_call(lab: Lab) -> None:
    kill_at_points(lab, script(11, 8), None)


@pytest.mark.nightly
def test_kill_for_a_night(lab: Lab) -> None:
    """At every call of short scripts, one after the other."""
    points, seed = 0, 100
    while points < NIGHTLY_POINTS_MIN:
        points += kill_at_points(lab, script(seed, 3 + seed % 3), None)
        seed += 1
