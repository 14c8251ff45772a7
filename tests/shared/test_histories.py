"""Random histories: two drivers that die; executors that are killed or stopped at any moment; tasks that run twice."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

import kvstore
from kvstore.errors import Unavailable
from kvstore.replica.client import ObjectStore
from kvstore.shared.check import report_of
from kvstore.shared.snapshots import take_snapshots
from kvstore.shared.table import SharedTable
from kvstore.shared.write import write_once
from logformat.ids import BucketId
from logformat.replica.shared_table import SharedEpoch, SharedRange
from tests.shared.executors import KEYS, Task, execute
from tests.shared.hosts import Ranges, created, read
from tests.support.clocks import JumpingClock
from tests.support.processes import Child

BUCKETS = 2
DAY_MS = 86_400_000


class DriverDies(Exception):
    pass


class Executor:
    """An executor that is started again when it has died, with what its disk has, or with an empty one."""

    def __init__(self, start: Callable[[], Child], cache: Path) -> None:
        self._start, self._cache = start, cache
        self._child = start()

    def run(self, kill_after: float | None, *, task: Task, lose: bool) -> object:
        """The result of a task; if it is killed in the middle, of its next attempt."""
        self._child.say(task)
        if kill_after is not None and not self._child.pipe.poll(kill_after):
            self._child.kill()
            if lose:
                shutil.rmtree(self._cache, ignore_errors=True)
            self._child = self._start()
            self._child.say(task)
        return self._child.hear()

    def stop(self, after: float, task: Task) -> None:
        """Stop the process in the middle of a task, as a machine that hangs."""
        self._child.say(task)
        self._child.pipe.poll(after)
        os.kill(self._child.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it end its task, of which the result is used no more."""
        os.kill(self._child.pid, signal.SIGCONT)
        self._child.hear()

    def close(self) -> None:
        self._child.kill()


class Driver:
    """A driver with two executors on machines of their own, and its own idea of the time."""

    def __init__(self, table: SharedTable, place: Path, random: Random) -> None:
        self.table, self.random = table, random
        self.clock = JumpingClock(1_700_000_000_000 + random.choice([-DAY_MS, 0, DAY_MS]))
        self._caches = (place / str(number) for number in count())
        self.executors = [self._executor() for _ in range(2)]
        self.stopped: list[Executor] = []

    def _executor(self) -> Executor:
        cache = next(self._caches)
        return Executor(lambda: Child(execute, self.table.url, self.table.described, cache), cache)

    def write(self, value: int, name: str) -> None:
        """Write until it is known to be written, also after the driver has died."""
        while True:
            try:
                write_once(self.table, name, lambda base, at_ms: self.ranges(base, value, at_ms), self.clock)
                return
            except (DriverDies, Unavailable):
                continue

    def ranges(self, base: SharedEpoch, value: int, at_ms: int) -> Ranges | None:
        self.clock.now += 1000
        self._stop_or_go_on((base, BucketId(self.random.randrange(BUCKETS)), value, at_ms))
        found: dict[BucketId, SharedRange] = {}
        with ThreadPoolExecutor(2) as pool:
            for bucket in map(BucketId, range(BUCKETS)):
                # With speculation both executors run the task, and one of the results is used.
                chosen = self.random.sample(self.executors, self.random.choice([1, 1, 2]))
                kills = [self.random.uniform(0, 0.03) if self.random.random() < 0.3 else None for _ in chosen]
                lose = self.random.random() < 0.3
                run = partial(Executor.run, task=(base, bucket, value, at_ms), lose=lose)
                results = list(pool.map(run, chosen, kills))
                used = self.random.choice(results)
                if not isinstance(used, SharedRange):
                    return None
                found[bucket] = used
        if self.random.random() < 0.1:
            raise DriverDies
        return found

    def _stop_or_go_on(self, task: Task) -> None:
        """Stop an executor, in whose place another begins; or let one go on, with a copy from before."""
        place = self.random.randrange(2)
        if self.random.random() < 0.15:
            self.executors[place].stop(self.random.uniform(0, 0.03), task)
            self.stopped.append(self.executors[place])
            self.executors[place] = self._executor()
        elif self.stopped and self.random.random() < 0.4:
            self.executors[place].close()
            self.executors[place] = self.stopped.pop(0)
            self.executors[place].go_on()

    def close(self) -> None:
        for executor in (*self.executors, *self.stopped):
            executor.close()


def run_history(seed: int, place: Path, writes: int) -> None:
    random = Random(seed)
    url = (place / "objects").as_uri()
    described = created(
        ObjectStore(url, create=True), buckets=BUCKETS, engine=kvstore.Aggregate({"v": "sum"})
    ).described
    table = SharedTable(url, ObjectStore(url), described)
    drivers = [Driver(table, place / name, Random(random.random())) for name in ("one", "two")]
    values = iter(range(writes))
    taking, failures = threading.Lock(), list[BaseException]()

    def drive(driver: Driver) -> None:
        try:
            while True:
                with taking:
                    number = next(values, None)
                if number is None:
                    return
                driver.write(1 << number, f"write {number}")
                if driver.random.random() < 0.1:
                    take_snapshots(table, place / "upkeep", driver.clock, again=False)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=drive, args=(driver,)) for driver in drivers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for driver in drivers:
            driver.close()
    assert not failures
    assert report_of(table)
    newest = table.newest()
    assert set(newest.writers) == {f"write {number}" for number in range(writes)}
    assert len(set(newest.writers.values())) == writes
    assert read(table, place)[0] == dict.fromkeys(range(KEYS), (1 << writes) - 1)
    times = [epoch.committed_ms for number in range(newest.epoch + 1) if (epoch := table.epoch(number)) is not None]
    assert times == sorted(set(times))
    assert len(times) == newest.epoch + 1


def test_a_history(tmp_path: Path) -> None:
    run_history(1, tmp_path, 6)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 202))
def test_many_histories(tmp_path: Path, seed: int) -> None:
    run_history(seed, tmp_path, 10)
