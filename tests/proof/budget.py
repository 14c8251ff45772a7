"""How much of each kind of trial is done: in ``make test``, ``make test-long`` and ``make proof``."""

from __future__ import annotations

from typing import Literal

Run = Literal["quick", "long", "nightly"]
_BUDGETS: dict[str, dict[Run, int]] = {
    "pairs": {"quick": 15, "long": 200, "nightly": 1_250},
    "cuts": {"quick": 2, "long": 22, "nightly": 500},
    "second recorder": {"quick": 0, "long": 120, "nightly": 3_000},
    "soak seconds": {"quick": 0, "long": 60, "nightly": 1_800},
    "growth": {"quick": 40, "long": 40, "nightly": 600},
    "stops": {"quick": 8, "long": 120, "nightly": 120},
    "full disks": {"quick": 2, "long": 60, "nightly": 60},
    "path histories": {"quick": 2, "long": 20, "nightly": 100},
    "jumps": {"quick": 1, "long": 10, "nightly": 100},
    "interrupts": {"quick": 1, "long": 40, "nightly": 1_000},
}


def budget(kind: str, run: Run) -> int:
    """How many trials of a kind."""
    return _BUDGETS[kind][run]
