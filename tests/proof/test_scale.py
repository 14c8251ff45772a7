"""R20: four times as many columns, consumers, tables, buckets or writers take about four times as long, never sixteen.

What counts is the CPU time of the process, which other processes hardly change, and the better of two runs where a run
is short. ``RATIO_MAX`` lies between a linear cost and a quadratic one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.index.open_readers import READERS_OPEN_MAX

pytestmark = pytest.mark.nightly

RATIO_MAX = 8
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
Costs = dict[str, float]


class Timer:
    """CPU seconds of named steps."""

    def __init__(self) -> None:
        self.costs: Costs = {}

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.costs[step] = time.process_time() - begun


def wide(store: kvstore.Store, count: int, timer: Timer) -> None:
    names = [f"c{number}" for number in range(count - 1)]
    schema = pa.schema([pa.field("k", pa.int64(), False), *(pa.field(name, pa.int64()) for name in names)])
    rows = pa.record_batch([pa.array(range(100))] * count, schema=schema)
    with timer.of("create"):
        table = store.create_table("t", schema, primary_key="k")
    with timer.of("write"):
        table.upsert(rows)
        table.upsert(rows)
    with timer.of("write some columns"):
        table.upsert(rows.select(schema.names[: count // 2]), columns=schema.names[: count // 2])
    with timer.of("look up"):
        assert table.lookup(list(range(100))).num_columns == count + 1
    with timer.of("scan"):
        assert table.scan(columns=schema.names).read_all().num_rows == 100
    with timer.of("read the changelog"):
        assert sum(batch.num_rows for batch in table.changelog()) == 500
    with timer.of("read the binlog"):
        assert sum(batch.num_rows for batch in table.binlog()) == 300
    with timer.of("undo"):
        assert len(table.undo(100)) == 100
    with timer.of("delete"):
        table.delete(list(range(50)))


def consumers(store: kvstore.Store, count: int, timer: Timer) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    table.upsert({"k": 1, "v": 1})
    with timer.of("commit first"):
        for number in range(count):
            store.consumer(f"c{number}").commit("t", {0: 0})
    with timer.of("commit"):
        for number in range(count):
            store.consumer(f"c{number}").commit("t", {0: 1})
    with timer.of("list"):
        assert len(store.consumers) == count
    with timer.of("find"):
        assert all(store.consumer(f"c{number}").position("t") == {0: 1} for number in range(count))
    with timer.of("open"):
        store.close()
        with kvstore.open(store.path, read_only=True) as again:
            assert len(again.consumers) == count
    with kvstore.open(store.path) as again, timer.of("drop"):
        for number in range(count):
            again.drop_consumer(f"c{number}")


def tables(store: kvstore.Store, count: int, timer: Timer) -> None:
    with timer.of("create"):
        for number in range(count):
            store.create_table(f"t{number}", SCHEMA, primary_key="k")
    with timer.of("list"):
        assert len(store.list_tables()) == count
    with timer.of("open"):
        opened = [store.table(f"t{number}") for number in range(count)]
    with timer.of("count"):
        assert not any(table.count() for table in opened)
    with timer.of("write"):
        for table in opened[: count // 4]:  # each has a thread and some descriptors
            table.upsert({"k": 1, "v": 1})
    with timer.of("health and checkpoint"):
        assert store.health() is not None
        assert store.checkpoint().txid >= count
    with timer.of("close and open"):
        store.close()
        with kvstore.open(store.path) as again:
            assert len(again.list_tables()) == count


def buckets(store: kvstore.Store, count: int, timer: Timer) -> None:
    rows = pa.record_batch([pa.array(range(10_000))] * 2, schema=SCHEMA)
    before = len(os.listdir("/proc/self/fd"))
    with timer.of("create"):
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=count)
    with timer.of("first count"):
        assert table.count() == 0
    with timer.of("count"):
        assert not any(table.count() for _ in range(10))
    assert len(os.listdir("/proc/self/fd")) < before + 3 * READERS_OPEN_MAX + 16
    with timer.of("write"):
        table.upsert(rows)
    with timer.of("write again"):
        table.upsert(rows)
    with timer.of("read the changelog"):
        assert sum(batch.num_rows for batch in table.changelog()) == 30_000
    with timer.of("close and open"):
        store.close()
        with kvstore.open(store.path) as again:
            assert again.table("t").count() == 10_000
            assert again.table("t").scan().read_all().num_rows == 10_000


def writers(store: kvstore.Store, count: int, timer: Timer) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    with timer.of("write"):
        for number in range(count):
            with table.writer(name=f"w{number}") as writer:
                writer.upsert({"k": number, "v": 1})
    with timer.of("write again"):
        for number in range(count):
            with table.writer(name=f"w{number}") as writer:
                writer.upsert({"k": number, "v": 2})
    with timer.of("apply epochs"):
        for number in range(count):
            changes = kvstore.Changes.of([("upsert", {"k": number, "v": 3})], SCHEMA)
            table.apply_epoch(changes, writer=f"e{number}", epoch=0)
    with timer.of("list"):
        assert len(table.writers) == 2 * count


@pytest.mark.parametrize(
    ("work", "few", "many"),
    [
        (wide, 1_024, 4_096),
        (consumers, 2_500, 10_000),
        (tables, 500, 2_000),
        (buckets, 128, 512),
        (writers, 1_250, 5_000),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_the_cost_is_linear(
    work: Callable[[kvstore.Store, int, Timer], None],
    few: int,
    many: int,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    found: dict[int, list[Costs]] = {few: [], many: []}
    for count in (few, many, few):
        timer = Timer()
        with kvstore.open(tmp_path / "store", durability="none") as store:
            work(store, count, timer)
        found[count].append(timer.costs)
        shutil.rmtree(tmp_path / "store")
    steps = {step: (max(costs[step] for costs in found[few]), found[many][0][step]) for step in found[many][0]}
    record_property("told", ", ".join(f"{step} {first:.2f} → {last:.2f} s" for step, (first, last) in steps.items()))
    # What takes a moment only is noise; a quadratic step of these sizes is none.
    assert not {step: pair for step, pair in steps.items() if pair[1] > RATIO_MAX * pair[0] + 0.1}
