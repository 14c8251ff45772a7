"""A process that is killed when it is about to call the system, wherever that is, loses nothing it acknowledged."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.conftest import Tell
from tests.crash.explore import Explorer, on_disk, record
from tests.crash.history import Marks
from tests.crash.judges import Judges
from tests.crash.recorder import Order, Recorder
from tests.crash.scripts import script
from tests.crash.states import State
from tests.crash.trace import Plan
from tests.crash.vfs import Disk
from tests.crash.workload import Script
from tests.support.proof import Proves

QUICK_POINTS = 8
NIGHTLY_POINTS_MIN = 10_000


def kill_at_points(
    plan: Script, points_max: int | None, work: Path, recorder: Recorder, judges: Judges, tell: Tell
) -> int:
    """Kill at so many calls, or all of them; returns how many that were."""
    _, whole = record(recorder, plan, work)
    count = len(whole.calls)
    step = 1 if points_max is None else max(1, count // points_max)
    explorer = Explorer(plan, work, judges)
    killed: Counter[str] = Counter()
    runs = Path(tempfile.mkdtemp(dir=work))
    for point in range(0, count, step):
        directory = Path(tempfile.mkdtemp(dir=runs))
        trace = recorder.run(Order("run", directory, plan, Plan(kill_at=point)))
        if trace.status == 0 and point > count * 0.8:
            continue  # a run makes some calls more or less, as its commits fall
        assert trace.status == -signal.SIGKILL
        assert len(trace.calls) <= point
        killed[whole.calls[point].name] += 1
        disk, marks = Disk(str(directory)), Marks(plan)
        for call in trace.calls:
            disk.run(call)
            marks.run(call, disk)
        explorer.see(State(None, "kill -9", on_disk(directory)), marks.window, point)
        shutil.rmtree(directory)
    explorer.finish()
    tell(f"{killed.total()} points: {dict(killed)}", *explorer.report.lines())
    assert not explorer.report.bad, "\n".join(map(str, explorer.report.bad[:5]))
    assert killed.total() >= (0.9 * count if points_max is None else QUICK_POINTS - 1)
    return killed.total()


def test_kill(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    proves("kill -9 points", kill_at_points(script(11, 8), QUICK_POINTS, work, recorder, judges, tell))


@pytest.mark.long
def test_kill_at_every_call(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    proves("kill -9 points", kill_at_points(script(11, 8), None, work, recorder, judges, tell))


@pytest.mark.nightly
def test_kill_for_a_night(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    """At every call of short scripts, one after the other."""
    points, seed = 0, 100
    while points < NIGHTLY_POINTS_MIN:
        points += kill_at_points(script(seed, 3 + seed % 3), None, work, recorder, judges, tell)
        seed += 1
    proves("kill -9 points", points)
