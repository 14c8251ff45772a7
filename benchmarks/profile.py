"""``make bench-profile``: flame graphs of updates, by py-spy, which looks at the process from outside.

A bar is as wide as the time its function took, with what it called standing on it. Only time in which a thread did
something is shown, that in Arrow, LMDB and numpy too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.peers import KvStore
from benchmarks.report import RESULTS
from benchmarks.rows import Rows

WORKS = {"update-50k": (50_000, 16), "update-1k": (1_000, 400)}
_SECONDS = 12
_SAMPLES_A_SECOND = 100


def run(work: str, rows: int) -> None:
    """Fill a table, say so, and update it until it is time to stop."""
    batch_rows, batches = WORKS[work]
    source = Rows(rows)
    with tempfile.TemporaryDirectory(prefix="kvstore-profile-") as directory:
        store = KvStore(Path(directory))
        for batch in source.inserts(50_000):
            store.apply(batch)
        made = source.updates(batch_rows, batches)
        print("ready", flush=True)
        until = time.perf_counter() + _SECONDS + 1
        while time.perf_counter() < until:
            for batch in made:
                store.apply(batch)
        store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--run", choices=WORKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(given.run, given.rows)
        return
    for work in WORKS:
        command = [sys.executable, "-m", "benchmarks.profile", "--rows", str(given.rows), "--run", work]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as updating:
            assert updating.stdout is not None
            updating.stdout.readline()
            picture = RESULTS / f"profile-{work}.svg"
            spy = [Path(sys.executable).with_name("py-spy"), "record", "--pid", str(updating.pid)]
            spy += ["--format", "flamegraph", "--output", picture, "--duration", str(_SECONDS)]
            spy += ["--rate", str(_SAMPLES_A_SECOND), "--native", "--threads"]
            subprocess.run(spy, check=True)
            print(picture)


if __name__ == "__main__":
    main()
