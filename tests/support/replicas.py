"""Replicas that are written, read and followed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa

import kvstore
from kvstore.replica.ship.shipper import Shipper
from logformat.catalog.replicas import Shipped, Stream
from logformat.ids import BucketId, TableId
from tests.replica.followers import Leader, follower
from tests.replica.objects import Objects

BUCKET = Stream(TableId(1), BucketId(0))


def rebuilds(leader: Leader, path: Path) -> kvstore.Follower:
    """A follower of a copy that is so far behind that it has to be rebuilt, and the shipments since."""
    copy = follower(leader.objects, path)
    status = leader.store.runtime.catalog().replicas["r"]
    shipper = Shipper(leader.store.runtime, "r", leader.objects)
    for name in [name for name in leader.objects.names if name.stream == BUCKET]:
        del leader.objects.held[str(name)]
    leader.step()
    leader.store.table("t").snapshot()
    leader.upsert(leader.store.table("t"))
    leader.ship()
    (before,) = [each for each in status.shipped if each.stream == BUCKET]
    (now,) = [each for each in leader.store.runtime.catalog().replicas["r"].shipped if each.stream == BUCKET]
    offset = shipper.ship_snapshot(BUCKET)
    assert before.end < offset
    shipper.ship_range(BUCKET, offset, now.end)
    shipper.report([Shipped(stream=BUCKET, start=offset, end=now.end, snapshots=[offset])])
    leader.step()
    leader.ship()
    return copy


def append_until_fenced(table: kvstore.Table) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        table.upsert([{"k": 4, "v": 4}])


class Counting(Objects):
    """Remembers which objects were asked for."""

    def __init__(self, held: dict[str, bytes]) -> None:
        super().__init__(held)
        self.asked: list[str] = []
        self.listed: list[str] = []
        self.listings = 0

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        self.listings += 1
        for name, size in super().list(prefix, after):
            self.listed.append(name)
            yield name, size

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        self.asked.append(name)
        return super().get(name, bytes_max=bytes_max)


SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])


def write(table: kvstore.Table, random: Random, step: int, epoch: int) -> int:
    """Something happens to a table; the epoch that comes next."""
    keys = random.sample(range(30), random.randrange(1, 6))
    if random.random() < 0.3:
        table.delete(keys)
    elif random.random() < 0.4:
        rows = [("upsert", {"k": k, "v": step}) for k in keys]
        table.apply_epoch(kvstore.Changes.of(rows, table.schema), "w", epoch, "r")
        return epoch + 1
    else:
        table.upsert([{"k": k, "v": step} for k in keys])
    return epoch
