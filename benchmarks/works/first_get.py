"""``python -m benchmarks.works.first_get STORE``: a process that opens a store and gets one row.

It prints the milliseconds that this took after the store was open, and by how many MiB the process grew.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import kvstore


def main() -> None:
    with kvstore.open(sys.argv[1], read_only=True) as store:
        table = store.table("t")
        before, began = _mib(), time.perf_counter()
        table.get(0)
        print(1000 * (time.perf_counter() - began), _mib() - before)


def _mib() -> float:
    """Memory of the process that is no file's."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1024


if __name__ == "__main__":
    main()
