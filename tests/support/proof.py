"""What tests of reliability have tried, figure by figure, against what is to be tried: see docs/reliability.md.

A test adds to a figure with the fixture ``proves``. ``--proof per-change`` and ``--proof nightly`` hold a run against a
column of the table and fail it if a figure is below; the second keeps the figures that were reached, also of a part.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from benchmarks.pages import DOCS, markdown, rewrite

PROVED = "proved"
"""The user property of a test that adds to figures; reports bring it from where the test ran."""
IMPOSSIBLE = "impossible"
"""Likewise of one that says why a figure can't be reached on this machine."""
RESULTS = Path(__file__).parents[2] / "benchmarks/results/proof.json"


class Proves:
    """The fixture: adds to a figure of what was tried; counts if the test passes."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties

    def __call__(self, figure: str, count: int) -> None:
        assert figure in NAMES
        self._properties.append((PROVED, (figure, count)))

    def impossible(self, figure: str, reason: str) -> NoReturn:
        """This machine can't do it: the test is skipped, and the figure is not missed."""
        assert figure in NAMES
        self._properties.append((IMPOSSIBLE, (figure, reason)))
        pytest.skip(reason)


@dataclass(frozen=True, slots=True)
class Figure:
    """How much of something is to be tried.

    Attributes:
        per_change: In ``make test-long``.
        nightly: In ``make proof``.
    """

    name: str
    per_change: int
    nightly: int


FIGURES = (
    Figure("crash states", 5_000, 100_000),
    Figure("double-crash states", 200, 5_000),
    Figure("second recorder's states", 120, 3_000),
    Figure("kill -9 points", 300, 10_000),
    Figure("EIO and ENOSPC points", 300, 5_000),
    Figure("partial-write bytes", 200, 30_000),
    Figure("real power cuts", 20, 500),
    Figure("bits flipped", 16_000, 1_000_000),
    Figure("fuzz runs", 100_000, 10_000_000),
    Figure("steps interleaved", 100, 1_000),
    Figure("retries after a crash", 1_000, 100_000),
    Figure("catalog histories", 10_000, 10_000),
    Figure("replica losses", 100, 100),
    Figure("path histories", 20, 100),
    Figure("interrupts", 2_160, 54_000),
    Figure("kills and stops in a soak", 10, 300),
    Figure("rounds of growth", 160, 2_400),
    Figure("planted bugs", 16, 16),
)
NAMES = {figure.name for figure in FIGURES}


def proved(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """By figure, what tests that passed have tried."""
    found: Counter[str] = Counter()
    for report in reports:
        if report.when == "call" and report.passed:
            for name, value in report.user_properties:
                if name == PROVED:
                    figure, count = value  # type: ignore[misc]
                    found[figure] += int(count)
    return found


def impossible(reports: Iterable[pytest.TestReport]) -> dict[str, str]:
    """By figure, why it can't be reached on this machine."""
    reasons = (value for report in reports for name, value in report.user_properties if name == IMPOSSIBLE)
    return {str(figure): str(reason) for figure, reason in reasons}  # type: ignore[misc]


def lacking(found: Counter[str], column: str, not_here: Collection[str] = ()) -> list[str]:
    """Figures below a column, in words; but for those that can't be reached."""
    short = []
    for figure in FIGURES:
        wanted = figure.nightly if column == "nightly" else figure.per_change
        if found[figure.name] < wanted and figure.name not in not_here:
            short.append(f"{figure.name}: {found[figure.name]:,} of {wanted:,}")
    return short


def table(found: Counter[str]) -> list[str]:
    """The figures as lines."""
    lines = [f"{'tried':24}{'this run':>14}{'per change':>14}{'nightly':>14}"]
    return lines + [
        f"{figure.name:24}{found[figure.name]:>14,}{figure.per_change:>14,}{figure.nightly:>14,}" for figure in FIGURES
    ]


def keep(found: Counter[str], not_here: dict[str, str], seconds: float) -> None:
    """Keep what a nightly run has tried, here and in the documentation: the figures that it reached, with its day.

    A run of a part leaves the other figures as they are.
    """
    day = time.strftime("%Y-%m-%d", time.gmtime())
    reached = {each.name: [found[each.name], day] for each in FIGURES if found[each.name] >= each.nightly}
    kept: dict[str, Any] = json.loads(RESULTS.read_text())
    kept["tried"] |= reached
    if not lacking(found, "nightly", not_here):
        kept |= {"day": day, "minutes": round(seconds / 60), "impossible": not_here}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    rows = [
        [each.name, f"{each.per_change:,}", f"{each.nightly:,}", *_last(*kept["tried"].get(each.name, [0, ""]))]
        for each in FIGURES
    ]
    table = markdown([["tried", "per change", "nightly", "last time", "on"], *rows])
    whole = f"The last run of all of them together, on {kept['day']}, took {kept['minutes']} minutes."
    rewrite(DOCS / "reliability.md", "make proof", f"{table}\n\nNothing was bad. {whole}")


def _last(count: int, day: str) -> tuple[str, str]:
    return (f"{count:,}", day) if day else ("not yet", "")
