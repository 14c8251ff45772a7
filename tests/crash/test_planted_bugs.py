"""Bugs planted by the tests: each must be found, or the other tests prove nothing.

The same hunts without a bug are those other tests; while they fail, what is found here may be something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.crash.bugs import BUGS, WHOLE_BUGS
from tests.crash.explore import BadState, Lab, Limits, followed, on_disk
from tests.crash.recorder import Order
from tests.crash.rot import rotten
from tests.crash.scripts import FIRST, brief_script, script
from tests.crash.states import State
from tests.crash.workload import Script, StepKind
from tests.support.rolling import ROLLING, rolling

Hunt = Callable[[str, Lab], list[BadState]]


def by_power_loss(plan: Script, *modes: str, in_recovery: bool = False, share: float = 1.0, since: int = 0) -> Hunt:
    """Explore what power cuts leave; unless the bug is in recovery, only the writer of the store has it.

    Args:
        share: Of the calls after which power is cut; a bug that shows after many of them is found sooner.
        since: Cut it only once so many steps were begun.
    """

    def hunt(bug: str, lab: Lab) -> list[BadState]:
        directory, trace = lab.record(plan, bug=bug)
        explorer = lab.explorer(plan, bug=bug if in_recovery else None)
        limits = Limits(draws=1, bad_max=1, modes=modes or Limits().modes, share=share, since=since)
        return explorer.explore(directory, trace.calls, limits).bad

    return hunt


def by_short_writes(bug: str, lab: Lab) -> list[BadState]:
    """Let a file grow up to a size only."""
    explorer = lab.explorer(rolling())
    for limit in range(80, 800, 80):
        directory = lab.directory()
        lab.recorder.run(Order("run", directory, replace(rolling(), squeeze=(ROLLING, limit)), bug=bug, traced=False))
        if explorer.judged([State(None, "short", on_disk(directory))]).bad:
            break
    return explorer.report.bad


def by_rot(bug: str, lab: Lab) -> list[BadState]:
    """Change a durable bit of the log."""
    plan = script(5, 14)
    directory, trace = lab.record(plan, bug=bug)
    disk, _ = followed(directory, trace.calls, plan)
    return lab.explorer(plan, bug=bug).judged(rotten(disk.seen(), Random(5), draws=100)).bad


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
STEPS: dict[str, tuple[StepKind, ...]] = {
    "staged_rows_are_not_synced": ("epoch",),
    "objects_are_reported_and_not_shipped": ("batch", "ship"),
    "task_that_was_applied_is_applied_again": ("load",),
}
"""What has to be done in a whole store for a bug to show."""
IN_RECOVERY = ("task_that_was_applied_is_applied_again",)
QUICK = ("log_is_not_synced", "short_write_is_ignored", "checksum_leaves_the_header_out")
"""One for each kind of hunt; the others are found in `make test-long`."""


@pytest.mark.parametrize(
    "bug", [*QUICK, *(pytest.param(bug, marks=pytest.mark.long) for bug in BUGS if bug not in QUICK)]
)
def test_planted_bug_is_found(bug: str, lab: Lab) -> None:
    lab.prove_planted(bug, HUNTS[bug](bug, lab))


@pytest.mark.nightly
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found_every_night(bug: str, lab: Lab) -> None:
    lab.prove_planted(bug, HUNTS[bug](bug, lab))


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.parametrize("bug", WHOLE_BUGS)
def test_planted_bug_is_found_in_a_whole_store(bug: str, lab: Lab, source: Path) -> None:
    plan = brief_script(source, STEPS[bug])
    hunt = by_power_loss(plan, in_recovery=bug in IN_RECOVERY, since=len(FIRST) + 1)
    lab.prove_planted(bug, hunt(bug, lab))


def test_every_hunt_is_for_a_bug() -> None:
    assert HUNTS.keys() == BUGS.keys()
    assert STEPS.keys() == WHOLE_BUGS.keys()
