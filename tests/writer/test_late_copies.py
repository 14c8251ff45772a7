"""Late copies of requests, with a real bucket: an outcome that can't be known is reported as unknown."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from kvstore.testing import Request
from logformat.rows.changes import Changes
from tests.writer.world import SCHEMA, World, remove_templates


@pytest.fixture
def world() -> Iterator[World]:
    found = World("aggregate")
    yield found
    try:
        found.heal()
        found.verify()
    finally:
        found.close()
        remove_templates()


def batch(world: World, number: int, amount: int = 100, *, delete: bool = False) -> Changes:
    row = {"k": world.keys[0][0], "v": number, "n": amount}
    return Changes(pa.RecordBatch.from_pylist([row], SCHEMA), pa.array([delete]))


def overflow(world: World) -> Request:
    """A writer whose second batch is refused since its sum overflows; returns the request that carried it."""
    writer = world.join()
    world.hand_over(writer, 0, batch(world, 1))
    world.network.carry_everything()
    world.hand_over(writer, 0, batch(world, 2))
    (rows,) = world.network.requests
    world.network.exchange([world.network.requests.pop()])
    assert len(world.network.requests[0].changes) == 0
    return rows


def time_out(world: World) -> tuple[Request, Request]:
    """A request that got no answer in time, and the empty batch in its place; both are in the network."""
    writer = world.join()
    world.hand_over(writer, 0, batch(world, 1))
    world.network.carry_everything()
    world.hand_over(writer, 0, batch(world, 2))
    (first,) = world.network.requests
    world.network.requests = []
    world.wait(31)
    world.wait(2)
    world.network.carry_everything()
    (empty,) = world.network.requests
    world.network.requests = []
    return first, empty


def test_rows_written_after_their_refusal_are_not_reported_as_refused(world: World) -> None:
    rows = overflow(world)
    (empty,) = world.network.requests
    world.network.requests = []
    world.hand_over(world.join(), 0, batch(world, 3, delete=True))
    world.network.carry_everything()
    world.network.deliver([rows], lose_answers=True)
    world.network.exchange([empty])
    assert world.ledger.acknowledged == {0, 2}
    assert world.ledger.refused == set()


def test_an_answer_to_such_rows_reports_them_as_written(world: World) -> None:
    """The first attempt is silent, the second refused; then the first arrives late, and is answered."""
    first, empty = time_out(world)
    world.hand_over(world.join(), 0, batch(world, 3, delete=True))
    world.network.carry_everything()
    world.network.exchange([first, empty])
    assert world.ledger.acknowledged == {0, 1, 2}


def test_an_empty_batch_that_arrives_twice_does_not_count_as_the_rows(world: World) -> None:
    overflow(world)
    (empty,) = world.network.requests
    world.network.requests = []
    world.network.deliver([empty], lose_answers=True)
    world.network.exchange([empty])
    assert world.ledger.acknowledged == {0}
    assert world.ledger.refused == set()


def test_rows_that_arrive_after_the_empty_batch_do_not_count_as_written(world: World) -> None:
    first, empty = time_out(world)
    world.network.deliver([empty])
    world.network.exchange([first])
    assert world.ledger.acknowledged == {0}
    world.network.carry_everything()
    assert world.ledger.refused == {1}


def test_a_new_incarnation_continues_after_the_old_one_which_ends(world: World) -> None:
    old = world.join("loader")
    for number in range(3):
        world.hand_over(old, 0, batch(world, number + 1, 1))
    world.network.carry_everything()
    world.hand_over(old, 0, batch(world, 4, 1))
    new = world.join("loader")
    world.hand_over(new, 0, batch(world, 5, 1))
    assert [request.sequence for request in world.network.requests] == [3, 3]
    world.network.carry_everything()
    assert old.bucket_queues[0].error is not None
    assert [len(changes) for changes in old.bucket_queues[0].unacknowledged()] == [1]
    assert world.ledger.acknowledged == {0, 1, 2, 4}


def test_a_crash_with_five_batches_in_flight_and_a_refused_one_in_the_middle(world: World) -> None:
    writer = world.join()
    for number, amount in enumerate((1, 1, 127, 1, 1, 1, 1)):
        world.hand_over(writer, 0, batch(world, number + 1, amount))
    assert len(world.network.requests) == 5
    requests, world.network.requests = world.network.requests, []
    world.network.deliver(requests)
    world.network.replies = world.network.replies[:3]  # of the refused batch too
    world.crash("index")
    world.network.carry_everything()
    world.wait(31)
    world.heal()
    assert world.ledger.acknowledged == {0, 1, 3, 4, 5, 6}
    assert world.ledger.refused == {2}
