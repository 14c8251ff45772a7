"""A disk that takes a write up to some byte only, whichever: nothing is lost, and with space again the store goes on.

Of four kinds of files: a segment that is rolled, an image of the catalog, a snapshot, an index that grows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import partial
from tests.crash.conftest import Tell
from tests.crash.judges import Judges
from tests.crash.partial import KINDS, Kind
from tests.support.proof import Proves

QUICK_LIMITS, LONG_LIMITS = 6, 60
AT_ONCE = 20
"""Trials that a process is given together."""


def cut(kind: Kind, limits_max: int | None, work: Path, judges: Judges, tell: Tell, proves: Proves) -> None:
    """Try so many sizes, evenly spread, or every one."""
    contents = partial.built(work)
    every = partial.limits_of(kind, contents, work)
    limits = every if limits_max is None else every[:: max(1, len(every) // limits_max)]
    shares = [limits[at : at + AT_ONCE] for at in range(0, len(limits), AT_ONCE)]
    answers = [judges.submit(partial.try_limits, kind, contents, list(share), work) for share in shares]
    refused, wrong = 0, []
    for answer in answers:
        count, found = answer.result()
        refused += count
        wrong += found
    tell(f"{kind}: {len(limits)} of the sizes from {every.start} to {every.stop}, {refused} refused")
    assert not wrong, "\n".join(wrong[:5])
    assert refused, "no write was cut off"
    proves("partial-write bytes", len(limits))


@pytest.mark.parametrize("kind", KINDS)
def test_some_sizes(kind: Kind, work: Path, judges: Judges, tell: Tell, proves: Proves) -> None:
    cut(kind, QUICK_LIMITS, work, judges, tell, proves)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_sizes(kind: Kind, work: Path, judges: Judges, tell: Tell, proves: Proves) -> None:
    cut(kind, LONG_LIMITS, work, judges, tell, proves)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte(kind: Kind, work: Path, judges: Judges, tell: Tell, proves: Proves) -> None:
    cut(kind, None, work, judges, tell, proves)
