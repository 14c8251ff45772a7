"""A shared table as it is followed: what a look at it asks of the object store, and where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from kvstore.errors import Unavailable
from kvstore.shared.reading import SharedTail
from kvstore.shared.snapshots import take_snapshots
from kvstore.shared.write import write_once
from logformat.ids import BucketId, Offset
from logformat.replica.shared_table import SharedRange
from tests.replica.objects import Objects
from tests.shared.hosts import Host, created, upserts
from tests.support.clocks import SetClock
from tests.support.counted_objects import Counted


def uploaded(ranges: Mapping[BucketId, SharedRange], *_: object) -> Mapping[BucketId, SharedRange]:
    return ranges


@pytest.mark.parametrize("epochs", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_a_look_asks_for_the_same_few_objects_however_many_epochs_there_are(epochs: int) -> None:
    objects = Counted()
    table = created(objects, buckets=2)
    tail = SharedTail(table, SetClock())
    polls = set()
    for number in range(epochs):
        ranges = {BucketId(bucket): SharedRange(number, number + 1, number + 1, 100) for bucket in range(2)}
        write_once(table, None, partial(uploaded, ranges), SetClock())
        objects.asked.clear()
        assert tail.poll().ends() == {0: number + 1, 1: number + 1}
        polls.add(tuple(objects.asked))
        objects.asked.clear()
        tail.poll()
        polls.add(tuple(objects.asked))
    assert polls <= {("get", "list", "name"), ("get", "list", "name", "get"), ("get", "list", "name", "get", "get")}


def test_a_look_that_fails_leaves_the_table_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    objects = Objects()
    host = Host(created(objects, buckets=2), tmp_path)
    tail = SharedTail(host.table, SetClock())
    host.write(upserts(range(8), 1))

    def refuse(name: str, *, bytes_max: int) -> memoryview:
        raise Unavailable("no", name=name, bytes_max=bytes_max)

    with monkeypatch.context() as patched:
        patched.setattr(objects, "get", refuse)
        with pytest.raises(Unavailable):
            tail.poll()
    assert tail.table.ends() == {0: 0, 1: 0}
    assert sum(tail.poll().ends().values()) == 8


def test_where_commits_end_and_when_they_were(tmp_path: Path) -> None:
    host = Host(created(Objects()), tmp_path)
    tail, times = SharedTail(host.table, SetClock()), [0]
    for number in range(4):
        host.clock.now += 1000
        host.write(upserts(range(3), number))  # 3 changes, then 6 a commit: an update is two
        times.append(host.clock.now)
    for _ in range(2):
        tail.poll()
        assert [tail.last_timestamp(0, end) for end in (0, 3, 9, 15, 21)] == times
        take_snapshots(host.table, tmp_path / "snapshots", host.clock, again=False)
    for start, most, end in ((0, 1, 3), (0, 3, 3), (0, 8, 3), (0, 9, 9), (3, 1, 9), (9, 100, 21)):
        assert tail.commit_end(0, Offset(start), Offset(21), most) == end


def test_a_limited_read_ends_after_whole_writes(tmp_path: Path) -> None:
    host = Host(created(Objects(), buckets=3), tmp_path)
    begun = {BucketId(0): SharedRange(0, 4, 1 << 40, 100), BucketId(2): SharedRange(0, 4, 1 << 41, 100)}
    write_once(host.table, None, partial(uploaded, begun), SetClock())  # as an earlier version did
    for end in (10, 20, 30):
        base = host.table.newest()
        ranges = {
            BucketId(bucket): SharedRange(base.end(bucket), end, base.next_attempt(random), 100)
            for bucket, random in ((0, end * 99_991), (1, 7), (2, (1 << 20) - 1))
            if (bucket, end) != (1, 20)
        }
        write_once(host.table, None, partial(uploaded, ranges), SetClock())
    tail = SharedTail(host.table, SetClock())

    def ends(before: list[int], records: int, last: Sequence[int] = (30, 30, 30)) -> tuple[list[int], bool]:
        about = ({bucket: Offset(offset) for bucket, offset in enumerate(place)} for place in (before, last))
        found, is_whole = tail.whole_ends(*about, records)
        return [found[bucket] for bucket in range(3)], is_whole

    assert ends([0, 0, 2], 99) == ([4, 0, 4], False), "nothing says of which commits these are"
    assert ends([4, 0, 4], 1) == ([10, 10, 10], True), "the first write is whole, however large"
    assert ends([4, 0, 4], 41) == ([10, 10, 10], True)
    assert ends([4, 0, 4], 42) == ([20, 10, 20], True)
    assert ends([9, 10, 5], 26) == ([20, 10, 20], True), "also from within a write"
    assert ends([10, 10, 10], 99, (20, 10, 20)) == ([20, 10, 20], True)
    assert ends([30, 30, 30], 5) == ([30, 30, 30], True)
