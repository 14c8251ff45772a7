"""Disks that have no room left: StoreFull says so, nothing acknowledged is lost, and with room the store goes on.

Errors of calls (``tests/crash/test_failed_calls.py``) are not all of it: a page of a file that is written through a
map, as LMDB writes its lock file, fails without one, and ends the process.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.crash.conftest import Tell
from tests.proof.budget import Run, budget
from tests.proof.full_disk import begin, disk, work as work_on
from tests.support.processes import Child

PAGE = 4096
LIMITS = {"nr_inodes": range(3, 70), "size": range(16 * PAGE, 300 * PAGE, PAGE)}


@pytest.fixture(params=LIMITS)
def limit(request: pytest.FixtureRequest, work: Path) -> str:
    """What there is little of, if this machine lets us make such a disk."""
    try:
        with disk(work / "some", {}):
            return str(request.param)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted: {error.stderr.decode().strip()}")


def heard(child: Child, trials: Sequence[object], work: Path) -> Counter[str]:
    """What was refused in all trials of a child, which are in directories by number."""
    refused = Counter[str]()
    for number, trial in enumerate(trials):
        try:
            refused += child.hear()
        except EOFError:
            subprocess.run(["umount", "-l", work / str(number)], check=False, capture_output=True)
            pytest.fail(f"{trial}: it ended with {child.join()}")
    return refused


def fill(limit: str, work: Path, run: Run, seed: int, tell: Tell) -> None:
    random = Random(seed)
    trials = [({limit: random.choice(LIMITS[limit])}, random.getrandbits(32)) for _ in range(budget("full disks", run))]
    with Child(work_on, work, trials) as child:
        refused = heard(child, trials, work)
    tell(f"{len(trials)} disks with too little {limit}: {dict(refused)}")
    assert refused.total() >= 3 * len(trials)


@pytest.mark.parametrize("limit", ["size"], indirect=True)
def test_a_store_is_begun(limit: str, work: Path) -> None:
    """Whichever page it is that there is no room for."""
    sizes = list(range(PAGE, 90 * PAGE, PAGE))
    with Child(begin, work, sizes) as child:
        refused = heard(child, sizes, work)
    assert 40 < refused.total() < len(sizes), limit


def test_full_disks(limit: str, work: Path, tell: Tell) -> None:
    fill(limit, work, "quick", 1, tell)


@pytest.mark.long
def test_more_full_disks(limit: str, work: Path, tell: Tell) -> None:
    fill(limit, work, "long", int.from_bytes(os.urandom(4)), tell)
