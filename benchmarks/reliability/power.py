"""What a power cut may leave of each store, by the model of the disk that kvstore's own crash tests use.

A process is traced while it commits; after each of its calls the model gives states of the disk: only what is durable;
some of what waits, torn or in another order. If a sync fails, what waited for it is gone, whatever a later sync says,
as Linux has it, and the process goes on as far as the store lets it.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import kvstore  # noqa: F401 - here, and not in each of the children
from benchmarks.reliability.stores import Peer
from benchmarks.reliability.trials import SMALL_ROWS, Found, commits, judged
from tests.crash.states import State, states_of
from tests.crash.syscalls import Call
from tests.crash.trace import UNDISTURBED, Plan, Trace, changes_disk, follow, stop_to_be_traced
from tests.crash.vfs import Disk

COMMITS = 8
ATTEMPTS = 3
MARKS = "marks"


def power_cuts(peer: Peer, states_max: int, work: Path, seed: int) -> Found:
    """States of one run, of both kinds of file systems."""
    place, random = work / "run", Random(seed)
    found = [*_states(_traced(peer, place, seed, UNDISTURBED), place, random)]
    shutil.rmtree(place)
    return Found(peer.name, "power cut", _outcomes(peer, found, states_max, work, random, seed))


def failed_syncs(peer: Peer, syncs_max: int, states_max: int, work: Path, seed: int) -> Found:
    """Of runs of which one sync each fails."""
    place, random, outcomes = work / "run", Random(seed), Counter[str]()
    syncs = sum(call.kind == "sync" for call in _traced(peer, place, seed, UNDISTURBED).calls)
    shutil.rmtree(place)
    for failing in sorted(random.sample(range(syncs), min(syncs, syncs_max))):
        trace = _traced(peer, place, seed, Plan(fail_sync=frozenset({failing})))
        found = [*_states(trace, place, random)]
        shutil.rmtree(place)
        outcomes.update(_outcomes(peer, found, states_max // syncs_max, work, random, seed))
    return Found(peer.name, "failed sync, power cut", dict(outcomes))


def _traced(peer: Peer, place: Path, seed: int, plan: Plan) -> Trace:
    (place / "store").mkdir(parents=True)
    pid = os.fork()
    if not pid:
        try:
            stop_to_be_traced()
            _commit(peer, place, seed)
        finally:
            os._exit(0)
    return follow(pid, str(place), plan)


def _commit(peer: Peer, place: Path, seed: int) -> None:
    marks = os.open(place / MARKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    done = 0

    def acknowledge(_: int) -> None:
        nonlocal done
        done += 1
        os.write(marks, b".")

    every = [*commits(COMMITS, SMALL_ROWS, seed)]
    for _ in range(ATTEMPTS):
        try:
            peer.write(place / "store", every[done:], acknowledge, clean=False)
        except BaseException:  # each store has errors of its own, and Rust's panics are no Exception
            continue
        return


def _states(trace: Trace, place: Path, random: Random) -> Iterator[tuple[State, int]]:
    """Different ones, each with how many commits were acknowledged by then."""
    disk, seen, acknowledged = Disk.holding(str(place), {"store": None}), set[int](), 0
    for call in trace.calls:
        disk.run(call)
        if disk.file(call.fd) == MARKS:
            acknowledged += call.kind == "write"
        elif _changes(call):
            for state in states_of(disk, random, draws=1):
                if state.kind != "kill" and state.key() not in seen:
                    seen.add(state.key())
                    yield state, acknowledged


def _changes(call: Call) -> bool:
    return changes_disk(call) or call.kind == "close"


def _outcomes(
    peer: Peer, found: list[tuple[State, int]], states_max: int, work: Path, random: Random, seed: int
) -> dict[str, int]:
    outcomes, place = Counter[str](), work / "state"
    for state, acknowledged in random.sample(found, min(len(found), states_max)):
        for name, data in sorted(state.contents.items()):
            path = place / name
            if data is None:
                path.mkdir(parents=True, exist_ok=True)
            elif name != MARKS:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        (place / "store").mkdir(parents=True, exist_ok=True)
        outcomes[judged(peer, place / "store", acknowledged, seed)] += 1
        shutil.rmtree(place)
    return dict(outcomes)
