"""Owners and senders are killed at any moment: nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.sending.writers import check, create, write_for_ever
from tests.support.processes import Child

PROCESSES = 3


def kills(path: Path, history: Path, count: int, seed: int, buckets: int) -> None:
    """Kill one of three processes again and again, after a few writes of another one, and start a new one."""
    create(path, buckets)
    random, names = Random(seed), iter(range(10**6))

    def started() -> Child:
        return Child(write_for_ever, path, history, f"p{next(names)}")

    children = [started() for _ in range(PROCESSES)]
    try:
        for _ in range(count):
            witness, *others = random.sample(children, PROCESSES)
            for _ in range(random.randrange(1, 8)):
                witness.hear()
            victim = random.choice(others) if random.random() < 0.5 else witness
            with victim:
                children.remove(victim)
            children.append(started())
        for child in children:
            child.say("enough")
        for child in children:
            while child.hear() != "closed":
                pass
            assert child.join() == 0
    finally:
        for child in children:
            child.__exit__()
    check(path, history)


@pytest.mark.parametrize("buckets", [1, 3])
def test_ten_kills(store_path: Path, tmp_path: Path, buckets: int) -> None:
    kills(store_path, tmp_path / "history", 10, seed=buckets, buckets=buckets)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
def test_two_thousand_kills(store_path: Path, tmp_path: Path, seed: int) -> None:
    kills(store_path, tmp_path / "history", 20, seed=seed + int(os.environ.get("SEED", "0")), buckets=1 + seed % 3)
