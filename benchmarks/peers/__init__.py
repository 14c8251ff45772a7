"""kvstore, its peers and the raw limit with one interface: a keyed table that keeps a full-image log of its changes.

What a store is handed is made beforehand, in the form it likes best: Arrow for those that read Arrow, Python values for
the others, finished bytes for the raw limit. What it then has to encode itself, it encodes while the clock runs.
``benchmarks.verification`` sees to it that all of them do the same work.
"""

from __future__ import annotations

from benchmarks.peers.deltalake import DeltaLake
from benchmarks.peers.duckdb import DuckDb
from benchmarks.peers.kvstore import KvStore
from benchmarks.peers.lmdb import LmdbByHand
from benchmarks.peers.raw_limit import RawLimit
from benchmarks.peers.rocksdict import RocksDict
from benchmarks.peers.sqlite import Sqlite
from benchmarks.peers.store import Durability, Store

__all__ = [
    "DeltaLake",
    "DuckDb",
    "Durability",
    "KvStore",
    "LmdbByHand",
    "RawLimit",
    "RocksDict",
    "Sqlite",
    "Store",
    "peers",
]


def peers(durability: Durability) -> list[type[Store]]:
    """Those that can be had with this durability: deltalake never syncs."""
    synced: list[type[Store]] = [Sqlite, RocksDict, DuckDb, LmdbByHand]
    return synced if durability == "sync" else [*synced, DeltaLake]
