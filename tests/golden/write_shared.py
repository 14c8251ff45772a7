"""Write the golden shared table of this format: ``python -m tests.golden.write_shared FILE.tar.xz``.

What is committed is never written again: a version that changes the format adds a file beside it, and reads them all.
"""

from __future__ import annotations

import datetime as dt
import sys
import tarfile
import tempfile
from pathlib import Path

import kvstore
from kvstore.replica.client import ObjectStore
from kvstore.shared.snapshots import take_snapshots
from tests.shared.hosts import Host, created, upserts

WRITES = 30
KEYS = 5


def write(place: Path, cache: Path) -> None:
    """Write the table: a sum for each key of 2^0 to 2^(WRITES - 1), each under a name.

    Since shared-2 it has snapshots, and epochs that add to others; since shared-3 its first changes have expired.
    """
    client, engine = ObjectStore(place.as_uri(), create=True), kvstore.Aggregate({"v": "sum"})
    table = created(client, buckets=2, engine=engine, retention=dt.timedelta(seconds=WRITES // 3))
    host = Host(table, cache)
    for number in range(WRITES):
        host.clock.now += 1000
        if number == WRITES // 2:
            take_snapshots(table, cache, host.clock, again=False)
        host.write(upserts(range(KEYS), 1 << number), f"write {number}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, tarfile.open(sys.argv[1], "x:xz") as archive:
        write(Path(directory) / "place", Path(directory) / "cache")
        archive.add(Path(directory) / "place", "place")
