"""One operation held at each of its steps, while each other one runs to its end or waits; then both go on.

Nothing acknowledged is lost, every reader sees the table as it was at some time, no thread waits for ever, and the
store passes its check, also with indexes rebuilt from its files.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeAlias
from unittest.mock import patch

import pytest

from kvstore.bucket import handle
from kvstore.bucket.maintenance import Maintenance
from kvstore.bucket.snapshots import snapshot
from kvstore.bucket.write_path import WritePath
from kvstore.errors import CorruptData
from kvstore.index.index import View
from kvstore.log.segments import LogIdentity
from tests.crash.conftest import Tell
from tests.proof.actors import Actors, actors
from tests.proof.barrier import AFTER, CONTEXTS, HANG_SECONDS, SEAMS, Hang
from tests.proof.budget import budget
from tests.proof.operations import ELSEWHERE, NAMES
from tests.support.proof import Proves

VERIFIED_EVERY = 100
Pair = tuple[str, int, str]
Reading: TypeAlias = Callable[[], AbstractContextManager[View]]
IN_NEED = {"Files.truncate", "Files.remove_tree", "WritePath.restore", "Environment.show_last_commit"}
"""Steps that occur only if a disk refuses or a process died."""


def steps_of(found: Actors) -> dict[str, list[str]]:
    """By operation; the first time it has some that it has never again."""
    return [{name: found.steps(name) for name in NAMES} for _ in range(2)][1]


def pairs(steps: dict[str, list[str]], seed: int) -> list[Pair]:
    """Every operation at every step with every other and itself, in any order."""
    found = [
        (first, at, second)
        for first, names in steps.items()
        for at in range(len(names))
        for second in NAMES
        if not (first in ELSEWHERE and second in ELSEWHERE)  # there is one other process
    ]
    Random(seed).shuffle(found)
    return found


def interleave(count: int, seed: int, work: Path, tell: Tell, proves: Proves) -> None:
    held: Counter[str] = Counter()
    with actors(work) as found:
        steps = steps_of(found)
        chosen = pairs(steps, seed)
        for number, (first, at, second) in enumerate(chosen[:count]):
            try:
                held[first] += found.pair(first, at, second)
                if number % VERIFIED_EVERY == VERIFIED_EVERY - 1:
                    found.world.verify_all()
            except BaseException as error:
                error.add_note(f"{first} held at step {at} ({steps[first][at]}), beside it {second}")
                raise
        found.world.verify_all()
    tell(f"{held.total()} of {len(chosen)} pairs: {dict(held)}")
    assert held.total() >= 0.8 * min(count, len(chosen))
    proves("steps interleaved", held.total())


def at_each_step(found: Actors, first: str, second: str, hang_seconds: float = HANG_SECONDS) -> None:
    for at in range(len(found.steps(first))):
        found.pair(first, at, second, hang_seconds)


def test_pairs(work: Path, tell: Tell, proves: Proves) -> None:
    interleave(budget("pairs", "quick"), 1, work, tell, proves)


@pytest.mark.long
def test_more_pairs(work: Path, tell: Tell, proves: Proves) -> None:
    interleave(budget("pairs", "long"), 2, work, tell, proves)


@pytest.mark.nightly
def test_many_pairs(work: Path, tell: Tell, proves: Proves) -> None:
    interleave(budget("pairs", "nightly"), Random().randrange(2**32), work, tell, proves)


def test_operations_come_to_every_seam(work: Path) -> None:
    with actors(work) as found:
        seen = {name for names in steps_of(found).values() for name in names}
    wanted = {f"{owner.__name__.rpartition('.')[2]}.{name}" for owner, name in [*SEAMS, *CONTEXTS]} | {
        f"after {name}" for name in AFTER
    }
    assert wanted - seen <= IN_NEED


def test_a_snapshot_that_reads_two_moments_is_found(work: Path) -> None:
    """Planted: rows of one transaction, and how far the index is of another."""

    class Moving:
        def __init__(self, reading: Reading, view: View) -> None:
            self._reading, self._view = reading, view

        def __getattr__(self, name: str) -> Any:
            return getattr(self._view, name)

        def state(self) -> Any:
            with self._reading() as view:
                return view.state()

    take = snapshot.take

    def of_two_moments(bucket: Path, identity: LogIdentity, reading: Reading, *rest: Any, **options: Any) -> Any:
        @contextmanager
        def moving() -> Iterator[Any]:
            with reading() as view:
                yield Moving(reading, view)

        return take(bucket, identity, moving, *rest, **options)

    with (
        patch.object(snapshot, "take", of_two_moments),
        patch.object(handle, "OVERLAID_ROWS_MAX", -1),  # the write looks at its rows, and so has them merged
        actors(work) as found,
        pytest.raises(CorruptData, match="other rows than it says"),
    ):
        at_each_step(found, "snapshot", "write")


def test_two_locks_taken_in_different_order_are_found(work: Path) -> None:
    """Planted: maintenance of the log holds a lock that the committer asks for while it holds its bucket's."""
    extra = threading.Lock()
    apply_all, retain = WritePath.apply_all, Maintenance.retain

    def applied(self: WritePath, requests: Any) -> Any:
        with extra:
            return apply_all(self, requests)

    def retained(self: Maintenance) -> None:
        extra.acquire()
        try:
            retain(self)
        finally:
            if extra.locked():
                extra.release()

    with (
        patch.object(WritePath, "apply_all", applied),
        patch.object(Maintenance, "retain", retained),
        actors(work) as found,
    ):
        with pytest.raises(Hang, match="retained"):
            at_each_step(found, "retain", "write", hang_seconds=1)
        extra.release()
