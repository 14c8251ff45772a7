"""``make bench-compare REF=…``: kvstore as it is here beside kvstore of a git reference, by the same benchmarks.

Each is a process of its own, and they take turns, figure by figure; a ratio is the median of the rounds' ratios.
``--turns`` is what such a process runs: it measures kvstore alone, and waits for a line before each figure.
Both run the benchmarks of here; ``--its-own`` is for a reference from before modules moved that these import.
The reference gets a native kernel if there is one here; ``--without-kernel`` measures what Python does alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.measuring import Figure, Line, Lines, Setting, gathered
from benchmarks.report import Grid
from benchmarks.targets import shown
from benchmarks.works import WORKS
from kvstore.kernel.library import kernel, switched_off

ROOT = Path(__file__).parents[1]
BENCHMARKS = "benchmarks"
_COMPARED = [name for name in WORKS if name != "disk"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ref", help="a git reference, such as a branch or HEAD~1")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=_COMPARED, metavar="WORK")
    parser.add_argument("--its-own", action="store_true", help="measure the reference by its own benchmarks")
    parser.add_argument("--without-kernel", action="store_true", help="measure both without the native kernel")
    parser.add_argument("--turns", metavar="WORK", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.turns:
        with switched_off() if given.without_kernel else nullcontext():
            _take_turns(given.turns, given.rows, given.rounds)
        return
    options = ["--rows", str(given.rows), "--rounds", str(given.rounds)]
    options += ["--without-kernel"] if given.without_kernel else []
    lines: Lines = {}
    with _checked_out(given.ref, its_own=given.its_own) as other:
        sides = {"here": ROOT, given.ref: other}
        for work in track(given.only, "measuring", transient=True):
            for figure in _alternately(sides, work, options):
                list(gathered([figure], lines))
    rows = [_row(line, given.ref) for line in lines.values()]
    Grid(f"{given.rows:,} rows, {given.rounds} rounds", ["median", "here", given.ref, "here / there"], rows).printed(
        Console(width=160)
    )


def _row(line: Line, ref: str) -> list[str]:
    figures = [shown(line.median(side), line.unit) for side in ("here", ref)]
    return [line.name, *figures, f"{line.ratio('here', ref):.2f}"]


@contextmanager
def _checked_out(ref: str, *, its_own: bool) -> Iterator[Path]:
    """kvstore of a reference, with the benchmarks of here or its own."""
    with tempfile.TemporaryDirectory(prefix="kvstore-compare-") as directory:
        place = Path(directory, "checkout")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", place, ref], check=True, cwd=ROOT)
        try:
            if not its_own:
                (place / BENCHMARKS).rename(place / "its-own-benchmarks")
                (place / BENCHMARKS).symlink_to(ROOT / BENCHMARKS)
            if kernel():
                subprocess.run([sys.executable, "-m", "kvstore.kernel.build"], check=True, **_running_in(place))
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", place], check=True, cwd=ROOT)


def _alternately(sides: dict[str, Path], work: str, options: list[str]) -> Iterator[Figure]:
    """Figures of each side, by which one they are; both yield the same lines in the same order."""
    started = [_started(place, work, options) for place in sides.values()]
    while True:
        for side, process in zip(sides, started, strict=True):
            assert process.stdin is not None
            assert process.stdout is not None
            print("go", file=process.stdin, flush=True)
            line = process.stdout.readline()
            if not line:
                for each in started:
                    each.communicate()
                    if each.returncode:
                        raise SystemExit(f"{work} failed in {each.args}")
                return
            found = Figure(**json.loads(line))
            yield Figure(f"{found.line}: {found.by}, {found.unit}", side, found.value, found.unit)


def _started(place: Path, work: str, options: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.compare", "", "--turns", work, *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **_running_in(place))


def _running_in(place: Path) -> dict[str, Any]:
    """Where a process of a side runs: its directory comes before whatever is installed."""
    return {"cwd": place, "env": {**os.environ, "PYTHONPATH": str(place), "PYTHONWARNINGS": "ignore"}}


def _take_turns(work: str, rows: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kvstore-turns-") as directory:
        figures = WORKS[work](Setting(Path(directory), rows, rounds, with_others=False))
        for _ in sys.stdin:
            figure = next(figures, None)
            if figure is None:
                return
            print(json.dumps(asdict(figure)), flush=True)


if __name__ == "__main__":
    main()
