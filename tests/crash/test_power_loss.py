"""Whatever a power cut leaves of what was written, nothing acknowledged is lost, and the store goes on."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kvstore.options import Durability
from tests.crash.conftest import Tell
from tests.crash.explore import Explorer, Limits, Report, record
from tests.crash.history import Window
from tests.crash.judges import Judges
from tests.crash.recorder import Recorder
from tests.crash.rot import rotten
from tests.crash.scripts import script
from tests.crash.vfs import Disk
from tests.crash.workload import SMALL_ROWS_MAX, Script
from tests.support.proof import Proves

QUICK_STATES_MIN = 60
QUICK_KINDS = {"kill", "durable", "names", "prefix", "random", "again prefix", "again random"}
LONG_STATES_MIN = 50_000
NIGHTLY_STATES_MIN = 46_000
LENGTHS = (6, 6, 8, 6, 6, 16, 24)
"""Of scripts: most are short, for the longer a log is, the longer takes each state."""


def explored(script: Script, work: Path, recorder: Recorder, judges: Judges, limits: Limits) -> Report:
    directory, trace = record(recorder, script, work)
    assert trace.status == 0
    return Explorer(script, work, judges, recorder).explore(directory, trace.calls, limits)


def test_power_loss(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    """Several short scripts, for the longer a log is, the longer takes each state."""
    report = Report()
    steps: set[str] = set()
    sizes: set[int] = set()
    for seed in range(3, 12):
        if seed > 4 and report.states >= QUICK_STATES_MIN and {kind for _, kind in report.distinct} >= QUICK_KINDS:
            break  # which states are drawn depends on when threads ran
        plan = script(seed, 6, segment_bytes_max=1800)
        steps |= {step.kind for step in plan.steps}
        sizes |= {len(step.operations) for step in plan.steps}
        report.add(explored(plan, work, recorder, judges, Limits(draws=1, share=0.015, seed=seed)))
    tell(*report.lines())
    assert not report.bad, "\n".join(map(str, report.bad[:5]))
    assert report.states >= QUICK_STATES_MIN
    assert steps == {"open", "create", "batch", "flush", "idle", "reopen"}  # others: test_snapshots and test_indexes
    assert {size > SMALL_ROWS_MAX for size in sizes - {0}} == {False, True}  # small writes, and others
    assert {kind for _, kind in report.distinct} >= QUICK_KINDS
    report.prove(proves)


@pytest.mark.long
@pytest.mark.parametrize("durability", ["interval", "none"])
def test_relaxed_durability_leaves_a_prefix(
    durability: Durability, work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    limits = Limits(draws=1, share=0.1)
    report = explored(script(3, 8, durability=durability, segment_bytes_max=1800), work, recorder, judges, limits)
    tell(*report.lines())
    assert not report.bad, "\n".join(map(str, report.bad[:5]))
    assert report.states >= 60
    report.prove(proves)


def test_rot_of_the_log_is_never_believed(work: Path, recorder: Recorder, judges: Judges, tell: Tell) -> None:
    plan = script(5, 14)
    directory, trace = record(recorder, plan, work)
    explorer = Explorer(plan, work, judges)
    disk = Disk(str(directory))
    for call in trace.calls:
        disk.run(call)
    done = len(plan.steps)
    for state in rotten(disk.seen(), Random(5), draws=75):
        explorer.see(state, Window(done, done), len(trace.calls))
    explorer.finish()
    tell(*explorer.report.lines())
    assert not explorer.report.bad, "\n".join(map(str, explorer.report.bad[:5]))
    assert explorer.report.states >= 50


def explore_at_length(
    first: int, states_min: int, work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    """Script after script, from a seed on, until so many states were seen."""
    report = Report()
    seed = first
    while report.states < states_min:
        durability: Durability = "sync" if seed % 4 else ("none", "interval")[seed // 4 % 2]
        found = explored(
            script(seed, LENGTHS[seed % len(LENGTHS)], durability=durability, segment_bytes_max=1800 + seed % 2 * 1700),
            work,
            recorder,
            judges,
            Limits(draws=2, seed=seed),
        )
        report.add(found)
        assert not found.bad, f"seed {seed}\n" + "\n".join(map(str, found.bad[:5]))
        seed += 1
    tell(f"{seed - first} seeds", *report.lines())
    report.prove(proves)


@pytest.mark.long
def test_power_loss_at_length(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    explore_at_length(100, LONG_STATES_MIN, work, recorder, judges, tell, proves)


@pytest.mark.nightly
def test_power_loss_for_a_night(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    explore_at_length(1_000, NIGHTLY_STATES_MIN, work, recorder, judges, tell, proves)
