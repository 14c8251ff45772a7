"""Epochs of a shared table: each write is in the table once and whole, whatever dies, and in any order of writers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest

import kvstore
from kvstore.errors import CorruptData, MissingVersion, NoSuchTable, TableExists, Unavailable, UnsupportedOperation
from kvstore.options import StoreOptions
from kvstore.shared.table import SharedTable, has_shared_tables
from kvstore.shared.write import WriteSummary, write_once
from logformat.ids import BucketId
from logformat.replica import shared_table
from logformat.replica.shared_table import SharedEpoch, SharedRange
from logformat.rows.changes import Changes
from tests.replica.objects import Faulty, Objects, replica_of
from tests.shared.hosts import SCHEMA, Host, Ranges, created, read, upserts


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def hosts(objects: Objects, tmp_path: Path) -> tuple[Host, Host]:
    table = created(objects)
    return Host(table, tmp_path / "one"), Host(table, tmp_path / "two")


def test_two_machines_write_one_table(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, two = hosts
    assert one.write(upserts(range(5), 1)) == WriteSummary(1)
    assert two.write(upserts(range(3, 8), 2)) == WriteSummary(2)
    deletes = Changes.of([("delete", {"k": 0}), ("upsert", {"k": 1, "v": 3})], SCHEMA)
    assert one.write(deletes)
    rows, kinds = read(one.table, tmp_path)
    assert rows == {1: 3, 2: 1, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2}
    assert kinds.count("insert") == 8
    assert kinds.count("update_preimage") == kinds.count("update_postimage") == 3
    assert kinds.count("delete") == 1


def test_the_copy_of_a_bucket_has_as_many_segments_as_it_needs(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is larger than any can be would be damage."""
    monkeypatch.setattr("kvstore.shared.copy.StoreOptions", partial(StoreOptions, segment_bytes_max=1000))
    monkeypatch.setattr("kvstore.log.segments.SEGMENT_BYTES_MAX", 4000)
    one, two = hosts
    for number in range(15):
        one.write(upserts(range(20), number))
    two.write(upserts([0], 99))
    assert read(one.table, tmp_path)[0] == {k: 14 if k else 99 for k in range(20)}


def test_a_damaged_row_of_a_copy_costs_time_only(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, two = hosts
    value = 0x1122334455667788
    two.write(upserts(range(2000), value))
    one.write(upserts([0], 0))
    data = next(one.cache.rglob("data.mdb"))
    whole = data.read_bytes()
    rows = [found.start() for found in re.finditer(value.to_bytes(8, "little"), whole)]
    for seed in range(12):
        damaged, random = bytearray(whole), Random(seed)
        for at in random.sample(rows, 40):
            damaged[at] ^= 1
        data.write_bytes(damaged)
        one.write(upserts(range(2000), seed))
        assert set(read(one.table, tmp_path)[0].values()) == {seed}


def test_an_epoch_that_nobody_could_read_is_not_written(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_table, "EPOCH_BYTES_MAX", 600)
    one, _ = hosts
    written: list[int] = []

    def write_on() -> None:
        for number in range(100):
            one.write(upserts([1], number))
            written.append(number)

    with pytest.raises(UnsupportedOperation, match="as many ranges as an epoch can name"):
        write_on()
    assert read(one.table, tmp_path)[0] == {1: written[-1]}


def test_a_write_under_a_name_happens_once(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, two = hosts
    assert not one.write(upserts([1], 1), "load").duplicated
    one.write(upserts([1], 2), "other")
    for host in hosts:
        assert host.write(upserts([1], 1), "load") == WriteSummary(1, duplicated=True)
    assert [two.write(upserts([1], 3)).epoch for _ in range(2)] == [3, 4]
    assert read(one.table, tmp_path)[0] == {1: 3}


def test_a_driver_that_dies_before_the_commit_has_written_nothing(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, two = hosts
    one.write(upserts(range(5), 1))
    for host in hosts:
        assert host.ranges(host.table.newest(), upserts(range(9), 99))  # uploaded, and never committed
    assert read(one.table, tmp_path)[0] == dict.fromkeys(range(5), 1)
    assert one.write(upserts([1], 2), "w").epoch == 2
    assert two.write(upserts([1], 2), "w").duplicated
    rows, kinds = read(one.table, tmp_path)
    assert rows == dict.fromkeys(range(5), 1) | {1: 2}
    assert len(kinds) == 7


def test_of_two_committers_on_one_epoch_one_begins_again(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, two = hosts
    one.write(upserts(range(5), 0))
    table = created(one.table.client, "sums", engine=kvstore.Aggregate({"v": "sum"}))
    one.table = two.table = table
    one.write(upserts([1], 1))
    tries = 0

    def apply(base: SharedEpoch, at_ms: int) -> Ranges | None:
        nonlocal tries
        tries += 1
        found = two.ranges(base, upserts([1], 10), at_ms)
        if tries == 1:
            one.write(upserts([1], 100))
        return found

    assert write_once(table, "w", apply, two.clock) == WriteSummary(3)
    assert tries == 2
    assert read(table, tmp_path)[0] == {1: 111}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))])
