"""Manifests of epochs: full now and then, else what is new since the last full one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kvstore.errors import CorruptData, MissingVersion, OutOfOrderSequence
from kvstore.shared.reading import SharedTail
from kvstore.shared.table import SharedTable
from logformat.ids import BucketId
from logformat.replica import shared_table
from logformat.replica.shared_table import FIRST_ATTEMPT, SharedEpoch, SharedRange, batch_name
from tests.replica.objects import Objects
from tests.shared.hosts import Host, created, read, upserts
from tests.support.clocks import SetClock


def committed(table: SharedTable, count: int, random: Random) -> list[SharedEpoch]:
    """Epochs with ranges that no object has, some of them under names."""
    made = [table.newest()]
    for number in range(count):
        base, ranges = made[-1], {}
        for bucket in range(table.definition.buckets):
            if random.random() < 0.7:
                end = base.end(bucket)
                ranges[BucketId(bucket)] = SharedRange(end, end + random.randint(1, 9), base.attempt + 1, 100)
        writer = random.choice([None, f"w{number}", f"w{number % 3}"])
        epoch = table.commit(base, ranges, writer, base.committed_ms + 1)
        assert epoch is not None
        made.append(epoch)
    return made


@pytest.mark.parametrize("writers_max", [5, 10_000])
def test_every_epoch_is_read_as_it_was_committed(monkeypatch: pytest.MonkeyPatch, writers_max: int) -> None:
    monkeypatch.setattr(shared_table, "WRITERS_MAX", writers_max)
    table = created(Objects(), buckets=3)
    epochs = committed(table, 120, Random(writers_max))
    assert table.newest() == epochs[-1]
    assert [table.epoch(epoch.epoch) for epoch in epochs] == epochs
    assert 1 < len({epoch.full for epoch in epochs}) < 60
    assert len(epochs[-1].writers) <= writers_max


def test_manifests_of_many_epochs_take_little_and_one_is_read_with_two_requests() -> None:
    objects = Objects()
    table = created(objects)
    committed(table, 1000, Random(1))
    sizes = [len(data) for name, data in objects.held.items() if "/epoch/" in name]
    assert sum(sizes) < 0.15 * 1000 * max(sizes)
    fetched: list[str] = []
    real = objects.get

    def counted(name: str, *, bytes_max: int) -> memoryview:
        fetched.append(name)
        return real(name, bytes_max=bytes_max)

    objects.get = counted  # type: ignore[method-assign]
    assert table.newest().epoch == 1000
    assert len(fetched) <= 3


class Paged(Objects):
    """Objects that count requests as object stores have them: a listing is one for each thousand names."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        found = sorted(super().list(prefix, after))
        self.requests += 1 + len(found) // 1000
        yield from found

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        self.requests += 1
        return super().get(name, bytes_max=bytes_max)

    def get_first(self, name: str, count: int) -> memoryview:
        self.requests += 1
        return super().get_first(name, count)


@pytest.mark.parametrize("noted", [b"10000", b"5000", b"no number", None])
def test_a_table_of_ten_thousand_epochs_is_opened_with_few_requests(noted: bytes | None) -> None:
    """Also if the number of the newest one was not noted, can't be read, or is gone."""
    objects, count = Paged(), 10_000
    made = created(objects)
    ranges = [SharedRange(number, number + 1, FIRST_ATTEMPT + number, 100) for number in range(count)]
    base = made.newest()
    for number in range(1, count + 1):
        full = number - number % 100
        epoch = replace(base, epoch=number, ranges=[ranges[:number]], full=full, in_full=[full])
        name = shared_table.epoch_name(made.described.table_id, number)
        objects.held[name] = shared_table.encode(epoch.stored())
    name = shared_table.newest_name(made.described.table_id)
    if noted is None:
        objects.delete(name)
    else:
        objects.replace(name, [noted])
    objects.requests = 0
    table = SharedTable.find("memory://x", objects, "t")
    tail = SharedTail(table, SetClock())
    assert tail.table.ends() == {0: count}
    assert objects.requests <= 20
    objects.requests = 0
    tail.poll()
    assert objects.requests == 2


def test_a_full_manifest_that_is_gone_or_damaged_is_reported(tmp_path: Path) -> None:
    objects = Objects()
    table = created(objects)
    host = Host(table, tmp_path)
    while table.newest().full == table.newest().epoch or table.newest().epoch < 4:
        host.write(upserts([1], 1))
    newest = table.newest()
    full = shared_table.epoch_name(newest.table_id, newest.full)
    whole = objects.held[full]
    objects.held[full] = whole[:-20]
    with pytest.raises(CorruptData, match="checksum"):
        table.newest()
    other = shared_table.epoch_name(newest.table_id, newest.epoch)
    objects.held[full] = objects.held[other]
    with pytest.raises(CorruptData, match="not the one in its name"):
        table.newest()
    del objects.held[full]
    with pytest.raises(MissingVersion, match=f"object={full} epoch={newest.epoch}"):
        host.write(upserts([1], 2))
    objects.held[full] = whole
    assert host.write(upserts([1], 2)).epoch == newest.epoch + 1


def test_a_stream_takes_one_name_and_a_batch_that_is_too_old_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared_table, "WRITERS_MAX", 4)
    host = Host(created(Objects()), tmp_path / "cache")
    host.write(upserts([1], 0), "nightly")
    host.write(upserts([1], 0), "loader query 0")  # so an earlier version named a batch
    assert host.write(upserts([1], 9), batch_name("loader", "query", 0)).duplicated
    for batch in range(1, 40):
        host.write(upserts([1], batch), batch_name("loader", "query", batch))
        host.write(upserts([1], batch), batch_name("loader", "another query", batch))
    again = host.write(upserts([1], 9), batch_name("loader", "query", 39))
    assert again.duplicated
    assert again.epoch == host.table.newest().epoch - 1
    with pytest.raises(OutOfOrderSequence, match="batch=38 last_batch=39"):
        host.write(upserts([1], 9), batch_name("loader", "query", 38))
    assert host.write(upserts([1], 9), "nightly").duplicated, "streams do not displace the names of other writes"
    assert read(host.table, tmp_path)[0] == {1: 39}
