"""``python -m benchmarks.indexes``: an index beside the same one of SQLite, which stores the rows in a table by key.

CPU seconds of the fastest of some rounds, which alternate. The stores are in memory where that is possible.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kvstore

COLUMNS = {"id": "int64", "mail": "string", "age": "int32", "name": "string"}
FINDS, UPDATED, BATCH_ROWS = 3000, 20_000, 1000


def row_of(number: int, mails: int, mail: str = "user") -> dict[str, object]:
    return {"id": number, "mail": f"{mail}{number * 7919 % mails}@example.org", "age": number % 80, "name": "a name"}


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


def measure(directory: Path, rows: int) -> None:
    made = [row_of(number, rows) for number in range(rows)]
    mails = [row_of(number * 31 % rows, rows)["mail"] for number in range(FINDS)]
    numbers = [number * 13 % rows for number in range(UPDATED)]
    peer = sqlite3.connect(directory / "peer.db", isolation_level=None)
    peer.execute("pragma journal_mode = wal")
    peer.row_factory = as_dict
    peer.execute("create table t (id integer primary key, mail text, age integer, name text)")
    with kvstore.open(directory / "store", durability="none") as store:
        table = store.create_table("t", COLUMNS, "id")
        table.upsert(made)
        table.flush()
        peer.execute("begin")
        peer.executemany("insert into t values (:id, :mail, :age, :name)", made)
        peer.execute("commit")
        rounds = 0

        def update(mail: str) -> None:
            nonlocal rounds
            rounds += 1
            for first in range(0, UPDATED, BATCH_ROWS):
                table.upsert([row_of(n, rows, f"{mail}{rounds}") for n in numbers[first : first + BATCH_ROWS]])
            table.flush()

        plain = seconds({"updates without an index": lambda: update("u")})
        built = seconds(
            {
                "index made": lambda: store.create_index("t", "by_mail", "mail"),
                "index made, SQLite": lambda: peer.execute("create index by_mail on t (mail)"),
            },
            rounds=1,
        )
        table.upsert(made)
        table.flush()
        query = "select * from t where mail = ?"
        found = seconds(
            {
                "find_one": lambda: [table.find_one(mail=mail) for mail in mails],
                "SQLite": lambda: [peer.execute(query, (mail,)).fetchone() for mail in mails],
                "find": lambda: [table.find(mail=mail) for mail in mails],
                "find of a list": lambda: table.find(mail=mails),
            }
        )
        with_index = seconds({"updates of the indexed column": lambda: update("v")})
    peer.close()
    for name, took in built.items():
        print(f"{name}: {rows / took:,.0f} rows/s")
    for name, took in found.items():
        print(f"{name}: {FINDS / took:,.0f} rows/s, {found['SQLite'] / took:.2f} of SQLite")
    for name, took in (plain | with_index).items():
        print(f"{name}: {UPDATED / took:,.0f} rows/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        measure(Path(directory), arguments.rows)


if __name__ == "__main__":
    main()
