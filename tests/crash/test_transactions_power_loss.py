"""Whatever a power cut leaves of transactions over two tables: each is in both or in none, and none that was answered
is lost, although the logs are not synced before the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kvstore.disk.lmdb_files import DATA
from logformat.paths import JOURNAL
from tests.crash.conftest import Tell
from tests.crash.explore import without_noise
from tests.crash.history import Marks
from tests.crash.places import materialised
from tests.crash.recorder import Order, Recorder
from tests.crash.states import states_of
from tests.crash.syscalls import Call
from tests.crash.transfers import TransferScript, steps_in
from tests.crash.vfs import Disk
from tests.crash.workload import MARKS, STORE
from tests.support.proof import Proves

QUICK_STATES_MIN, LONG_STATES_MIN = 25, 5_000


def recorded(recorder: Recorder, directory: Path, script: TransferScript) -> list[Call]:
    directory.mkdir()
    trace = recorder.run(Order("run transfers", directory, script))
    assert trace.status == 0
    return trace.calls


def explored(recorder: Recorder, work: Path, script: TransferScript, share: float, tell: Tell) -> int:
    """Open what may be left after some of the calls; returns the number of states."""
    directory = work / f"run-{script.seed}"
    calls = recorded(recorder, directory, script)
    disk, marks, dice = Disk(str(directory)), Marks(script), Random(script.seed)
    seen: set[int] = set()
    for number, call in enumerate(calls):
        disk.run(call)
        marks.run(call, disk)
        if not marks.window.started or dice.random() >= share:
            continue
        for state in states_of(disk, dice, draws=1):
            contents = without_noise(state.contents)
            key = hash(frozenset(contents.items()))
            if key in seen or f"{STORE}/STORE" not in contents:
                continue
            seen.add(key)
            with materialised(contents, work) as place:
                repairs = len(seen) % 2 == 0
                steps = steps_in(place, script, marks.window.started, repairs=repairs)
            where = f"seed {script.seed}, {state.mode} {state.kind} after call {number}, {repairs=}"
            assert steps >= marks.window.confirmed, where
    tell(f"{len(calls)} calls, {len(seen)} distinct states")
    return len(seen)


def scripts(first: int) -> Iterator[TransferScript]:
    seed = first
    while True:
        yield TransferScript(seed, 8 + seed % 3 * 8)
        seed += 1


def test_power_loss(work: Path, recorder: Recorder, tell: Tell, proves: Proves) -> None:
    states = explored(recorder, work, TransferScript(1, 12), 0.03, tell)
    assert states >= QUICK_STATES_MIN
    proves("crash states", states)


def test_a_transaction_waits_for_its_edit_only(work: Path, recorder: Recorder) -> None:
    """Between its beginning and its answer nothing is synced but the journal of the catalog."""
    script = TransferScript(1, 12)
    directory = work / "run"
    disk, step, synced = Disk(str(directory)), -1, dict[int, set[str]]()
    for call in recorded(recorder, directory, script):
        disk.run(call)
        name = disk.file(call.fd)
        if call.kind == "write" and name == MARKS:
            word, number = call.data.split()
            step = int(number) if word == b"START" else -1
            synced.setdefault(step, set())
        elif call.kind == "sync" and step >= 0 and name is not None:
            synced[step].add(name)
    transactions = [step for step, kind in enumerate(script.kinds()) if kind == "both"]
    transactions = [step for step in transactions if not any(name.endswith(".tmp") for name in synced[step])]
    assert len(transactions) >= 5  # others begin a new segment of a log
    assert [synced[step] for step in transactions] == [{f"{STORE}/{JOURNAL}/{DATA}"}] * len(transactions)


@pytest.mark.long
def test_power_loss_at_length(work: Path, recorder: Recorder, tell: Tell, proves: Proves) -> None:
    states = 0
    for script in scripts(100):
        states += explored(recorder, work, script, 0.5, tell)
        if states >= LONG_STATES_MIN:
            break
    proves("crash states", states)
