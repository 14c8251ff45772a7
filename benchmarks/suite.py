"""``make bench``: kvstore, its peers and the raw limit in one run, and what of the targets was reached.

``--rows``, ``--rounds`` and ``--only`` measure less; only a full run is kept in ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks import report
from benchmarks.growth_results import last_growth
from benchmarks.machine import machine, today, versions
from benchmarks.measuring import Lines, Setting, gathered
from benchmarks.peers import KvStore, RawLimit, peers
from benchmarks.rows import NARROW, NESTED, WIDE
from benchmarks.targets import outcomes
from benchmarks.verification import verify
from benchmarks.works import WORKS

ROWS, ROUNDS = 1_000_000, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS), metavar="WORK")
    given = parser.parse_args()
    console = Console(width=200 if not Console().is_terminal else None)
    began, about = time.perf_counter(), {"day": today(), "versions": versions(), "machine": machine()}
    console.print(about, highlight=False)
    _verify(console)
    lines: Lines = {}
    for name in given.only:
        _measure(name, Setting(Path(), given.rows, given.rounds), lines, console)
    lines |= last_growth()
    found = list(outcomes(lines))
    for grid in (*report.figures_grids(lines), report.targets_grid(found)):
        grid.printed(console)
    about |= {"rows": given.rows, "rounds": given.rounds, "seconds": time.perf_counter() - began}
    console.print(f"{about['seconds']:.0f} s; {sum(each.holds for each in found)} of {len(found)} targets hold")
    if given.only == list(WORKS) and given.rows == ROWS and given.rounds >= ROUNDS:
        report.save(lines, found, about)
        console.print(f"kept in {report.RESULTS} and {report.PAGE}", highlight=False)


def _verify(console: Console) -> None:
    for durability in ("sync", "relaxed"):
        for make in (KvStore, *peers(durability), RawLimit):
            console.print(f"{durability:8} {make.name:13} {make.settings[durability]}", highlight=False)
    for shape in (NARROW, WIDE, NESTED):
        verify(peers("sync"), shape, "sync")
    verify(peers("relaxed"), NARROW, "relaxed")
    console.print("Given the same batches, all have the same rows, and as many records in their logs.")


def _measure(name: str, setting: Setting, lines: Lines, console: Console) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-") as directory:
        of_this = Setting(Path(directory), setting.rows, setting.rounds)
        for figure in gathered(WORKS[name](of_this), lines):
            line = f"{figure.line}: {figure.by} {figure.value:,.4g} {figure.unit}"
            console.log(line, highlight=False, log_locals=False)
    console.print(f"{name}: {time.perf_counter() - began:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
