"""Small ranges are merged into large ones, without an effect on readers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

import kvstore
from kvstore.errors import Unavailable
from kvstore.replica.ship import merging
from kvstore.replica.ship.merging import GRACE_SECONDS, OBJECTS_MIN, covered, merge, runs
from kvstore.replica.ship.shipper import status_of
from logformat.catalog.replicas import CATALOG, Stream
from logformat.ids import BucketId, Epoch, TableId
from logformat.replica.object_file import ObjectName
from tests.replica.objects import SCHEMA, Faulty, Objects, changes_of, replica_of, restored
from tests.support.tables import rows_of

BUCKET = Stream(TableId(1), BucketId(0))


def ranges(*ends: int, epoch: int = 0) -> list[ObjectName]:
    return [ObjectName(BUCKET, "range", start, end, Epoch(epoch)) for start, end in pairwise(ends)]


def test_consecutive_small_ranges_are_merged() -> None:
    small, other = ranges(*range(40)), ranges(*range(39, 70), epoch=1)
    sizes = dict.fromkeys([*small, *other], 10)
    assert list(runs([*small, *other], sizes)) == [small, other]
    assert list(runs(small[: OBJECTS_MIN - 1], sizes)) == []
    hole = [name for name in small if name.start != 20]
    assert list(runs(hole, sizes)) == [small[:20], small[21:]]
    large = sizes | {small[20]: merging.RANGE_BYTES}
    assert list(runs(small, large)) == [small[:20], small[21:]]
    assert list(runs(small, dict.fromkeys(small, merging.RANGE_BYTES // 20))) == [small[:20], small[20:]]


def test_a_merged_range_ends_where_a_stream_may_begin_later() -> None:
    """Otherwise it could not be removed when the stream begins there."""
    sizes = dict.fromkeys(small := ranges(*range(40)), 10)
    assert list(runs(small, sizes, [20])) == [small[:20], small[20:]]
    wide = ranges(*range(0, 400, 10))
    assert list(runs(wide, dict.fromkeys(wide, 10), [195])) == [wide[:19], wide[19:]]


def test_a_large_range_is_merged_again_when_the_others_have_grown() -> None:
    small = ranges(0, *range(100, 150))
    sizes = {name: 10 * (name.end - name.start) for name in small}
    assert list(runs(small, sizes)) == [small[1:]]
    assert list(runs(small, sizes | {small[0]: 400})) == [small]


def test_the_longest_range_contains_the_merged_ones() -> None:
    small, whole = ranges(*range(10)), ranges(2, 6)[0]
    assert dict(covered([*small, whole])) == dict.fromkeys(small[2:6], whole)
    assert dict(covered([*small, *ranges(0, 99, epoch=1)])) == {}
    assert dict(covered(small)) == {}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_merged_replica_restores_the_same_store(tmp_path: Path, seed: int) -> None:
    random, objects = Random(seed), Objects()
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = replica_of(store, objects)
        for step in range(50):
            table.upsert([{"k": k, "v": step} for k in range(step % 5, 9)])
            store.flush()
            replica.ship()
        before = len(objects.names)
        now_ms, failed = 10_000_000, 0
        faulty = Faulty(objects, random, 0.02)
        objects.modified = dict.fromkeys(objects.held, now_ms)
        for later in (0, 1000 * GRACE_SECONDS - 1, 1000 * GRACE_SECONDS):
            while True:
                there = dict(objects.held)
                try:
                    merge(faulty, store.runtime.store_id, status_of(store.runtime, "r"), now_ms + later)
                    break
                except Unavailable:
                    failed += 1
                finally:
                    if later < 1000 * GRACE_SECONDS:
                        assert there.keys() <= objects.held.keys(), "readers may still go by a listing"
                    for name in objects.held.keys() - there.keys():
                        objects.modified[name] = now_ms
                    assert replica.check()
        assert failed or seed
        assert len(objects.names) < before / 5
        assert {name.stream for name in objects.names} == {CATALOG, BUCKET, Stream(TableId(1), BucketId(1))}
        restored(objects, tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert rows_of(back.table("t")) == rows_of(table)
            assert changes_of(back.table("t")) == changes_of(table)
        table.upsert([{"k": 1, "v": -1}])
        store.flush()
        replica.ship()
        assert replica.check()


@pytest.mark.parametrize("damaged", ["small", "whole"])
def test_nothing_is_merged_into_or_removed_for_a_damaged_range(tmp_path: Path, damaged: str) -> None:
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        replica = replica_of(store, objects)
        for step in range(20):
            table.upsert([{"k": 1, "v": step}])
            store.flush()
            replica.ship()

        def merged(now_ms: int) -> merging.Merged:
            return merge(objects, store.runtime.store_id, status_of(store.runtime, "r"), now_ms)

        def flip(name: ObjectName) -> None:
            objects.held[str(name)] = objects.held[str(name)][:-1] + b"?"

        of_bucket = sorted(name for name in objects.names if name.stream == BUCKET)
        if damaged == "small":
            flip(of_bucket[3])
            merged(0)
            assert sorted(name for name in objects.names if name.stream == BUCKET) == of_bucket
        else:
            merged(0)
            flip(next(name for name in objects.names if name.stream == BUCKET and name not in of_bucket))
            merged(1000 * GRACE_SECONDS)
            assert set(of_bucket) <= set(objects.names)
        assert not replica.check()
        assert replica.repair()
        merged(0)
        assert merged(1000 * GRACE_SECONDS).removed >= 20
        assert replica.check()
        restored(objects, tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert changes_of(back.table("t")) == changes_of(table)


def test_shipping_merges(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        store.add_replica(str(tmp_path / "r"), "r")
        for step in range(OBJECTS_MIN):
            table.upsert([{"k": 1, "v": step}])
            store.flush()
            store.replica("r").ship()  # each as by a process of its own
        names = [path.name for path in (tmp_path / "r" / "tables/1/0").iterdir()]
        assert any(name.startswith(f"{0:020d}-{2 * OBJECTS_MIN - 1:020d}.") for name in names), names
        assert store.replica("r").check()
