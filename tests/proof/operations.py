"""What is run beside each other: everything a store does of its own accord, or is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import kvstore
from kvstore.errors import ReplicaBehind
from tests.proof.barrier import Barrier
from tests.proof.world import (
    COMMITTED,
    KEYS,
    SETTINGS,
    WRITTEN,
    Rows,
    Seen,
    World,
    Written,
    as_rows,
    changes_of,
    epoch_of,
    rows_written,
)
from tests.support.tables import rows_of

Operation = Callable[[World, Barrier], list[Seen]]


def write(world: World, _: Barrier) -> list[Seen]:
    rows = rows_written(world.next())
    world.acknowledge(world.written.upsert(changes_of(rows).rows), rows)
    return [Seen(world.acknowledged, as_rows(rows_of(world.written)))]


def epoch(world: World, _: Barrier) -> list[Seen]:
    number = world.begin_epoch()
    world.committed.apply_epoch(epoch_of(number), f"w{number}", 0)
    return []


def flush(world: World, _: Barrier) -> list[Seen]:
    world.store.flush()
    return []


def snapshot(world: World, _: Barrier) -> list[Seen]:
    acknowledged = world.acknowledged
    assert world.parts(WRITTEN).handles[0].take_snapshot().offset >= acknowledged, "a write is missing"
    return []


def retain(world: World, _: Barrier) -> list[Seen]:
    world.parts(WRITTEN).handles[0].retain()
    return []


def checkpoint(world: World, _: Barrier) -> list[Seen]:
    world.store.checkpoint()
    return []


def edit_catalog(world: World, _: Barrier) -> list[Seen]:
    world.edit(1)
    return []


def ship(world: World, _: Barrier) -> list[Seen]:
    try:
        world.store.replica("r").ship()
    except ReplicaBehind:  # some of the log expired meanwhile: it goes on from a snapshot next time
        world.store.replica("r").ship()
    return []


def hand_over(world: World, _: Barrier) -> list[Seen]:
    world.parts(WRITTEN).stop_writing()
    return []


def scan(world: World, barrier: Barrier) -> list[Seen]:
    acknowledged, rows = world.acknowledged, []
    batches = iter(world.written.scan())
    barrier.step("the scan has its view")
    for batch in batches:
        rows += batch.to_pylist()
        barrier.step("the scan has a batch")
    epochs = {row["v"] for row in rows_of(world.committed)}
    assert epochs <= world.epochs
    assert len(epochs) <= len(world.parts(COMMITTED).handles), f"halves of epochs in a bucket: {epochs}"
    return [Seen(acknowledged, as_rows(rows))]


def read_changes(world: World, barrier: Barrier) -> list[Seen]:
    """The last change of each key since all of them were written, and no hole on the way."""
    acknowledged, table = world.acknowledged, world.written
    offsets = []
    batches = iter(table.changelog(acknowledged))
    barrier.step("the changelog has its end")
    for batch in batches:
        offsets += batch.column("_log_offset").to_pylist()
        barrier.step("the changelog has a batch")
    assert offsets == list(range(acknowledged, acknowledged + len(offsets)))
    return []


def get(world: World, _: Barrier) -> list[Seen]:
    acknowledged = world.acknowledged
    row, several = world.written.get(0), world.written.lookup([0, 1])
    return [
        Seen(acknowledged, {} if row is None else {0: row["v"]}, frozenset([0])),
        Seen(acknowledged, as_rows([each for each in several.to_pylist() if each["_found"]]), frozenset([0, 1])),
    ]


HERE: dict[str, Operation] = {
    each.__name__: each
    for each in (
        *(write, epoch, flush, snapshot, retain, checkpoint, edit_catalog, ship, hand_over),
        *(scan, read_changes, get),
    )
}


# In another process, which opens the store for it and closes it again


def write_elsewhere(path: Path, _: Barrier, number: int) -> Written:
    rows = rows_written(number)
    with kvstore.open(path, **SETTINGS) as store:
        result = store.table(WRITTEN).upsert(changes_of(rows).rows).by_bucket[0]
        # Or what the other operation of the pair, which has the number before or after, wrote meanwhile.
        assert abs(as_rows(rows_of(store.table(WRITTEN)))[0] - number) <= 1, "it does not see what it wrote"
    return Written(result.first_offset, result.last_offset + 1, rows)


def epoch_elsewhere(path: Path, _: Barrier, number: int) -> None:
    with kvstore.open(path, **SETTINGS) as store:
        store.table(COMMITTED).apply_epoch(epoch_of(number), f"w{number}", 0)


def scan_elsewhere(path: Path, barrier: Barrier, _: int) -> Rows:
    with kvstore.open(path, read_only=True) as store:
        rows = as_rows(rows_of(store.table(WRITTEN)))
        barrier.step("the scan elsewhere has rows")
        again = as_rows(rows_of(store.table(WRITTEN)))
        assert all(again[k] >= rows.get(k, 0) for k in KEYS if k in again), "it sees less than before"
        assert rows.keys() <= again.keys()
    return rows


ELSEWHERE: dict[str, Callable[[Path, Barrier, int], object]] = {
    each.__name__: each for each in (write_elsewhere, epoch_elsewhere, scan_elsewhere)
}
NAMES = (*HERE, *ELSEWHERE)
