"""Promotions at once: in whatever order their requests are served, no replica has two leaders of one epoch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest

from kvstore.errors import Unavailable, WriterFenced
from kvstore.meta.state import CatalogState
from kvstore.replica.client import Client
from kvstore.replica.leadership import replaced_by
from kvstore.replica.promotion import Promotion
from logformat import paths
from logformat.catalog import store_file
from logformat.catalog.store_file import StoreFile
from logformat.ids import Epoch
from logformat.replica.object_file import claimed_by, leader_epoch, leader_name
from tests.replica.objects import Objects

STORE_ID = UUID(int=7)
REPLICAS = "abc"


class Died(BaseException):
    pass


class Recorded(Objects):
    """Remembers the highest epoch that was ever there."""

    highest = Epoch(0)

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        self.highest = max(self.highest, leader_epoch(name) or Epoch(0))
        return super().create(name, pieces)


class Turns:
    """One promotion in a thread that does a request when it is its turn, and no two threads run at once."""

    def __init__(self, work: Callable[[Turns], None]) -> None:
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._work = work
        self.dies = self.has_ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def run(self, requests: int) -> None:
        """Let it do so many requests, or until it ends."""
        for _ in range(requests):
            if not self.has_ended:
                self._go.release()
                self._stopped.acquire()

    def kill(self) -> None:
        self.dies = True
        self.run(1)

    def wait(self) -> None:
        """Called by its thread: until it is its turn again."""
        self._stopped.release()
        self._go.acquire()
        if self.dies:
            raise Died

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.dies:
                self._work(self)
        except Died:
            pass
        finally:
            self.has_ended = True
            self._stopped.release()


class InTurns:
    """A replica as one promotion reaches it."""

    def __init__(self, objects: Objects, turns: Turns) -> None:
        self._objects = objects
        self._turns = turns

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        self._turns.wait()
        return iter(list(self._objects.list(prefix, after)))

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        self._turns.wait()
        return self._objects.get(name, bytes_max=bytes_max)

    def get_first(self, name: str, count: int) -> memoryview:
        raise AssertionError(f"{name}: {count} bytes")

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        self._turns.wait()
        return self._objects.create(name, pieces)

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        self._turns.wait()
        self._objects.replace(name, pieces)

    def delete(self, name: str) -> None:
        self._turns.wait()
        self._objects.delete(name)

    def modified_ms(self, name: str) -> int:
        raise AssertionError(name)


@dataclass
class Copy:
    """A copy that is promoted.

    Attributes:
        reaches: Replicas at first, and once it has waited for the former leader.
    """

    name: str
    reaches: tuple[frozenset[str], frozenset[str]]
    promotion: Promotion | None = None
    ended: str = "died"
    waited: int = 0
    took: set[str] = field(default_factory=set)

    def promote(self, replicas: dict[str, Recorded], turns: Turns | None) -> None:
        self.promotion = Promotion(self.name, STORE_ID, Epoch(0))
        self.waited, self.ended = 0, "died"

        def connect(replica: str) -> Client:
            return replicas[replica] if turns is None else InTurns(replicas[replica], turns)

        def places() -> dict[str, Callable[[], Client]]:
            return {each: lambda each=each: reached(each) for each in replicas}  # type: ignore[misc]

        def reached(replica: str) -> Client:
            if replica not in self.reaches[min(self.waited, 1)]:
                raise Unavailable("away")
            return connect(replica)

        def catch_up() -> None:
            self.waited += 1
            if turns is not None:
                turns.wait()

        try:
            self.promotion.win(places, catch_up)
            self.promotion.begin()
        except WriterFenced:
            self.ended = "lost"
        else:
            self.ended = "won"
            self.took = {each for each in replicas if self.promotion.has_claimed(each)}

    def state(self) -> CatalogState:
        assert self.promotion is not None
        return CatalogState(leader_epoch=self.promotion.epoch, leader=self.name)


def leaders_of(objects: Objects) -> dict[Epoch, bytes]:
    return {epoch: data for name, data in objects.held.items() if (epoch := leader_epoch(name)) is not None}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_at_most_one_leads_in_an_epoch_whatever_the_order_of_requests(seed: int) -> None:
    random, ends = Random(seed), Counter[str]()
    for _ in range(250):
        ends.update(one_world(random))
    assert min(ends[end] for end in ("won", "lost", "died")) > 5


def one_world(random: Random) -> list[str]:
    """Two or three promotions over one to three replicas, some out of reach; how each ended."""
    names = REPLICAS[: random.randint(1, 3)]
    stays = random.random() < 0.7

    def reach() -> frozenset[str]:
        return frozenset(name for name in names if random.random() < 0.8) or frozenset(random.choice(names))

    reaches = [(reach(), reach()) for _ in range(random.randint(2, 3))]
    schedule = [(random.randrange(3), random.choice((1, 1, 2, 3, 8, 20))) for _ in range(random.randrange(60))]
    if random.random() < 0.6:  # all have looked before any of them takes something
        schedule = [*((number, 2 * len(names) + 1) for number in range(3)), *schedule]
    killed = [random.randrange(3)] if random.random() < 0.3 else []
    head = store_file.encode(StoreFile(store_id=STORE_ID, created_ms=0))
    replicas = {name: Recorded({paths.STORE_FILE: head, leader_name(Epoch(0)): b""}) for name in names}
    copies = [Copy(f"copy {number}", (first, first if stays else then)) for number, (first, then) in enumerate(reaches)]
    turns = [Turns(lambda turn, copy=copy: copy.promote(replicas, turn)) for copy in copies]  # type: ignore[misc]
    for number, requests in schedule:
        turns[number % len(turns)].run(requests)
    for number in killed:
        turns[number % len(turns)].kill()
    for turn in turns:
        turn.run(10_000)
        assert turn.has_ended
    ends = [copy.ended for copy in copies]
    has_gaps = "died" in ends  # until a leader ships
    check_leaders(copies, replicas, has_gaps=has_gaps)
    if stays and not any(copy.ended == "died" for copy in copies):
        assert any(copy.ended == "won" for copy in copies)
    # Whatever is left, one of them can be promoted alone; at the second try if it removes a claim of its own first.
    again = copies[killed[0] % len(copies) if killed else 0]
    again.reaches = (frozenset(names),) * 2
    again.promote(replicas, None)
    if again.ended == "lost":
        again.promote(replicas, None)
    assert again.ended == "won"
    check_leaders([again], replicas, has_gaps=has_gaps)
    return ends


def check_leaders(copies: list[Copy], replicas: dict[str, Recorded], *, has_gaps: bool) -> None:
    won = [copy for copy in copies if copy.ended == "won"]
    for copy in won:
        for name in copy.took:
            assert leaders_of(replicas[name])[copy.state().leader_epoch] == copy.name.encode()
            if not has_gaps:
                fenced = replaced_by(replicas[name], CatalogState(), STORE_ID, was_shipped_to=True)
                assert fenced, "the former leader goes on"
    for one in won:
        for other in won:
            if one is other or not one.took & other.took:
                continue
            assert one.state().leader_epoch != other.state().leader_epoch
            if one.state().leader_epoch < other.state().leader_epoch:
                assert all(
                    replaced_by(replicas[name], one.state(), STORE_ID, was_shipped_to=True)
                    for name in one.took & other.took
                )
    for copy in copies:
        if copy.ended == "lost":
            for name in copy.reaches[0] & copy.reaches[1]:
                found = leaders_of(replicas[name])
                # Below a higher epoch it stays, for a former leader may ask for it; and that one may have gone since.
                assert max(found) < replicas[name].highest or found[max(found)] != claimed_by(copy.name)


def test_a_claim_replaces_no_leader() -> None:
    """A leader that could not reach a replica comes upon the claim of a promotion there, which loses elsewhere."""
    head = store_file.encode(StoreFile(store_id=STORE_ID, created_ms=0))
    objects = Objects({paths.STORE_FILE: head, leader_name(Epoch(1)): claimed_by("loser")})
    leads = CatalogState(leader_epoch=Epoch(1), leader="winner")
    assert not replaced_by(objects, leads, STORE_ID, was_shipped_to=True)
    objects.delete(leader_name(Epoch(1)))
    assert not replaced_by(objects, leads, STORE_ID, was_shipped_to=True)
    objects.replace(leader_name(Epoch(1)), [b"other"])
    assert replaced_by(objects, leads, STORE_ID, was_shipped_to=True) == 1
