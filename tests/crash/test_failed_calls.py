"""A disk that refuses any one call, or all from one on: the store goes on or says so, and loses nothing it answered.

Every write, sync, new length, name and directory of a run fails with EIO or ENOSPC. Once the disk works again, so does
the store: in the same process after one failure, for the next process that opens it after any.
"""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.crash.explore import Lab, followed, on_disk
from tests.crash.scripts import brief_script, script, whole_script
from tests.crash.states import State, states_of
from tests.crash.trace import Failing, Plan, changes_disk, commits
from tests.crash.vfs import Disk
from tests.crash.workload import MARKS, REFUSED, Script

FOR_EVER = 1 << 20
RETRIES = 3
QUICK_POINTS = 4
LONG_POINTS = 150
NIGHTLY_POINTS, NIGHTLY_POINTS_WHOLE, AT_ONCE = 4_000, 1_100, 300
"""Of tables, of whole stores, and of one script at most."""


def points_of(count: int, points_max: int, seed: int) -> list[Failing]:
    """Failures of a run that changes its disk so often; if there are more, some: drawn, or evenly spread if few."""
    every = [
        Failing(first, length, code)
        for first in range(count)
        for length in (1, FOR_EVER)
        for code in (errno.EIO, errno.ENOSPC)
    ]
    if points_max <= QUICK_POINTS:
        return every[:: len(every) // points_max | 1][:points_max]  # odd, so that all lengths and codes are among them
    return every if len(every) <= points_max else Random(seed).sample(every, points_max)


def drawn(lab: Lab, plan: Script, points_max: int, seed: int) -> list[Failing]:
    """Failures of a script's run."""
    directory, whole = lab.record(plan)
    assert whole.status == 0
    disk = Disk(str(directory))
    count = 0
    for call in whole.calls:
        count += changes_disk(call) and disk.file(call.fd) != MARKS and not call.path.endswith(MARKS)
        disk.run(call)
    return points_of(count, points_max, seed)


def fail(lab: Lab, plan: Script, points: Iterable[Failing]) -> int:
    """Run a script once for each failure, and judge what it leaves now and after a power cut; how many there were."""
    explorer = lab.explorer(plan)
    random = Random(7)
    ended: Counter[str] = Counter()
    for failing in points:
        directory, trace = lab.record(plan, plan=Plan(failing=failing))
        failed = [call for call in trace.calls if call.result == -failing.code and changes_disk(call)]
        if not failed:
            continue  # a run makes some calls more or less, as its commits fall
        assert trace.status in (0, REFUSED), f"{failing} {failed[0].name}: status {trace.status}"
        if failing.length == 1 and commits(failed[0]):
            # LMDB writes a page then that is half of the commit it has given up, and the store calls it damaged from
            # then on; `kvstore meta recover` helps. Known, and not fixed.
            ended["stopped"] += 1
            continue
        assert trace.status == 0 or failing.length == FOR_EVER, f"one failure ended the run: {failing} {failed[0]}"
        ended["went on" if trace.status == 0 else "refused"] += 1
        disk, window = followed(directory, trace.calls, plan)
        explorer.see(State(None, "kill", on_disk(directory)), window, failing.first)
        for state in list(states_of(disk, random, draws=1))[-1:]:
            explorer.see(replace(state, kind=f"failed {state.kind}"), window, failing.first)
        explorer.finish()
        explorer.report.assert_good(f"{failing} {failed[0].name}")
        shutil.rmtree(directory)
    lab.tell(f"{ended.total()} failures: {dict(ended)}")
    lab.prove(explorer.report)
    count = ended["went on"] + ended["refused"]
    lab.proves("EIO and ENOSPC points", count)
    assert ended["went on"]
    assert ended["refused"] or ended.total() <= QUICK_POINTS
    return count


def fail_in_table(lab: Lab, seed: int, points_max: int) -> int:
    plan = script(seed, 6, numbered=True, retries=RETRIES)
    return fail(lab, plan, drawn(lab, plan, points_max, seed))


def test_a_table(lab: Lab) -> None:
    fail_in_table(lab, 21, QUICK_POINTS)


def test_a_whole_store(lab: Lab, source: Path) -> None:
    plan = brief_script(source, ("epoch", "load", "ship", "checkpoint"), retries=RETRIES)
    fail(lab, plan, drawn(lab, plan, QUICK_POINTS, 5))


@pytest.mark.long
def test_a_table_at_length(lab: Lab) -> None:
    fail_in_table(lab, 22, LONG_POINTS)


@pytest.mark.long
def test_a_whole_store_at_length(lab: Lab, source: Path) -> None:
    plan = whole_script(3, 20, source, retries=RETRIES)
    fail(lab, plan, drawn(lab, plan, LONG_POINTS, 5))


@pytest.mark.nightly
def test_a_table_for_a_night(lab: Lab) -> None:
    """One script after the other."""
    points, seed = 0, 100
    while points < NIGHTLY_POINTS:
        points += fail_in_table(lab, seed, AT_ONCE)
        seed += 1


@pytest.mark.nightly
def test_a_whole_store_for_a_night(lab: Lab, source: Path) -> None:
    points, seed = 0, 100
    while points < NIGHTLY_POINTS_WHOLE:
        plan = whole_script(seed, 12, source, retries=RETRIES)
        points += fail(lab, plan, drawn(lab, plan, AT_ONCE, seed))
        seed += 1
