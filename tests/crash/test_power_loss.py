"""Whatever a power cut leaves of what was written, nothing acknowledged is lost, and the store goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from kvstore.options import Durability
from tests.crash.explore import Lab, Limits, Report, followed
from tests.crash.rot import rotten
from tests.crash.scripts import script
from tests.crash.workload import SMALL_ROWS_MAX, Script

QUICK_STATES_MIN = 60
QUICK_KINDS = {"kill", "durable", "names", "prefix", "random", "again prefix", "again random"}
LONG_STATES_MIN = 50_000
NIGHTLY_STATES_MIN = 46_000
LENGTHS = (6, 6, 8, 6, 6, 16, 24)
"""Of scripts: most are short, for the longer a log is, the longer takes each state."""


def test_power_loss(lab: Lab) -> None:
    """Several short scripts, for the longer a log is, the longer takes each state."""
    scripts = [script(seed, 6, segment_bytes_max=1800) for seed in range(3, 12)]

    def is_enough(report: Report) -> bool:  # which states are drawn depends on when threads ran
        kinds = {kind for _, kind in report.distinct}
        return report.scripts > 1 and report.states >= QUICK_STATES_MIN and kinds >= QUICK_KINDS

    report = lab.explore(
        ((plan, Limits(draws=1, share=0.015, seed=seed)) for seed, plan in enumerate(scripts, 3)), is_enough
    )
    assert is_enough(report)
    explored = [step for plan in scripts[: report.scripts] for step in plan.steps]
    kinds = {step.kind for step in explored}
    assert kinds == {"open", "create", "batch", "flush", "idle", "reopen"}  # others: test_snapshots and test_indexes
    sizes = {len(step.operations) for step in explored if step.operations}
    assert {size > SMALL_ROWS_MAX for size in sizes} == {False, True}  # small writes, and others


@pytest.mark.long
@pytest.mark.parametrize("durability", ["interval", "none"])
def test_relaxed_durability_leaves_a_prefix(durability: Durability, lab: Lab) -> None:
    plan = script(3, 8, durability=durability, segment_bytes_max=1800)
    report = lab.explored(plan, Limits(draws=1, share=0.1))
    assert report.states >= 60
    lab.prove(report)


def test_rot_of_the_log_is_never_believed(lab: Lab) -> None:
    plan = script(5, 14)
    directory, trace = lab.record(plan)
    disk, _ = followed(directory, trace.calls, plan)
    report = lab.explorer(plan).judged(rotten(disk.seen(), Random(5), draws=75))
    lab.tell(*report.lines())
    report.assert_good()
    assert report.states >= 50


def scripts_from(seed: int) -> Iterator[tuple[Script, Limits]]:
    for number in count(seed):
        durability: Durability = "sync" if number % 4 else ("none", "interval")[number // 4 % 2]
        length, size = LENGTHS[number % len(LENGTHS)], 1800 + number % 2 * 1700
        yield script(number, length, durability=durability, segment_bytes_max=size), Limits(seed=number)


@pytest.mark.long
def test_power_loss_at_length(lab: Lab) -> None:
    lab.explore(scripts_from(100), lambda report: report.states >= LONG_STATES_MIN)


@pytest.mark.nightly
def test_power_loss_for_a_night(lab: Lab) -> None:
    lab.explore(scripts_from(1_000), lambda report: report.states >= NIGHTLY_STATES_MIN)
