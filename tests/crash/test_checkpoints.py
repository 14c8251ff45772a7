"""Whatever a power cut leaves of a checkpoint: no edit is lost, and what is gone of the journal is in two images."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.checkpoint.catalogs import Catalog
from tests.crash.bugs import CATALOG_BUGS
from tests.crash.conftest import Tell
from tests.crash.explore import assert_same, on_disk, without_noise
from tests.crash.places import materialised
from tests.crash.recorder import Order, Recorder
from tests.crash.states import states_of
from tests.crash.vfs import Disk
from tests.crash.workload import STORE, Script
from tests.support.proof import Proves

STATES_MIN = {0: 50, 1: 80, 3: 80}
NIGHTLY_STATES_MIN = 35_000
NIGHTLY_DRAWS = 40
GO_ON_EVERY = 5
"""One state in so many is written on."""


@dataclass
class Seen:
    """What there was after a crash.

    Attributes:
        found: Numbers of images, and first edits of the journal.
    """

    calls: int = 0
    states: set[int] = field(default_factory=set)
    found: set[tuple[int, int]] = field(default_factory=set)


def explored(
    work: Path, recorder: Recorder, earlier: int, bug: str | None = None, *, seed: int = 3, draws: int = 32
) -> Seen:
    """A checkpoint, after as many that came to their end, cut off after each of its calls."""
    (directory := work / "run").mkdir()
    before = Catalog(directory / STORE, seed=seed)
    for _ in range(earlier):
        before.append(17)
        before.controller().checkpoint()
    before.append(17)
    before.journal.close()
    disk, random = Disk.holding(str(directory), on_disk(directory)), Random(seed)
    trace = recorder.run(Order("checkpoint", directory, Script(()), bug=bug))
    assert trace.status == 0
    seen = Seen(len(trace.calls))
    for call in trace.calls:
        disk.run(call)
        for state in states_of(disk, random, draws=draws):
            contents = without_noise(state.contents)
            key = hash(frozenset(contents.items()))
            if key in seen.states:
                continue
            seen.states.add(key)
            with materialised(contents, work) as place, before.found_at(place / STORE) as catalog:
                catalog.assert_reachable()
                seen.found.add((len(catalog.image_txids), catalog.first_edit))
                if not len(seen.states) % GO_ON_EVERY:
                    catalog.append(4)
                    catalog.controller().checkpoint()
                    catalog.assert_reachable()
    assert_same(disk.seen(), on_disk(directory))
    return seen


@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_power_loss(work: Path, recorder: Recorder, tell: Tell, proves: Proves, earlier: int) -> None:
    seen = explored(work, recorder, earlier)
    tell(f"{seen.calls} calls, {len(seen.states)} states; images and first edit: {sorted(seen.found)}")
    assert len(seen.states) >= STATES_MIN[earlier]
    assert len({images for images, _ in seen.found}) == 2
    assert len({first for _, first in seen.found}) == (2 if earlier else 1)
    proves("crash states", len(seen.states))


@pytest.mark.nightly
def test_power_loss_for_a_night(work: Path, recorder: Recorder, tell: Tell, proves: Proves) -> None:
    states, seed = 0, 100
    while states < NIGHTLY_STATES_MIN:
        (place := work / str(seed)).mkdir()
        states += len(explored(place, recorder, seed % 4, seed=seed, draws=NIGHTLY_DRAWS).states)
        seed += 1
    tell(f"{seed - 100} catalogs, {states} states")
    proves("crash states", states)


@pytest.mark.parametrize("bug", CATALOG_BUGS)
def test_a_planted_bug_is_found(work: Path, recorder: Recorder, proves: Proves, bug: str) -> None:
    with pytest.raises(AssertionError, match=r"is not right|are gone"):
        explored(work, recorder, 1, bug)
    proves("planted bugs", 1)
