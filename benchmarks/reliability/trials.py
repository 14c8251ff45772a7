"""A flipped bit, a killed process, a disk that takes a part of a write: what each store makes of it."""

from __future__ import annotations

import resource
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.reliability import children
from benchmarks.reliability.stores import KEYS, Pairs, Peer, some

COMMITS, ROWS = 20, 100
"""Of what bits are flipped in: so many commits of so many rows."""
SMALL_ROWS = 5
"""Of a commit that is killed or cut short."""
UNSEEN = ("lock.mdb", "LOCK", "LOG", "-shm")
"""Files whose contents are not read after a restart."""


@dataclass(frozen=True, slots=True)
class Found:
    """How often what came of it."""

    store: str
    trial: str
    outcomes: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {"store": self.store, "trial": self.trial, **self.outcomes}


def commits(count: int, rows: int, seed: int) -> Iterator[Pairs]:
    random = Random(seed)
    for number in range(count):
        keys = KEYS[number * rows : (number + 1) * rows]
        yield {key: b"%d-" % number + random.randbytes(12).hex().encode() for key in keys}


def truth(count: int, rows: int, seed: int) -> Pairs:
    return {key: value for pairs in commits(count, rows, seed) for key, value in pairs.items()}


def flips(peer: Peer, trials: int, work: Path, seed: int, *, clean: bool) -> Found:
    """One random bit each time; then a whole scan and lookups.

    Args:
        clean: Else the process ends before anything but the log has the commits. What is flipped in the last of them
            looks like a write that a crash tore, to every log with one copy of its end.
    """
    template, place = work / "template", work / "flipped"
    template.mkdir()
    made = children.run(lambda _: peer.write(template, commits(COMMITS, ROWS, seed), _ignored, clean=clean))
    assert made.how == "done", (peer.name, made)
    files = [path for path in sorted(template.rglob("*")) if path.is_file() and not path.name.endswith(UNSEEN)]
    sizes, random = [path.stat().st_size for path in files], Random(seed)
    expected = truth(COMMITS, ROWS, seed)
    points = {key: expected[key] for key in some(KEYS)}
    outcomes: Counter[str] = Counter()
    shutil.copytree(template, place)
    control = children.run(lambda _: peer.read(place))
    assert control == children.Ended("done", (expected, points)), (peer.name, control)
    shutil.rmtree(place)
    for _ in range(trials):
        shutil.copytree(template, place)
        damaged = place / random.choices(files, sizes)[0].relative_to(template)
        data = bytearray(damaged.read_bytes())
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        damaged.write_bytes(data)
        ended = children.run(lambda _: peer.read(place))
        if ended.how == "done":
            outcomes["harmless" if ended.value == (expected, points) else "silent"] += 1
        else:
            outcomes["detected" if ended.how == "failed" else ended.how] += 1
        shutil.rmtree(place)
    shutil.rmtree(template)
    return Found(peer.name, "flip" if clean else "flip, commits in the log", dict(outcomes))


def kills(peer: Peer, trials: int, work: Path, seed: int) -> Found:
    """``kill -9`` at a random moment."""
    random, outcomes, place = Random(seed), Counter[str](), work / "killed"
    for _ in range(trials):
        place.mkdir()
        ended = children.run(
            lambda tell: peer.write(place, commits(COMMITS * 5, SMALL_ROWS, seed), lambda _: tell(b"."), clean=False),
            kill_after=(random.randrange(1, 30), random.random() * 0.004),
        )
        outcomes[judged(peer, place, len(ended.sent), seed)] += 1
        shutil.rmtree(place)
    return Found(peer.name, "kill -9", dict(outcomes))


def short_writes(peer: Peer, trials: int, work: Path, seed: int) -> Found:
    """No file may go beyond a random size (RLIMIT_FSIZE) until a commit is refused; then there is space again."""
    random, outcomes = Random(seed), Counter[str]()
    place = work / "short"

    def write(tell: Any, limit: int | None) -> None:
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        peer.write(place, commits(COMMITS, SMALL_ROWS, seed), lambda _: tell(b"."), clean=False)

    place.mkdir()
    children.run(lambda tell: write(tell, None))
    largest = max(path.stat().st_size for path in place.rglob("*") if path.is_file() and path.name not in UNSEEN)
    shutil.rmtree(place)
    for _ in range(trials):
        limit = random.randrange(1, largest + 4096)
        place.mkdir()
        ended = children.run(lambda tell: write(tell, limit))  # noqa: B023 - at once
        outcome = judged(peer, place, len(ended.sent), seed)
        if ended.how in ("crash", "hang"):
            outcome = f"{ended.how}, then {outcome}"
        outcomes[outcome] += 1
        shutil.rmtree(place)
    return Found(peer.name, "short write", dict(outcomes))


def judged(peer: Peer, place: Path, acknowledged: int, seed: int) -> str:
    """What is there of commits, some of which were acknowledged, and whether one more can be made."""
    before = children.run(lambda _: peer.read(place)[0])
    if before.how in ("crash", "hang"):
        return before.how
    if before.how == "failed" and acknowledged:
        return "unusable"
    found: Pairs = before.value if before.how == "done" else {}  # it was never quite made
    if found not in (truth(acknowledged, SMALL_ROWS, seed), truth(acknowledged + 1, SMALL_ROWS, seed)):
        return "lost" if len(found) < acknowledged * SMALL_ROWS else "mixed"
    more = {b"zz": b"more"}
    children.run(lambda _: peer.write(place, [more], _ignored, clean=False))
    again = children.run(lambda _: peer.read(place)[0])
    return "right" if again.how == "done" and again.value == found | more else "unusable"


def _ignored(_: int) -> None:
    """Report no progress."""
