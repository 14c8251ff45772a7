"""Whatever a crash leaves of a whole store: it is that of one moment, all of it, and goes on with all it can do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import get_args

import pytest

from tests.crash.explore import Lab, Limits, Report
from tests.crash.scripts import FIRST, brief_script, whole_script
from tests.crash.workload import INDEX_STEPS, Script, StepKind

QUICK_LOOKS, QUICK_STATES_MIN = 5, 5
LONG_STATES_MIN = 400
NIGHTLY_STATES_MIN = 6_000
KINDS = set(get_args(StepKind)) - {"idle", *INDEX_STEPS}


def test_power_loss(lab: Lab, source: Path) -> None:
    plan = brief_script(source, ("epoch", "load", "ship"))
    limits = Limits(draws=1, looks=QUICK_LOOKS, since=len(FIRST) + 1)
    report = lab.explored(plan, limits, again=False)
    assert report.states >= QUICK_STATES_MIN
    lab.prove(report)


def explore_at_length(states_min: int, lab: Lab, source: Path) -> None:
    """Script after script, until so many states were seen, and all that can be done was."""
    kinds: set[str] = set()

    def scripts() -> Iterator[tuple[Script, Limits]]:
        for seed in count(1):
            plan = whole_script(seed, 24 + seed % 3 * 6, source)
            kinds.update(step.kind for step in plan.steps)
            yield plan, Limits(draws=1, share=0.02, seed=seed)

    def is_enough(report: Report) -> bool:
        return report.states >= states_min and kinds == KINDS

    report = lab.explore(scripts(), is_enough)
    assert report.repaired, "no power cut took anything of a replica: then what is done about it was not tried"


@pytest.mark.long
def test_power_loss_at_length(lab: Lab, source: Path) -> None:
    explore_at_length(LONG_STATES_MIN, lab, source)


@pytest.mark.nightly
def test_power_loss_for_a_night(lab: Lab, source: Path) -> None:
    explore_at_length(NIGHTLY_STATES_MIN, lab, source)
