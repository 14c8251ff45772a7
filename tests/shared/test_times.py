"""Times of commits: all buckets of a write bear one, and times rise with the epochs, whatever clocks show."""

from __future__ import annotations

from pathlib import Path

from kvstore.replica.read.reader import ReplicaReader
from logformat.ids import BucketId
from tests.replica.objects import Objects
from tests.shared.hosts import Host, created, upserts
from tests.support.clocks import SetClock

DAY_MS = 86_400_000


def test_a_read_as_of_a_time_has_each_write_whole_or_not_at_all(tmp_path: Path) -> None:
    objects = Objects()
    table = created(objects, buckets=3)
    clocks = (SetClock(), SetClock(1_000_000 + DAY_MS), SetClock(1_000_000 - DAY_MS // 24))
    hosts = [Host(table, tmp_path / str(number), clock) for number, clock in enumerate(clocks)]
    epochs = [table.newest()]
    for number in range(9):
        clocks[number % 3].now += 7
        hosts[number % 3].write(upserts(range(30 if number % 2 else 1), number))
        epochs.append(table.newest())
    times = [epoch.committed_ms for epoch in epochs]
    assert times == sorted(set(times))
    found = table.at(epochs[-1])
    reader = ReplicaReader(objects, found.store_id, found.definition)
    for epoch, before in zip(epochs[1:], epochs, strict=False):
        for bucket in range(3):
            ranges = found.changes(bucket, before.end(bucket), epoch.end(bucket)).ranges
            assert {header.commit_timestamp for header, _, _ in reader.batches(ranges)} <= {epoch.committed_ms}
            assert found.first_at_or_after(bucket, epoch.committed_ms, objects) == before.end(bucket)


def test_a_task_whose_clock_is_wrong_stamps_the_time_of_its_driver(tmp_path: Path) -> None:
    table = created(Objects(), buckets=2)
    host = Host(table, tmp_path, SetClock(5_000_000 + DAY_MS))
    ranges = host.ranges(table.newest(), upserts(range(20), 1), 2_000_000)
    assert ranges is not None
    made = table.commit(table.newest(), ranges, None, 2_000_000)
    assert made is not None
    found = table.at(made)
    assert found.as_of_ms == 2_000_000
    for bucket in (BucketId(0), BucketId(1)):
        assert found.first_at_or_after(bucket, 2_000_000, table.client) == 0
        assert found.first_at_or_after(bucket, 2_000_001, table.client) == made.end(bucket)
