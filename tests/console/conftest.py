from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import kvstore
from tests.console.browser import asking, fill


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that no test of the console changes."""
    path = tmp_path_factory.mktemp("console") / "store"
    with kvstore.open(path) as store:
        fill(store)
    return path


@pytest.fixture(scope="module")
def client(shown: Path) -> Iterator[TestClient]:
    with asking(shown) as client:
        yield client
