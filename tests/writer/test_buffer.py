"""Items are handed over without a lock; none is lost, and the sending thread is woken for each first one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from logformat.errors import StoreClosed
from logformat.rows.changes import Changes
from tests.support.waiting import wait_until
from writer.buffer import Buffer
from writer.intake import Item
from writer.refused import Refused


def test_the_sending_thread_is_woken_by_the_first_item_after_it_found_none() -> None:
    nudges: list[None] = []
    buffer = Buffer(1 << 20, 3, lambda: nudges.append(None))
    buffer.add({"n": 0})
    assert len(nudges) == 1
    buffer.add({"n": 1})
    assert len(nudges) == 1  # it knows
    buffer.add({"n": 2})
    assert len(nudges) == 2  # that is a chunk
    assert not buffer.is_empty()
    assert buffer.take() == ([{"n": 0}, {"n": 1}, {"n": 2}], 0)
    buffer.converted(3, 0, 30)
    assert buffer.is_empty()
    buffer.add({"n": 3})
    assert len(nudges) == 3


def test_an_item_that_is_added_while_the_writer_ends_is_reported_or_refused() -> None:
    buffer = Buffer(1 << 20, 10, lambda: None)
    buffer.add({"n": 0})

    def leave(items: list[Item]) -> tuple[list[Changes], list[Refused]]:
        assert items == [{"n": 0}]
        late.append(pool.submit(buffer.add, {"n": 1}))
        wait_until(lambda: buffer.waiting > 0)
        return [], []

    with ThreadPoolExecutor(1) as pool:
        late = []
        buffer.end(StoreClosed("The writer was closed."), leave)
        with pytest.raises(StoreClosed):
            late[0].result()
    assert buffer.waiting == 0


def test_no_item_of_many_threads_is_lost() -> None:
    woken = threading.Semaphore(0)
    buffer = Buffer(1 << 20, 8, woken.release)

    def add(thread: int) -> None:
        for number in range(500):
            buffer.add((thread, number))

    found: list[Item] = []
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(add, thread) for thread in range(4)]
        while len(found) < 4 * 500:
            assert woken.acquire(timeout=60)  # so none waits that the sending thread does not know of
            while not buffer.is_empty():
                items, known = buffer.take()
                found += items
                buffer.converted(len(items), known, 10 * len(items))
                buffer.settle(10 * len(items), [])
        for each in done:
            each.result()
    for thread in range(4):
        assert [number for of, number in found if of == thread] == list(range(500))
