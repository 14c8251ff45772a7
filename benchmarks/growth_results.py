"""What ``make bench-growth`` found last: it takes too long to be part of every run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.measuring import KVSTORE, Line, Lines

FILE = Path(__file__).with_name("results") / "growth.json"
UPDATE_20M = "update at 20M rows of random keys"
UPDATE_50M = "update at 50M rows of random keys"
MEMORY = "memory at 50M rows, anonymous"
PAGES_20M = "pages written for a row updated, at 20M rows"
PAGES_50M = "pages written for a row updated, at 50M rows"


def last_growth() -> Lines:
    """Lines of the last run, with its day; of 50M rows there are none if it did not come to them."""
    if not FILE.exists():
        return {}
    results = json.loads(FILE.read_text())
    lines: Lines = {}

    def add(name: str, unit: str, by: str, value: float) -> None:
        line = lines.setdefault(name, Line(name, unit, {}, results["day"]))
        line.figures[by] = [value]

    for by, steps in results["measured"].items():
        for rows, rate, pages in ((20_000_000, UPDATE_20M, PAGES_20M), (50_000_000, UPDATE_50M, PAGES_50M)):
            for step in _updates_at(steps, rows):
                add(rate, "rows/s", by, step["rate"])
                add(pages, "pages", by, step["pages_a_row"])
        if by == KVSTORE and _updates_at(steps, 50_000_000):
            add(MEMORY, "GiB", by, max(step["memory_mb"] for step in steps) * 1e6 / 2**30)
    return lines


def _updates_at(steps: list[dict[str, Any]], rows: int) -> list[dict[str, Any]]:
    return [step for step in steps if step["is_update"] and step["rows"] == rows]
