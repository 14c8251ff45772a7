"""A process is killed, another goes on, and then the power is cut.

What the first one wrote and never synced is seen by the second as if it were on the disk.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.crash.explore import Lab, Limits
from tests.crash.recorder import Order
from tests.crash.scripts import script
from tests.crash.syscalls import Call
from tests.crash.trace import Plan
from tests.crash.workload import MARKS, Script

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


def cut_after(lab: Lab, points: Iterable[int], plan: Script, limits: Limits) -> None:
    explorer = lab.explorer(plan)
    killed = 0
    for point in points:
        for _ in range(TRIES):
            directory = lab.directory()
            first = lab.recorder.run(Order("run", directory, plan, Plan(kill_at=point)))
            if first.status == -signal.SIGKILL:
                break
        else:
            continue
        killed += 1
        step = max(0, (directory / MARKS).read_bytes().count(b"START") - 1) if (directory / MARKS).exists() else 0
        second = lab.recorder.run(Order("run", directory, replace(plan, start=step)))
        assert second.status == 0
        explorer.explore(directory, [*first.calls, END, *second.calls], limits)
        explorer.report.assert_good(f"killed at {point}")
    assert killed >= QUICK_POINTS
    assert explorer.report.states >= 10 * killed
    lab.prove(explorer.report)
    lab.proves("kill -9 points", killed)


def test_kill_then_power_loss(lab: Lab) -> None:
    plan = script(31, 6, numbered=True)
    _, whole = lab.record(plan)
    cut_after(lab, points_of(whole.calls, QUICK_POINTS), plan, Limits(draws=1, share=0.004))


@pytest.mark.long
def test_kill_anywhere_then_power_loss(lab: Lab) -> None:
    plan = script(31, 10, numbered=True)
    _, whole = lab.record(plan)
    cut_after(lab, range(len(whole.calls)), plan, Limits(draws=1, share=0.05))
