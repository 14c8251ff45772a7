"""The processes that crash tests share, and what they counted, at the end of the output."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.judges import Judges
from tests.crash.places import workplace
from tests.crash.recorder import Recorder

_told = pytest.StashKey[list[str]]()
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


@pytest.fixture(autouse=True)
def _unhurried(request: pytest.FixtureRequest) -> None:
    """Long tests are no hang: whatever they wait for has a limit of its own."""
    if request.node.get_closest_marker("long"):
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory, in memory if possible."""
    with workplace() as directory:
        yield directory


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Lines for the end of the output."""

    def say(*lines: str) -> None:
        told = request.config.stash.setdefault(_told, [])
        told += [f"{request.node.name}: {line}" for line in lines]

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_told, []):
        terminalreporter.write_line(line)
