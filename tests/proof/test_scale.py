"""R20: four times as many columns, consumers, tables, buckets or writers cost about four times as much, never sixteen.

What counts is how many functions are called and how many bytes are read and written: other processes change neither.
``RATIO_MAX`` lies between a linear cost and a quadratic one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.index.open_readers import READERS_OPEN_MAX
from tests.support.bytes_read import bytes_read_and_written
from tests.support.calls_made import CallsMade

pytestmark = pytest.mark.nightly

RATIO_MAX = 8
SPARE = {"calls": 5_000, "bytes": 1 << 20}
"""So much more is no cost: threads look around now and then, and a file grows by some pages."""
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
Costs = dict[tuple[str, str], int]


class Meter:
    """What named steps cost."""

    def __init__(self, calls: CallsMade) -> None:
        self.costs: Costs = {}
        self._calls = calls

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        calls, transferred = self._calls.number, bytes_read_and_written()
        yield
        self.costs[step, "calls"] = self._calls.number - calls
        self.costs[step, "bytes"] = bytes_read_and_written() - transferred


def wide(store: kvstore.Store, count: int, meter: Meter) -> None:
    names = [f"c{number}" for number in range(count - 1)]
    schema = pa.schema([pa.field("k", pa.int64(), False), *(pa.field(name, pa.int64()) for name in names)])
    rows = pa.record_batch([pa.array(range(100))] * count, schema=schema)
    with meter.of("create"):
        table = store.create_table("t", schema, primary_key="k")
    with meter.of("write"):
        table.upsert(rows)
        table.upsert(rows)
    with meter.of("write some columns"):
        table.upsert(rows.select(schema.names[: count // 2]), columns=schema.names[: count // 2])
    with meter.of("look up"):
        assert table.lookup(list(range(100))).num_columns == count + 1
    with meter.of("scan"):
        assert table.scan(columns=schema.names).read_all().num_rows == 100
    with meter.of("read the changelog"):
        assert sum(batch.num_rows for batch in table.changelog()) == 500
    with meter.of("read the binlog"):
        assert sum(batch.num_rows for batch in table.binlog()) == 300
    with meter.of("undo"):
        assert len(table.undo(100)) == 100
    with meter.of("delete"):
        table.delete(list(range(50)))


def consumers(store: kvstore.Store, count: int, meter: Meter) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    table.upsert({"k": 1, "v": 1})
    with meter.of("commit first"):
        for number in range(count):
            store.consumer(f"c{number}").commit("t", {0: 0})
    with meter.of("commit"):
        for number in range(count):
            store.consumer(f"c{number}").commit("t", {0: 1})
    with meter.of("list"):
        assert len(store.consumers) == count
    with meter.of("find"):
        assert all(store.consumer(f"c{number}").position("t") == {0: 1} for number in range(count))
    with meter.of("open"):
        store.close()
        with kvstore.open(store.path, read_only=True) as again:
            assert len(again.consumers) == count
    with kvstore.open(store.path) as again, meter.of("drop"):
        for number in range(count):
            again.drop_consumer(f"c{number}")


def tables(store: kvstore.Store, count: int, meter: Meter) -> None:
    with meter.of("create"):
        for number in range(count):
            store.create_table(f"t{number}", SCHEMA, primary_key="k")
    with meter.of("list"):
        assert len(store.list_tables()) == count
    with meter.of("open"):
        opened = [store.table(f"t{number}") for number in range(count)]
    with meter.of("count"):
        assert not any(table.count() for table in opened)
    with meter.of("write"):
        for table in opened[: count // 4]:  # each has a thread and some descriptors
            table.upsert({"k": 1, "v": 1})
    with meter.of("health and checkpoint"):
        assert store.health() is not None
        assert store.checkpoint().txid >= count
    with meter.of("close and open"):
        store.close()
        with kvstore.open(store.path) as again:
            assert len(again.list_tables()) == count


def buckets(store: kvstore.Store, count: int, meter: Meter) -> None:
    rows = pa.record_batch([pa.array(range(10_000))] * 2, schema=SCHEMA)
    before = len(os.listdir("/proc/self/fd"))
    with meter.of("create"):
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=count)
    with meter.of("first count"):
        assert table.count() == 0
    with meter.of("count"):
        assert not any(table.count() for _ in range(10))
    assert len(os.listdir("/proc/self/fd")) < before + 3 * READERS_OPEN_MAX + 16
    with meter.of("write"):
        table.upsert(rows)
    with meter.of("write again"):
        table.upsert(rows)
    with meter.of("read the changelog"):
        assert sum(batch.num_rows for batch in table.changelog()) == 30_000
    with meter.of("close and open"):
        store.close()
        with kvstore.open(store.path) as again:
            assert again.table("t").count() == 10_000
            assert again.table("t").scan().read_all().num_rows == 10_000


def writers(store: kvstore.Store, count: int, meter: Meter) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    with meter.of("write"):
        for number in range(count):
            with table.writer(name=f"w{number}") as writer:
                writer.upsert({"k": number, "v": 1})
    with meter.of("write again"):
        for number in range(count):
            with table.writer(name=f"w{number}") as writer:
                writer.upsert({"k": number, "v": 2})
    with meter.of("apply epochs"):
        for number in range(count):
            changes = kvstore.Changes.of([("upsert", {"k": number, "v": 3})], SCHEMA)
            table.apply_epoch(changes, writer=f"e{number}", epoch=0)
    with meter.of("list"):
        assert len(table.writers) == 2 * count


@pytest.mark.parametrize(
    ("work", "few", "many"),
    [
        (wide, 512, 2_048),
        (consumers, 500, 2_000),
        (tables, 100, 400),
        (buckets, 2 * READERS_OPEN_MAX, 8 * READERS_OPEN_MAX),
        (writers, 250, 1_000),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_the_cost_is_linear(
    work: Callable[[kvstore.Store, int, Meter], None],
    few: int,
    many: int,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    costs: dict[int, Costs] = {}
    for count in (few, many):
        with CallsMade() as calls, kvstore.open(tmp_path / "store", durability="none") as store:
            meter = Meter(calls)
            work(store, count, meter)
        costs[count] = meter.costs
        shutil.rmtree(tmp_path / "store")
    pairs = {of: (cost, costs[many][of]) for of, cost in costs[few].items()}
    lines = (f"{step} {first:,} → {last:,} {unit}" for (step, unit), (first, last) in pairs.items())
    record_property("told", ", ".join(lines))
    assert not {of: (first, last) for of, (first, last) in pairs.items() if last > RATIO_MAX * first + SPARE[of[1]]}
