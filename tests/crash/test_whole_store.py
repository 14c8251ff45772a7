"""Whatever a crash leaves of a whole store: it is that of one moment, all of it, and goes on with all it can do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from tests.crash.bugs import WHOLE_BUGS
from tests.crash.conftest import Tell
from tests.crash.explore import Explorer, Limits, Report, record
from tests.crash.judges import Judges
from tests.crash.recorder import Recorder
from tests.crash.scripts import FIRST, brief_script, whole_script
from tests.crash.workload import INDEX_STEPS, Script, StepKind
from tests.support.proof import Proves

QUICK_LOOKS, QUICK_STATES_MIN = 5, 5
LONG_STATES_MIN = 400
NIGHTLY_STATES_MIN = 6_000
HUNTS: dict[str, tuple[tuple[StepKind, ...], bool]] = {
    "staged_rows_are_not_synced": (("epoch",), False),
    "objects_are_reported_and_not_shipped": (("batch", "ship"), False),
    "task_that_was_applied_is_applied_again": (("load",), True),
}
"""By bug what has to be done for it to show, and whether recovery has it, not the writer."""


def explored(plan: Script, work: Path, recorder: Recorder, judges: Judges, limits: Limits) -> Report:
    directory, trace = record(recorder, plan, work)
    assert trace.status == 0
    return Explorer(plan, work, judges, recorder).explore(directory, trace.calls, limits)


def test_power_loss(work: Path, source: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    plan = brief_script(source, ("epoch", "load", "ship"))
    directory, trace = record(recorder, plan, work)
    assert trace.status == 0
    limits = Limits(draws=1, looks=QUICK_LOOKS, since=len(FIRST) + 1)
    report = Explorer(plan, work, judges).explore(directory, trace.calls, limits)
    tell(*report.lines())
    assert not report.bad, "\n".join(map(str, report.bad[:5]))
    assert report.states >= QUICK_STATES_MIN
    report.prove(proves)


def explore_at_length(
    states_min: int, work: Path, source: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    """Script after script, until so many states were seen, and all that can be done was."""
    report = Report()
    kinds: set[str] = set()
    seed = 0
    every = set(get_args(StepKind)) - {"idle", *INDEX_STEPS}
    while report.states < states_min or kinds != every:
        seed += 1
        plan = whole_script(seed, 24 + seed % 3 * 6, source)
        kinds |= {step.kind for step in plan.steps}
        found = explored(plan, work, recorder, judges, Limits(draws=1, share=0.02, seed=seed))
        report.add(found)
        assert not found.bad, f"seed {seed}\n" + "\n".join(map(str, found.bad[:5]))
    tell(f"{seed} seeds", *report.lines())
    assert report.repaired, "no power cut took anything of a replica: then what is done about it was not tried"
    report.prove(proves)


@pytest.mark.long
def test_power_loss_at_length(
    work: Path, source: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    explore_at_length(LONG_STATES_MIN, work, source, recorder, judges, tell, proves)


@pytest.mark.nightly
def test_power_loss_for_a_night(
    work: Path, source: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    explore_at_length(NIGHTLY_STATES_MIN, work, source, recorder, judges, tell, proves)


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.parametrize("bug", WHOLE_BUGS)
def test_planted_bug_is_found(
    bug: str, work: Path, source: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    kinds, in_recovery = HUNTS[bug]
    plan = brief_script(source, kinds)
    directory, trace = record(recorder, plan, work, bug=None if in_recovery else bug)
    assert trace.status == 0
    limits = Limits(draws=1, bad_max=1, since=len(FIRST) + 1)
    bad = Explorer(plan, work, judges, bug=bug if in_recovery else None).explore(directory, trace.calls, limits).bad
    assert bad, f"{bug} was not found"
    # The bug, not a plant that fits the code no more.
    assert not re.search(r": (Attribute|Type|Name|Import)Error", str(bad[0])), str(bad[0])
    tell(str(bad[0])[:200])
    proves("planted bugs", 1)


def test_every_hunt_is_for_a_bug() -> None:
    assert HUNTS.keys() == WHOLE_BUGS.keys()
