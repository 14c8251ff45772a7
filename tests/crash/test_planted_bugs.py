"""Bugs planted by the tests: each must be found, or the other tests prove nothing.

The same hunts without a bug are those other tests; while they fail, what is found here may be something else.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.crash.bugs import BUGS
from tests.crash.conftest import Tell
from tests.crash.explore import BadState, Explorer, Limits, on_disk, record
from tests.crash.history import Window
from tests.crash.judges import Judges
from tests.crash.recorder import Order, Recorder
from tests.crash.rot import rotten
from tests.crash.scripts import script
from tests.crash.states import State
from tests.crash.vfs import Disk
from tests.crash.workload import Script
from tests.support.proof import Proves
from tests.support.rolling import ROLLING, rolling

Hunt = Callable[[str, Path, Recorder, Judges], list[BadState]]


def by_power_loss(plan: Script, *modes: str, in_recovery: bool = False, share: float = 1.0) -> Hunt:
    """Explore what power cuts leave; unless the bug is in recovery, only the writer of the store has it.

    Args:
        share: Of the calls after which power is cut; a bug that shows after many of them is found sooner.
    """

    def hunt(bug: str, work: Path, recorder: Recorder, judges: Judges) -> list[BadState]:
        directory, trace = record(recorder, plan, work, bug=bug)
        explorer = Explorer(plan, work, judges, bug=bug if in_recovery else None)
        limits = Limits(draws=1, bad_max=1, modes=modes or Limits().modes, share=share)
        return explorer.explore(directory, trace.calls, limits).bad

    return hunt


def by_short_writes(bug: str, work: Path, recorder: Recorder, judges: Judges) -> list[BadState]:
    """Let a file grow up to a size only."""
    plan = rolling()
    explorer = Explorer(plan, work, judges)
    done = len(plan.steps)
    for limit in range(80, 800, 80):
        directory = Path(tempfile.mkdtemp(dir=work))
        recorder.run(Order("run", directory, replace(plan, squeeze=(ROLLING, limit)), bug=bug, traced=False))
        explorer.see(State(None, "short", on_disk(directory)), Window(done, done), limit)
        explorer.finish()
        if explorer.report.bad:
            break
    return explorer.report.bad


def by_rot(bug: str, work: Path, recorder: Recorder, judges: Judges) -> list[BadState]:
    """Change a durable bit of the log."""
    plan = script(5, 14)
    directory, trace = record(recorder, plan, work, bug=bug)
    explorer = Explorer(plan, work, judges, bug=bug)
    disk = Disk(str(directory))
    for call in trace.calls:
        disk.run(call)
    done = len(plan.steps)
    for state in rotten(disk.seen(), Random(5), draws=100):
        explorer.see(state, Window(done, done), len(trace.calls))
    explorer.finish()
    return explorer.report.bad


HUNTS: dict[str, Hunt] = {
    "log_is_not_synced": by_power_loss(script(2, 6), share=0.1),
    "index_is_committed_before_the_log_is_synced": by_power_loss(script(3, 6, durability="none")),
    "file_is_published_before_it_is_synced": by_power_loss(script(2, 6)),
    "directories_are_not_synced": by_power_loss(script(2, 6), "strict"),
    "short_write_is_ignored": by_short_writes,
    "writers_are_not_stored": by_power_loss(script(2, 6)),
    "empty_batch_is_not_appended": by_power_loss(script(2, 6)),
    "replay_merges_again": by_power_loss(script(2, 6), in_recovery=True),
    "durable_end_is_ignored": by_rot,
    "checksum_leaves_the_header_out": by_rot,
    "entries_stay_when_rows_change": by_power_loss(script(5, 6, indexes=True), share=0.2),
    "entries_are_whole_too_soon": by_power_loss(script(3, 6, indexes=True), "kill"),
}
QUICK = ("log_is_not_synced", "short_write_is_ignored", "checksum_leaves_the_header_out")
"""One for each kind of hunt; the others are found in `make test-long`."""


def find(bug: str, work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    bad = HUNTS[bug](bug, work, recorder, judges)
    assert bad, f"{bug} was not found"
    # The bug, not a plant that fits the code no more.
    assert not re.search(r": (Attribute|Type|Name|Import)Error", str(bad[0])), str(bad[0])
    tell(str(bad[0])[:200])
    proves("planted bugs", 1)


@pytest.mark.parametrize(
    "bug", [*QUICK, *(pytest.param(bug, marks=pytest.mark.long) for bug in BUGS if bug not in QUICK)]
)
def test_planted_bug_is_found(
    bug: str, work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    find(bug, work, recorder, judges, tell, proves)


@pytest.mark.nightly
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found_every_night(
    bug: str, work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    find(bug, work, recorder, judges, tell, proves)


def test_every_hunt_is_for_a_bug() -> None:
    assert HUNTS.keys() == BUGS.keys()
