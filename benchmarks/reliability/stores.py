"""Stores as the trials see them: keys and values are bytes, so that no harness decodes anything and calls it detection.

* ``write`` acknowledges a commit once the store says that it is durable.
* ``read`` gives what a whole scan finds and what lookups of single keys find, one after the other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

Pairs = dict[bytes, bytes]
Acknowledge = Callable[[int], None]
T = TypeVar("T")
POINTS = 200
"""So many keys are looked up."""


class Peer(Protocol):
    """One store with its settings.

    Attributes:
        can_stay: Whether ``clean=False`` leaves commits in a log that is read at the next open.
    """

    name: str
    settings: str
    can_stay: bool

    def write(self, path: Path, commits: Iterable[Pairs], acknowledge: Acknowledge, *, clean: bool) -> None:
        """Make commits; with ``clean``, then have all of it where it belongs and close."""

    def read(self, path: Path) -> tuple[Pairs, Pairs]:
        """What is there."""


def kept(store: T) -> T:
    """Keep a reference to a store, because some stores close when the last reference ends."""
    _kept.append(store)
    return store


_kept: list[object] = []


def some(keys: Iterable[bytes]) -> list[bytes]:
    """Keys to look up, evenly spread."""
    ordered = sorted(keys)
    return ordered[:: max(1, len(ordered) // POINTS)]


def key_of(number: int) -> bytes:
    return b"%06d" % number


KEYS = [key_of(number) for number in range(2000)]


class Sqlite:
    def __init__(self, journal: str, *, checked: bool = False) -> None:
        self.name = f"sqlite3 {journal}" + (", integrity_check" if checked else "")
        self.settings = f"journal_mode={journal}, synchronous=FULL"
        self._journal, self._checked = journal, checked
        self.can_stay = journal == "WAL"

    def _open(self, path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path / "db", isolation_level=None)
        db.text_factory = bytes
        db.execute(f"PRAGMA journal_mode = {self._journal}")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE IF NOT EXISTS t (k BLOB PRIMARY KEY, v BLOB)")
        return db

    def write(self, path: Path, commits: Iterable[Pairs], acknowledge: Acknowledge, *, clean: bool) -> None:
        db = kept(self._open(path))
        db.execute("PRAGMA wal_autocheckpoint = 0")
        for number, pairs in enumerate(commits):
            db.execute("BEGIN")
            db.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", pairs.items())
            db.execute("COMMIT")
            acknowledge(number)
        if clean:
            db.close()

    def read(self, path: Path) -> tuple[Pairs, Pairs]:
        db = self._open(path)
        if self._checked and (found := db.execute("PRAGMA integrity_check").fetchall()) != [(b"ok",)]:
            raise ValueError(found[0])
        scanned = dict(db.execute("SELECT k, v FROM t").fetchall())
        points = {}
        for key in some(KEYS):
            points |= dict(db.execute("SELECT k, v FROM t WHERE k = ?", (key,)).fetchall())
        return scanned, points


class Lmdb:
    name, settings, can_stay = "lmdb", "sync", False

    def write(self, path: Path, commits: Iterable[Pairs], acknowledge: Acknowledge, *, clean: bool) -> None:
        import lmdb

        env = kept(lmdb.open(str(path), map_size=1 << 26))
        for number, pairs in enumerate(commits):
            with env.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(list(pairs.items()))
            acknowledge(number)
        if clean:
            env.close()

    def read(self, path: Path) -> tuple[Pairs, Pairs]:
        import lmdb

        with lmdb.open(str(path), map_size=1 << 26).begin() as transaction:
            found = {key: transaction.get(key) for key in some(KEYS)}
            return dict(transaction.cursor()), {key: value for key, value in found.items() if value is not None}


class RocksDict:
    name, settings, can_stay = "rocksdict", "sync=True, recovery by default", True

    def write(self, path: Path, commits: Iterable[Pairs], acknowledge: Acknowledge, *, clean: bool) -> None:
        from rocksdict import Options, Rdict, WriteBatch, WriteOptions

        db, synced = kept(Rdict(str(path), Options(raw_mode=True))), WriteOptions()
        synced.sync = True
        for number, pairs in enumerate(commits):
            batch = WriteBatch(raw_mode=True)
            for key, value in pairs.items():
                batch.put(key, value)
            db.write(batch, synced)
            acknowledge(number)
        if clean:
            db.flush()
            db.close()

    def read(self, path: Path) -> tuple[Pairs, Pairs]:
        from rocksdict import Options, Rdict

        db = Rdict(str(path), Options(raw_mode=True))
        found = {key: db.get(key) for key in some(KEYS)}
        return dict(db.items()), {key: value for key, value in found.items() if value is not None}


class DuckDb:
    name, settings, can_stay = "duckdb", "as it comes", True

    def write(self, path: Path, commits: Iterable[Pairs], acknowledge: Acknowledge, *, clean: bool) -> None:
        import duckdb

        db = kept(duckdb.connect(str(path / "db")))
        db.execute("CREATE TABLE IF NOT EXISTS t (k BLOB PRIMARY KEY, v BLOB)")
        for number, pairs in enumerate(commits):
            db.register("new", as_arrow(pairs))
            db.execute("INSERT OR REPLACE INTO t SELECT * FROM new")
            acknowledge(number)
        if clean:
            db.close()

    def read(self, path: Path) -> tuple[Pairs, Pairs]:
        import duckdb

        db = duckdb.connect(str(path / "db"))
        points = {}
        for key in some(KEYS):
            points |= dict(db.execute("SELECT k, v FROM t WHERE k = ?", (key,)).fetchall())
        return dict(db.execute("SELECT k, v FROM t").fetchall()), points


class DeltaLake:
    name, settings, can_stay = "deltalake", "append; it never syncs", False

    def write(self, path: Path, commits: Iterable[Pairs], acknowledge: Acknowledge, *, clean: bool) -> None:  # noqa: ARG002
        from deltalake import write_deltalake

        for number, pairs in enumerate(commits):
            write_deltalake(str(path / "t"), as_arrow(pairs), mode="append")
            acknowledge(number)

    def read(self, path: Path) -> tuple[Pairs, Pairs]:
        from deltalake import DeltaTable

        found = pa.table(DeltaTable(str(path / "t")).to_pyarrow_table())
        scanned = dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))
        return scanned, {key: scanned[key] for key in some(KEYS) if key in scanned}


class KvStore:
    can_stay = True
    settings = "durability=sync"

    def __init__(self, *, checked: bool = False) -> None:
        self.name = "kvstore" + (", check" if checked else "")
        self._checked = checked

    def write(self, path: Path, commits: Iterable[Pairs], acknowledge: Acknowledge, *, clean: bool) -> None:
        import kvstore

        waits = {} if clean else {"commit_idle_ms": 60_000, "commit_wait_ms": 60_000}
        store = kept(kvstore.open(path / "store", map_bytes=1 << 28, **waits))
        there = "t" in store.list_tables()
        schema = pa.schema([pa.field("k", pa.binary(), False), pa.field("v", pa.binary())])
        table = store.table("t") if there else store.create_table("t", schema, primary_key="k")
        for number, pairs in enumerate(commits):
            table.upsert(as_arrow(pairs).cast(schema))
            acknowledge(number)
        if clean:
            store.close()

    def read(self, path: Path) -> tuple[Pairs, Pairs]:
        import kvstore

        store = kvstore.open(path / "store", map_bytes=1 << 28)
        table = store.table("t")
        keys = some(KEYS)
        looked_up = table.lookup(keys)
        scanned = table.scan().read_all()
        changes = pa.Table.from_batches(table.changelog())
        if changes.num_rows < scanned.num_rows:
            raise ValueError("changes are missing")
        if self._checked and (found := store.check().findings):
            raise ValueError(found)
        points = {row["k"]: row["v"] for row in looked_up.to_pylist() if row["_found"]}
        return dict(zip(scanned["k"].to_pylist(), scanned["v"].to_pylist(), strict=True)), points


def as_arrow(pairs: Pairs) -> pa.Table:
    return pa.table({"k": pa.array(pairs.keys(), pa.binary()), "v": pa.array(pairs.values(), pa.binary())})


def peers() -> list[Peer]:
    """All of them."""
    return [KvStore(), Sqlite("WAL"), Sqlite("DELETE"), Lmdb(), RocksDict(), DuckDb(), DeltaLake()]


def checking() -> list[Peer]:
    """Those that have a check, with it."""
    return [KvStore(checked=True), Sqlite("WAL", checked=True)]
