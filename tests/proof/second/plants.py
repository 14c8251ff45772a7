"""Bugs that this recorder has to find."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kvstore.disk.files import Files
from kvstore.index.index import Index
from logformat.paths import STAGING


def _segments_are_not_synced() -> Any:
    sync = Files.sync

    def unless_a_segment(self: Files, descriptor: int) -> None:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            sync(self, descriptor)

    return patch.object(Files, "sync", unless_a_segment)


def _names_are_not_synced() -> Any:
    return patch.object(Files, "sync_directory")


def _commits_are_not_staged_durably() -> Any:
    sync = Files.sync

    def unless_staged(self: Files, descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name != STAGING:
            sync(self, descriptor)

    return patch.object(Files, "sync", unless_staged)


def _a_writer_is_forgotten() -> Any:
    """Its last batch would be taken twice after a crash."""
    return patch.object(Index, "put_writer")


PLANTS: dict[str, Callable[[], Any]] = {
    "segments_are_not_synced": _segments_are_not_synced,
    "names_are_not_synced": _names_are_not_synced,
    "commits_are_not_staged_durably": _commits_are_not_staged_durably,
    "a_writer_is_forgotten": _a_writer_is_forgotten,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have a bug, or none."""
    if name is None:
        yield
        return
    with PLANTS[name]():
        yield
