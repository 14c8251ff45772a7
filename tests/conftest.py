"""What every test can use: stores that are checked when the test is over, and how long Hypothesis may look."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import kvstore

settings.register_profile(
    "quick",
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("long", settings.get_profile("quick"), max_examples=5_000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

OpenStore = Callable[..., kvstore.Store]


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a store may be created."""
    return tmp_path / "store"


@pytest.fixture
def open_store(store_path: Path) -> Iterator[OpenStore]:
    """Opens the test's store; at the end it is closed, opened again and must pass its own check."""
    opened: list[kvstore.Store] = []

    def open_again(**options: object) -> kvstore.Store:
        opened.append(kvstore.open(store_path, **options))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()
    with kvstore.open(store_path) as store:
        report = store.check()
    assert report.ok, report.findings


@pytest.fixture
def store(open_store: OpenStore) -> kvstore.Store:
    """A new, empty store."""
    return open_store()
