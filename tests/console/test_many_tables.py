"""What a page costs in a store of many tables: few files are opened for each, once they are known."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.bucket.reading import overlay, reader
from kvstore.index.open_readers import OpenReaders
from tests.console.browser import asking

TABLES = 12


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files and directories that are opened; at most 4 indexes stay open."""
    monkeypatch.setattr(OpenReaders.__init__, "__defaults__", (4,))
    found: list[str] = []
    real: Callable[..., int] = os.open

    def noted(name: Any, *given: Any, **options: Any) -> int:
        found.append(os.fspath(name))
        return real(name, *given, **options)

    monkeypatch.setattr(os, "open", noted)
    return found


@pytest.mark.parametrize(("look_seconds", "most"), [(3600.0, (3, 2, 4)), (0.0, (4, 3, 5))])
def test_a_page_opens_few_files_for_each_table(
    tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch, look_seconds: float, most: tuple[int, int, int]
) -> None:
    """The index, how far the log is published, and the names of its segments, if it is time to look for a writer."""
    for room in (reader, overlay):
        monkeypatch.setattr(room, "LOOK_SECONDS", look_seconds)
    with kvstore.open(tmp_path / "s") as store:
        store.add_replica(str(tmp_path / "r"), "r")
        for number in range(TABLES):
            store.create_table(f"t{number}", {"k": "int64"}, primary_key="k").upsert({"k": number})
        store.replica("r").ship()
    with asking(tmp_path / "s") as client:
        for path, each in zip(("/metrics", "/replicas", "/replicas/replica?name=r"), most, strict=True):
            assert client.get(path).status_code == 200  # opens what it needs
            opens.clear()
            assert client.get(path).status_code == 200
            of_tables = [name for name in opens if "tables/" in name]
            assert len(of_tables) <= each * TABLES, path
