"""A small store of every kind of file with a replica of it, and all that a user can ask of it.

Two tables, three buckets, several segments in each, a snapshot, an image of the catalog, a consumer, writers.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import kvstore
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.meta.leadership import CatalogLeadership
from kvstore.options import StoreOptions
from kvstore.repair.source import Source
from kvstore.repair.store import RepairReport, StoreRepair
from kvstore.replica.client import ObjectStore
from kvstore.store.store import Store
from tests.repair.damage import files_of
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
OPTIONS = StoreOptions(segment_bytes_max=3000, commit_idle_ms=60_000, commit_wait_ms=60_000, map_bytes=1 << 28)
STEPS = 14
SHIPPED_AFTER = (4, 9, STEPS - 1)
WRITER = 7
LOG = "tables/1/0/log"


@dataclass(frozen=True)
class World:
    """A store that is closed, and its replica.

    Attributes:
        original: A copy of the replica as it was built; None if it need not be restored.
    """

    path: Path
    replica: Path
    original: Path | None = None

    def copied(self, to: Path) -> World:
        """A copy of the store with the same replica, which is restored: another copy may have shipped to it."""
        if self.original is not None:
            shutil.rmtree(self.replica)
            shutil.copytree(self.original, self.replica)
        shutil.copytree(self.path, to, ignore=shutil.ignore_patterns("lock.mdb", "LOCK"))
        return World(to, self.replica, self.original)

    def repair(
        self, *, replica: bool | Path = True, accepts_loss: bool = False, files: Files | None = None
    ) -> RepairReport:
        """Repair the store, with its replica or without."""
        place = self.replica if replica is True else replica
        source = Source(ObjectStore(str(place)), place.as_uri()) if isinstance(place, Path) else None
        return StoreRepair(self.path, files or Files(), SystemClock(), CatalogLeadership(), source).run(
            accepts_loss=accepts_loss
        )


def operations(step: int) -> list[tuple[str, dict[str, Any]]]:
    """Operations of one step."""
    found: list[tuple[str, dict[str, Any]]] = [
        ("upsert", {"k": (step + n) % 9, "v": step, "s": f"{step}" * 60}) for n in range(3)
    ]
    return [*found, ("delete", {"k": (step * 2) % 9})]


def build(place: Path, *, shipped_after: tuple[int, ...] = SHIPPED_AFTER, log_bytes_max: int | None = None) -> World:
    """Write the store, ship it, and close it."""
    world = World(place / "store", place / "replica")
    options = OPTIONS if log_bytes_max is None else StoreOptions(segment_bytes_max=3000, log_bytes_max=log_bytes_max)
    with Store(world.path, options) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2, compression=None)
        events = store.create_table("events", SCHEMA, compression=None)
        replica = store.add_replica(str(world.replica), "r")
        for step in range(STEPS):
            write(store, step)
            if step == 6:
                store.flush()
                table.snapshot()
                store.checkpoint()
            if step == 3 and log_bytes_max is None:
                store.consumer("c").commit("t", {0: 2, 1: 0})
            if step in shipped_after:
                store.flush()
                replica.ship()
        assert events.offsets()
        if log_bytes_max is not None:
            for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
                handle.take_snapshot()
                handle.retain()
    return world


def write(store: kvstore.Store, step: int) -> list[Any]:
    """Write one step; returns the results."""
    table, events = store.table("t"), store.table("events")
    done = operations(step)
    buckets = table.buckets_of([row["k"] for _, row in done])
    parts = [[each for each, of in zip(done, buckets, strict=True) if of == bucket] for bucket in range(2)]
    appended = kvstore.Changes.of([each for each in done if each[0] == "upsert"], SCHEMA)
    return [
        *(table.bucket(n).apply(kvstore.Changes.of(part, SCHEMA), WRITER, step) for n, part in enumerate(parts)),
        events.bucket(0).apply(appended, WRITER, step),
    ]


def seen(path: Path, *, end: bool = True) -> dict[str, Any]:
    """Content of a store: rows, changes, offsets, writers, consumers."""
    with Store(path, OPTIONS, read_only=True) as store:
        found: dict[str, Any] = {"tables": store.list_tables(), "consumers": store.consumers}
        for name in store.list_tables():
            table = store.table(name)
            if table.primary_key:
                found[f"{name} rows"] = rows_of(table)
                found[f"{name} count"] = table.count()
            found[f"{name} changes"] = [row for batch in table.changelog() for row in batch.to_pylist()]
            found[f"{name} offsets"] = table.offsets()
            for bucket, handle in enumerate(store.runtime.open_table(store.runtime.definition(name)).handles):
                with handle.snapshot() as view:
                    found[f"{name}/{bucket} writers"] = view.writers()
        return found


def goes_on(path: Path, step: int = STEPS) -> None:
    """The last batch is a duplicate if it is sent again, the next one is accepted, and the check finds nothing."""
    with Store(path, OPTIONS) as store:
        assert all(answer.duplicated for answer in write(store, step - 1))
        assert not any(answer.duplicated for answer in write(store, step))
        assert store.check().findings == []
    with Store(path, OPTIONS) as store:
        assert all(answer.duplicated for answer in write(store, step))
        assert store.check().findings == []


def segment(world: World, base: int) -> Path:
    return world.path / LOG / f"{base:020d}.log"


def segments(world: World) -> dict[str, bytes]:
    return {name: (world.path / name).read_bytes() for name in files_of(world.path) if name.endswith(".log")}
