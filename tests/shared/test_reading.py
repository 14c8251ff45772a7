"""A shared table as it is followed: what a look at it asks of the object store, and where it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from tests.shared.test_epochs import Host, created, upserts
from tests.support.clocks import SetClock


class Counted(Objects):
    """Objects that count what is asked of them: requests, and names in answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        self.asked.append("list")
        for found in super().list(prefix, after):
            self.asked.append("name")
            yield found

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        self.asked.append("get")
        return super().get(name, bytes_max=bytes_max)


def uploaded(ranges: Mapping[BucketId, SharedRange], *_: object) -> Mapping[BucketId, SharedRange]:
    return ranges


def test_a_look_asks_for_the_same_few_objects_however_many_epochs_there_are() -> None:
    objects = Counted()
    table = created(objects, buckets=2)
    tail = SharedTail(table, SetClock())
    polls = set()
    for number in range(300):
        ranges = {BucketId(bucket): SharedRange(number, number + 1, number + 1, 100) for bucket in range(2)}
        write_once(table, None, partial(uploaded, ranges), SetClock())
        objects.asked.clear()
        assert tail.poll().ends() == {0: number + 1, 1: number + 1}
        polls.add(tuple(objects.asked))
        objects.asked.clear()
        tail.poll()
        polls.add(tuple(objects.asked))
    assert polls <= {("list",), ("list", "name", "get"), ("list", "name", "get", "get")}


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
