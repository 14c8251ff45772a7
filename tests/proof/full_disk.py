"""A store on a disk that is full, of bytes or of names, until it is made larger."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import kvstore
from kvstore.errors import StoreFull
from tests.support.processes import Pipe

ROOM = {"nr_inodes": 10_000, "size": 64 << 20}
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
SETTINGS: dict[str, Any] = {
    "segment_bytes_max": 3_000,
    "map_bytes": 1 << 26,
    "commit_idle_ms": 20,
    "commit_wait_ms": 20,
    "edits_per_journal": 4,
}
REFUSED_MAX = 5
Rows = dict[int, int]


@contextmanager
def disk(path: Path, limits: dict[str, int]) -> Iterator[Callable[[], None]]:
    """A disk in memory with little room; what is given makes more."""

    def mount(how: str, room: dict[str, int]) -> None:
        options = ",".join([how, *(f"{name}={value}" for name, value in room.items())])
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True, capture_output=True)

    path.mkdir()
    mount("rw", ROOM | limits)
    try:
        yield lambda: mount("remount", ROOM)
    finally:
        subprocess.run(["umount", "-l", path], check=True, capture_output=True)
        path.rmdir()


class Work:
    """Any steps of one process on a store.

    Attributes:
        rows: What was acknowledged.
        unsure: A write that was refused, and is there as a whole or not at all.
        refused: Steps that the disk had no room for.
    """

    def __init__(self, path: Path, random: Random) -> None:
        self._path, self._random = path, random
        self._store: kvstore.Store | None = None
        self._number = 0
        self.rows: Rows = {}
        self.unsure: Rows | None = None
        self.refused = Counter[str]()

    def until_full(self) -> None:
        for _ in range(200):
            self.attempt()
            if self.refused.total() == REFUSED_MAX:
                return

    def attempt(self) -> None:
        """Any step."""
        steps = [self.write, self.write, self.write, self.write, self.flush, self.snapshot, self.checkpoint, self.read]
        step = self._random.choice([*steps, self.create, self.drop, self.reopen])
        try:
            step()
        except StoreFull:
            self.refused[step.__name__] += 1

    def write(self) -> None:
        if self.unsure is not None:
            self.read()  # whether it is there is to be known before the next one
        self._number += 1
        rows = dict.fromkeys(range(self._number % 7, self._number % 7 + 10), self._number)
        table = self._table()
        self.unsure = rows
        table.upsert([{"k": k, "v": v, "s": "x" * 50} for k, v in rows.items()])
        self.rows |= rows
        self.unsure = None

    def read(self) -> None:
        found = {row["k"]: row["v"] for row in self._table().scan().read_all().to_pylist()}
        if self.unsure is not None and found == self.rows | self.unsure:
            self.rows = found
        assert found == self.rows
        self.unsure = None

    def flush(self) -> None:
        self._table().flush()

    def snapshot(self) -> None:
        self._table().snapshot()

    def checkpoint(self) -> None:
        self._opened().checkpoint()

    def create(self) -> None:
        self._number += 1
        self._opened().create_table(f"t{self._number}", SCHEMA, "k")

    def drop(self) -> None:
        if others := [name for name in self._opened().list_tables() if name != "t"]:
            self._opened().drop_table(others[0])

    def reopen(self) -> None:
        self.close()
        self._opened()

    def close(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            store.close()

    def check(self) -> None:
        report = self._opened().check()
        assert report.ok, report.findings

    def _opened(self) -> kvstore.Store:
        if self._store is None:
            self._store = kvstore.open(self._path, **SETTINGS)
        return self._store

    def _table(self) -> kvstore.Table:
        store = self._opened()
        return store.table("t") if "t" in store.list_tables() else store.create_table("t", SCHEMA, "k")


def work(pipe: Pipe, directory: Path, trials: list[tuple[dict[str, int], int]]) -> None:
    """In a process of its own, because what a disk has no room for may end it: for each trial what was refused."""
    for number, (limits, seed) in enumerate(trials):
        with disk(directory / str(number), limits) as grow:
            work = Work(directory / str(number) / "store", Random(seed))
            work.until_full()
            grow()
            refused = work.refused.copy()
            for _ in range(6):
                work.attempt()
            assert work.refused == refused, f"{limits}, seed {seed}: {work.refused - refused} though there is room"
            for step in (work.reopen, work.read, work.write, work.snapshot, work.checkpoint, work.reopen, work.read):
                step()
            work.check()
            work.close()
        pipe.send(refused)


def begin(pipe: Pipe, directory: Path, sizes: list[int]) -> None:
    """In a process of its own: a store is begun on disks of so many bytes, and once more with room."""
    for number, size in enumerate(sizes):
        with disk(directory / str(number), {"size": size}) as grow:
            work = Work(directory / str(number) / "store", Random())
            try:
                work.write()
            except StoreFull:
                work.refused["write"] += 1
            grow()
            work.write()
            work.read()
            work.close()
        pipe.send(work.refused)
