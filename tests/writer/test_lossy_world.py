"""Every acknowledged row is in the table exactly once, whatever the network between writers and buckets loses."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from kvstore.log import writer_state
from kvstore.testing import moves
from kvstore.testing.network import Move
from logformat.rows.changes import Changes
from tests.writer.world import BUCKETS, DAMAGES, KINDS, SCHEMA, Transitions, World, remove_templates
from writer.sequence import Event, State

INDEX = st.integers(0, 7)
SEEN = Transitions()

Draft = tuple[str, int, int]


def drafts() -> st.SearchStrategy[list[list[Draft]]]:
    """Drafts of batches: a word, a key, and a number. Many have no effect, and some are refused."""
    key = st.integers(0, 2)
    rows = st.tuples(st.just("upsert"), key, st.sampled_from([0, 1, 100]))
    gone = st.tuples(st.just("delete"), st.integers(3, 5), st.just(0))
    deletes = st.tuples(st.just("delete"), key, st.just(0))
    bad = st.tuples(st.just("bad"), key, st.just(0))
    batch = st.one_of(
        st.lists(rows | deletes, min_size=1, max_size=3),
        st.lists(rows, min_size=1, max_size=3),
        st.lists(gone, max_size=2),
        st.tuples(rows, bad).map(list),
    )
    return st.lists(batch, min_size=1, max_size=5)


class LossyWorld(RuleBasedStateMachine):
    """At least three writers, two buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World
        self.numbers = 0

    @initialize(kind=st.sampled_from([*KINDS, "aggregate", "aggregate"]))
    def begin(self, kind: str) -> None:
        self.world = World(kind)
        self.world.join()
        self.world.join()
        self.world.join("named")

    @rule(writer=INDEX, bucket=st.integers(0, BUCKETS - 1), batches=drafts())
    def hand_over(self, writer: int, bucket: int, batches: list[list[Draft]]) -> None:
        actors = [actor for actor in self.world.actors if actor.bucket_queues[bucket].error is None]
        for batch in batches:
            self.world.hand_over(actors[writer % len(actors)], bucket, self.changes(bucket, batch))

    @rule(moves=moves())
    def network(self, moves: list[Move]) -> None:
        for move, place in moves:
            self.world.network.move(move, place)

    @rule(seconds=st.sampled_from([1.0, 5.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(damage=st.sampled_from(DAMAGES))
    def crash(self, damage: str) -> None:
        self.world.crash(damage)

    @rule(rounds=st.integers(1, 4))
    def calm(self, rounds: int) -> None:
        self.world.locked = False
        for _ in range(rounds):
            self.world.network.carry_everything()
            self.world.wait(1.0)

    @rule(locked=st.sampled_from([True, False, False]))
    def lock_or_unlock(self, locked: bool) -> None:
        self.world.locked = locked

    @rule(snapshot=st.sampled_from([False, False, True]))
    def flush(self, snapshot: bool) -> None:
        if snapshot:
            self.world.snapshot()
        else:
            self.world.flush()

    @precondition(lambda self: len(self.world.actors) < 5)
    @rule(name=st.sampled_from([None, "named", "named"]))
    def join(self, name: str | None) -> None:
        actor = self.world.join(name)
        for bucket in range(BUCKETS):
            self.world.hand_over(actor, bucket, self.changes(bucket, [("upsert", 0, 1)]))

    @precondition(lambda self: not self.world.expired)
    @rule(calm=st.sampled_from([None, True, True, False]))
    def seven_days_pass(self, calm: bool | None) -> None:
        if calm is None:
            return
        if calm:
            self.calm(4)
        self.world.seven_days_pass()
        for actor in self.world.actors:
            for bucket, bucket_queue in enumerate(actor.bucket_queues):
                if bucket_queue.error is None:
                    self.world.hand_over(actor, bucket, self.changes(bucket, [("upsert", 0, 1)]))
        for name in (None, "named"):
            self.world.join(name)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.heal()
                self.world.verify()
            finally:
                SEEN.update(self.world.seen)
                self.world.close()

    def changes(self, bucket: int, batch: list[Draft]) -> Changes:
        keys = self.world.keys[bucket]
        rows = []
        for word, key, number in batch:
            self.numbers += 1
            rows.append({"k": None if word == "bad" else keys[key], "v": self.numbers, "n": number})
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
        return Changes(
            pa.RecordBatch.from_arrays(columns, schema=SCHEMA),
            pa.array([word == "delete" for word, _, _ in batch], pa.bool_()),
        )


@pytest.fixture(autouse=True)
def _templates(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Seven days pass at once here; a bucket counts an hour of them, so that a wrong clock makes it forget nothing.
    monkeypatch.setattr(writer_state, "STEP_MS_MAX", writer_state.EXPIRY_MS)
    yield
    remove_templates()


IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
RUNS = 10 if IS_LONG else 1  # Hypothesis remembers a whole run, so one run of 5,000 would need much memory
EXAMPLES = settings(max_examples=500 if IS_LONG else 50, stateful_step_count=50)


def test_every_acknowledged_row_is_in_the_table_exactly_once() -> None:
    SEEN.clear()
    for _ in range(RUNS):
        run_state_machine_as_test(LossyWorld, settings=EXAMPLES)
    reached = {event for _, event in SEEN}
    # Which other states so few runs reach depends on Hypothesis's draws, and these on every constant of the code.
    often = set(Event) - {Event.EXPIRED, Event.OVER, Event.TAKEN, Event.FORGOTTEN, Event.UNAVAILABLE}
    assert reached >= (set(Event) if IS_LONG else often)
    assert {state for state, _ in SEEN} >= {State.QUEUED, State.IN_FLIGHT, State.BACKING_OFF, State.HELD}
