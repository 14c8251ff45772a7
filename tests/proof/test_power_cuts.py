"""Real file systems lose their power while a store is written: nothing acknowledged is lost, and it goes on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.crash.conftest import Tell
from tests.proof.budget import Run, budget
from tests.proof.cuts import cut_once, serve
from tests.proof.power import KINDS, Disk, Kind, NotPossible
from tests.support.processes import Child
from tests.support.proof import Proves

FIGURE = "real power cuts"


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def disk(request: pytest.FixtureRequest, work: Path, proves: Proves) -> Iterator[Disk]:
    """A disk of each kind, as far as the machine lets us."""
    kind: Kind = request.param
    try:
        with Disk(kind, work) as disk:
            disk.cut()
            disk.unmount()
            disk.mount()
            yield disk
    except NotPossible as reason:
        proves.impossible(FIGURE, str(reason))


@pytest.fixture(scope="module")
def mother() -> Iterator[Child]:
    """Of writers and readers."""
    with Child(serve) as mother:
        yield mother


def cut(disk: Disk, mother: Child, work: Path, run: Run, seed: int, tell: Tell, proves: Proves) -> None:
    random = Random(seed)
    count = budget("cuts", run) // len(KINDS)
    mounted: Counter[str] = Counter()
    for number in range(count):
        options = disk.options
        bad = cut_once(disk, mother, work, random)
        mounted[options or "defaults"] += 1
        assert bad is None, f"seed {seed}, cut {number}, {disk.kind.name} {options}: {bad}"
    tell(f"{count} cuts of {disk.kind.name}: {dict(mounted)}")
    proves(FIGURE, count)


def test_power_cuts(disk: Disk, mother: Child, work: Path, tell: Tell, proves: Proves) -> None:
    cut(disk, mother, work, "quick", 1, tell, proves)


@pytest.mark.long
def test_more_power_cuts(disk: Disk, mother: Child, work: Path, tell: Tell, proves: Proves) -> None:
    cut(disk, mother, work, "long", 2, tell, proves)


@pytest.mark.nightly
def test_many_power_cuts(disk: Disk, mother: Child, work: Path, tell: Tell, proves: Proves) -> None:
    cut(disk, mother, work, "nightly", int.from_bytes(os.urandom(4)), tell, proves)


@pytest.mark.long
def test_a_log_that_is_not_synced_is_found(disk: Disk, mother: Child, work: Path) -> None:
    """Planted: acknowledged before it is on the disk."""
    random = Random(3)
    assert any(cut_once(disk, mother, work, random, "log_is_not_synced") is not None for _ in range(20))
