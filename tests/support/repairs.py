"""Repairs that begin from the same damaged store, or end halfway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvstore.disk.files import Files


def from_the_same_start(found: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """The content without expired changes that came back: a log without a snapshot is restored from offset 0."""
    cut = dict(found)
    for name in found["tables"]:
        starts = {bucket: start for bucket, (start, _) in truth[f"{name} offsets"].items()}
        cut[f"{name} offsets"] = {b: (max(at, starts[b]), end) for b, (at, end) in found[f"{name} offsets"].items()}
        rows = found[f"{name} changes"]
        cut[f"{name} changes"] = [row for row in rows if row["_log_offset"] >= starts[row["_bucket"]]]
    return cut


class Killed(BaseException):
    """The process is dead: no handler of errors may run."""


class Dying(Files):
    """The real disk, until the process dies before one of the calls that change a file."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.calls = 0

    def _ask(self) -> None:
        self.calls += 1
        if self.calls > self.left:
            raise Killed

    def open(self, path: Path, *, create: bool = False) -> int:
        if create:
            self._ask()
        return super().open(path, create=create)

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        self._ask()
        super().write(descriptor, pieces, position)

    def sync(self, descriptor: int) -> None:
        self._ask()
        super().sync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        self._ask()
        super().truncate(descriptor, length)

    def rename(self, old: Path, new: Path) -> None:
        self._ask()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._ask()
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        self._ask()
        super().remove_tree(path)

    def make_directory(self, path: Path) -> None:
        self._ask()
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._ask()
        super().sync_directory(path)
