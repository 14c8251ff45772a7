"""``python -m benchmarks.indexes``: indexes beside the same ones of SQLite, which stores the rows in a table by key.

CPU seconds of the fastest of some rounds, which alternate. The stores are in memory where that is possible.
``--build ROWS`` only creates indexes of so many rows, without SQLite, and says how much memory of its own the process
takes meanwhile (Linux).
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import kvstore

COLUMNS = {"id": "int64", "mail": "string", "age": "int32", "town": "string", "name": "string"}
INDEXED = ("mail", "age", "town")
FINDS, LISTED, UPDATED, BATCHES = 3000, 100_000, 100_000, (1000, 50_000)
Rows = list[dict[str, Any]]


def row_of(number: int, rows: int, turn: int = 0, name: str = "a name") -> dict[str, Any]:
    mail = f"user{turn or ''}{number * 7919 % rows}@example.org"
    return {"id": number, "mail": mail, "age": (number + turn) % 80, "town": f"t{(number + turn) % 5000}", "name": name}


def as_dict(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def seconds(works: dict[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """CPU seconds of the fastest round of each work."""
    found = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            began = time.process_time()
            work()
            found[name] = min(found[name], time.process_time() - began)
    return found


def parts(rows: Rows, size: int) -> Iterator[Rows]:
    return (rows[first : first + size] for first in range(0, len(rows), size))


class Pair:
    """Tables of both stores with the same rows, with or without the indexes."""

    def __init__(self, store: kvstore.Store, peer: sqlite3.Connection, name: str, rows: Rows) -> None:
        self.name, self._store, self.peer = name, store, peer
        self.table = store.create_table(name, COLUMNS, "id")
        peer.execute(f"create table {name} (id integer primary key, mail text, age integer, town text, name text)")
        self.put(rows, len(rows))
        self.put_in_peer(rows, len(rows))

    def index(self, columns: Sequence[str] = INDEXED) -> None:
        for column in columns:
            self._store.create_index(self.name, f"by_{column}", column)

    def index_peer(self, columns: Sequence[str] = INDEXED) -> None:
        for column in columns:
            self.peer.execute(f"create index {self.name}_{column} on {self.name} ({column})")

    def put(self, rows: Rows, size: int) -> None:
        for part in parts(rows, size):
            self.table.upsert(part)
        self.table.flush()

    def put_in_peer(self, rows: Rows, size: int) -> None:
        for part in parts(rows, size):
            self.peer.execute("begin")
            self.peer.executemany(f"insert or replace into {self.name} values (:id, :mail, :age, :town, :name)", part)
            self.peer.execute("commit")


def measure_updates(plain: Pair, pair: Pair, count: int, rounds: int = 3) -> None:
    numbers, turn = [number * 13 % count for number in range(UPDATED)], 0
    for size in BATCHES:
        for what in ("change", "stay"):
            took: dict[str, float] = {}
            for _ in range(rounds):
                turn += 1
                made = [
                    row_of(number, count, turn) if what == "change" else row_of(number, count, 0, f"name {turn}")
                    for number in numbers
                ]
                works = {"plain": plain.put, "three": pair.put, "SQLite": pair.put_in_peer}
                for name, put in works.items():
                    found = seconds({name: lambda put=put, made=made, size=size: put(made, size)}, 1)[name]  # type: ignore[misc]
                    # In the first round of rows that stay, those of before change.
                    if what == "change" or len(took) == len(works):
                        took[name] = min(took.get(name, found), found)
                    elif what == "stay":
                        took[name] = float("inf")
            print(
                f"updates in batches of {size:,}, indexed columns {what}: {UPDATED / took['three']:,.0f} rows/s,"
                f" {took['three'] / took['plain']:.2f} times those without indexes,"
                f" {took['SQLite'] / took['three']:.2f} of SQLite's rate",
                flush=True,
            )


def measure(directory: Path, count: int) -> None:
    made = [row_of(number, count) for number in range(count)]
    peer = sqlite3.connect(directory / "peer.db", isolation_level=None)
    peer.execute("pragma journal_mode = wal")
    peer.row_factory = as_dict
    with kvstore.open(directory / "store", durability="none") as store:
        plain, pair = Pair(store, peer, "plain", made), Pair(store, peer, "t", made)
        for column in INDEXED:
            took = seconds(
                {"ours": lambda: pair.index([column]), "SQLite": lambda: pair.index_peer([column])},  # noqa: B023
                rounds=1,
            )
            rates = {name: count / each for name, each in took.items()}
            print(f"index of {column} made: {rates['ours']:,.0f} rows/s, SQLite {rates['SQLite']:,.0f}", flush=True)
        mails = [row_of(number * 31 % count, count)["mail"] for number in range(LISTED)]
        query = "select * from t where mail = ?"
        found = seconds(
            {
                "find_one": lambda: [pair.table.find_one(mail=mail) for mail in mails[:FINDS]],
                "SQLite": lambda: [peer.execute(query, (mail,)).fetchone() for mail in mails[:FINDS]],
                "find": lambda: [pair.table.find(mail=mail) for mail in mails[:FINDS]],
            },
            rounds=7,
        )
        found = {name: FINDS / took for name, took in found.items()}
        took = seconds({"list": lambda: pair.table.find(mail=mails)})["list"]
        found["find of a list"] = LISTED / took
        pair.table.upsert(made[: count // 2])
        took = seconds({"list": lambda: pair.table.find(mail=mails)})["list"]
        found["find of a list, half of the rows not merged"] = LISTED / took
        for name, rate in found.items():
            print(f"{name}: {rate:,.0f} rows/s, {rate / found['SQLite']:.2f} of SQLite", flush=True)
        measure_updates(plain, pair, count)
    peer.close()


def columns_of(first: int, last: int, rows: int) -> pa.Table:
    """The rows of :func:`row_of` from one number to another (exclusive), as columns."""
    numbers = np.arange(first, last)
    mails = pc.binary_join_element_wise("user", pa.array(numbers * 7919 % rows).cast(pa.string()), "@example.org", "")
    towns = pc.binary_join_element_wise("t", pa.array(numbers % 5000).cast(pa.string()), "")
    ages = pa.array(numbers % 80, pa.int32())
    return pa.table({"id": numbers, "mail": mails, "age": ages, "town": towns, "name": ["a name"] * len(numbers)})


class OwnMemory:
    """How much more memory of its own, not of files, this process has at most while the context is open."""

    def __enter__(self) -> OwnMemory:
        self._over = threading.Event()
        self._before = self._most = self._now()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def most(self) -> int:
        """Bytes."""
        return self._most - self._before

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self._most = max(self._most, self._now())

    def _now(self) -> int:
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def measure_build(directory: Path, count: int) -> None:
    with kvstore.open(directory / "store", durability="none") as store:
        table = store.create_table("t", COLUMNS, "id")
        for first in range(0, count, BATCHES[-1]):
            table.upsert(columns_of(first, min(first + BATCHES[-1], count), count))
        table.flush()
        for column in INDEXED:
            began, cpu = time.perf_counter(), time.process_time()
            with OwnMemory() as memory:
                store.create_index("t", f"by_{column}", column)
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
            print(
                f"index of {column} of {count:,} rows made: {count / took:,.0f} rows/s, {count / cpu:,.0f} rows per CPU"
                f" second, at most {memory.most >> 20:,} MiB of memory",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--build", type=int, metavar="ROWS")
    arguments = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        if arguments.build:
            measure_build(Path(directory), arguments.build)
        else:
            measure(Path(directory), arguments.rows)


if __name__ == "__main__":
    main()
