"""Whatever a power cut leaves of snapshots and of a log that expires: with or without its index, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import Tell
from tests.crash.explore import Explorer, Limits, Report, record
from tests.crash.judges import Judges
from tests.crash.recorder import Recorder
from tests.crash.scripts import script
from tests.crash.workload import Script
from tests.support.proof import Proves

QUICK_STATES_MIN = 15
LONG_STATES_MIN = 5_000
NIGHTLY_STATES_MIN = 5_000


def expiring(seed: int, batches: int) -> Script:
    """The log expires almost at once, each time a segment begins and after each snapshot."""
    return script(seed, batches, segment_bytes_max=900, retention_ms=1, snapshots=True)


def explored(plan: Script, limits: Limits, work: Path, recorder: Recorder, judges: Judges, tell: Tell) -> Report:
    directory, trace = record(recorder, plan, work)
    assert trace.status == 0
    names = [call.path for call in trace.calls if call.kind == "remove"]
    assert any(name.endswith(".log") for name in names), "nothing expired"
    report = Explorer(plan, work, judges, recorder).explore(directory, trace.calls, limits)
    tell(*report.lines())
    assert not report.bad, "\n".join(map(str, report.bad[:5]))
    return report


def test_power_loss(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    report = explored(expiring(2, 6), Limits(draws=1, share=0.006), work, recorder, judges, tell)
    assert report.states >= QUICK_STATES_MIN
    report.prove(proves)


def explore_at_length(
    first: int, states_min: int, work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    """Script after script, from a seed on, until so many states were seen."""
    report, seed = Report(), first
    while report.states < states_min:
        report.add(explored(expiring(seed, 6 + seed % 3 * 4), Limits(seed=seed), work, recorder, judges, tell))
        seed += 1
    report.prove(proves)


@pytest.mark.long
def test_power_loss_at_length(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    explore_at_length(100, LONG_STATES_MIN, work, recorder, judges, tell, proves)


@pytest.mark.nightly
def test_power_loss_for_a_night(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    explore_at_length(1_000, NIGHTLY_STATES_MIN, work, recorder, judges, tell, proves)
