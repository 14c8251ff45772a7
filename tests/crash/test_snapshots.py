"""Whatever a power cut leaves of snapshots and of a log that expires: with or without its index, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.crash.explore import Lab, Limits
from tests.crash.scripts import script
from tests.crash.workload import Script

QUICK_STATES_MIN = 15
LONG_STATES_MIN = 5_000
NIGHTLY_STATES_MIN = 5_000


def expiring(seed: int, batches: int) -> Script:
    """The log expires almost at once, each time a segment begins and after each snapshot."""
    return script(seed, batches, segment_bytes_max=900, retention_ms=1, snapshots=True)


def test_power_loss(lab: Lab) -> None:
    report = lab.explored(expiring(2, 6), Limits(draws=1, share=0.006))
    assert report.states >= QUICK_STATES_MIN
    lab.prove(report)


def scripts_from(seed: int) -> Iterator[tuple[Script, Limits]]:
    for number in count(seed):
        yield expiring(number, 6 + number % 3 * 4), Limits(seed=number)


@pytest.mark.long
def test_power_loss_at_length(lab: Lab) -> None:
    lab.explore(scripts_from(100), lambda report: report.states >= LONG_STATES_MIN)


@pytest.mark.nightly
def test_power_loss_for_a_night(lab: Lab) -> None:
    lab.explore(scripts_from(1_000), lambda report: report.states >= NIGHTLY_STATES_MIN)
