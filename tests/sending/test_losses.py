"""Connections that end at any byte, beside owners that close, die, or hand the bucket over: each write counts once.

A pump between each sender of this process and the owner ends the connection after a number of bytes of either side: so
a request is lost as a whole, cut, or applied while its answer is lost. Then the owner ends in one of several ways while
requests are on their way.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.bucket import committer
from kvstore.bucket.turn import Hold
from kvstore.process.calls import Answer
from kvstore.request.encoded import SmallRequest, encoded_writes
from kvstore.sending.meeting import MeetingPlace
from kvstore.testing import Recorder
from tests.sending.writers import KEYS, check, create
from tests.support.processes import Child, Pipe

COUNTER = 1000
ENDS = ("stays", "closes", "is killed", "hands over")


def own(pipe: Pipe) -> None:
    """Own the bucket of one store after the other; take part in commits of others, and commit."""
    store: Any = None
    for epoch in count():
        match pipe.recv():
            case ("open", path):
                store = kvstore.open(path)
                store.table("t").upsert({"k": COUNTER, "v": "counter", "n": 0})
            case "close":
                store.close()
            case ("commit", path):
                with kvstore.open(path) as other:
                    row = {"k": 2000, "v": "epoch", "n": epoch}
                    other.table("t").apply_epoch(
                        kvstore.Changes.of([("upsert", row)], other.table("t").schema), "w", epoch
                    )
        pipe.send("done")


@dataclass
class Pump:
    """Forwards bytes, and ends the connection after some of either side.

    Attributes:
        limits: For each connection after how many bytes of the sender, and of the owner; beyond the last it stays.
    """

    limits: list[tuple[int, int]]
    made: int = 0
    threads: list[threading.Thread] = field(default_factory=list)

    def between(self, owner: socket.socket) -> socket.socket:
        """The sender's end of a connection to an owner."""
        ours, end = socket.socketpair()
        limits = self.limits[self.made] if self.made < len(self.limits) else (1 << 40, 1 << 40)
        self.made += 1
        for source, target, limit in ((ours, owner, limits[0]), (owner, ours, limits[1])):
            thread = threading.Thread(target=self._forward, args=(source, target, limit))
            thread.start()
            self.threads.append(thread)
        return end

    def _forward(self, source: socket.socket, target: socket.socket, limit: int) -> None:
        with suppress(OSError):
            while limit and (data := source.recv(min(limit, 1 << 16))):
                target.sendall(data)
                limit -= len(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()


LIMITS = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 400)), max_size=6)
GIVEN = {
    "limits": LIMITS,
    "end": st.sampled_from(ENDS),
    "seed": st.integers(0, 999),
    "buckets": st.sampled_from([1, 2]),
}
"""A greeting has 79 bytes, its answer 27, a write of a row some 120, the answer 42."""


def lose(
    root: Path, limits: list[tuple[int, int]], end: str, seed: int, buckets: int, owner: Child, other: Child
) -> None:
    """Write from three threads over connections that end."""
    path, history = root / "store", root / "history"
    create(path, buckets)
    commanded(owner, ("open", path))
    pump = Pump(limits)
    owner_of = MeetingPlace.owner_of

    def met(place: MeetingPlace, *given: Any) -> socket.socket | None:
        found = owner_of(place, *given)
        return None if found is None else pump.between(found)

    with pytest.MonkeyPatch.context() as patch, kvstore.open(path) as store:
        patch.setattr(MeetingPlace, "owner_of", met)
        table = store.table("t")
        client = Recorder(table, history)

        def work(number: int) -> list[int]:
            random, counted = Random(f"{seed} {number}"), []
            for n in range(8):
                k = random.randrange(KEYS)
                row = {"k": k, "v": f"{number}", "n": n}
                calls: list[Callable[[], object]] = [
                    lambda row=row: client.upsert(row),
                    lambda row=row, k=k: client.put_if(row, client.get(k)),
                    lambda k=k: client.delete(k),
                    lambda: counted.append(table.increment(COUNTER, {"n": 1})["n"]),
                ]
                random.choice(calls)()
            return counted

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work, number) for number in range(3)]
            if end == "closes":
                commanded(owner, "close")
            elif end == "is killed":
                owner.kill()
            elif end == "hands over":
                commanded(other, ("commit", path))
            counted = sorted(n for each in working for n in each.result())
        assert counted == [*range(1, len(counted) + 1)]
        assert table[COUNTER]["n"] == len(counted)
        client.close()
    if end not in ("closes", "is killed"):
        commanded(owner, "close")
    check(path, history)
    for thread in pump.threads:
        thread.join(60)
        assert not thread.is_alive()


