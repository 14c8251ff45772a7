"""Ctrl-C at any moment of any public call: R18 of docs/reliability.md.

The moments and the judge are in `moments.py` and `sweep.py`, the calls in `scenes.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interrupts.scenes import SCENES
from tests.interrupts.sweep import Interrupter
from tests.proof.budget import Run, budget
from tests.support.proof import Proves

FIGURE = "interrupts"


@pytest.fixture(scope="module")
def interrupter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interrupter]:
    with Interrupter(tmp_path_factory.mktemp("interrupts")) as interrupter:
        yield interrupter


def _interrupted(run: Run, name: str, seed: int, interrupter: Interrupter, proves: Proves) -> None:
    interrupter.sweep(name, budget(FIGURE, run), seed)
    proves(FIGURE, budget(FIGURE, run))


@pytest.mark.parametrize("name", SCENES)
def test_an_interrupted_call_is_done_or_not_and_gives_everything_back(
    name: str, interrupter: Interrupter, proves: Proves
) -> None:
    _interrupted("quick", name, 1, interrupter, proves)


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
def test_more_interrupts(name: str, interrupter: Interrupter, proves: Proves) -> None:
    _interrupted("long", name, 2, interrupter, proves)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENES)
def test_a_thousand_interrupts(name: str, interrupter: Interrupter, proves: Proves) -> None:
    _interrupted("nightly", name, int.from_bytes(os.urandom(4)), interrupter, proves)
