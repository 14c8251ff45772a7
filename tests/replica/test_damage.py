"""Whatever is lost or damaged of a replica is reported exactly, is repaired, and is never read over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

import kvstore
from kvstore.errors import CorruptData, StoreError
from kvstore.replica.check import findings
from kvstore.replica.replica import Replica
from kvstore.replica.ship import shipper
from logformat.catalog.replicas import Finding, Stream
from logformat.ids import Epoch
from logformat.replica.object_file import ObjectName, parse_name
from tests.replica.objects import SCHEMA, Objects, changes_of, replica_of, restored
from tests.support.proof import Proves
from tests.support.tables import rows_of

OBJECTS = 12
"""Objects of the catalog and of buckets; there are also ``STORE``, ``TOLD`` and ``leader/``."""


@dataclass
class Shipped:
    """A store with a replica of twelve objects."""

    store: kvstore.Store
    objects: Objects
    replica: Replica
    whole: dict[str, bytes]

    @property
    def names(self) -> list[ObjectName]:
        return Objects(self.whole).names

    def found(self, held: dict[str, bytes]) -> list[Finding]:
        status = self.store.runtime.catalog().replicas["r"]
        return findings(Objects(held), self.store.runtime.store_id, status)


@pytest.fixture
def shipped(made: Shipped) -> Iterator[Shipped]:
    """Whole again after each test."""
    yield made
    made.objects.held.clear()
    made.objects.held.update(made.whole)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    with kvstore.open(tmp_path_factory.mktemp("shipped") / "s") as store:
        objects = Objects()
        replica = replica_of(store, objects)
        replica.ship()
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        step = 0
        while len(objects.names) < OBJECTS:
            table.upsert([{"k": k, "v": step} for k in range(step % 7, 30, 3)])
            store.flush()
            replica.ship()
            step += 1
        assert len(objects.names) == OBJECTS
        assert {name.stream for name in objects.names} == {Stream(), Stream(1, 0), Stream(1, 1)}
        yield Shipped(store, objects, replica, dict(objects.held))


Damage = Callable[[dict[str, bytes], ObjectName, Random], None]


def lost(held: dict[str, bytes], name: ObjectName, _: Random) -> None:
    del held[str(name)]


def flipped(held: dict[str, bytes], name: ObjectName, random: Random) -> None:
    data = bytearray(held[str(name)])
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    held[str(name)] = bytes(data)


def truncated(held: dict[str, bytes], name: ObjectName, random: Random) -> None:
    held[str(name)] = held[str(name)][: random.randrange(len(held[str(name)]))]


def prolonged(held: dict[str, bytes], name: ObjectName, _: Random) -> None:
    held[str(name)] += b"\0"


DAMAGES: tuple[Damage, ...] = (lost, flipped, truncated, prolonged)


def expected(damaged: list[tuple[ObjectName, Damage]]) -> set[Any]:
    """What is to be found: an object for each that is bad, an offset for each that is missing."""
    found: set[Any] = set()
    for name, damage in damaged:
        if damage is lost:
            found |= {(name.stream, offset) for offset in range(name.start, name.end)}
        else:
            found.add(str(name))
    return found


def reported(found: list[Finding]) -> set[Any]:
    said: set[Any] = set()
    for each in found:
        if each.kind == "BAD":
            assert each.object is not None
            name = parse_name(each.object)
            assert name is not None
            assert (name.stream, name.start, name.end) == (each.stream, each.start, each.end)
            said.add(each.object)
        else:
            said |= {(each.stream, offset) for offset in range(each.start, each.end)}
    return said


def test_an_undamaged_replica_has_no_findings(shipped: Shipped) -> None:
    assert shipped.found(shipped.whole) == []


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_every_damage_of_one_or_two_objects_is_reported_exactly(shipped: Shipped, seed: int, proves: Proves) -> None:
    random = Random(seed)
    cases = [[(name, damage)] for name, damage in product(shipped.names, DAMAGES)]
    for one, other in combinations(shipped.names, 2):
        cases += [[(one, first), (other, second)] for first, second in product(DAMAGES, DAMAGES)]
    for damaged in cases:
        held = dict(shipped.whole)
        for name, damage in damaged:
            damage(held, name, random)
        assert reported(shipped.found(held)) == expected(damaged), damaged
    proves("replica losses", len(cases))


def test_every_swap_and_every_double_is_reported_exactly(shipped: Shipped) -> None:
    for one, other in combinations(shipped.names, 2):
        held = dict(shipped.whole)
        held[str(one)], held[str(other)] = held[str(other)], held[str(one)]
        assert reported(shipped.found(held)) == {str(one), str(other)}
    for name in shipped.names:
        double = ObjectName(name.stream, name.kind, name.start + 1, name.end + 1, name.epoch)
        held = {**shipped.whole, str(double): shipped.whole[str(name)]}
        assert reported(shipped.found(held)) == {str(double)}
        # Of the same offsets, but of another stream.
        for stream in (Stream(1, 7), Stream(8, 0)):
            moved = ObjectName(stream, name.kind, name.start, name.end, name.epoch)
            held = {**shipped.whole, str(moved): shipped.whole[str(name)]}
            assert reported(shipped.found(held)) == {str(moved)}


def test_a_repaired_replica_restores_what_was_shipped(shipped: Shipped, tmp_path: Path) -> None:
    random = Random(2)
    store, objects, replica = shipped.store, shipped.objects, shipped.replica
    table = store.table("t")
    pairs = random.sample(list(combinations(shipped.names, 2)), 12)
    for number, pair in enumerate([*((name,) for name in shipped.names), *pairs]):
        for name in pair:
            random.choice(DAMAGES)(objects.held, name, random)
        with pytest.raises(StoreError):
            restored(objects, tmp_path / f"damaged {number}")
        report = replica.check()
        assert not report
        assert store.replicas["r"].findings == report.findings
        assert replica.repair()
        assert store.replicas["r"].findings == []
        restored(objects, tmp_path / f"{number}")
        with kvstore.open(tmp_path / f"{number}") as back:
            assert rows_of(back.table("t")) == rows_of(table)
            assert changes_of(back.table("t")) == changes_of(table)


def test_a_repair_removes_bad_objects_that_were_never_reported(shipped: Shipped) -> None:
    objects = shipped.objects
    stray = ObjectName(Stream(1, 0), "range", 3, 17, Epoch(0))
    objects.held[str(stray)] = b"?"
    assert reported(shipped.replica.check().findings) == {str(stray)}
    assert shipped.replica.repair()
    assert str(stray) not in objects.held


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_found_and_repaired(shipped: Shipped, tmp_path: Path, damage: Damage) -> None:
    damage(shipped.objects.held, "TOLD", Random(3))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"TOLD|manifest of the replica is missing"):
        restored(shipped.objects, tmp_path / "s")
    assert [each.object for each in shipped.replica.check().findings] == ["TOLD"]
    assert shipped.replica.repair()
    restored(shipped.objects, tmp_path / "s")


@pytest.mark.parametrize("damage", [lost, truncated])
def test_a_damaged_store_file_is_found_and_repaired(shipped: Shipped, tmp_path: Path, damage: Damage) -> None:
    damage(shipped.objects.held, "STORE", Random(3))  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        restored(shipped.objects, tmp_path / "s")
    assert [each.object for each in shipped.replica.check().findings] == ["STORE"]
    assert shipped.replica.repair()
    restored(shipped.objects, tmp_path / "s")


def test_foreign_objects_are_left_alone(shipped: Shipped) -> None:
    objects = shipped.objects
    objects.held["notes.txt"] = b"another program's"
    assert shipped.replica.repair()
    assert objects.held.pop("notes.txt") == b"another program's"


def test_a_restore_never_crosses_a_hole(shipped: Shipped, tmp_path: Path) -> None:
    for number, name in enumerate(shipped.names):
        held = dict(shipped.whole)
        del held[str(name)]
        with pytest.raises(CorruptData, match="hole") as caught:
            restored(Objects(held), tmp_path / f"{number}")
        assert caught.value.where["missing_from"] == name.start
        assert not (tmp_path / f"{number}" / "STORE").exists()


def test_a_lost_object_inside_a_larger_one_is_no_finding(shipped: Shipped, tmp_path: Path) -> None:
    """As after a merge that died before it removed what it merged, or right after it did."""
    store, objects = shipped.store, Objects(dict(shipped.whole))
    ranges = [name for name in shipped.names if name.stream == Stream(1, 0)]
    merged = ObjectName(Stream(1, 0), "range", ranges[0].start, ranges[1].end, Epoch(0))
    ship = shipper.Shipper(store.runtime, "r", objects)
    parts = ship.range_parts(merged)
    assert parts is not None
    ship.replace(merged, parts)
    for gone in ([], [ranges[0]], ranges[:2]):
        for name in gone:
            objects.held.pop(str(name), None)
        assert shipped.found(objects.held) == []
        restored(objects, tmp_path / f"{len(gone)}")
        with kvstore.open(tmp_path / f"{len(gone)}") as back:
            assert rows_of(back.table("t")) == rows_of(store.table("t"))


def test_findings_survive_a_checkpoint_and_are_visible_to_every_process(shipped: Shipped) -> None:
    held = shipped.objects.held
    with mock.patch.dict(held):
        del held[str(shipped.names[4])]
        report = shipped.replica.check()
    shipped.store.checkpoint()
    path = shipped.store.path
    with kvstore.open(path, read_only=True) as other:
        assert other.replicas["r"].findings == report.findings
    assert shipped.replica.check()
