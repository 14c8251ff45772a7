"""The small store is built once; tests damage copies of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.repair.worlds import World, build, seen

Built = tuple[World, dict[str, Any]]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Built]:
    """Builds a store with its replica and returns it with its content; each kind is built once."""
    known: dict[tuple[object, ...], Built] = {}

    def get(shipped_after: tuple[int, ...] = (4, 9, 13), log_bytes_max: int | None = None) -> Built:
        how = shipped_after, log_bytes_max
        if how not in known:
            world = build(tmp_path_factory.mktemp("world"), shipped_after=shipped_after, log_bytes_max=log_bytes_max)
            world = World(world.path, world.replica, world.replica.with_name("original"))
            shutil.copytree(world.replica, world.replica.with_name("original"))
            known[how] = world, seen(world.path)
        return known[how]

    return get


@pytest.fixture
def shipped(built: Callable[..., Built], tmp_path: Path) -> Built:
    """A copy of a store whose replica has everything."""
    world, truth = built()
    return world.copied(tmp_path / "store"), truth


@pytest.fixture
def ahead(built: Callable[..., Built], tmp_path: Path) -> Built:
    """A copy of a store that is ahead of its replica."""
    world, truth = built((4, 9))
    return world.copied(tmp_path / "store"), truth


@pytest.fixture
def alone(built: Callable[..., Built], tmp_path: Path) -> Built:
    """A copy of a store whose replica is empty."""
    world, truth = built(())
    return world.copied(tmp_path / "store"), truth
