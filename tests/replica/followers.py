"""A store to which things happen, with a replica in memory; followers of it, what a copy holds, and files that die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

import kvstore
from kvstore.disk.files import Files
from kvstore.options import StoreOptions
from kvstore.replica.client import Client
from kvstore.replica.follow.creation import create
from kvstore.replica.follow.follower import Follower
from kvstore.replica.follow.replacement import complete
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog.following_file import FollowingFile
from logformat.catalog.replicas import Shipped
from logformat.replica import manifest as replica_manifest
from tests.replica.objects import SCHEMA, Objects, changes_of, replica_of
from tests.support.clocks import SetClock
from tests.support.tables import rows_of

EPOCH_KEYS = range(100, 109)
"""Every epoch puts its number into all of them: two numbers in them are half a commit."""


def follower(
    objects: Client, path: Path, *, files: Files | None = None, clock: SetClock | None = None, **given: Any
) -> Follower:
    """A follower of a replica in memory; creates the copy at the path if it does not exist."""
    named = ("journal_sync", "edits_per_journal", "segment_bytes_max")
    options = StoreOptions(**{key: given.pop(key) for key in named if key in given})
    files, clock = files or Files(), clock or SetClock()
    complete(path.resolve(), Files())
    if not (path / paths.STORE_FILE).exists():
        following = FollowingFile(store_id=Source(objects).store.store_id, url="file:///nowhere", name="c")
        create(path, following, objects, files, clock)
    return Follower(path, options, files, clock, connect=lambda _: objects, **given)


def everything(path: Path) -> dict[str, tuple[list[Any], list[Any], dict[int, int]]]:
    """Rows, changes and ends of all tables, as a reader finds them."""
    with kvstore.open(path, read_only=True) as store:
        assert store.check()
        return {name: contents(store.table(name)) for name in store.list_tables()}


def contents(table: kvstore.Table) -> tuple[list[Any], list[Any], dict[int, int]]:
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    return sorted(map(str, rows_of(table))), sorted(map(str, changes_of(table))), ends


class Leader:
    """A store to which things happen, with a replica in memory."""

    def __init__(self, path: Path, seed: int, objects: Objects | None = None) -> None:
        self.objects = objects or Objects()
        self.random = Random(seed)
        self.store = kvstore.open(path, edits_per_journal=9)
        self.epochs = self.number = 0
        if "t" not in self.store.list_tables():
            self.store.create_table("t", SCHEMA, "k", buckets=3)
        self.replica = replica_of(self.store, self.objects)

    def step(self) -> None:
        """Something happens."""
        self.number += 1
        table = self.store.table("t")
        happens = self.random.choices(
            (
                *(self.apply_epoch, self.upsert, self.delete, self.create_table, self.drop_table),
                *(self.add_column, self.move_consumer),
            ),
            (4, 4, 2, 1, 1, 1, 1),
        )[0]
        happens(table)

    def ship(self) -> None:
        self.store.flush()
        self.replica.ship()

    def apply_epoch(self, table: kvstore.Table) -> None:
        rows = [("upsert", {**dict.fromkeys(table.schema.names), "k": k, "v": self.epochs}) for k in EPOCH_KEYS]
        table.apply_epoch(kvstore.Changes.of(rows, table.schema), "w", self.epochs, "r")
        self.epochs += 1

    def upsert(self, table: kvstore.Table) -> None:
        rows = [
            {**dict.fromkeys(table.schema.names), "k": k, "v": self.number} for k in self.random.sample(range(40), 6)
        ]
        table.upsert(rows)

    def delete(self, table: kvstore.Table) -> None:
        table.delete(self.random.sample(range(40), 4))

    def create_table(self, _: kvstore.Table) -> None:
        name = f"u{self.number}"
        self.store.create_table(name, SCHEMA, "k").upsert([{"k": 1, "v": self.number}])

    def drop_table(self, _: kvstore.Table) -> None:
        others = [name for name in self.store.list_tables() if name != "t"]
        if others:
            self.store.drop_table(self.random.choice(others))

    def add_column(self, table: kvstore.Table) -> None:
        if len(table.schema) < 5:
            self.store.add_columns("t", [pa.field(f"c{self.number}", pa.string())])
        self.store.alter_table("t", compression="zstd" if self.number % 2 else None)
        others = [name for name in self.store.list_tables() if name != "t"]
        if others and f"r{self.number}" not in others:
            self.store.rename_table(others[0], f"r{self.number}")

    def move_consumer(self, _: kvstore.Table) -> None:
        self.store.consumer("reader").commit("t", dict.fromkeys(range(3), 0))


class Dies(Exception):
    pass


class DyingFiles(Files):
    """Everything stops at the call of this number."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _call(self) -> None:
        if self.left == 0:
            raise Dies
        self.left -= 1

    def write(self, *given: Any) -> None:
        self._call()
        super().write(*given)

    def sync(self, *given: Any) -> None:
        self._call()
        super().sync(*given)

    def rename(self, *given: Any) -> None:
        self._call()
        super().rename(*given)

    def remove_tree(self, *given: Any) -> None:
        self._call()
        super().remove_tree(*given)

    def make_directory(self, *given: Any) -> None:
        self._call()
        super().make_directory(*given)


def until_it_lives(work: Callable[[Files], Any]) -> int:
    """Do it again until it does not die, each time a call later; how often it died."""
    died = 0
    while True:
        try:
            work(DyingFiles(died))
            return died
        except Dies:
            died += 1


def cut(objects: Objects, of: Callable[[Shipped], int]) -> Objects:
    """The replica with an earlier manifest, as after a leader that died during a round."""
    manifest = replica_manifest.decode(objects.held["TOLD"], store_id(objects))
    shipped = [msgspec.structs.replace(each, end=of(each)) for each in manifest.shipped]
    before = msgspec.structs.replace(manifest, shipped=shipped, as_of_ms=manifest.as_of_ms - 1)
    return Objects({**objects.held, "TOLD": replica_manifest.encode(before)})


def store_id(objects: Objects) -> UUID:
    return Source(objects).store.store_id
