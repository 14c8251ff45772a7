"""Whatever a crash leaves while secondary indexes come, go and are moved by merges, they find what a scan returns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.crash.explore import Lab, Limits
from tests.crash.scripts import script
from tests.crash.workload import INDEX_STEPS, Script

QUICK_STATES_MIN = 15
LONG_STATES_MIN = 5_000


def indexed(seed: int, batches: int) -> Script:
    return script(seed, batches, indexes=True, segment_bytes_max=1800)


def test_power_loss(lab: Lab) -> None:
    plan = indexed(5, 6)
    assert {step.kind for step in plan.steps} >= INDEX_STEPS
    report = lab.explored(plan, Limits(draws=1, share=0.006, seed=5))
    assert report.states >= QUICK_STATES_MIN
    lab.prove(report)


def scripts() -> Iterator[tuple[Script, Limits]]:
    for seed in count(100):
        yield indexed(seed, 4 + seed % 3 * 4), Limits(seed=seed)


@pytest.mark.long
def test_power_loss_at_length(lab: Lab) -> None:
    lab.explore(scripts(), lambda report: report.states >= LONG_STATES_MIN)
