"""Figures as tables for the terminal and in Markdown, as JSON, and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import NO_PEERS, Lines
from benchmarks.pages import DOCS, markdown, rewrite
from benchmarks.targets import Outcome, shown

RESULTS = Path(__file__).with_name("results")
PAGE = DOCS / "performance.md"


@dataclass(frozen=True)
class Grid:
    """A table that can be shown in several ways."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def printed(self, console: Console) -> None:
        table = Table(*self.head, title=self.title, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> str:
        return markdown([self.head, *self.rows])


def targets_grid(outcomes: Sequence[Outcome]) -> Grid:
    head = ["work", "kvstore", "best peer", "raw limit", "ratio", "target", "holds"]
    return Grid("Targets", head, [_target_row(each) for each in outcomes])


def _target_row(outcome: Outcome) -> list[str]:
    target, line = outcome.target, outcome.line
    by = "" if target.by in NO_PEERS else f": {target.by}"
    day = f" (not of this run: {line.measured_on})" if line.measured_on else ""
    of = f" of {outcome.against[0]}" if outcome.against else ""
    if target.against_line:
        of = f" of {target.against_line}"
    return [
        f"{line.name}{by}{day}",
        shown(outcome.figure, line.unit),
        f"{outcome.best_peer[1]:,.0f} ({outcome.best_peer[0]})" if outcome.best_peer else "",
        f"{outcome.raw_limit:,.0f}" if outcome.raw_limit else "",
        f"{outcome.ratio:.2f}{of}" if outcome.ratio else "",
        target.shown(line.unit),
        "yes" if outcome.holds else "**no**",
    ]


def figures_grids(lines: Lines) -> list[Grid]:
    """All figures: a table for the lines that have the same columns."""
    by_columns: dict[tuple[str, ...], list[list[str]]] = {}
    for line in lines.values():
        day = f" (not of this run: {line.measured_on})" if line.measured_on else ""
        cells = [f"{line.name}, {line.unit}{day}", *(shown(line.median(by), "").strip() for by in line.figures)]
        by_columns.setdefault(tuple(line.figures), []).append(cells)
    return [Grid("", ["median", *columns], rows) for columns, rows in by_columns.items()]


def save(lines: Lines, outcomes: Sequence[Outcome], about: dict[str, Any], directory: Path = RESULTS) -> None:
    """Write JSON, Markdown and the picture, and the tables into the page on performance."""
    directory.mkdir(exist_ok=True)
    results = {**about, "lines": [asdict(line) for line in lines.values()]}
    (directory / "suite.json").write_text(json.dumps(results, indent=1) + "\n")
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    text = "\n\n".join(
        [
            f"Of {about['day']}, {about['rows']:,} rows, {about['rounds']} rounds, {about['seconds']:.0f} s,"
            f" {about['machine']['cores']} cores, an fsync of {about['machine']['fsync_ms']} ms."
            f"\n{versions}.",
            targets_grid(outcomes).markdown(),
            "All figures:",
            *(grid.markdown() for grid in figures_grids(lines)),
        ]
    )
    (directory / "suite.md").write_text(f"# Results of `make bench`\n\n{text}\n")
    rewrite(PAGE, "make bench", text)
    plot(outcomes, directory / "suite.png")


def plot(outcomes: Sequence[Outcome], file: Path) -> None:
    """How far each target was reached: 1 is the target, and right of it is better."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    reached = [_reached(each) for each in outcomes]
    names = [_target_row(each)[0].replace(" (not of this run: ", "\n(not of this run: ") for each in outcomes]
    figure, axes = plt.subplots(figsize=(10, 0.42 * len(outcomes) + 1.2))
    colours = ["#2f7d4f" if each.holds else "#b5533c" for each in outcomes]
    axes.barh(range(len(reached)), [math.log2(value) for value in reached], color=colours)
    for place, (value, each) in enumerate(zip(reached, outcomes, strict=True)):
        measured = _target_row(each)[4] or shown(each.figure, each.line.unit)
        label = f" {measured} (target {each.target.shown(each.line.unit)}) "
        axes.text(math.log2(value), place, label, va="center", ha="left" if value >= 1 else "right", fontsize=8)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    low, high = (math.log2(edge(reached)) for edge in (min, max))
    axes.set_xlim(min(low, -1.0) - 6, max(high, 1.0) + 4)  # room for what stands beside the bars
    ticks = range(math.floor(min(low, -1.0)), math.ceil(max(high, 1.0)) + 1)
    axes.set_xticks(list(ticks), [f"{2.0**tick:g}" for tick in ticks])
    axes.set_xlabel("times the target (log scale)")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _reached(outcome: Outcome) -> float:
    value = outcome.figure if outcome.ratio is None else outcome.ratio
    if outcome.target.at_most:  # a difference of two measurements may be less than nothing
        value = max(value, outcome.target.bound / 16)
    return outcome.target.bound / value if outcome.target.at_most else value / outcome.target.bound
