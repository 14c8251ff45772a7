"""Several processes move money between accounts of two tables: at every cut the sum is right, whoever is killed."""

from __future__ import annotations

import random
from pathlib import Path
from threading import Thread

import pytest

import kvstore
from kvstore.errors import TransactionConflict
from tests.support.processes import Child, Pipe
from tests.support.proof import Proves
from tests.support.tables import rows_of

ACCOUNTS, EACH = 6, 100
TABLES = {"checking": 1, "savings": 2}
"""Names, and numbers of buckets."""
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


@pytest.mark.parametrize("trial", [0, *(pytest.param(trial, marks=pytest.mark.long) for trial in range(1, 300))])
def test_the_sum_is_right_after_every_kill(path: Path, proves: Proves, trial: int) -> None:
    dice = random.Random(trial)
    with kvstore.open(path, read_only=True) as reader:
        for kill in range(3):
            with Child(work, path, 10 * trial + kill, 1000) as worker:
                for _ in range(dice.randint(1, 12)):
                    assert worker.hear() == "transferred"
            with kvstore.open(path) as store:
                assert sum_of(store) == TOTAL
            assert sum_of(reader) == TOTAL
            proves("kill -9 points", 1)
    with kvstore.open(path) as store:
        with store.transaction() as tx:
            for name in TABLES:
                tx.upsert(name, {"k": ACCOUNTS, "money": 0})
        report = store.check()
        assert report.ok, report.findings
    assert not list((path / "staging").glob("*"))