def test_requests_that_fail_or_lose_their_answers(objects: Objects, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    real = created(objects, buckets=2, engine=kvstore.Aggregate({"v": "sum"}))
    faulty = Faulty(objects, random, 0.1)
    hosts = [Host(SharedTable("memory://x", faulty, real.described), tmp_path / name) for name in ("one", "two")]
    expected = dict.fromkeys(range(6), 0)
    for number in range(12):
        changes = upserts(range(6), 1 << number)
        while True:
            host = random.choice(hosts)
            if random.random() < 0.3:
                shutil.rmtree(host.cache, ignore_errors=True)
            try:
                host.write(changes, f"write {number}")
                break
            except Unavailable:
                continue
        expected = {k: v + (1 << number) for k, v in expected.items()}
    assert read(real, tmp_path)[0] == expected, "a sum shows what is missing, and what is there twice"
    newest = real.newest()
    assert set(newest.writers) == {f"write {number}" for number in range(12)}
    assert newest.epoch == 12


def test_a_commit_whose_request_was_repeated_is_known_by_its_id(objects: Objects, tmp_path: Path) -> None:
    create = objects.create

    def twice(name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        create(name, pieces)  # its answer was lost, and the client sent it again
        return create(name, pieces)

    host = Host(created(objects), tmp_path / "cache")
    objects.create = twice  # type: ignore[method-assign]
    base = host.table.newest()
    ranges = {BucketId(0): SharedRange(0, 1, 1, 1)}
    made = host.table.commit(base, ranges, None, 2_000_000)
    assert made is not None
    assert host.table.newest() == made
    assert host.table.commit(base, ranges, None, 2_000_000) is None


def test_copies_that_are_damaged_older_or_newer(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, two = hosts
    for value in range(4):
        one.write(upserts(range(50), value))
    saved = tmp_path / "saved"
    shutil.copytree(one.cache, saved)
    before = one.table.newest()
    two.write(upserts(range(50), 10))
    one.write(upserts([1], 11))
    assert one.ranges(before, upserts([1], 0)) is None, "its copy is newer than this epoch"
    for file in [path for path in one.cache.rglob("*") if path.is_file() and path.stat().st_size > 100]:
        file.write_bytes(file.read_bytes()[:-50] + bytes(50))
    one.write(upserts([2], 12))
    shutil.rmtree(one.cache)
    shutil.copytree(saved, one.cache)
    one.write(upserts([3], 13))
    assert read(one.table, tmp_path)[0] == dict.fromkeys(range(50), 10) | {1: 11, 2: 12, 3: 13}


def test_what_is_missing_or_damaged_is_reported(objects: Objects, hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, two = hosts
    one.write(upserts([1], 1))
    one.write(upserts([1], 2))
    lost = max(
        name for name in objects.held if "/epoch/" not in name and name.startswith("tables/") and "range" in name
    )
    data = objects.held.pop(lost)
    with pytest.raises(Exception, match="gone"):
        two.write(upserts([1], 3))
    objects.held[lost] = data[:-1] + b"x"
    with pytest.raises(CorruptData, match=f"object={lost}"):
        two.write(upserts([1], 3))
    objects.held[lost] = data
    newest = max(name for name in objects.held if "/epoch/" in name)
    whole = objects.held[newest]
    objects.held[newest] = whole.replace(b'"epoch":2', b'"epoch":3')
    with pytest.raises(CorruptData, match="checksum"):
        one.write(upserts([1], 3))
    objects.held[newest] = whole
    two.write(upserts([1], 3))
    assert read(one.table, tmp_path)[0] == {1: 3}
    for name in [name for name in objects.held if "/epoch/" in name]:
        del objects.held[name]
    with pytest.raises(MissingVersion, match="gone"):
        one.write(upserts([1], 3))


def test_a_table_is_created_once_and_found_by_its_name(objects: Objects, tmp_path: Path) -> None:
    assert not has_shared_tables(objects)
    first = created(objects, "a table / with any: name")
    assert has_shared_tables(objects)
    with pytest.raises(TableExists):
        created(objects, "a table / with any: name")
    found = SharedTable.find("memory://x", objects, "a table / with any: name")
    assert found.described == first.described
    with pytest.raises(NoSuchTable, match="no shared table"):
        SharedTable.find("memory://x", objects, "t")
    with kvstore.open(tmp_path / "s") as store:
        replica_of(store, place := Objects()).ship()
    with pytest.raises(UnsupportedOperation, match="There is a replica"):
        created(place)


class Replacing(Objects):
    """An object store that ignores the condition of a put."""

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        self.replace(name, pieces)
        return True


def test_an_object_store_that_replaces_what_is_to_be_created_is_refused() -> None:
    objects = Replacing()
    with pytest.raises(UnsupportedOperation, match="created only if there is none"):
        created(objects)
    assert set(objects.held) == {"STORE"}
    created(Objects(objects.held), "t")
    before = dict(objects.held)
    with pytest.raises(UnsupportedOperation, match="created only if there is none"):
        created(objects, "u")
    assert objects.held == before, "the other tables are as they were"


class Conflicts(Objects):
    """An object store that says once of a put that another one takes place, though none does in the end."""

    conflict = False

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        if self.conflict and "/epoch/" in name:
            self.conflict = False
            return False
        return super().create(name, pieces)


def test_a_commit_that_is_refused_though_there_is_no_other_is_tried_again(tmp_path: Path) -> None:
    objects = Conflicts()
    host = Host(created(objects), tmp_path)
    objects.conflict = True
    assert host.write(upserts([1, 2], 1)) == WriteSummary(1)
    assert not objects.conflict
    assert read(host.table, tmp_path)[0] == {1: 1, 2: 1}


def test_the_newest_epoch_is_found_by_few_requests(objects: Objects, tmp_path: Path) -> None:
    table = created(objects)
    base = table.newest()
    for number in range(300):
        made = table.commit(base, {}, f"w{number % 7}", 2_000_000 + number)
        assert made is not None
        base = made
    listed: list[str] = []
    real = objects.list

    def counted(prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        for name, size in real(prefix, after):
            listed.append(name)
            yield name, size

    objects.list = counted  # type: ignore[method-assign]
    assert table.newest().epoch == 300
    assert len(listed) == 1
    objects.held[f"tables/{table.definition.id}/newest"] = b"290"  # of a driver that was slow
    assert table.newest().epoch == 300
    assert len(listed) == 12
    del objects.held[f"tables/{table.definition.id}/newest"]
    assert table.newest().epoch == 300
    assert base.writers == {f"w{number % 7}": number + 1 for number in range(293, 300)}
