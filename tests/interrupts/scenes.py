"""Public calls to be interrupted: what each needs, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import kvstore
from kvstore.store.store import Store as PlainStore, open_reader
from logformat.rows.changes import Changes

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
MANY, ONE, LOGGED = "many", "one", "logged"
REPLICA, CSV = "replica", "files"


@dataclass(frozen=True, slots=True)
class World:
    """Where a call is made.

    Attributes:
        path: Directory of the store; a directory beside it is its replica, another has files to be loaded.
        store: Open, if the scene says so.
    """

    path: Path
    store: kvstore.Store | None = None

    @property
    def open(self) -> kvstore.Store:
        assert self.store is not None
        return self.store

    def table(self, name: str = MANY) -> kvstore.Table:
        return self.open.table(name)

    @property
    def replica(self) -> str:
        return str(self.path.parent / REPLICA)

    @property
    def copy(self) -> Path:
        return self.path.parent / "copy"


Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Scene:
    """One public call.

    Attributes:
        begin: Prepares the world and returns the call.
        opens: Whether the store is open before.
        partly: Whether what is done in parts may be there in part.
        replicates: Whether the store has a replica.
    """

    begin: Callable[[World], Call]
    opens: bool = True
    partly: bool = False
    replicates: bool = False


def _rows(first: int, count: int = 3) -> list[dict[str, int]]:
    return [{"k": first + i, "v": first} for i in range(count)]


def fill(path: Path) -> None:
    """Make the store that calls are made on."""
    path.mkdir(parents=True, exist_ok=True)
    (path.parent / CSV).mkdir()
    (path.parent / CSV / "a.csv").write_text("k,v\n500,1\n501,2\n")
    with kvstore.open(path, commit_idle_ms=20) as store:
        for name, buckets in ((MANY, 2), (ONE, 1)):
            store.create_table(name, SCHEMA, primary_key="k", buckets=buckets).upsert(_rows(0, 20))
        store.create_table(LOGGED, SCHEMA).upsert(_rows(0, 5))
        store.consumer("reader").commit(ONE, {0: 5})
        store.table(ONE).upsert(_rows(100))


def _opened(store: PlainStore) -> PlainStore:
    with store:
        store.list_tables()
    return store


def _write_first(world: World) -> Call:
    return lambda: world.table().upsert(_rows(200))


def _write(world: World) -> Call:
    table = world.table()
    table.upsert(_rows(190, 1))
    return lambda: table.upsert(_rows(200))


def _after_writes(call: Callable[[World], object]) -> Callable[[World], Call]:
    def begin(world: World) -> Call:
        for name in (MANY, ONE):
            world.table(name).upsert(_rows(190, 4))
        return lambda: call(world)

    return begin


def _plain(call: Callable[[World], object]) -> Callable[[World], Call]:
    return lambda world: lambda: call(world)


def _epoch(world: World) -> object:
    return world.table().apply_epoch(Changes.upserts(pa.RecordBatch.from_pylist(_rows(200, 8), SCHEMA)), "w", 0)


def _written(world: World) -> None:
    with world.table().writer("named") as writer:
        for first in (200, 210):
            writer.upsert(_rows(first))
        writer.flush()
        writer.upsert(_rows(220))


def _followed(world: World) -> None:
    found: Iterator[Any] = iter(world.table(ONE).changelog("earliest", follow=True))
    next(found)
    world.table(ONE).upsert(_rows(200))
    next(found)
    found.close()  # type: ignore[attr-defined]


def _replicated(world: World) -> None:
    with world.open.replicate(every=3600):
        world.table(ONE).count()


def _pulled(world: World) -> None:
    with kvstore.follow(world.replica, world.copy) as follower:
        follower.pull()


def _following(world: World) -> Call:
    _pulled(world)
    with kvstore.open(world.path) as store:
        store.table(ONE).upsert(_rows(300))
        store.table(ONE).flush()
        store.replica("there").ship()
    return lambda: _pulled(world)


def _promotable(world: World) -> Call:
    _pulled(world)
    return lambda: kvstore.promote(world.copy)


def _job(world: World) -> kvstore.Job:
    return world.open.create_job("job", source=world.path.parent / CSV, format="csv", table=ONE)


def _job_run(world: World) -> Call:
    job = _job(world)
    return job.run


def _read(world: World) -> None:
    table = world.table()
    for batch in table.scan():
        assert batch.num_rows
    assert table.get(1) == {"k": 1, "v": 0}
    assert table.lookup([2, 3]).num_rows == 2
    assert table.count()


def _patched(world: World) -> Call:
    changes = Changes.upserts(pa.RecordBatch.from_pylist(_rows(200), SCHEMA))
    patch = kvstore.Patch.of(world.table(), changes)
    return lambda: patch.apply(world.table())


SCENES: dict[str, Scene] = {
    "open": Scene(_plain(lambda world: _opened(kvstore.open(world.path))), opens=False),
    "open a new store": Scene(_plain(lambda world: _opened(kvstore.open(world.path.parent / "new"))), opens=False),
    "open for reading": Scene(_plain(lambda world: _opened(kvstore.open(world.path, read_only=True))), opens=False),
    "open and register": Scene(_plain(lambda world: _opened(open_reader(world.path))), opens=False),
    "close": Scene(_after_writes(lambda world: world.open.close())),
    "close after reading": Scene(lambda world: (_read(world), world.open.close)[1]),
    "create_table": Scene(_plain(lambda world: world.open.create_table("new", SCHEMA, primary_key="k", buckets=2))),
    "add_columns": Scene(_plain(lambda world: world.open.add_columns(MANY, [pa.field("more", pa.int64())]))),
    "alter_table": Scene(_after_writes(lambda world: world.open.alter_table(MANY, compression="zstd"))),
    "rename_table": Scene(_plain(lambda world: world.open.rename_table(MANY, "renamed"))),
    "drop_table": Scene(_after_writes(lambda world: world.open.drop_table(MANY))),
    "the first upsert": Scene(_write_first),
    "upsert": Scene(_write),
    "delete": Scene(_after_writes(lambda world: world.table(ONE).delete([1, 2]))),
    "apply": Scene(
        _plain(
            lambda world: (
                world.table(ONE).bucket(0).apply(Changes.upserts(pa.RecordBatch.from_pylist(_rows(200), SCHEMA)), 7, 0)
            )
        )
    ),
    "apply_epoch": Scene(_plain(_epoch)),
    "append": Scene(_plain(lambda world: world.table(LOGGED).upsert(_rows(200)))),
    "the first get": Scene(_plain(lambda world: world.table(ONE).get(1))),
    "get": Scene(_after_writes(lambda world: world.table(ONE).get(1))),
    "lookup": Scene(_after_writes(lambda world: world.table().lookup([1, 2, 77]))),
    "scan": Scene(_after_writes(lambda world: world.table().scan().read_all())),
    "scan batches": Scene(_plain(lambda world: [batch.num_rows for batch in world.table(ONE).scan()])),
    "prefix_lookup": Scene(_plain(lambda world: world.table().prefix_lookup({"k": 1}))),
    "count": Scene(_plain(lambda world: world.table().count())),
    "changelog": Scene(_plain(lambda world: [batch.num_rows for batch in world.table().changelog("earliest")])),
    "changelog in full": Scene(_after_writes(lambda world: list(world.table(ONE).changelog("full")))),
    "follow": Scene(_plain(_followed)),
    "snapshot": Scene(_plain(lambda world: world.table().snapshot())),
    "undo": Scene(_plain(lambda world: world.table(ONE).undo({0: 20}))),
    "history": Scene(_plain(lambda world: world.table().history(1))),
    "apply a patch": Scene(_patched),
    "checkpoint": Scene(_plain(lambda world: world.open.checkpoint())),
    "check": Scene(_plain(lambda world: world.open.check())),
    "health": Scene(_plain(lambda world: world.open.health())),
    "flush": Scene(_after_writes(lambda world: world.open.flush())),
    "new_writer_id": Scene(_plain(lambda world: world.open.new_writer_id())),
    "writer": Scene(_plain(_written), partly=True),
    "consumer": Scene(_plain(lambda world: world.open.consumer("reader").commit(ONE, {0: 20}))),
    "drop_consumer": Scene(_plain(lambda world: world.open.drop_consumer("reader"))),
    "add_replica": Scene(_plain(lambda world: world.open.add_replica(str(world.path.parent / "other"), "other"))),
    "drop_replica": Scene(_plain(lambda world: world.open.drop_replica("there")), replicates=True),
    "ship": Scene(_after_writes(lambda world: world.open.replica("there").ship()), replicates=True),
    "check a replica": Scene(_plain(lambda world: world.open.replica("there").check()), replicates=True),
    "repair a replica": Scene(_plain(lambda world: world.open.replica("there").repair()), replicates=True),
    "report": Scene(_plain(lambda world: world.open.replicas), replicates=True),
    "replicate": Scene(_plain(_replicated), replicates=True),
    "publish": Scene(_after_writes(lambda world: world.open.publish(MANY, str(world.path.parent / "shared")))),
    "begin to follow": Scene(_plain(_pulled), opens=False, replicates=True),
    "follow a replica": Scene(_following, opens=False, replicates=True),
    "promote": Scene(_promotable, opens=False, replicates=True),
    "restore": Scene(_plain(lambda world: kvstore.restore(world.replica, world.copy)), opens=False, replicates=True),
    "create_job": Scene(_plain(_job)),
    "run a job": Scene(_job_run, partly=True),
    "drop a job": Scene(lambda world: _job(world).drop),
}


def of_store(path: Path) -> dict[str, object]:
    """What a store has, as its users see it."""
    with kvstore.open(path) as store:
        tables: dict[str, object] = {}
        for name in store.list_tables():
            table = store.table(name)
            if table.primary_key is None:
                rows = [row for batch in table.changelog("earliest") for row in batch.to_pylist()]
                found = sorted((row["k"], row["v"]) for row in rows)
            else:
                found = sorted(tuple(row.values()) for row in table.scan().read_all().to_pylist())
            # A patch has a random name, another one in each trial.
            writers = sorted("patch" if writer.startswith("patch ") else writer for writer in table.writers)
            tables[name] = (table.schema.names, found, writers)
        jobs = {name: store.job(name).show().statistics.succeeded_tasks for name in store.list_jobs()}
        report = store.check()
        assert report.ok, report.findings
        return {"tables": tables, "consumers": store.consumers, "replicas": sorted(store.replicas), "jobs": jobs}