def commanded(child: Child, command: object) -> None:
    child.say(command)
    assert child.hear() == "done"


class Owners:
    """Processes that own buckets; one that was killed is replaced."""

    def __init__(self) -> None:
        self.first, self.other = Child(own), Child(own)

    def lose(self, root: Path, limits: list[tuple[int, int]], end: str, seed: int, buckets: int) -> None:
        lose(root, limits, end, seed, buckets, self.first, self.other)
        if end == "is killed":
            self.first.__exit__()
            self.first = Child(own)

    def close(self) -> None:
        for each in (self.first, self.other):
            each.__exit__()


@pytest.fixture(scope="module")
def owners() -> Iterator[Owners]:
    with closing(Owners()) as found:
        yield found


@given(**GIVEN)
@settings(max_examples=8, deadline=None)
def test_connections_that_end(owners: Owners, tmp_path_factory: pytest.TempPathFactory, **given: Any) -> None:
    owners.lose(tmp_path_factory.mktemp("lost"), **given)


@pytest.mark.long
@given(**GIVEN)
@settings(max_examples=500, deadline=None)
def test_many_connections_that_end(owners: Owners, tmp_path_factory: pytest.TempPathFactory, **given: Any) -> None:
    owners.lose(tmp_path_factory.mktemp("lost"), **given)


@pytest.mark.parametrize("durability", ["none", "interval", "sync"])
def test_what_is_sent_into_a_hold_is_durable_when_it_is_answered(store_path: Path, durability: str) -> None:
    late: dict[str, Any] = {"sync_interval_ms": 10**6, "commit_wait_ms": 10**6, "commit_idle_ms": 10**6}
    with kvstore.open(store_path, durability=durability, **late) as store:
        table = store.create_table("t", {"k": "int64", "n": "int64"}, primary_key="k")
        table.upsert({"k": 1, "n": 0})
        handle, writes = table.bucket(0).handle, encoded_writes(store.runtime.definition("t"))
        assert writes is not None
        hold = Hold([])
        assert handle.take_in(hold)
        hold.answer.result(60)
        request = SmallRequest(writes.upserts({"k": 2, "n": 1}, 1) or [], writes, Answer())
        assert hold.go_on(request)
        result = request.answer.result(60)
        assert handle.writer().committer.durable > result.last_offset


def test_only_requests_wait_for_the_rest_of_a_group(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a group of two, what is no request is done at once; the next request waits for another one."""
    table = store.create_table("t", {"k": "int64", "n": "int64"}, primary_key="k")
    table.upsert({"k": 1, "n": 0})
    handle, writes = table.bucket(0).handle, encoded_writes(store.runtime.definition("t"))
    assert writes is not None

    def request(k: int) -> SmallRequest:
        return SmallRequest(writes.upserts({"k": k, "n": 1}, 1) or [], writes, Answer())

    def together() -> None:
        hold, both = Hold([]), [request(2), request(3)]
        assert handle.take_in(hold)
        hold.answer.result(60)
        for each in both:
            assert handle.take_in(each)
        hold.go_on(None)
        for each in both:
            each.answer.result(60)

    together()
    monkeypatch.setattr(committer, "GATHER_SECONDS", 10**6)
    handle.writer().committer.sync()
    first, second = request(4), request(5)
    assert handle.take_in(first)
    with pytest.raises(TimeoutError):
        first.answer.result(0.05)
    assert handle.take_in(second)
    assert [each.answer.result(60).first_offset for each in (first, second)] == [3, 4]
    store.close()
