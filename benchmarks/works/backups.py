"""Backups of a store that another process writes, beside those of sqlite3, and what the writer keeps of its rate.

``filler`` is what the other process runs. Each system's writer has its turn alone: two would share the disk.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting
from benchmarks.peers import Sqlite

LINE = "backup while another process writes, bytes of the copy"
WRITER = "updates of the process that writes, {}"
BESIDE, ALONE = "beside the backup", "alone"
_ALONE_SECONDS = 2.0
Copy = Callable[[Path], None]


def figures(setting: Setting) -> Iterator[Figure]:
    place = setting.place("backups")
    ways: dict[str, Copy] = {KVSTORE: lambda to: _by_kvstore(place, to)}
    if setting.with_others:
        ways[Sqlite.name] = lambda to: _by_sqlite(place, to)
    for _ in range(setting.rounds):
        for name, copy in ways.items():
            yield from _measured(name, place, setting.rows, copy)


def _by_kvstore(place: Path, to: Path) -> None:
    with kvstore.open(place / "kvstore") as store:
        store.backup(to)


def _by_sqlite(place: Path, to: Path) -> None:
    to.mkdir()
    with closing(sqlite3.connect(place / "sqlite.db")) as db, closing(sqlite3.connect(to / "copy.db")) as copy:
        db.backup(copy)


def _measured(name: str, place: Path, rows: int, copy: Copy) -> Iterator[Figure]:
    command = [sys.executable, "-m", "benchmarks.works.filler", name, str(place), str(rows)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdout.readline()

    def rate() -> float:
        assert writer.stdin is not None
        assert writer.stdout is not None
        print("how many", file=writer.stdin, flush=True)
        return float(writer.stdout.readline())

    rate()
    time.sleep(_ALONE_SECONDS)
    alone = rate()
    began = time.perf_counter()
    copy(place / "copy")
    seconds = time.perf_counter() - began
    beside = rate()
    writer.communicate()
    size = sum(each.stat().st_size for each in (place / "copy").rglob("*") if each.is_file())
    yield Figure(LINE, name, size / seconds / (1 << 20), "MiB/s")
    for when, found in ((ALONE, alone), (BESIDE, beside)):
        yield Figure(WRITER.format(name), when, found)
    shutil.rmtree(place)
    place.mkdir()
