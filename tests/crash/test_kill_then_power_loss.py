"""A process is killed, another goes on, and then the power is cut.

What the first one wrote and never synced is seen by the second as if it were on the disk.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.conftest import Tell
from tests.crash.explore import Explorer, Limits, record
from tests.crash.judges import Judges
from tests.crash.recorder import Order, Recorder
from tests.crash.scripts import script
from tests.crash.syscalls import Call
from tests.crash.trace import Plan
from tests.crash.workload import MARKS, Script
from tests.support.proof import Proves

QUICK_POINTS = 4
TRIES = 3
"""A run makes some calls more or less, as its commits fall, and may end before it is killed."""
END = Call("exit", "exit")


def points_of(calls: list[Call], points_max: int) -> list[int]:
    """Calls to die at: syncs, first of all those of a directory in which a name was just changed."""
    renamed: list[int] = []
    others: list[int] = []
    changed = False
    for number, call in enumerate(calls):
        if call.kind == "sync":
            (renamed if changed else others).append(number)
            changed = False
        changed = changed or call.kind in ("rename", "make")
    share = points_max // 3
    return sorted([*others[:: max(1, len(others) // share)], *renamed[:: max(1, len(renamed) // (points_max - share))]])


def cut_after(
    points: Iterable[int],
    plan: Script,
    limits: Limits,
    work: Path,
    recorder: Recorder,
    judges: Judges,
    tell: Tell,
    proves: Proves,
) -> None:
    explorer = Explorer(plan, work, judges)
    killed = 0
    for point in points:
        for _ in range(TRIES):
            directory = Path(tempfile.mkdtemp(dir=work))
            first = recorder.run(Order("run", directory, plan, Plan(kill_at=point)))
            if first.status == -signal.SIGKILL:
                break
        else:
            continue
        killed += 1
        step = max(0, (directory / MARKS).read_bytes().count(b"START") - 1) if (directory / MARKS).exists() else 0
        second = recorder.run(Order("run", directory, replace(plan, start=step)))
        assert second.status == 0
        explorer.explore(directory, [*first.calls, END, *second.calls], limits)
        assert not explorer.report.bad, f"killed at {point}\n" + "\n".join(map(str, explorer.report.bad[:5]))
    tell(f"{killed} kills", *explorer.report.lines())
    assert killed >= QUICK_POINTS
    assert explorer.report.states >= 10 * killed
    explorer.report.prove(proves)
    proves("kill -9 points", killed)


def test_kill_then_power_loss(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    plan = script(31, 6, numbered=True)
    _, whole = record(recorder, plan, work)
    points = points_of(whole.calls, QUICK_POINTS)
    cut_after(points, plan, Limits(draws=1, share=0.004), work, recorder, judges, tell, proves)


@pytest.mark.long
def test_kill_anywhere_then_power_loss(
    work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    plan = script(31, 10, numbered=True)
    _, whole = record(recorder, plan, work)
    cut_after(range(len(whole.calls)), plan, Limits(draws=1, share=0.05), work, recorder, judges, tell, proves)
