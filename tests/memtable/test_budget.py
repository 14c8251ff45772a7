"""The memory of all memtables of a store is limited together, and is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore import Changes
from kvstore.errors import InvalidRequest
from kvstore.memtable import budget
from kvstore.memtable.budget import Budget
from kvstore.process import memory
from logformat.ids import BucketId, TableId
from tests.support.tables import rows_of

NEVER_DUE: dict[str, Any] = {"commit_wait_ms": 2**31 - 1, "commit_idle_ms": 2**31 - 1}
MIB = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 400)), max_size=60))
def test_merges_that_are_due_keep_the_sum_below_the_limit(writes: list[tuple[int, int]]) -> None:
    limited, sizes = Budget(1000), dict.fromkeys(range(5), 0)
    for bucket, more in writes:
        sizes[bucket] += more
        limited.note(TableId(bucket % 2), BucketId(bucket), sizes[bucket])
        for each, size in sizes.items():
            if size and limited.is_over(size, 1, 0):
                sizes[each] = 0
                limited.note(TableId(each % 2), BucketId(each), 0)
        assert sum(sizes.values()) < 1000
        of_tables = {TableId(table): sum(sizes[each] for each in sizes if each % 2 == table) for table in (0, 1)}
        assert limited.sizes() == {table: size for table, size in of_tables.items() if size}


def test_only_the_larger_ones_are_due() -> None:
    limited = Budget(1000)
    for bucket, size in enumerate((700, 200, 100)):
        limited.note(TableId(1), BucketId(bucket), size)
    assert [limited.is_over(size, 1, 0) for size in (700, 200, 100)] == [True, False, False]
    assert [limited.is_over(size, 1, 0) for size in (1000, 999)] == [True, True]
    limited.note(TableId(1), BucketId(0), 0)
    assert not limited.is_over(200, 1, 0)


def test_a_large_index_has_a_larger_memtable() -> None:
    limited = Budget(None)
    limited.limit = 700 * MIB
    sizes = [(0, 128), (1500, 128), (2400, 200), (4200, 350), (10**6, 350)]
    assert [limited.limit_of(index * MIB) for index, _ in sizes] == [limit * MIB for _, limit in sizes]
    limited.note(TableId(1), BucketId(0), 100 * MIB)
    assert limited.is_over(100 * MIB, 2, 0)
    assert not limited.is_over(100 * MIB, 2, 2412 * MIB)
    assert limited.is_over(100 * MIB, 2, 2400 * MIB)
    assert limited.is_over(128 * MIB, 1, 0)
    assert not limited.is_over(128 * MIB, 1, 2400 * MIB)
    assert Budget(MIB).limit_of(10**6 * MIB) == MIB, "the setting is the limit"


@pytest.mark.parametrize(("available", "limit"), [("1000 kB", 256_000), ("100000000 kB", budget.STORE_BYTES_MAX)])
def test_it_is_less_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: str, limit: int
) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "cgroup")
    assert Budget(None).limit == budget.STORE_BYTES_MAX
    memory.MEMINFO.write_text(f"MemAvailable: {available}\n")
    assert Budget(None).limit == limit
    assert Budget(5).limit == 5


def test_many_buckets_share_it(store_path: Path) -> None:
    with kvstore.open(store_path, memtable_bytes=2 * MIB, **NEVER_DUE) as store:
        for name in "ab":
            store.create_table(name, {"k": "int64", "s": "string"}, primary_key="k", buckets=4)
        seen = []
        for step in range(40):
            store["ab"[step % 2]].upsert([{"k": 1000 * step + k, "s": "x" * 1000} for k in range(200)])
            health = store.health()
            seen.append(health.memtable_bytes)
            assert health.memtable_limit == 2 * MIB
            if step < 2:  # nothing is merged yet
                found = store.metrics()["kvstore_memtable_bytes"]
                assert set(found) == {"a", "b"}
                assert sum(found.values()) == health.memtable_bytes > 200_000
        assert max(seen) > MIB / 2
        # Each bucket may have added one batch since its last look.
        assert max(seen) < 2 * MIB + 8 * 50 * 1500
        assert store.metrics()["kvstore_memtable_limit_bytes"] == 2 * MIB
        assert 'kvstore_memtable_bytes{table="a"}' in store.metrics("prometheus")
        assert store.health().merges > 0
        store.flush()
        assert store.health().memtable_bytes == 0
        assert [store[name].count() for name in "ab"] == [4000, 4000]
    with kvstore.open(store_path) as store:
        assert [len(rows_of(store[name])) for name in "ab"] == [4000, 4000]


def test_merges_that_writes_wait_for_are_seen(store_path: Path) -> None:
    with kvstore.open(store_path, memtable_bytes=1, **NEVER_DUE) as store:  # each write makes a merge due
        table = store.create_table("t", {"k": "int64"}, primary_key="k")
        assert store.health().merge_waits == store.health().merges == 0
        rows = Changes.of([("upsert", {"k": 1})], table.schema)
        while not store.health().merge_waits:
            for answer in [table.bucket(0).submit(rows) for _ in range(100)]:
                answer.result()
        found = store.metrics()
        waits, merges = (found[name]["t"] for name in ("kvstore_memtable_wait_seconds", "kvstore_commit_seconds"))
        assert 0 < waits["count"] <= merges["count"]
        assert waits["sum"] > 0
        assert store.health().merges >= merges["count"]


def test_a_bucket_that_is_handed_over_takes_nothing(store_path: Path) -> None:
    with kvstore.open(store_path, **NEVER_DUE) as store:
        table = store.create_table("t", {"k": "int64"}, primary_key="k")
        table.upsert({"k": 1})
        assert store.health().memtable_bytes > 0
        (handle,) = store.runtime.open_table(store.runtime.definition("t")).handles
        handle.stop_writing()
        assert store.health().memtable_bytes == 0
        table.upsert({"k": 2})
        assert store.health().memtable_bytes > 0
        store.drop_table("t")
        assert store.health().memtable_bytes == 0


@pytest.mark.parametrize("given", [0, -1, "1", 1.5, True])
def test_limits_that_are_not_possible(store_path: Path, given: Any) -> None:
    with pytest.raises(InvalidRequest):
        kvstore.open(store_path, memtable_bytes=given)
    assert not store_path.exists()
