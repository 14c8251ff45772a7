"""``make proof PEERS=1``: kvstore and other stores under the same damage, and how long kvstore takes to recover.

Small samples: each figure is a count of so many trials, and says how often something happens at least, not that it
never does. What kvstore promises is tried in tests/crash and tests/proof, a thousand times as often.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, today, versions
from benchmarks.pages import DOCS, markdown, rewrite
from benchmarks.reliability import power, recovery, trials
from benchmarks.reliability.stores import checking, peers

RESULTS = Path(__file__).with_name("results") / "reliability_peers.json"
OUTCOMES = ("detected", "silent", "harmless", "right", "lost", "mixed", "unusable", "crash", "hang")
SEED = 7
SYNCS = 10
"""Of each store so many fail, each in a run of its own."""


def measured(flips: int, points: int, states: int, work: Path, console: Console) -> list[trials.Found]:
    found = []
    for peer in [*peers(), *checking()]:
        found.append(trials.flips(peer, flips, work, SEED, clean=True))
        if peer.can_stay:
            found.append(trials.flips(peer, flips, work, SEED, clean=False))
        console.print(*(each.as_json() for each in found[-2:]), highlight=False)
    for peer in peers():
        found.append(trials.kills(peer, points, work, SEED))
        found.append(trials.short_writes(peer, points, work, SEED))
        found.append(power.power_cuts(peer, states, work, SEED))
        found.append(power.failed_syncs(peer, SYNCS, states, work, SEED))
        console.print(*(each.as_json() for each in found[-4:]), highlight=False)
    return [each for each in found if each.outcomes]  # one that never syncs has no sync that fails


def grid(found: list[trials.Found]) -> Table:
    names = _outcomes({name for each in found for name in each.outcomes})
    table = Table("store", "trial", "n", *names)
    for each in found:
        counts = [str(each.outcomes[name]) if name in each.outcomes else "" for name in names]
        table.add_row(each.store, each.trial, str(sum(each.outcomes.values())), *counts)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=100, help="bits flipped in each store")
    parser.add_argument("--points", type=int, default=25, help="kills, and short writes, of each store")
    parser.add_argument("--states", type=int, default=100, help="of the disk after power cuts, of each store")
    parser.add_argument("--rows", type=int, default=500_000, help="of the index that is rebuilt")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[16, 64, 256], help="of the log that an index lags")
    given, console, began = parser.parse_args(), Console(width=150), time.perf_counter()
    results: dict[str, Any] = {"date": today(), "machine": machine(), "versions": versions()}
    results["versions"]["sqlite3"] = sqlite3.sqlite_version
    with tempfile.TemporaryDirectory(prefix="kvstore-reliability-") as name:
        work = Path(name)
        found = measured(given.flips, given.points, given.states, work, console)
        results["rebuilt"] = recovery.rebuilt(work, given.rows)
        results["behind"] = [recovery.lagging(work, size) for size in given.megabytes]
    console.print(grid(found))
    console.print(results["rebuilt"], *results["behind"])
    results |= {"found": [each.as_json() for each in found], "seconds": round(time.perf_counter() - began)}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    rewrite(DOCS / "reliability.md", "make proof PEERS=1", text_of(results))


def text_of(results: dict[str, Any]) -> str:
    """What was found, in Markdown."""
    names = _outcomes({name for each in results["found"] for name in each} - {"store", "trial"})
    rows = [[each["store"], each["trial"], *(str(each.get(name, "")) for name in names)] for each in results["found"]]
    rebuilt, lagging = results["rebuilt"], results["behind"]
    took = ", ".join(f"{each['log_bytes'] >> 20} MiB in {each['seconds']:.1f} s" for each in lagging)
    begin = f"Of {results['date']}, {', '.join(f'{name} {version}' for name, version in results['versions'].items())}."
    end = (
        f"R11: an index of {rebuilt['rows']:,} rows rebuilt from {rebuilt['changes']:,} changes is "
        f"{'' if rebuilt['same'] else 'NOT '}the one that was there, {rebuilt['changes_per_s']:,} changes/s. "
        f"R16: opening a store whose index lags its log by {took}."
    )
    return "\n\n".join([fill(begin, 120), markdown([["store", "trial", *names], *rows]), fill(end, 120)])


def _outcomes(found: set[str]) -> list[str]:
    """Those that were found, the usual ones first."""
    return [*(name for name in OUTCOMES if name in found), *sorted(found - set(OUTCOMES))]


if __name__ == "__main__":
    main()
