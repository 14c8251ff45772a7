"""Several processes move money between accounts of two tables: at every cut the sum is right, whichever is killed or
stopped, in the store, in a copy that follows it, and in one that is restored."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import rmtree
from threading import Thread

import pytest

import kvstore
from kvstore.errors import TransactionConflict, Unavailable
from kvstore.transaction import cut
from tests.support.processes import Child, Pipe
from tests.support.proof import Proves
from tests.support.tables import rows_of

ACCOUNTS, EACH = 6, 100
TABLES = {"checking": 1, "savings": 2}
"""Names, and numbers of buckets."""
PROCESSES = 3
TOTAL = len(TABLES) * ACCOUNTS * EACH


@pytest.fixture
def path(store_path: Path) -> Path:
    with kvstore.open(store_path) as store:
        for name, buckets in TABLES.items():
            table = store.create_table(name, {"k": "int64", "money": "int64"}, primary_key="k", buckets=buckets)
            table.upsert([{"k": k, "money": EACH} for k in range(ACCOUNTS)])
    return store_path


def transfer(store: kvstore.Store, dice: random.Random) -> None:
    """Move some money from one account to another one, of any table; again until it is not disturbed."""
    of = dice.choices(list(TABLES), k=2)
    keys = dice.sample(range(ACCOUNTS), 2)
    while True:
        try:
            with store.transaction() as tx:
                giver, taker = (tx.get(*account) for account in zip(of, keys, strict=True))
                assert giver is not None
                assert taker is not None
                amount = dice.randint(0, giver["money"])
                tx.upsert(of[0], giver | {"money": giver["money"] - amount})
                tx.upsert(of[1], taker | {"money": taker["money"] + amount})
            return
        except TransactionConflict:
            continue


def work(pipe: Pipe, path: Path, seed: int, count: int) -> None:
    """Transfer in two threads, and say so after each transfer."""
    with kvstore.open(path) as store:

        def run(thread: int) -> None:
            dice = random.Random(2 * seed + thread)
            for _ in range(count):
                transfer(store, dice)
                pipe.send("transferred")

        threads = [Thread(target=run, args=(number,)) for number in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    pipe.send("done")


def sum_of(store: kvstore.Store) -> int:
    with store.snapshot() as at:
        rows = [row for name in TABLES for row in rows_of(at[name])]
        assert all(row["money"] >= 0 for row in rows)
        return sum(row["money"] for row in rows)


def test_the_sum_is_right_at_every_cut(path: Path) -> None:
    with Child(work, path, 1, 8) as one, Child(work, path, 2, 8) as other, kvstore.open(path) as store:
        waiting = [one, other]
        while waiting:
            assert sum_of(store) == TOTAL
            waiting = [each for each in waiting if not (each.pipe.poll() and each.hear() == "done")]
        one.join()
        other.join()
        moved = sum(row["money"] != EACH for name in TABLES for row in rows_of(store[name]))
        assert moved > 2
        assert sum_of(store) == TOTAL
        assert store.check().ok


class Bank:
    """A store with a replica, a copy that follows it, and processes that transfer.

    Args:
        copies: Directory for the replica, the copy and stores that are restored.
    """

    def __init__(self, path: Path, copies: Path, seed: int, stack: ExitStack) -> None:
        self.kills = 0
        self._path = path
        self._copies = copies
        self._dice = random.Random(seed)
        self._seed = 1000 * seed
        self._stack = stack
        self._store = stack.enter_context(kvstore.open(path))
        self._reader = stack.enter_context(kvstore.open(path, read_only=True))
        self._replica = self._store.add_replica(str(copies / "replica"), "replica")
        self._replica.ship()
        self._follower = stack.enter_context(kvstore.follow(str(copies / "replica"), copies / "copy"))
        self._workers = [self._new_worker() for _ in range(PROCESSES)]

    def _new_worker(self) -> Child:
        self._seed += 1
        return self._stack.enter_context(Child(work, self._path, self._seed, 100_000))

    def step(self) -> None:
        """Something happens; then each process goes on."""
        steps = [self._kill, self._stop, self._read, self._ship, self._restore]
        self._dice.choices(steps, [4, 2, 2, 1, 1])[0]()
        for each in self._workers:
            for _ in range(self._dice.randint(1, 4)):
                assert each.hear() == "transferred"

    def _kill(self) -> None:
        number = self._dice.randrange(PROCESSES)
        self._workers[number].kill()
        self.kills += 1
        self._read()
        self._workers[number] = self._new_worker()

    def _stop(self) -> None:
        """Stop a process anywhere; readers go on, and it may die then."""
        stopped = self._dice.choice(self._workers)
        os.kill(stopped.pid, signal.SIGSTOP)
        with suppress(Unavailable):  # it is within a commit
            assert sum_of(self._reader) == TOTAL
        if self._dice.random() < 0.5:
            self._workers.remove(stopped)
            stopped.kill()
            self.kills += 1
            self._workers.append(self._new_worker())
        else:
            os.kill(stopped.pid, signal.SIGCONT)

    def _read(self) -> None:
        assert sum_of(self._store) == TOTAL
        assert sum_of(self._reader) == TOTAL

    def _ship(self) -> None:
        self._replica.ship()
        self._follower.pull()
        with kvstore.open(self._copies / "copy", read_only=True) as copy:
            assert sum_of(copy) == TOTAL

    def _restore(self) -> None:
        self._replica.ship()
        target = self._copies / "restored"
        kvstore.restore(str(self._copies / "replica"), target)
        with kvstore.open(target) as restored:
            assert sum_of(restored) == TOTAL
            assert restored.check().ok
        rmtree(target)


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 3), *(pytest.param(seed, 20, marks=pytest.mark.long) for seed in range(1, 51))]
)
def test_whatever_happens_to_the_processes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proves: Proves, seed: int, kills: int
) -> None:
    monkeypatch.setattr(cut, "COMMIT_WAIT_SECONDS", 2.0)
    with ExitStack() as stack:
        bank = Bank(path, tmp_path, seed, stack)
        while bank.kills < kills:
            bank.step()
    proves("kill -9 points", bank.kills)
    with kvstore.open(path) as store:
        assert sum_of(store) == TOTAL
        with store.transaction() as tx:
            for name in TABLES:
                tx.upsert(name, {"k": ACCOUNTS, "money": 0})
        report = store.check()
        assert report.ok, report.findings
    assert not list((path / "staging").glob("*"))
