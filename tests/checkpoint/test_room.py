"""Memory and disk are looked at before a checkpoint begins, and it says what it lacks."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstore.checkpoint import room
from kvstore.errors import StoreFull, Unavailable
from kvstore.process import memory
from tests.checkpoint.catalogs import Catalog


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """On a machine with 10 GiB of memory, and no container."""
    catalog = Catalog(tmp_path / "s")
    catalog.append(5)
    (tmp_path / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 10485760 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "cgroup")
    return catalog


def test_with_enough_it_begins(catalog: Catalog) -> None:
    assert memory.available_memory() == 10 << 30
    assert room.obstacle(catalog.path) is None
    catalog.controller().checkpoint()


def test_too_little_memory(catalog: Catalog) -> None:
    memory.MEMINFO.write_text("MemAvailable: 1000 kB\n")
    with pytest.raises(Unavailable, match=r"too little memory .* needed_bytes=\d+ available_bytes=1024000"):
        catalog.controller().checkpoint()
    assert catalog.image_txids == []


def test_too_little_memory_in_a_container(catalog: Catalog) -> None:
    memory.CGROUP.mkdir()
    for name, text in (("max", "max"), ("current", "0"), ("stat", "anon 5\ninactive_file 1000\n")):
        (memory.CGROUP / f"memory.{name}").write_text(text)
    assert memory.available_memory() == 10 << 30
    (memory.CGROUP / "memory.max").write_text("9000000")
    (memory.CGROUP / "memory.current").write_text("8000000")
    assert memory.available_memory() == 1_001_000
    assert isinstance(room.obstacle(catalog.path), Unavailable)


def test_a_larger_image_needs_more(catalog: Catalog) -> None:
    catalog.controller().checkpoint()
    os.truncate(catalog.image_path(), 1 << 30)
    assert isinstance(room.obstacle(catalog.path), Unavailable)


def test_a_system_that_does_not_say(catalog: Catalog) -> None:
    memory.MEMINFO.unlink()
    assert memory.available_memory() is None
    assert room.obstacle(catalog.path) is None


def test_too_little_disk(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=10, f_frsize=4096))
    with pytest.raises(StoreFull, match=r"too little disk .* available_bytes=40960"):
        catalog.controller().checkpoint()
    assert catalog.image_txids == []
