"""Upkeep of shared tables at times that a test sets."""

from __future__ import annotations

from collections.abc import Sequence

import kvstore.shared
from kvstore.shared.vacuum import VacuumSummary, remove_unneeded
from tests.replica.objects import Objects
from tests.shared.hosts import Host

HOUR_MS = 3_600_000


WEEK_MS = 7 * 24 * HOUR_MS


SUM = kvstore.Aggregate({"v": "sum"})


class Dated(Objects):
    """Objects that know when they were written, by a clock of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 5 * WEEK_MS

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        if name not in self.held:
            self.modified[name] = self.now
        return super().create(name, pieces)

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        self.modified[name] = self.now
        super().replace(name, pieces)


def vacuum(host: Host, hours: float = 1, retain_last: int = 1, *, dry_run: bool = False) -> VacuumSummary:
    return remove_unneeded(host.table, older_than_ms=int(hours * HOUR_MS), retain_last=retain_last, dry_run=dry_run)


def epochs(objects: Objects) -> list[int]:
    return sorted(int(name[-20:]) for name in objects.held if "/epoch/" in name)
