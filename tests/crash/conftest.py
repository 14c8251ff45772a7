"""The processes that crash tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import TOLD
from tests.crash.explore import Lab
from tests.crash.judges import Judges
from tests.crash.places import workplace
from tests.crash.recorder import Recorder
from tests.crash.scripts import fill_source
from tests.support.proof import Proves

Tell = Callable[..., None]


@pytest.fixture(scope="session")
def recorder() -> Iterator[Recorder]:
    """Runs and records processes."""
    with Recorder() as recorder:
        yield recorder


@pytest.fixture(scope="session")
def judges() -> Iterator[Judges]:
    """Open what crashes left."""
    with Judges() as judges:
        yield judges


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory, in memory if possible."""
    with workplace() as directory:
        yield directory


@pytest.fixture
def source(work: Path) -> Path:
    """Files of the job of a whole store."""
    return fill_source(work / "source")


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Lines for the end of the output."""

    def say(*lines: str) -> None:
        request.node.user_properties += [(TOLD, line) for line in lines]

    return say


@pytest.fixture
def lab(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> Lab:
    """All that a script is recorded and explored with."""
    return Lab(work, recorder, judges, tell, proves)
