"""Whatever a crash leaves while secondary indexes come, go and are moved by merges, they find what a scan returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import Tell
from tests.crash.explore import Explorer, Limits, Report, record
from tests.crash.judges import Judges
from tests.crash.recorder import Recorder
from tests.crash.scripts import script
from tests.crash.workload import INDEX_STEPS
from tests.support.proof import Proves

QUICK_STATES_MIN = 15
LONG_STATES_MIN = 5_000


def explored(seed: int, batches: int, limits: Limits, work: Path, recorder: Recorder, judges: Judges) -> Report:
    plan = script(seed, batches, indexes=True, segment_bytes_max=1800)
    directory, trace = record(recorder, plan, work)
    assert trace.status == 0
    report = Explorer(plan, work, judges, recorder).explore(directory, trace.calls, limits)
    assert not report.bad, f"seed {seed}\n" + "\n".join(map(str, report.bad[:5]))
    return report


def test_power_loss(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    seed = 5
    steps = [step for step in script(seed, 6, indexes=True).steps if step.kind in INDEX_STEPS]
    assert {step.kind for step in steps} == INDEX_STEPS
    report = explored(seed, 6, Limits(draws=1, share=0.006, seed=seed), work, recorder, judges)
    tell(*report.lines())
    assert report.states >= QUICK_STATES_MIN
    report.prove(proves)


@pytest.mark.long
def test_power_loss_at_length(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    """Script after script, until so many states were seen."""
    report, seed = Report(), 100
    while report.states < LONG_STATES_MIN:
        report.add(explored(seed, 4 + seed % 3 * 4, Limits(draws=2, seed=seed), work, recorder, judges))
        seed += 1
    tell(f"{seed - 100} seeds", *report.lines())
    report.prove(proves)
